/* run_head.c - see run_head.h. */
#include "common/run_head.h"
#include <string.h>
#include "common/le.h"

void run_head_write(const struct run_head *h, unsigned char *out)
{
	size_t n = strnlen(h->model, RUN_HEAD_MODEL - 1);

	le64_put(out, h->run_hi);
	le64_put(out + 8, h->run_lo);
	le64_put(out + 16, h->term);
	le64_put(out + 24, h->version);
	memset(out + 32, 0, RUN_HEAD_MODEL);
	memcpy(out + 32, h->model, n);
}

int run_head_read(const unsigned char *section, size_t size, struct run_head *h)
{
	if (size < RUN_HEAD_BYTES || !section[32] || !memchr(section + 32, 0, RUN_HEAD_MODEL))
		return PS_ECHECKPOINT;
	h->run_hi = le64_get(section);
	h->run_lo = le64_get(section + 8);
	h->term = le64_get(section + 16);
	h->version = le64_get(section + 24);
	memcpy(h->model, section + 32, RUN_HEAD_MODEL);
	return PS_OK;
}

uint64_t run_head_data(
	const unsigned char *run, size_t run_size, const unsigned char *leases, size_t leases_size)
{
	if (run_size < RUN_HEAD_BYTES + 8 || le64_get(run + RUN_HEAD_BYTES) != RUN_HEAD_FORMAT ||
		leases_size < 6 * 8)
		return 0;
	return le64_get(leases + 5 * 8);
}
