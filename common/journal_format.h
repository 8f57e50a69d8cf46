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
#include "common/le.h"

#define JOURNAL_PREFIX       "journal"
#define JOURNAL_FORMAT       1u
#define JOURNAL_HEAD_BYTES   64u
#define JOURNAL_RECORD_BYTES 48u
#define JOURNAL_HEAD_MAGIC   "CNNPSJNL"
#define JOURNAL_RECORD_MAGIC "CNNPSREC"

static inline uint64_t journal_padded(uint64_t size)
{
	return (size + 7) / 8 * 8;
}

static inline void journal_put_head(
	const struct journal_head *h, unsigned char out[JOURNAL_HEAD_BYTES])
{
	memcpy(out, JOURNAL_HEAD_MAGIC, 8);
	le64_put(out + 8, JOURNAL_FORMAT);
	le64_put(out + 16, h->run_hi);
	le64_put(out + 24, h->run_lo);
	le64_put(out + 32, h->term);
	le64_put(out + 40, h->generation);
	le64_put(out + 48, h->first);
	le64_put(out + 56, XXH3_64bits(out, 56));
}

/* 1 if these are a head of this format. */
static inline int journal_get_head(
	const unsigned char in[JOURNAL_HEAD_BYTES], struct journal_head *h)
{
	*h = (struct journal_head){.run_hi = le64_get(in + 16),
		.run_lo = le64_get(in + 24),
		.term = le64_get(in + 32),
		.generation = le64_get(in + 40),
		.first = le64_get(in + 48)};
	return memcmp(in, JOURNAL_HEAD_MAGIC, 8) == 0 && le64_get(in + 8) == JOURNAL_FORMAT &&
	       le64_get(in + 56) == XXH3_64bits(in, 56);
}

struct journal_record {
	uint64_t generation, seq, group, size, xxh3;
};

static inline void journal_put_record(
	const struct journal_record *r, unsigned char out[JOURNAL_RECORD_BYTES])
{
	memcpy(out, JOURNAL_RECORD_MAGIC, 8);
	le64_put(out + 8, r->generation);
	le64_put(out + 16, r->seq);
	le64_put(out + 24, r->group);
	le64_put(out + 32, r->size);
	le64_put(out + 40, r->xxh3);
}

/* 1 if these look like the head of a record. */
static inline int journal_get_record(
	const unsigned char in[JOURNAL_RECORD_BYTES], struct journal_record *r)
{
	if (memcmp(in, JOURNAL_RECORD_MAGIC, 8) != 0)
		return 0;
	*r = (struct journal_record){le64_get(in + 8), le64_get(in + 16), le64_get(in + 24),
		le64_get(in + 32), le64_get(in + 40)};
	return 1;
}

#endif
