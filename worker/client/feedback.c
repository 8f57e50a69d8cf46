/* feedback.c - see feedback.h. */
#include "worker/client/feedback.h"
#include <stdlib.h>
#include "common/clones.h"
#include "common/mem.h"
#include "proto/bf16.h"

int feedback_init(struct feedback *f, size_t n, size_t n_kept)
{
	f->n_kept = n_kept;
	f->pending = 0;
	f->error = mem_try(n, sizeof(*f->error));
	return f->error ? PS_OK : PS_ENOMEM;
}

void feedback_release(struct feedback *f)
{
	free(f->error);
	f->error = NULL;
}

/* Returns value - rounded, or 0 if one of them is not finite. Without a branch, the compiler can
 * vectorize the loop that calls this function. */
static inline float error_of(float value, uint16_t rounded)
{
	float error = value - bf16_float(rounded);
	uint32_t bits;

	memcpy(&bits, &error, sizeof(bits));
	bits &= -(uint32_t)((rounded & 0x7f80u) != 0x7f80u);
	memcpy(&error, &bits, sizeof(error));
	return error;
}

PS_CLONES static void round_values(float *restrict error, const float *restrict values,
	size_t count, unsigned char *restrict to)
{
	for (size_t i = 0; i < count; i++) {
		float value = values[i] + error[i];
		uint16_t rounded = bf16_of(value);

		memcpy(to + BF16_BYTES * i, &rounded, sizeof(rounded));
		error[i] = error_of(value, rounded);
	}
}

/* Returns how many of the values [offset, offset + count) are fed back. */
static size_t fed_back(const struct feedback *f, uint64_t offset, size_t count)
{
	size_t left = offset < f->n_kept ? f->n_kept - (size_t)offset : 0;

	return left < count ? left : count;
}

void feedback_round(
	struct feedback *f, const float *values, uint64_t offset, size_t count, void *to)
{
	size_t n = fed_back(f, offset, count);

	round_values(f->error + offset, values, n, to);
	f->pending |= n > 0;
	bf16_pack((unsigned char *)to + BF16_BYTES * n, values + n, count - n);
}

int feedback_add(struct feedback *f, float *values, uint64_t offset, size_t count)
{
	size_t n = f->pending ? fed_back(f, offset, count) : 0;

	if (n == 0)
		return 0;
	for (size_t i = 0; i < n; i++)
		values[i] += f->error[offset + i];
	memset(f->error + offset, 0, n * sizeof(*f->error));
	f->pending = n < f->n_kept;
	return 1;
}
