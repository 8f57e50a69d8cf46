/* counters.c - see counters.h. */
#include "worker/client/counters.h"
#include "common/log.h"

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

struct time_split counters_time(const struct counters *c)
{
	const atomic_uint_least64_t *us = c->time_us;

	return (struct time_split){.compute_us = atomic_load(&us[TIME_COMPUTE]),
		.weights_us = atomic_load(&us[TIME_WEIGHTS]),
		.push_us = atomic_load(&us[TIME_PUSH]),
		.lease_us = atomic_load(&us[TIME_LEASE]),
		.copy_us = atomic_load(&us[TIME_COPY])};
}

void counters_stats(const struct counters *c, struct cnnps_stats *s)
{
	s->pushed = atomic_load(&c->pushed);
	s->acked = atomic_load(&c->acked);
	s->rejected = atomic_load(&c->rejected);
	s->superseded = atomic_load(&c->superseded);
	s->durable = atomic_load(&c->durable);
	s->last_version = atomic_load(&c->last_version);
	s->reconnects = atomic_load(&c->reconnects);
	s->replayed = atomic_load(&c->replayed);
	s->compute_us = atomic_load(&c->time_us[TIME_COMPUTE]);
	s->weights_us = atomic_load(&c->time_us[TIME_WEIGHTS]);
	s->push_us = atomic_load(&c->time_us[TIME_PUSH]);
	s->lease_us = atomic_load(&c->time_us[TIME_LEASE]);
	s->copy_us = atomic_load(&c->time_us[TIME_COPY]);
}
