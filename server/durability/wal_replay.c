/* wal_replay.c - see wal.h. The functions repeat the steps that the core took after a
 * checkpoint. */
#include "server/durability/wal.h"
#include <stdio.h>
#include <stdlib.h>
#include "common/clock.h"
#include "common/wal_file.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/model.h"
#include "common/run_head.h"
#include "server/config/fill_model.h"
#include "server/core/snapshot.h"
#include "server/durability/wal_record.h"

struct replay {
	const char *dir;
	struct core_config cfg; /* its term is the term of the server that wrote the log */
	void *memory;           /* memory of the core, from mem_lazy */
	size_t memory_bytes;
	float *weights;
	struct core *core;
	struct wal_record_reader events;
	uint64_t now_ms, count, files;
	/* generation of the snapshot that the last event caused, or 0 if it caused none */
	uint64_t next;
};

/* ---- the core at the checkpoint -------------------------------------------------------------- */

static int refuse_log(const struct replay *r, uint64_t generation, const char *why, struct err *e)
{
	return err_set(e, PS_ECHECKPOINT, "%.200s: the log file of checkpoint %llu: %s", r->dir,
		(unsigned long long)generation, why);
}

static int locate_sections(const struct replay *r, const struct checkpoint *c,
	const unsigned char *data[SNAPSHOT_SECTIONS], size_t size[SNAPSHOT_SECTIONS], struct err *e)
{
	for (int i = 0; i < SNAPSHOT_SECTIONS; i++) {
		const struct checkpoint_section *s = checkpoint_find(c, snapshot_names[i]);

		if (!s && !SNAPSHOT_MAY_LACK(i))
			return refuse_log(r, c->generation, "the checkpoint lacks a section", e);
		data[i] = s ? s->data : NULL;
		size[i] = s ? s->size : 0;
	}
	return PS_OK;
}

/* Finds the running statistics of batchnorm in the model of `cfg`. If this release cannot parse the
 * model, cfg->running stays empty. */
static void find_running(struct core_config *cfg)
{
	struct model *m = mem_try(1, sizeof(*m));
	struct err e;

	if (m && model_parse(m, cfg->model, MODEL_MNIST, &e) == PS_OK)
		fill_running(cfg, m);
	free(m);
}

static int build_core(struct replay *r, const struct checkpoint *c, struct err *e)
{
	const unsigned char *data[SNAPSHOT_SECTIONS] = {0};
	size_t size[SNAPSHOT_SECTIONS] = {0};
	const char *why;
	int rc = locate_sections(r, c, data, size, e);

	if (rc)
		return rc;
	/* check that the checkpoint has n_params weights before allocating a core of this size */
	if (snapshot_config(data[SNAPSHOT_SESSIONS], size[SNAPSHOT_SESSIONS], &r->cfg) ||
		size[SNAPSHOT_WEIGHTS] != r->cfg.n_params * sizeof(float))
		return refuse_log(
			r, c->generation, "the checkpoint's configuration is malformed", e);
	find_running(&r->cfg);
	r->memory_bytes = core_bytes(&r->cfg);
	r->memory = mem_lazy(r->memory_bytes);
	r->weights = mem_try(r->cfg.n_params, sizeof(float));
	if (!r->memory || !r->weights || wal_record_reader_init(&r->events, r->cfg.n_params))
		return err_set(e, PS_ENOMEM, "no memory to replay the log");
	if (snapshot_decode_running(r->memory, r->weights, &r->cfg, data, size, &r->core, &why))
		return refuse_log(r, c->generation, why, e);
	return PS_OK;
}

/* ---- the events ----------------------------------------------------------------------------- */

static int take_step(struct replay *r, const unsigned char *data, size_t size)
{
	const struct effect *e;
	int rc = wal_record_read(&r->events, data, size);

	if (rc)
		return rc;
	if (r->events.now_ms < r->now_ms)
		return PS_EPROTO;
	r->now_ms = r->events.now_ms;
	core_step(r->core, &r->events.event, r->now_ms);
	r->count++;
	for (size_t i = 0; (e = core_effect(r->core, i)) != NULL; i++)
		if (e->kind == EFFECT_SNAPSHOT)
			r->next = e->generation;
	return PS_OK;
}

/* Checks that `data`, the record after snapshot r->next, is the mark of this snapshot. */
static int skip_mark(struct replay *r, const unsigned char *data, size_t size)
{
	if (wal_record_is_mark(data, size) != r->next)
		return PS_EPROTO;
	r->next = 0;
	return PS_OK;
}

/* Replays the events of a file. After a snapshot, the next events follow the mark of this snapshot
 * in the same file, or are in a new file. */
static int take_steps(struct replay *r, struct wal_reader *j, struct err *e)
{
	const unsigned char *data;
	size_t size;
	int rc;

	while ((rc = wal_reader_next(j, &data, &size, e)) == 1)
		if (r->next ? skip_mark(r, data, size) : take_step(r, data, size))
			return refuse_log(r, j->head.generation,
				"it has an event that this program does not understand: was it "
				"written by another version?",
				e);
	return rc;
}

/* Checks the end of the last file. An incomplete record at the end is no loss, because its event
 * was never durable. A gap between records means that the disk has lost durable events. */
static int check_end(struct replay *r, struct wal_reader *j, int accept_loss, struct err *e)
{
	uint64_t generation = j->head.generation;
	int broken = wal_reader_has_gap(j, e);

	if (broken <= 0)
		return broken;
	if (!accept_loss)
		return refuse_log(r, generation,
			"the disk has lost durable events in the middle of it; "
			"--accept-rollback resumes from the state before them",
			e);
	log_error("wal", "lost_events", "generation=%llu kept=%llu", (unsigned long long)generation,
		(unsigned long long)r->count);
	return PS_OK;
}

/* Replays the file `j` and opens the next file in *j; j->fd is negative if there is no next
 * file. */
static int replay_file(struct replay *r, struct wal_reader *j, int accept_loss, struct err *e)
{
	struct wal_reader next = {.fd = -1};
	const struct wal_head *h = &j->head;

	/* term 0 means that the header of the file is lost; in this case only check_end checks the
	 * file */
	if (h->term && (h->run_hi != r->cfg.run.hi || h->run_lo != r->cfg.run.lo ||
			       h->term != r->cfg.term))
		return refuse_log(
			r, h->generation, "another run, or another term of this run, wrote it", e);
	r->files++;
	int rc = take_steps(r, j, e);
	if (!rc && r->next)
		rc = wal_reader_open(&next, r->dir, r->next, j->max_payload, e);
	if (!rc && next.fd < 0)
		rc = check_end(r, j, accept_loss, e);
	r->next = 0;
	wal_reader_release(j);
	*j = next;
	return rc;
}

/* ---- the state at the end ----------------------------------------------------------------- */

static int encode_sections(struct replay *r, struct checkpoint *c, struct err *e)
{
	size_t size[SNAPSHOT_SECTIONS], bytes = 0;

	for (int i = 0; i < SNAPSHOT_SECTIONS; i++)
		bytes += size[i] = snapshot_size(r->core, (enum snapshot_section)i);
	unsigned char *at = mem_try(bytes, 1);
	if (!at)
		return err_set(e, PS_ENOMEM, "no memory for a snapshot of %zu bytes", bytes);
	free(c->memory);
	c->memory = at;
	c->n_sections = 0;
	for (int i = 0; i < SNAPSHOT_SECTIONS; i++) {
		struct checkpoint_section *s = &c->section[c->n_sections];

		if (SNAPSHOT_MAY_LACK(i) && size[i] == 0)
			continue;
		c->n_sections++;
		(void)snapshot_encode(r->core, (enum snapshot_section)i, at, size[i], NULL);
		*s = (struct checkpoint_section){.data = at, .size = size[i]};
		snprintf(s->name, sizeof(s->name), "%s", snapshot_names[i]);
		at += size[i];
	}
	return PS_OK;
}

/* ---- the first file -------------------------------------------------------------------------- */

/* Returns 1 if the file and the checkpoint were written in the same term, or if the file's header
 * is lost. */
static int is_of_same_term(const struct wal_head *h, const struct checkpoint *c)
{
	const struct checkpoint_section *s = checkpoint_find(c, RUN_HEAD_SECTION);
	struct run_head run;

	return h->term == 0 ||
	       (s && run_head_read(s->data, s->size, &run) == PS_OK && h->run_hi == run.run_hi &&
		       h->run_lo == run.run_lo && h->term == run.term);
}

/* Skips the records up to the mark of snapshot `generation`. If the file has no such mark, no event
 * after the snapshot was synced, so nothing is left to replay. */
static int find_mark(struct wal_reader *j, uint64_t generation, struct err *e)
{
	const unsigned char *data;
	size_t size;
	int rc;

	while ((rc = wal_reader_next(j, &data, &size, e)) == 1)
		if (wal_record_is_mark(data, size) == generation)
			return PS_OK;
	return rc;
}

/* Opens the file with the first event after the checkpoint: the checkpoint's own file, or the file
 * of an older snapshot if the snapshots between the two have failed. j->fd is negative if there is
 * no such file. */
static int open_first(
	const char *dir, const struct checkpoint *c, struct wal_reader *j, struct err *e)
{
	const struct checkpoint_section *weights = checkpoint_find(c, RUN_HEAD_WEIGHTS);
	size_t max = wal_record_max(weights ? weights->size / sizeof(float) : 0);
	int rc = wal_reader_open(j, dir, c->generation, max, e);

	if (rc || j->fd >= 0)
		return rc;
	wal_reader_release(j);
	rc = wal_reader_open(j, dir, wal_file_newest(dir, c->generation - 1), max, e);
	if (rc || j->fd < 0)
		return rc;
	if (is_of_same_term(&j->head, c))
		return find_mark(j, c->generation, e);
	wal_reader_release(j);
	return PS_OK;
}

int wal_follows(const char *dir, const struct checkpoint *c, struct err *e)
{
	const unsigned char *data;
	size_t size;
	struct wal_reader j;
	int rc = open_first(dir, c, &j, e);

	if (!rc && j.fd >= 0) {
		rc = wal_reader_next(&j, &data, &size, e);
		rc = rc ? rc : wal_reader_has_gap(&j, e);
	}
	wal_reader_release(&j);
	return rc;
}

static void release_replay(struct replay *r)
{
	wal_record_reader_release(&r->events);
	mem_lazy_free(r->memory, r->memory_bytes);
	free(r->weights);
}

int wal_replay(const char *dir, const struct core_config *now, struct checkpoint *c, struct err *e)
{
	int accept_loss = now->sessions.accept_rollback;
	struct replay r = {.dir = dir, .cfg = *now};
	struct wal_reader j;
	double begin = clock_seconds();

	/* the values for a log of a release without these options: it checked no evaluation, and it
	 * compared, aggregated and limited no gradients */
	r.cfg.leases.eval_checks = 0;
	r.cfg.limits.norm_ratio = r.cfg.limits.statistics_ratio = 0;
	r.cfg.push.aggregate = AGGREGATE_MEAN;
	int rc = open_first(dir, c, &j, e);

	if (rc == PS_OK && j.fd >= 0) {
		rc = build_core(&r, c, e);
		while (!rc && j.fd >= 0)
			rc = replay_file(&r, &j, accept_loss, e);
		if (!rc)
			rc = encode_sections(&r, c, e);
		if (!rc)
			log_info("wal", "replayed",
				"generation=%llu files=%llu events=%llu ms=%.1f",
				(unsigned long long)c->generation, (unsigned long long)r.files,
				(unsigned long long)r.count, 1e3 * (clock_seconds() - begin));
		release_replay(&r);
	}
	wal_reader_release(&j);
	return rc;
}
