/* core_work.h - leases of a core, and pushes of batches, in a few words. */
#ifndef TESTS_UNIT_CORE_WORK_H
#define TESTS_UNIT_CORE_WORK_H
#include "tests/unit/core_bench.h"

static inline const struct msg_grant *granted(const struct bench *b, uint32_t peer)
{
	const struct msg *m = bench_sent(b, peer, MSG_GRANT);

	return m ? &m->grant : NULL;
}

/* Ask and be granted something at once. */
static inline struct msg_grant grant(
	struct bench *b, uint32_t peer, struct stamp s, uint64_t request)
{
	bench_lease(b, peer, s, request);
	assert_non_null(granted(b, peer));
	assert_int_equal(granted(b, peer)->request, request);
	return *granted(b, peer);
}

/* ... work. */
static inline struct msg_grant lease(
	struct bench *b, uint32_t peer, struct stamp s, uint64_t request)
{
	struct msg_grant g = grant(b, peer, s, request);

	assert_int_equal(g.kind, GRANT_TRAIN);
	return g;
}

static inline void assert_work(
	const struct msg_grant *g, uint32_t epoch, uint32_t first, uint32_t count)
{
	assert_int_equal(g->work.epoch, epoch);
	assert_int_equal(g->work.first, first);
	assert_int_equal(g->work.count, count);
}

static inline struct msg batch(
	struct stamp s, uint64_t seq, uint32_t epoch, uint32_t first, uint32_t count)
{
	struct msg m = bench_push_ones(s, seq);

	bench_work(&m, epoch, first, count);
	return m;
}

#endif
