/*
 * le.h - little-endian numbers, as in every file format of this project.
 *
 * The code copies float32 arrays without conversion, so the build fails on a machine with another
 * byte order. The functions are pure, and any thread may call them.
 */
#ifndef COMMON_LE_H
#define COMMON_LE_H
#include <stdint.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ && sizeof(float) == 4,
	"float32 arrays are stored as they lie in memory");

static inline void le32_put(unsigned char *out, uint32_t value)
{
	memcpy(out, &value, sizeof(value));
}

static inline uint32_t le32_get(const unsigned char *in)
{
	uint32_t value;

	memcpy(&value, in, sizeof(value));
	return value;
}

static inline void le64_put(unsigned char *out, uint64_t value)
{
	memcpy(out, &value, sizeof(value));
}

static inline uint64_t le64_get(const unsigned char *in)
{
	uint64_t value;

	memcpy(&value, in, sizeof(value));
	return value;
}

#endif
