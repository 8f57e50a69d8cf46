/*
 * cursor.h - a cursor visits the fields of a snapshot in order, and counts their bytes, writes
 * them, or reads them. A pass over the fields counts, writes or reads. In snapshot.c, config.c and
 * snapshot_v5.c, one function for each struct serves for all three kinds of pass.
 *
 * Numbers are little-endian, 8 bytes each. A cursor never reads past the end of its input. The
 * first field that exceeds the input sets the error of the cursor, and this field and all later
 * ones are read as zeros.
 */
#ifndef SERVER_CORE_CURSOR_H
#define SERVER_CORE_CURSOR_H
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include "common/le.h"

#define MALFORMED "a section of it is malformed"

/* A cursor reads if `in` is set, writes if `out` is set, and only counts bytes if both are NULL. */
struct cursor {
	unsigned char *out;      /* writing: the output; NULL: reading or counting */
	const unsigned char *in; /* reading: the input; NULL: writing or counting */
	size_t at, size;         /* at: bytes so far; size: number of bytes of `in` */
	const char *error;       /* the reason why the snapshot is refused; NULL: no error */
	/* 1: the snapshot is sound, but the options of this start do not fit it */
	int is_option_error;
};

/* Sets the error of the cursor. A later error does not replace the first error. */
static inline void set_error(struct cursor *k, const char *why)
{
	if (!k->error)
		k->error = why;
}

/* Sets an error that refuses a sound snapshot, because the options of this start do not fit it. */
static inline void set_option_error(struct cursor *k, const char *why)
{
	if (!k->error)
		k->is_option_error = 1;
	set_error(k, why);
}

static inline void refuse_over(struct cursor *k, uint64_t v, uint64_t max)
{
	if (v > max)
		set_error(k, MALFORMED);
}

static inline void bytes(struct cursor *k, void *p, size_t n)
{
	if (k->in) {
		if (n > k->size - k->at)
			set_error(k, MALFORMED);
		if (k->error) {
			memset(p, 0, n);
			return;
		}
		memcpy(p, k->in + k->at, n);
	} else if (k->out) {
		memcpy(k->out + k->at, p, n);
	}
	k->at += n;
}

/* Writes the `n` bytes at `p`, or only counts them. The cursor must be a writing or counting
 * one. */
static inline void cursor_put(struct cursor *k, const void *p, size_t n)
{
	if (k->out)
		memcpy(k->out + k->at, p, n);
	k->at += n;
}

static inline void u64(struct cursor *k, uint64_t *v)
{
	unsigned char b[8];

	le64_put(b, *v);
	bytes(k, b, sizeof(b));
	*v = le64_get(b);
}

static inline void u32(struct cursor *k, uint32_t *v)
{
	uint64_t x = *v;

	u64(k, &x);
	refuse_over(k, x, UINT32_MAX);
	*v = (uint32_t)x;
}

static inline void flag(struct cursor *k, int *v)
{
	uint64_t x = *v != 0;

	u64(k, &x);
	refuse_over(k, x, 1);
	*v = x == 1;
}

static inline void f64(struct cursor *k, double *v)
{
	uint64_t x;

	memcpy(&x, v, 8);
	u64(k, &x);
	memcpy(v, &x, 8);
}

/* The values of a float32 array are stored as they are in memory, because this program runs only on
 * little-endian machines (le.h). */
static inline void floats(struct cursor *k, float *v, size_t n)
{
	bytes(k, v, n * sizeof(float));
}

static inline void text(struct cursor *k, char *s, size_t room)
{
	bytes(k, s, room);
	if (s[room - 1] != '\0')
		set_error(k, MALFORMED);
}

#endif
