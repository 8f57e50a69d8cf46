/* run_head.c - see run_head.h. */
#include <string.h>
#include "common/run_head.h"

static void put_u64(unsigned char *out, uint64_t v)
{
	for (int i = 0; i < 8; i++)
		out[i] = (unsigned char)(v >> (8 * i));
}

static uint64_t get_u64(const unsigned char *in)
{
	uint64_t v = 0;

	for (int i = 0; i < 8; i++)
		v |= (uint64_t)in[i] << (8 * i);
	return v;
}

void run_head_write(const struct run_head *h, unsigned char *out)
{
	size_t n = strnlen(h->model, RUN_HEAD_MODEL - 1);

	put_u64(out, h->run_hi);
	put_u64(out + 8, h->run_lo);
	put_u64(out + 16, h->term);
	put_u64(out + 24, h->version);
	memset(out + 32, 0, RUN_HEAD_MODEL);
	memcpy(out + 32, h->model, n);
}

int run_head_read(const unsigned char *section, size_t size, struct run_head *h)
{
	if (size < RUN_HEAD_BYTES || !section[32] || !memchr(section + 32, 0, RUN_HEAD_MODEL))
		return PS_ECHECKPOINT;
	h->run_hi = get_u64(section);
	h->run_lo = get_u64(section + 8);
	h->term = get_u64(section + 16);
	h->version = get_u64(section + 24);
	memcpy(h->model, section + 32, RUN_HEAD_MODEL);
	return PS_OK;
}
