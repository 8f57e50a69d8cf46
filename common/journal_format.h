/*
 * journal_format.h - the bytes of a journal's head and records (journal.h): for journal.c and
 * journal_read.c.
 */
#ifndef COMMON_JOURNAL_FORMAT_H
#define COMMON_JOURNAL_FORMAT_H
#include <stdint.h>
#include <string.h>
#include <xxhash.h>
#include "common/journal.h"

#define JOURNAL_PREFIX       "journal"
#define JOURNAL_FORMAT       1u
#define JOURNAL_HEAD_BYTES   64u
#define JOURNAL_RECORD_BYTES 48u
#define JOURNAL_HEAD_MAGIC   "CNNPSJNL"
#define JOURNAL_RECORD_MAGIC "CNNPSREC"

static inline void put64(unsigned char *out, uint64_t value)
{
	for (int i = 0; i < 8; i++)
		out[i] = (unsigned char)(value >> (8 * i));
}

static inline uint64_t get64(const unsigned char *in)
{
	uint64_t value = 0;

	for (int i = 0; i < 8; i++)
		value |= (uint64_t)in[i] << (8 * i);
	return value;
}

static inline uint64_t journal_padded(uint64_t size)
{
	return (size + 7) / 8 * 8;
}

static inline void journal_put_head(
	const struct journal_head *h, unsigned char out[JOURNAL_HEAD_BYTES])
{
	memcpy(out, JOURNAL_HEAD_MAGIC, 8);
	put64(out + 8, JOURNAL_FORMAT);
	put64(out + 16, h->run_hi);
	put64(out + 24, h->run_lo);
	put64(out + 32, h->term);
	put64(out + 40, h->generation);
	put64(out + 48, h->first);
	put64(out + 56, XXH3_64bits(out, 56));
}

/* 1 if these are a head of this format. */
static inline int journal_get_head(
	const unsigned char in[JOURNAL_HEAD_BYTES], struct journal_head *h)
{
	*h = (struct journal_head){.run_hi = get64(in + 16),
		.run_lo = get64(in + 24),
		.term = get64(in + 32),
		.generation = get64(in + 40),
		.first = get64(in + 48)};
	return memcmp(in, JOURNAL_HEAD_MAGIC, 8) == 0 && get64(in + 8) == JOURNAL_FORMAT &&
	       get64(in + 56) == XXH3_64bits(in, 56);
}

struct journal_record {
	uint64_t generation, seq, group, size, xxh3;
};

static inline void journal_put_record(
	const struct journal_record *r, unsigned char out[JOURNAL_RECORD_BYTES])
{
	memcpy(out, JOURNAL_RECORD_MAGIC, 8);
	put64(out + 8, r->generation);
	put64(out + 16, r->seq);
	put64(out + 24, r->group);
	put64(out + 32, r->size);
	put64(out + 40, r->xxh3);
}

/* 1 if these look like the head of a record. */
static inline int journal_get_record(
	const unsigned char in[JOURNAL_RECORD_BYTES], struct journal_record *r)
{
	if (memcmp(in, JOURNAL_RECORD_MAGIC, 8) != 0)
		return 0;
	*r = (struct journal_record){
		get64(in + 8), get64(in + 16), get64(in + 24), get64(in + 32), get64(in + 40)};
	return 1;
}

#endif
