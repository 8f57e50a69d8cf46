/* counters.c - see counters.h. */
#include "worker/client/counters.h"
#include <string.h>
#include "common/clock.h"
#include "common/log.h"

int counters_init(struct counters *c)
{
	memset(c, 0, sizeof(*c));
	c->part = TIME_PARTS;
	return uv_mutex_init(&c->time_lock) ? PS_ENOMEM : PS_OK;
}

void counters_release(struct counters *c)
{
	uv_mutex_destroy(&c->time_lock);
}

void counters_version(struct counters *c, uint64_t version)
{
	if (version > atomic_load(&c->last_version))
		atomic_store(&c->last_version, version);
}

void counters_ack(struct counters *c, const struct msg_ack *a)
{
	int ok = a->verdict == VERDICT_OK;

	counters_version(c, a->version);
	if (ok)
		atomic_fetch_add(&c->acked, 1);
	else if (a->superseded)
		atomic_fetch_add(&c->superseded, 1);
	else
		atomic_fetch_add(&c->rejected, 1);
	if (!ok)
		log_debug("net", "rejected", "seq=%llu reason=%d", (unsigned long long)a->seq,
			(int)a->reject);
}

/* Adds the time since the present part began to the time of this part. The caller holds
 * time_lock. */
static void count_part(struct counters *c)
{
	uint64_t now = clock_us();

	if (c->part < TIME_PARTS)
		c->time_us[c->part] += now - c->since_us;
	c->since_us = now;
}

void counters_spend_on(struct counters *c, enum time_part part)
{
	uv_mutex_lock(&c->time_lock);
	count_part(c);
	c->part = part;
	uv_mutex_unlock(&c->time_lock);
}

struct time_split counters_time(struct counters *c)
{
	struct time_split t;

	uv_mutex_lock(&c->time_lock);
	count_part(c);
	t = (struct time_split){.compute_us = c->time_us[TIME_COMPUTE],
		.weights_us = c->time_us[TIME_WEIGHTS],
		.push_us = c->time_us[TIME_PUSH],
		.lease_us = c->time_us[TIME_LEASE],
		.copy_us = c->time_us[TIME_COPY]};
	uv_mutex_unlock(&c->time_lock);
	return t;
}

void counters_stats(struct counters *c, struct cnnps_stats *s)
{
	const struct time_split t = counters_time(c);

	s->pushed = atomic_load(&c->pushed);
	s->acked = atomic_load(&c->acked);
	s->rejected = atomic_load(&c->rejected);
	s->superseded = atomic_load(&c->superseded);
	s->durable = atomic_load(&c->durable);
	s->last_version = atomic_load(&c->last_version);
	s->reconnects = atomic_load(&c->reconnects);
	s->replayed = atomic_load(&c->replayed);
	s->compute_us = t.compute_us;
	s->weights_us = t.weights_us;
	s->push_us = t.push_us;
	s->lease_us = t.lease_us;
	s->copy_us = t.copy_us;
}
