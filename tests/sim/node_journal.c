/*
 * node_journal.c - `--durability always` in the simulator: the server's own write-ahead log and
 * group commit on the simulated disk, replies that wait for the disk, and what a start must
 * restore. It follows server/dispatch.c and server.c.
 */
#include <string.h>
#include <xxhash.h>
#include "proto/wire.h"
#include "tests/sim/sim.h"

#define ASK_MS 100 /* minimum interval between two snapshots that the log requests */

void journal_reset(struct sim *s)
{
	struct sim_journal *j = &s->journal;

	j->first = j->n = 0;
	j->told_version = 0;
	memset(j->seen, 0, sizeof(j->seen));
}

void journal_release(struct sim *s)
{
	wal_free(&s->journal.wal);
	s->journal.n = 0;
}

/* ---- replies --------------------------------------------------------------------------------- */

/* A version that the server has sent to a worker must survive a crash. */
static void note_told(struct sim_journal *j, const struct msg *m)
{
	uint64_t version = m->type == MSG_ACK      ? m->ack.version
			   : m->type == MSG_PARAMS ? m->params.version
						   : 0;

	if (version > j->told_version)
		j->told_version = version;
}

static void leave(struct sim *s, const struct item *to, const struct msg *m)
{
	note_told(&s->journal, m);
	net_send(&s->net, to->node, 0, *to, m);
}

static void flush(struct sim *s, uint64_t reached)
{
	struct sim_journal *j = &s->journal;

	while (j->n && j->held[j->first].position <= reached) {
		const struct reply *r = &j->held[j->first];

		leave(s, &r->to, &r->msg);
		j->first = (j->first + 1) % SIM_HELD;
		j->n--;
	}
}

void journal_say(struct sim *s, const struct item *to, const struct msg *m, int durable_first)
{
	struct sim_journal *j = &s->journal;
	int held = j->wal && !s->server.over && durable_first;

	if (!held || (!j->n && j->bound <= wal_flushed_lsn(j->wal))) {
		leave(s, to, m);
		return;
	}
	if (j->n == SIM_HELD) {
		sim_violation(s, "%u replies wait for the journal", j->n);
		return;
	}
	j->held[(j->first + j->n++) % SIM_HELD] = (struct reply){j->bound, *to, *m};
}

void journal_finish(struct sim *s)
{
	flush(s, UINT64_MAX); /* the last checkpoint contains all events */
}

/* ---- events ---------------------------------------------------------------------------------- */

static void on_committed(void *arg)
{
	struct sim *s = arg;

	if (!s->server.over)
		flush(s, wal_flushed_lsn(s->journal.wal));
}

uint64_t journal_event(struct sim *s, const struct event *ev)
{
	struct frames f;
	uint64_t position;

	if (!s->journal.wal || s->server.over)
		return 0;
	frames_init(&f);
	if (ev->kind == EVENT_MESSAGE && wire_encode(ev->msg, &f))
		sim_violation(s, "a message that the wire does not take");
	position = wal_append(s->journal.wal, ev, sim_clock(s, SIM_SERVER), f.n ? &f : NULL);
	frames_release(&f);
	return position;
}

static uint64_t hash_of(const struct sim *s)
{
	return XXH3_64bits(core_weights(s->server.core), s->cfg.n_params * sizeof(float));
}

void journal_stepped(struct sim *s, uint64_t position, uint64_t version_before)
{
	const struct core *c = s->server.core;
	struct sim_journal *j = &s->journal;
	uint64_t version = core_stats(c)->version;

	if (position && core_effect(c, 0) && core_effect(c, 0)->kind == EFFECT_COMMIT) {
		j->bound = position;
		wal_flush(j->wal);
	}
	if (j->wal && version != version_before)
		j->seen[version % SIM_VERSIONS] = (struct seen){version, hash_of(s)};
}

void journal_rotate(struct sim *s, uint64_t generation)
{
	if (s->journal.wal)
		wal_rotate(s->journal.wal, generation);
}

void journal_durable(struct sim *s, uint64_t generation)
{
	if (!s->journal.wal)
		return;
	wal_checkpointed(s->journal.wal, generation);
	flush(s, wal_flushed_lsn(s->journal.wal));
}

uint64_t journal_held_ms(struct sim *s)
{
	struct sim_journal *j = &s->journal;

	if (!j->wal || s->server.over)
		return 0;
	disk_wait_tick(&j->disk_wait, j->wal, NULL, j->bound, sim_clock(s, SIM_SERVER));
	return j->disk_wait.held_ms;
}

void journal_tick(struct sim *s)
{
	struct sim_journal *j = &s->journal;
	uint64_t now = sim_clock(s, SIM_SERVER);

	if (!j->wal || s->server.over || checkpointer_busy(s->server.checkpointer) ||
		!wal_wants_snapshot(j->wal) || now - j->asked_ms < ASK_MS)
		return;
	j->asked_ms = now;
	server_event(s, &(struct event){.kind = EVENT_SAVE});
}

/* ---- starts ---------------------------------------------------------------------------------- */

int journal_boot(struct sim *s, struct err *e)
{
	const struct core_config *cfg = core_config(s->server.state.core);
	const struct wal_config config = {.dir = DISK_DIRECTORY,
		.run = cfg->run,
		.term = cfg->term,
		.generation = cfg->generation,
		.max_bytes = s->options.wal_bytes,
		.done = on_committed,
		.arg = s};

	s->journal.bound = s->journal.asked_ms = 0;
	s->journal.disk_wait = (struct disk_wait){0};
	if (cfg->checkpoint.wal)
		return wal_new(&s->journal.wal, &config, e);
	wal_remove_files(DISK_DIRECTORY, cfg->generation - 1);
	return PS_OK;
}

void journal_found(struct sim *s)
{
	struct sim_journal *j = &s->journal;
	uint64_t version = core_stats(s->server.core)->version;
	const struct seen *before = &j->seen[version % SIM_VERSIONS];

	if (!j->wal)
		return;
	if (version < j->told_version && !s->disk.broken)
		sim_violation(s, "version %llu was told to somebody; the start finds %llu",
			(unsigned long long)j->told_version, (unsigned long long)version);
	if (before->version == version && version && before->hash != hash_of(s) && !s->disk.broken)
		sim_violation(s, "version %llu is not, bit for bit, what it was",
			(unsigned long long)version);
	j->told_version = version;
}
