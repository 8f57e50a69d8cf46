/*
 * node_wal.c - `--durability always` in the simulator: the server's own write-ahead log and group
 * commit on the simulated disk, replies that wait for the disk, and checks of the state that a
 * start restores. The code takes the same steps as server/dispatch.c and server/server.c.
 */
#include <string.h>
#include "common/xxh3.h"
#include "proto/wire.h"
#include "tests/sim/sim.h"

#define SIM_REQUEST_MS 100 /* minimum interval between two snapshots that the log requests */

void sim_wal_reset(struct sim *s)
{
	struct sim_wal *w = &s->wal;

	w->first = w->n = 0;
	w->sent_version = 0;
	memset(w->seen, 0, sizeof(w->seen));
}

void sim_wal_release(struct sim *s)
{
	wal_free(&s->wal.log);
	s->wal.n = 0;
}

/* ---- replies --------------------------------------------------------------------------------- */

/* Records the version of the weights in a message to a worker. Because a worker has these weights,
 * a restarted server must have them, too. */
static void note_sent(struct sim_wal *w, const struct msg *m)
{
	uint64_t version = m->type == MSG_ACK      ? m->ack.version
			   : m->type == MSG_PARAMS ? m->params.version
						   : 0;

	if (version > w->sent_version)
		w->sent_version = version;
}

static void send_to_node(struct sim *s, const struct item *to, const struct msg *m)
{
	note_sent(&s->wal, m);
	net_send(&s->net, to->node, 0, to, m);
}

static void send_flushed(struct sim *s, uint64_t flushed_lsn)
{
	struct sim_wal *w = &s->wal;

	while (w->n && w->held[w->first].lsn <= flushed_lsn) {
		const struct reply *r = &w->held[w->first];

		send_to_node(s, &r->to, &r->msg);
		w->first = (w->first + 1) % SIM_HELD;
		w->n--;
	}
}

void sim_wal_send(struct sim *s, const struct item *to, const struct msg *m, int durable_first)
{
	struct sim_wal *w = &s->wal;
	int held = w->log && !s->server.over && durable_first;
	struct reply *r;

	if (!held || (!w->n && w->bound <= wal_flushed_lsn(w->log))) {
		send_to_node(s, to, m);
		return;
	}
	if (w->n == SIM_HELD) {
		sim_violation(s, "%u replies wait for the write-ahead log", w->n);
		return;
	}
	r = &w->held[(w->first + w->n++) % SIM_HELD];
	r->lsn = w->bound;
	r->to = *to;
	net_copy(&r->msg, m);
}

void sim_wal_finish(struct sim *s)
{
	/* send all waiting replies, because the last checkpoint contains all events */
	send_flushed(s, UINT64_MAX);
}

/* ---- events ---------------------------------------------------------------------------------- */

static void on_sim_committed(void *arg)
{
	struct sim *s = arg;

	if (!s->server.over)
		send_flushed(s, wal_flushed_lsn(s->wal.log));
}

uint64_t sim_wal_event(struct sim *s, const struct event *ev)
{
	struct frames f;
	uint64_t lsn;

	if (!s->wal.log || s->server.over)
		return 0;
	frames_init(&f);
	if (ev->kind == EVENT_MESSAGE && wire_encode(ev->msg, &f))
		sim_violation(s, "a message that the wire does not take");
	lsn = wal_append(s->wal.log, ev, sim_clock(s, SIM_SERVER), f.n ? &f : NULL, "");
	frames_release(&f);
	return lsn;
}

static uint64_t hash_of_weights(const struct sim *s)
{
	return XXH3_64bits(core_weights(s->server.core), s->cfg.n_params * sizeof(float));
}

void sim_wal_stepped(struct sim *s, uint64_t lsn)
{
	const struct core *c = s->server.core;
	struct sim_wal *w = &s->wal;
	uint64_t version = core_stats(c)->version;

	if (lsn && core_effect(c, 0) && core_effect(c, 0)->kind == EFFECT_COMMIT) {
		w->bound = lsn;
		wal_flush(w->log);
	}
	if (w->log && core_new_versions(c) > 0)
		w->seen[version % SIM_VERSIONS] = (struct seen){version, hash_of_weights(s)};
}

void sim_wal_rotate(struct sim *s, uint64_t generation)
{
	if (s->wal.log)
		wal_rotate(s->wal.log, generation);
}

void sim_wal_durable(struct sim *s, uint64_t generation)
{
	if (!s->wal.log)
		return;
	wal_checkpointed(s->wal.log, generation);
	send_flushed(s, wal_flushed_lsn(s->wal.log));
}

uint64_t sim_wal_held_ms(struct sim *s)
{
	struct sim_wal *w = &s->wal;

	if (!w->log || s->server.over)
		return 0;
	disk_wait_tick(&w->disk_wait, w->log, NULL, w->bound, sim_clock(s, SIM_SERVER));
	return w->disk_wait.held_ms;
}

int sim_wal_wants_snapshot(struct sim *s)
{
	struct sim_wal *w = &s->wal;
	uint64_t now = sim_clock(s, SIM_SERVER);

	if (!w->log || s->server.over || checkpointer_busy(s->server.checkpointer) ||
		!wal_wants_snapshot(w->log) || now - w->request_ms < SIM_REQUEST_MS)
		return 0;
	w->request_ms = now;
	return 1;
}

/* ---- starts ---------------------------------------------------------------------------------- */

int sim_wal_open(struct sim *s, struct err *e)
{
	const struct core_config *cfg = core_config(s->server.state.core);
	const struct wal_config config = {.dir = DISK_DIRECTORY,
		.run = cfg->run,
		.term = cfg->term,
		.generation = cfg->generation,
		.max_bytes = s->options.wal_bytes,
		.done = on_sim_committed,
		.arg = s};

	s->wal.bound = s->wal.request_ms = 0;
	s->wal.disk_wait = (struct disk_wait){0};
	if (cfg->checkpoint.wal)
		return wal_new(&s->wal.log, &config, e);
	wal_remove_files(DISK_DIRECTORY, cfg->generation - 1);
	return PS_OK;
}

void sim_wal_check_restored(struct sim *s)
{
	struct sim_wal *w = &s->wal;
	uint64_t version = core_stats(s->server.core)->version;
	const struct seen *before = &w->seen[version % SIM_VERSIONS];

	if (!w->log)
		return;
	if (version < w->sent_version && !s->disk.broken)
		sim_violation(s, "version %llu was sent to a worker; the start finds %llu",
			(unsigned long long)w->sent_version, (unsigned long long)version);
	if (before->version == version && version && before->hash != hash_of_weights(s) &&
		!s->disk.broken)
		sim_violation(s, "version %llu is not, bit for bit, what it was",
			(unsigned long long)version);
	w->sent_version = version;
}
