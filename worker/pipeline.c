/* pipeline.c - leases of which the device needs nothing from a pull to its push: it keeps weights
 * and sum. See steps_impl.h. */
#include "common/clock.h"
#include "worker/steps_impl.h"

/* Batches of one call: then a stop is seen, and by the server that we live. */
#define MOST_AT_ONCE 64

/*
 * Local steps on whole batches from i on, `left` at most; *done of them in one call. Batches lie
 * one after the other in the epoch's order. A mask of dropout has a seed for each batch: one at a
 * time.
 */
static int step_on_device(struct steps *s, const struct cnnps_lease *l, uint32_t i, uint32_t left,
	struct sum *sum, uint32_t *done)
{
	const uint32_t *index, *last;
	uint32_t images, least;
	uint64_t seed;
	double start;
	int status = steps_take(s, l, i, &index, &images, &seed);

	*done = s->has_dropout ? 1 : left < MOST_AT_ONCE ? left : MOST_AT_ONCE;
	if (!status && *done > 1)
		status =
			batches_get(&s->batches, l->epoch, l->first + i + *done - 1, &last, &least);
	if (status)
		return status;
	if (*done > 1 && least != images)
		(*done)--; /* the epoch's last batch is a smaller one */
	start = clock_seconds();
	status = backend_local_steps(
		s->backend, index, images, *done, (float)s->info->local_rate, seed);
	if (status)
		return status;
	s->work->seconds += clock_seconds() - start;
	steps_note(s, l, i, *done, *done * images, 0, sum);
	return PS_OK;
}

static uint32_t burst_at(const struct steps *s, const struct cnnps_lease *l, uint32_t i)
{
	return l->count - i < s->info->n_push ? l->count - i : s->info->n_push;
}

/* From a pull to its push nothing needs the host: the device keeps weights and sum. */
static int launch(
	struct steps *s, const struct cnnps_lease *l, uint32_t i, uint32_t count, struct sum *sum)
{
	int status = steps_hold(s);
	uint32_t done;

	*sum = (struct sum){.version = s->held.version};
	if (!status)
		status = backend_local_start(s->backend, s->held.w);
	for (uint32_t left = count; left && !status; left -= done)
		status = step_on_device(s, l, i + count - left, left, sum, &done);
	return status;
}

/* Have the sum of the burst that was launched last brought to the host. */
static int call_back(struct steps *s, struct sum *sum)
{
	sum->g = cnnps_gradient(s->c);
	return sum->g ? backend_local_finish(s->backend, NULL, sum->g) : PS_ENOMEM;
}

/* Wait for a burst that was called back. */
static int land(struct steps *s, struct sum *sum)
{
	double loss, start = clock_seconds();
	int status = backend_local_wait(s->backend, &loss);

	if (status)
		return status;
	s->work->seconds += clock_seconds() - start;
	sum->loss = loss * sum->work.images;
	return PS_OK;
}

/* One after the other: the weights for the next one come with the answer to the push. */
int bursts_run(struct steps *s, const struct cnnps_lease *l)
{
	struct sum sum;
	uint32_t count;
	int status = PS_OK;

	for (uint32_t i = 0; i < l->count && !status; i += count) {
		count = burst_at(s, l, i);
		status = launch(s, l, i, count, &sum);
		if (!status)
			status = call_back(s, &sum);
		if (!status)
			status = land(s, &sum);
		if (!status)
			status = steps_deliver(
				s, &sum, sum.version, steps_divisor(s, &sum), i + count < l->count);
	}
	return status;
}

/* What is to be sent next: it is divided now, for then it will be waited for. */
static int land_ahead(struct steps *s, struct sum *flying, struct sum *landed)
{
	int status = land(s, flying);

	if (status)
		return status;
	if (steps_divisor(s, flying) > 1)
		steps_divide(flying->g, (float)steps_divisor(s, flying), s->info->n_params);
	*landed = *flying;
	return PS_OK;
}

/*
 * With prefetch the device has a burst in hand, the sum of the one before it waits, and that of the
 * one before that is on its way, while weights for the next one come: these have none of the three.
 * Whatever is to be sent goes as soon as weights are here, before they are looked through: the way
 * to the server, what that does with a sum, and the way back are what takes longest.
 */
int bursts_run_ahead(struct steps *s, const struct cnnps_lease *l)
{
	struct sum next, flying = {.g = NULL}, landed = {.g = NULL};
	const uint32_t *index;
	uint32_t count, images;
	uint64_t seed;
	int status = cnnps_prefetch(s->c);

	if (!status) /* meanwhile the order of a new epoch is made */
		status = steps_take(s, l, 0, &index, &images, &seed);
	for (uint32_t i = 0; i < l->count && !status; i += count) {
		count = burst_at(s, l, i);
		status = cnnps_await(s->c);
		if (!status && i + count < l->count)
			status = cnnps_prefetch(s->c);
		if (!status && landed.g)
			status = steps_deliver(s, &landed, landed.version, 1, 0);
		if (!status && i)
			status = call_back(s, &flying);
		if (!status)
			status = launch(s, l, i, count, &next);
		if (!status && i)
			status = land_ahead(s, &flying, &landed);
		flying = next;
	}
	if (!status && landed.g)
		status = steps_deliver(s, &landed, landed.version, 1, 0);
	if (!status)
		status = call_back(s, &flying);
	if (!status)
		status = land_ahead(s, &flying, &landed);
	return status ? status : steps_deliver(s, &landed, landed.version, 1, 0);
}
