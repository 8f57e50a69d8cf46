/* log_replay.c - see log_replay.h. */
#include "server/durability/log_replay.h"
#include <stdio.h>
#include <stdlib.h>
#include "common/clock.h"
#include "common/journal.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/run_head.h"
#include "server/core/snapshot.h"
#include "server/durability/event_record.h"

struct replay {
	const char *dir;
	struct core_config cfg; /* of then */
	void *memory;           /* mem_lazy */
	size_t memory_bytes;
	float *weights;
	struct core *core;
	struct event_reader events;
	uint64_t now_ms, count, files;
	uint64_t next; /* the generation that the last event began; 0: none */
};

/* ---- the core of then ----------------------------------------------------------------------- */

static int refuse(const struct replay *r, uint64_t generation, const char *why, struct err *e)
{
	return err_set(e, PS_ECHECKPOINT, "%.200s: the journal of checkpoint %llu: %s", r->dir,
		(unsigned long long)generation, why);
}

static int find_sections(const struct replay *r, const struct checkpoint *c,
	const unsigned char *data[IMAGE_SECTIONS], size_t size[IMAGE_SECTIONS], struct err *e)
{
	for (int i = 0; i < IMAGE_SECTIONS; i++) {
		const struct checkpoint_section *s = checkpoint_find(c, image_names[i]);
		if (!s)
			return refuse(r, c->generation, "the checkpoint lacks a section", e);
		data[i] = s->data;
		size[i] = s->size;
	}
	return PS_OK;
}

static int build(struct replay *r, const struct checkpoint *c, struct err *e)
{
	const unsigned char *data[IMAGE_SECTIONS];
	size_t size[IMAGE_SECTIONS];
	const char *why;
	int rc = find_sections(r, c, data, size, e);

	if (rc)
		return rc;
	/* the weights are there: what they ask of memory is no lie */
	if (image_config(data[IMAGE_LIVE], size[IMAGE_LIVE], &r->cfg) ||
		size[IMAGE_WEIGHTS] != r->cfg.n_params * sizeof(float))
		return refuse(r, c->generation, "the checkpoint's configuration is malformed", e);
	r->memory_bytes = core_bytes(&r->cfg);
	r->memory = mem_lazy(r->memory_bytes);
	r->weights = mem_try(r->cfg.n_params, sizeof(float));
	if (!r->memory || !r->weights || event_reader_init(&r->events, r->cfg.n_params))
		return err_set(e, PS_ENOMEM, "no memory to replay a journal");
	if (image_read_live(r->memory, r->weights, &r->cfg, data, size, &r->core, &why))
		return refuse(r, c->generation, why, e);
	return PS_OK;
}

/* ---- its events ----------------------------------------------------------------------------- */

static int take_step(struct replay *r, const unsigned char *data, size_t size)
{
	const struct effect *e;
	int rc = event_record_read(&r->events, data, size);

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

/* `data` lies behind the snapshot that r->next names: its events follow in the same file. */
static int pass_place(struct replay *r, const unsigned char *data, size_t size)
{
	if (event_record_is_place(data, size) != r->next)
		return PS_EPROTO;
	r->next = 0;
	return PS_OK;
}

/* What follows a snapshot lies behind a mark of its place, or in its own journal. */
static int take_steps(struct replay *r, struct journal_reader *j, struct err *e)
{
	const unsigned char *data;
	size_t size;
	int rc;

	while ((rc = journal_next(j, &data, &size, e)) == 1)
		if (r->next ? pass_place(r, data, size) : take_step(r, data, size))
			return refuse(r, j->head.generation,
				"it has an event that this program does not understand: was it "
				"written by another version?",
				e);
	return rc;
}

/* A journal that ends where no other goes on may have been torn, or robbed of what was durable. */
static int judge_end(struct replay *r, struct journal_reader *j, int accept_loss, struct err *e)
{
	uint64_t generation = j->head.generation;
	int broken = journal_is_broken(j, e);

	if (broken <= 0)
		return broken;
	if (!accept_loss)
		return refuse(r, generation,
			"the disk has lost events in the middle of it that had been called "
			"durable; --accept-rollback goes on with what is before them",
			e);
	log_error("journal", "lost_events", "generation=%llu kept=%llu",
		(unsigned long long)generation, (unsigned long long)r->count);
	return PS_OK;
}

/* All of `j`, and to the next one; j->fd < 0: there is none. */
static int replay_file(struct replay *r, struct journal_reader *j, int accept_loss, struct err *e)
{
	struct journal_reader next = {.fd = -1};
	const struct journal_head *h = &j->head;

	/* a lost head has a term of 0: only its end is judged */
	if (h->term && (h->run_hi != r->cfg.run.hi || h->run_lo != r->cfg.run.lo ||
			       h->term != r->cfg.term))
		return refuse(r, h->generation, "it is of another run, or another start of it", e);
	r->files++;
	int rc = take_steps(r, j, e);
	if (!rc && r->next)
		rc = journal_open(&next, r->dir, r->next, j->most, e);
	if (!rc && next.fd < 0)
		rc = judge_end(r, j, accept_loss, e);
	r->next = 0;
	journal_reader_release(j);
	*j = next;
	return rc;
}

/* ---- the image at their end ----------------------------------------------------------------- */

static int take_image(struct replay *r, struct checkpoint *c, struct err *e)
{
	size_t size[IMAGE_SECTIONS], bytes = 0;

	for (int i = 0; i < IMAGE_SECTIONS; i++)
		bytes += size[i] = image_size(r->core, (enum image_section)i);
	unsigned char *at = mem_try(bytes, 1);
	if (!at)
		return err_set(e, PS_ENOMEM, "no memory for an image of %zu bytes", bytes);
	free(c->memory);
	c->memory = at;
	c->n_sections = IMAGE_SECTIONS;
	for (int i = 0; i < IMAGE_SECTIONS; i++) {
		struct checkpoint_section *s = &c->section[i];
		image_write(r->core, (enum image_section)i, at);
		*s = (struct checkpoint_section){.data = at, .size = size[i]};
		snprintf(s->name, sizeof(s->name), "%s", image_names[i]);
		at += size[i];
	}
	return PS_OK;
}

/* ---- where they begin ----------------------------------------------------------------------- */

/* Of the start that took the checkpoint; a head that is lost tells nothing. */
static int is_of_its_start(const struct journal_head *h, const struct checkpoint *c)
{
	const struct checkpoint_section *s = checkpoint_find(c, RUN_HEAD_SECTION);
	struct run_head run;

	return h->term == 0 ||
	       (s && run_head_read(s->data, s->size, &run) == PS_OK && h->run_hi == run.run_hi &&
		       h->run_lo == run.run_lo && h->term == run.term);
}

/* Go behind the place of the snapshot `generation`. There may be none: then what follows it was
 * not brought home either. */
static int find_place(struct journal_reader *j, uint64_t generation, struct err *e)
{
	const unsigned char *data;
	size_t size;
	int rc;

	while ((rc = journal_next(j, &data, &size, e)) == 1)
		if (event_record_is_place(data, size) == generation)
			return PS_OK;
	return rc;
}

/* The journal behind the checkpoint, at the first event there: its own, or the one of a snapshot
 * before it that failed. j->fd < 0: there is none. */
static int open_first(
	const char *dir, const struct checkpoint *c, struct journal_reader *j, struct err *e)
{
	const struct checkpoint_section *weights = checkpoint_find(c, RUN_HEAD_WEIGHTS);
	size_t most = event_record_most(weights ? weights->size / sizeof(float) : 0);
	int rc = journal_open(j, dir, c->generation, most, e);

	if (rc || j->fd >= 0)
		return rc;
	journal_reader_release(j);
	rc = journal_open(j, dir, journal_newest(dir, c->generation - 1), most, e);
	if (rc || j->fd < 0)
		return rc;
	if (is_of_its_start(&j->head, c))
		return find_place(j, c->generation, e);
	journal_reader_release(j);
	return PS_OK;
}

static void release(struct replay *r)
{
	event_reader_release(&r->events);
	mem_lazy_free(r->memory, r->memory_bytes);
	free(r->weights);
}

int recover(const char *dir, int accept_loss, struct checkpoint *c, struct err *e)
{
	struct replay r = {.dir = dir};
	struct journal_reader j;
	double begin = clock_seconds();
	int rc = open_first(dir, c, &j, e);

	if (rc == PS_OK && j.fd >= 0) {
		rc = build(&r, c, e);
		while (!rc && j.fd >= 0)
			rc = replay_file(&r, &j, accept_loss, e);
		if (!rc)
			rc = take_image(&r, c, e);
		if (!rc)
			log_info("journal", "replayed",
				"generation=%llu journals=%llu events=%llu ms=%.1f",
				(unsigned long long)c->generation, (unsigned long long)r.files,
				(unsigned long long)r.count, 1e3 * (clock_seconds() - begin));
		release(&r);
	}
	journal_reader_release(&j);
	return rc;
}
