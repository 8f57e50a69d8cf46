/* group_commit.c - see group_commit.h. */
#include "server/durability/group_commit.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/checkpoint.h"
#include "common/journal.h"
#include "common/log.h"
#include "common/mem.h"
#include "server/durability/event_record.h"

#define LAZY_BYTES  ((size_t)65536) /* so much may gather for which nobody waits */
#define MOST_SPARE  64              /* unused items that are kept */
#define RECORD_ROOM 128             /* bytes that a journal adds to an event, at most */
#define SPARE_ROOM  ((size_t)98304) /* what a journal has not written yet, and blocks */

/* An event, or the place of a snapshot. */
struct item {
	struct item *next;
	uint64_t position;   /* of the event, or of the last one before the place */
	uint64_t generation; /* of the snapshot; 0: an event */
	int stays;           /* what follows the place goes to the same file, if it works */
	uint64_t useless;    /* journals between this one and the snapshot are; 0: none */
	size_t bytes, n_head;
	unsigned char head[EVENT_RECORD_HEAD];
	struct frames frames; /* shared with whoever received them */
};

struct list {
	struct item *first, **end;
};

struct commit {
	struct commit_config cfg;
	struct list queue; /* not handed to the pool yet */
	struct item *spare;
	size_t n_spare, waiting;
	uint64_t newest;              /* position of the newest event */
	uint64_t wanted;              /* somebody waits for this one */
	uint64_t reached;             /* see group_commit.h */
	uint64_t synced;              /* newest event that a journal brought home */
	uint64_t base, base_position; /* newest snapshot: generation, newest event in it */
	uint64_t durable;             /* newest generation on disk */
	uint64_t failed;              /* newest generation whose journal failed; 0: none */
	uint64_t hole;                /* oldest such from `durable` on; 0: none */
	uint64_t reserve;             /* see commit_reserve */
	int said;                     /* that a journal gave way */
	struct commit_stats stats;

	/* the pool's while busy */
	uv_work_t work;
	int busy;
	struct list group;
	struct journal *file;      /* NULL: it failed */
	uint64_t follows;          /* generation of the newest snapshot whose place has gone by */
	uint64_t sound, kept_free; /* durable and reserve, as they were at the start */
	struct {
		uint64_t synced; /* position; 0: nothing */
		uint64_t failed; /* generation; 0: none */
		int gave_way;    /* it failed for want of space only */
		uint64_t events;
		struct err error;
	} done;
};

/* ---- items ---------------------------------------------------------------------------------- */

static void list_init(struct list *l)
{
	l->first = NULL;
	l->end = &l->first;
}

static void list_add(struct list *l, struct item *it)
{
	it->next = NULL;
	*l->end = it;
	l->end = &it->next;
}

static struct item *take_item(struct commit *k)
{
	struct item *it = k->spare;

	if (!it) {
		it = mem_try(1, sizeof(*it));
		if (it)
			frames_init(&it->frames);
		return it;
	}
	k->spare = it->next;
	k->n_spare--;
	return it;
}

static void give_back(struct commit *k, struct item *it)
{
	frames_release(&it->frames);
	if (k->n_spare >= MOST_SPARE) {
		free(it);
		return;
	}
	it->next = k->spare;
	k->spare = it;
	k->n_spare++;
}

static void give_all_back(struct commit *k, struct list *l)
{
	while (l->first) {
		struct item *it = l->first;
		l->first = it->next;
		k->waiting -= it->bytes;
		give_back(k, it);
	}
	list_init(l);
}

/* ---- on the pool ---------------------------------------------------------------------------- */

static void fail(struct commit *k)
{
	journal_close(&k->file);
	k->done.failed = k->follows;
}

static void bring_home(struct commit *k, uint64_t position)
{
	if (!k->file || position == 0)
		return;
	if (journal_sync(k->file, &k->done.error))
		fail(k);
	else
		k->done.synced = position;
}

/* The journal of `generation`, which the event of position `first` opens. */
static int begin_file(struct commit *k, uint64_t generation, uint64_t first, struct err *e)
{
	const struct journal_head head = {.run_hi = k->cfg.run.hi,
		.run_lo = k->cfg.run.lo,
		.term = k->cfg.term,
		.generation = generation,
		.first = first};

	journal_close(&k->file);
	k->follows = generation;
	return journal_create(&k->file, k->cfg.dir, &head, checkpoint_oldest(k->cfg.dir), e);
}

/* A journal must not take the space of the checkpoint that would make it useless: nothing would end
 * that. */
static int leaves_room(struct commit *k, const struct item *it)
{
	uint64_t grows = journal_growth(k->file, it->bytes + RECORD_ROOM);

	if (!k->kept_free || !grows ||
		checkpoint_has_room(k->cfg.dir, k->sound, k->kept_free + grows))
		return 1;
	k->done.gave_way = 1;
	fail(k);
	return 0;
}

static void append(struct commit *k, struct item *it)
{
	struct file_part part[2 + WIRE_MAX_SLICES];
	size_t n = 0;

	if (!leaves_room(k, it))
		return;
	part[n++] = (struct file_part){it->head, it->n_head};
	for (size_t i = 0; i < it->frames.n; i++)
		part[n++] = (struct file_part){
			zmq_msg_data(&it->frames.frame[i]), zmq_msg_size(&it->frames.frame[i])};
	if (journal_append(k->file, part, n, &k->done.error))
		fail(k);
	else
		k->done.events += !it->generation;
}

/* Each snapshot is followed by a file of its own, which makes the older ones useless once it is on
 * disk. One after a snapshot that failed stays in the file of that one and only leaves a mark: a
 * disk that takes no checkpoint for days gets no file for each. */
static void pass_place(struct commit *k, struct item *it)
{
	if (it->stays && k->file) {
		k->follows = it->generation;
		append(k, it);
		return;
	}
	if (it->useless)
		journal_remove(k->cfg.dir, it->useless + 1, it->generation - 1);
	if (begin_file(k, it->generation, it->position + 1, &k->done.error))
		fail(k);
}

static void write_group(uv_work_t *work)
{
	struct commit *k = work->data;
	uint64_t appended = 0;

	for (struct item *it = k->group.first; it; it = it->next) {
		if (!it->generation) {
			if (k->file)
				append(k, it);
			appended = it->position;
			continue;
		}
		bring_home(k, appended);
		appended = 0;
		pass_place(k, it);
	}
	bring_home(k, appended);
}

/* ---- on the loop ---------------------------------------------------------------------------- */

/* All journals since the newest durable checkpoint are whole. */
static int is_whole(const struct commit *k)
{
	return !k->hole;
}

/* The journal of `generation` is worth nothing from here on; no `why`: it gave way. */
static void lose(struct commit *k, uint64_t generation, const char *why)
{
	struct commit_stats *t = &k->stats;

	if (generation > k->failed)
		k->failed = generation;
	if (!k->hole && generation >= k->durable)
		k->hole = generation;
	if (!why && !k->said++)
		log_warn("journal", "gives_way",
			"reason=\"the disk has space for the next checkpoint only: while that is "
			"so, pushes are acknowledged when a checkpoint has them\"");
	if (!why)
		return;
	t->failures++;
	if (!t->failing)
		log_error("journal", "failed", "reason=\"%s\"", why);
	t->failing = 1;
	snprintf(t->why, sizeof(t->why), "%.255s", why);
}

static void advance(struct commit *k)
{
	if (!is_whole(k))
		return;
	if (k->synced > k->reached)
		k->reached = k->synced;
	if (k->stats.failing)
		log_info("journal", "works_again", "generation=%llu",
			(unsigned long long)k->durable);
	k->stats.failing = 0;
	k->stats.why[0] = '\0';
}

static void on_written(uv_work_t *work, int status);

static void start(struct commit *k)
{
	k->busy = 1;
	k->group = k->queue; /* not empty: its end lies in its last item */
	list_init(&k->queue);
	memset(&k->done, 0, sizeof(k->done));
	k->sound = k->durable;
	k->kept_free = k->reserve;
	/* fails only without a callback */
	(void)uv_queue_work(k->cfg.loop, &k->work, write_group, on_written);
}

static void on_written(uv_work_t *work, int status)
{
	struct commit *k = work->data;

	k->busy = 0;
	if (status != 0) { /* cancelled: nothing was written */
		k->done.failed = k->base;
		err_set(&k->done.error, PS_EIO, "%s", uv_strerror(status));
	}
	k->stats.groups += k->done.synced > 0;
	k->stats.events += k->done.events;
	k->stats.bytes = k->file ? journal_bytes(k->file) : 0;
	if (k->done.synced > k->synced)
		k->synced = k->done.synced;
	if (k->done.failed)
		lose(k, k->done.failed, k->done.gave_way ? NULL : k->done.error.text);
	give_all_back(k, &k->group);
	advance(k);
	if (k->queue.first && (k->wanted > k->synced || k->waiting >= LAZY_BYTES))
		start(k);
	k->cfg.done(k->cfg.arg);
}

void commit_start(struct commit *k)
{
	k->wanted = k->newest;
	if (!k->busy && k->queue.first)
		start(k);
}

/* Of what follows nothing can be brought home before the next snapshot. */
static int is_dead(const struct commit *k)
{
	return k->failed >= k->base;
}

uint64_t commit_event(struct commit *k, const struct event *ev, uint64_t now_ms, struct frames *f)
{
	struct item *it = is_dead(k) ? NULL : take_item(k);

	k->newest++;
	if (!it) {
		if (!is_dead(k))
			lose(k, k->base, "no memory for an event");
		return k->newest;
	}
	it->position = k->newest;
	it->generation = 0;
	it->n_head = it->bytes = event_record_head(ev, now_ms, f, it->head);
	for (size_t i = 0; f && i < f->n; i++) {
		(void)zmq_msg_init(&it->frames.frame[i]);
		(void)zmq_msg_copy(&it->frames.frame[i], &f->frame[i]);
		it->bytes += zmq_msg_size(&f->frame[i]);
		it->frames.n++;
	}
	k->waiting += it->bytes;
	list_add(&k->queue, it);
	if (!k->busy && k->waiting >= LAZY_BYTES)
		start(k);
	return k->newest;
}

void commit_rotate(struct commit *k, uint64_t generation)
{
	struct item *it = take_item(k);
	int stays = k->base > k->durable && !is_dead(k);

	k->base = generation;
	k->base_position = k->newest;
	if (!it) {
		lose(k, generation, "no memory for a journal");
		return;
	}
	it->position = k->newest;
	it->generation = generation;
	it->stays = stays;
	it->useless = k->hole;
	it->n_head = event_record_place(generation, it->head);
	it->bytes = 0;
	list_add(&k->queue, it);
	commit_start(k);
}

void commit_durable(struct commit *k, uint64_t generation)
{
	if (generation != k->base)
		return;
	k->durable = generation;
	k->hole = k->failed >= generation ? k->failed : 0;
	if (k->base_position > k->reached)
		k->reached = k->base_position;
	advance(k);
}

void commit_reserve(struct commit *k, uint64_t bytes)
{
	k->reserve = bytes + bytes / 64 + SPARE_ROOM; /* a ledger grows with its workers */
}

uint64_t commit_reached(const struct commit *k)
{
	return k->reached;
}

int commit_wants_snapshot(const struct commit *k)
{
	return !is_whole(k) || k->stats.bytes >= k->cfg.most_bytes;
}

size_t commit_waiting(const struct commit *k)
{
	return k->waiting;
}

int commit_busy(const struct commit *k)
{
	return k && k->busy;
}

const struct commit_stats *commit_stats(const struct commit *k)
{
	return &k->stats;
}

/* ---- birth ---------------------------------------------------------------------------------- */

int commit_new(struct commit **out, const struct commit_config *cfg, struct err *e)
{
	struct commit *k = mem_try(1, sizeof(*k));

	*out = NULL;
	if (!k)
		return err_set(e, PS_ENOMEM, "no memory for the journal");
	k->cfg = *cfg;
	k->work.data = k;
	k->base = k->durable = cfg->generation;
	list_init(&k->queue);
	list_init(&k->group);
	int rc = begin_file(k, cfg->generation, 1, e);
	if (!rc)
		rc = journal_sync(k->file, e);
	if (rc)
		commit_free(&k);
	*out = k;
	return rc;
}

void commit_free(struct commit **k)
{
	if (!*k)
		return;
	give_all_back(*k, &(*k)->group);
	give_all_back(*k, &(*k)->queue);
	while ((*k)->spare) {
		struct item *it = (*k)->spare;
		(*k)->spare = it->next;
		free(it);
	}
	journal_close(&(*k)->file);
	free(*k);
	*k = NULL;
}
