/* shuffled_engine.c - see shuffled_engine.h. */
#include "tests/support/shuffled_engine.h"
#include "common/assert.h"

static size_t common_divisor(size_t a, size_t b)
{
	return b ? common_divisor(b, a % b) : a;
}

static void run_until(struct shuffled_engine *e, const struct engine_job *job, size_t ran)
{
	for (; e->ran < ran; e->ran++) {
		job->run(job->arg, e->at);
		e->at = (e->at + e->stride) % job->n;
	}
}

static void begin_shuffled(void *self, const struct engine_job *job)
{
	struct shuffled_engine *e = self;
	uint64_t mix = ++e->jobs * 0x9e3779b97f4a7c15u;

	e->ran = 0;
	e->at = e->in_order ? 0 : (size_t)(mix >> 32) % job->n;
	e->stride = e->in_order ? 1 : 1 + (size_t)(mix >> 16 & 0xffff) % job->n;
	while (common_divisor(e->stride, job->n) != 1)
		e->stride++;
	run_until(e, job, e->in_order ? 0 : (size_t)(mix >> 40) % (job->n + 1));
}

static void wait_for_shuffled(void *self, const struct engine_job *job, size_t block)
{
	struct shuffled_engine *e = self;

	PS_ASSERT(block < job->n);
	run_until(e, job, e->in_order ? block + 1 : job->n);
}

void shuffled_engine_init(struct shuffled_engine *e, size_t block, int in_order)
{
	*e = (struct shuffled_engine){.engine = {.begin = begin_shuffled,
					      .wait = wait_for_shuffled,
					      .self = e,
					      .block = block},
		.in_order = in_order};
}
