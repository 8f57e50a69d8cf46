/* wal.c - see wal.h. */
#include "server/durability/wal.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/assert.h"
#include "common/clock.h"
#include "common/clones.h"
#include "common/file.h"
#include "common/keys.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/wal_file.h"
#include "common/xxh3.h"
#include "server/durability/wal_record.h"

/* when the queue has this size, the log begins to write it even if no reply waits */
#define LAZY_BYTES ((size_t)65536)
/* The log copies frames of up to this size. A larger frame is only referenced. A reference to a
 * small frame would keep in memory the much larger buffer in which libzmq has received the
 * frame. */
#define MAX_COPY ((size_t)512)
/* maximum number of bytes that the file needs for an event in addition to the record */
#define RECORD_ROOM 128
/* additional bytes of wal_reserve: for bytes that the log has not written to its file yet, and for
 * rounding to whole blocks */
#define SPARE_ROOM ((size_t)98304)

#define SHARE_LISTS 256u /* number of lists in the hash table of shares */

/* This struct counts the messages of a sender that are in the queue and the group. It exists while
 * there are such messages. A sender is a key or, without keys, a connection. */
struct share {
	struct share *next;
	char key[KEY_TEXT]; /* "": the server has no keys */
	uint32_t peer;      /* the connection, or 0 with keys */
	size_t n, pushes;   /* number of its messages, and of its pushes */
	size_t memory;      /* number of bytes of its messages that count against WAL_MAX_QUEUE */
};

/* An item of the queue is an event or the mark of a snapshot. */
struct item {
	struct item *next;
	uint64_t lsn;        /* LSN of the event, or of the last event before the mark */
	uint64_t generation; /* generation of the snapshot, or 0 if the item is an event */
	/* 1 in a mark: later events go to the same file unless the file has failed */
	int stays;
	/* in a mark: the log removes the files after this generation and before that of the mark; 0
	 * if it removes none */
	uint64_t useless;
	size_t bytes;        /* size of the record in bytes: `data` and the frames */
	size_t memory;       /* number of its bytes that count against WAL_MAX_QUEUE */
	struct share *share; /* the share of the sender, or NULL if the item is not a message */
	int push;
	size_t n_data, n_frames;
	/* the bytes of the record before the frames; they are stored after the array `frame` */
	unsigned char *data;
	/* references to the last frames of the message, which are not copied */
	zmq_msg_t frame[];
};

struct list {
	struct item *first, **end;
};

struct wal {
	struct wal_config cfg;
	struct list queue; /* the items that wait for the next group */
	/* sums of `bytes` and of `memory` over the items in the queue and the group */
	size_t waiting, memory;
	struct share *share[SHARE_LISTS]; /* a hash table */
	uint64_t newest_lsn;              /* LSN of the newest event */
	uint64_t wanted_lsn;              /* newest LSN for which a reply waits or will soon wait */
	uint64_t flushed_lsn;             /* the flushed LSN (wal.h) */
	uint64_t synced_lsn; /* LSN of the newest event that is on disk in a log file */
	uint64_t saved_lsn;  /* LSN of the newest event that is in a durable checkpoint */
	/* the newest snapshot: its generation, and the LSN of the newest event in it */
	uint64_t base, base_lsn;
	uint64_t durable; /* generation of the newest snapshot on disk */
	/* newest generation whose file can take no more events, or 0 if there is none */
	uint64_t failed;
	/* oldest generation >= `durable` whose file can take no more events, or 0 if there is
	 * none */
	uint64_t gap;
	uint64_t reserve; /* number of bytes that must stay free on the disk (wal_reserve) */
	int reported;     /* 1 if the log reported that a file ended for lack of space */
	struct wal_stats stats;
	double begun_s;          /* time at which the write of the group began */
	uint64_t n_done;         /* number of groups after which the log has called `done` */
	uv_thread_t loop_thread; /* the thread that called wal_new */

	/* the pool owns the following fields while `busy` is 1 */
	uv_work_t work;
	int busy;
	struct list group;
	struct wal_file *file; /* the file for this group, or NULL if the file has failed */
	/* generation of the newest snapshot that precedes the next event */
	uint64_t follows;
	/* the values of `durable` and of `reserve` when the write of the group began */
	uint64_t sound, kept_free;
	struct {
		/* LSN of the newest event in the group that is on disk, or 0 if none is */
		uint64_t synced_lsn;
		/* generation of the file that failed, or 0 if no file failed */
		uint64_t failed;
		/* 1 if the log ended the file without an error, to leave space on the disk for a
		 * checkpoint */
		int gave_way;
		uint64_t events;
		struct err error;
	} done;
};

/* ---- shares --------------------------------------------------------------------------------- */

static size_t list_of(const char *key, uint32_t peer)
{
	return key[0] ? XXH3_64bits(key, strlen(key)) % SHARE_LISTS : peer % SHARE_LISTS;
}

/* Returns the share of the sender with this key or, if `key` is "", of connection `peer`. Returns
 * NULL if none of its messages waits. */
static struct share *find_share(const struct wal *w, const char *key, uint32_t peer)
{
	struct share *s = w->share[list_of(key, peer)];

	while (s && (strcmp(s->key, key) != 0 || (!key[0] && s->peer != peer)))
		s = s->next;
	return s;
}

/* Returns the share of a sender, which may be a new one. Returns NULL if there is no memory. */
static struct share *open_share(struct wal *w, const char *key, uint32_t peer)
{
	struct share **list = &w->share[list_of(key, peer)];
	struct share *s = find_share(w, key, peer);

	if (s || !(s = mem_try(1, sizeof(*s))))
		return s;
	snprintf(s->key, sizeof(s->key), "%s", key);
	s->peer = key[0] ? 0 : peer;
	s->next = *list;
	*list = s;
	return s;
}

static void enter_share(const struct item *it)
{
	if (!it->share)
		return;
	it->share->n++;
	it->share->pushes += (size_t)it->push;
	it->share->memory += it->memory;
}

/* Removes the item from its share, and frees the share with its last item. */
static void leave_share(struct wal *w, const struct item *it)
{
	struct share *s = it->share;

	if (!s)
		return;
	PS_ASSERT(s->n > 0 && s->pushes >= (size_t)it->push && s->memory >= it->memory);
	s->pushes -= (size_t)it->push;
	s->memory -= it->memory;
	if (--s->n > 0)
		return;
	struct share **at = &w->share[list_of(s->key, s->peer)];
	while (*at != s)
		at = &(*at)->next;
	*at = s->next;
	free(s);
}

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

/* Makes an item for an event or a mark. Returns NULL if there is no memory, or if too many events
 * wait. */
static struct item *new_item(
	struct wal *w, const unsigned char *head, size_t n_head, struct frames *f)
{
	size_t n = f ? f->n : 0, copied = 0, n_data = n_head, bytes;

	while (copied < n && zmq_msg_size(&f->frame[copied]) <= MAX_COPY)
		n_data += zmq_msg_size(&f->frame[copied++]);
	bytes = sizeof(struct item) + (n - copied) * sizeof(zmq_msg_t) + n_data;
	struct item *it = w->memory < WAL_MAX_QUEUE ? mem_try(1, bytes) : NULL;
	if (!it)
		return NULL;
	it->memory = bytes;
	it->share = NULL;
	it->push = 0;
	it->data = (unsigned char *)&it->frame[n - copied];
	memcpy(it->data, head, n_head);
	it->n_data = n_head;
	for (size_t i = 0; i < copied; i++) {
		size_t size = zmq_msg_size(&f->frame[i]);

		memcpy(it->data + it->n_data, zmq_msg_data(&f->frame[i]), size);
		it->n_data += size;
	}
	it->bytes = it->n_data;
	for (size_t i = copied; i < n; i++) {
		zmq_msg_t *frame = &it->frame[it->n_frames++];

		(void)zmq_msg_init(frame);
		(void)zmq_msg_copy(frame, &f->frame[i]);
		it->bytes += zmq_msg_size(frame);
	}
	return it;
}

/* Returns 1 if the log can store no further event before the next snapshot. */
static int file_is_lost(const struct wal *w)
{
	return w->failed >= w->base;
}

static void enqueue(struct wal *w, struct item *it)
{
	PS_ASSERT(it->n_frames == 0 || !file_is_lost(w)); /* invariant 4 */
	PS_ASSERT(w->memory < WAL_MAX_QUEUE);             /* invariant 5 */
	w->waiting += it->bytes;
	w->memory += it->memory;
	enter_share(it);
	list_add(&w->queue, it);
}

static const char *why_no_item(const struct wal *w)
{
	return w->memory < WAL_MAX_QUEUE ? "no memory for an event"
					 : "too many events wait for the disk";
}

static void free_items(struct wal *w, struct list *l)
{
	while (l->first) {
		struct item *it = l->first;

		l->first = it->next;
		PS_ASSERT(it->bytes <= w->waiting && it->memory <= w->memory);
		w->waiting -= it->bytes;
		w->memory -= it->memory;
		leave_share(w, it);
		while (it->n_frames > 0)
			(void)zmq_msg_close(&it->frame[--it->n_frames]);
		free(it);
	}
	list_init(l);
}

/* ---- on the pool ---------------------------------------------------------------------------- */

static void lose_file(struct wal *w)
{
	wal_file_close(&w->file);
	w->done.failed = w->follows;
}

static void sync_to(struct wal *w, uint64_t lsn)
{
	if (!w->file || lsn == 0)
		return;
	if (wal_file_sync(w->file, &w->done.error))
		lose_file(w);
	else
		w->done.synced_lsn = lsn;
}

/* Begins the file of `generation`, whose first event has LSN `first`. */
static int begin_file(struct wal *w, uint64_t generation, uint64_t first, struct err *e)
{
	const struct wal_head head = {.run_hi = w->cfg.run.hi,
		.run_lo = w->cfg.run.lo,
		.term = w->cfg.term,
		.generation = generation,
		.first = first};

	wal_file_close(&w->file);
	w->follows = generation;
	return wal_file_create(&w->file, w->cfg.dir, &head, checkpoint_oldest(w->cfg.dir), e);
}

/* Returns 1 if the log file may grow by the size of `it`. Otherwise the function ends the file,
 * because the disk must keep enough space for the next checkpoint. When that checkpoint is on disk,
 * the log needs none of the earlier events. */
static int leaves_room(struct wal *w, const struct item *it)
{
	uint64_t grows = wal_file_growth(w->file, it->bytes + RECORD_ROOM);

	if (!w->kept_free || !grows ||
		checkpoint_has_room(w->cfg.dir, w->sound, w->kept_free + grows))
		return 1;
	w->done.gave_way = 1;
	lose_file(w);
	return 0;
}

static void append_item(struct wal *w, struct item *it)
{
	PS_UNINITIALIZED struct file_part part[2 + WIRE_MAX_SLICES];
	size_t n = 0;

	if (!leaves_room(w, it))
		return;
	part[n++] = (struct file_part){it->data, it->n_data};
	for (size_t i = 0; i < it->n_frames; i++)
		part[n++] = (struct file_part){
			zmq_msg_data(&it->frame[i]), zmq_msg_size(&it->frame[i])};
	if (wal_file_append(w->file, part, n, &w->done.error))
		lose_file(w);
	else
		w->done.events += !it->generation;
}

/* Handles the mark of a snapshot. Usually the function begins a new file for the events after the
 * snapshot; when the snapshot is on disk, the log does not need the older files any more. If the
 * previous snapshot failed, however, the function only writes a mark to the current file. With a
 * new file each time, a disk that accepts no checkpoint for days would get a file for each
 * attempt. */
static void write_mark(struct wal *w, struct item *it)
{
	if (it->stays && w->file) {
		w->follows = it->generation;
		append_item(w, it);
		return;
	}
	if (it->useless)
		wal_file_remove(w->cfg.dir, it->useless + 1, it->generation - 1);
	if (begin_file(w, it->generation, it->lsn + 1, &w->done.error))
		lose_file(w);
}

static void write_group(uv_work_t *work)
{
	struct wal *w = work->data;
	uint64_t appended = 0;

	for (struct item *it = w->group.first; it; it = it->next) {
		if (!it->generation) {
			if (w->file)
				append_item(w, it);
			appended = it->lsn;
			continue;
		}
		sync_to(w, appended);
		appended = 0;
		write_mark(w, it);
	}
	sync_to(w, appended);
}

/* ---- on the loop ---------------------------------------------------------------------------- */

/* Returns 1 if every log file since the newest durable checkpoint could be written. */
static int has_no_gap(const struct wal *w)
{
	return !w->gap;
}

/* Notes that the log cannot add events to the file of `generation` any more. `why` is the reason of
 * a failure, or NULL if the log ended the file to leave space for a checkpoint. */
static void mark_lost(struct wal *w, uint64_t generation, const char *why)
{
	struct wal_stats *t = &w->stats;

	if (generation > w->failed)
		w->failed = generation;
	if (!w->gap && generation >= w->durable)
		w->gap = generation;
	if (!why && !w->reported++)
		log_warn("wal", "gives_way",
			"reason=\"the disk has space for the next checkpoint only: until it has "
			"more, a push is acknowledged when a checkpoint contains it\"");
	if (!why)
		return;
	t->failures++;
	if (!t->failing)
		log_error("wal", "failed", "reason=\"%s\"", why);
	t->failing = 1;
	snprintf(t->why, sizeof(t->why), "%.255s", why);
}

/* Returns the LSN of the oldest event in the queue and the group. If there is none, returns the LSN
 * of the next event. */
static uint64_t oldest_waiting(const struct wal *w)
{
	const struct item *it = w->group.first ? w->group.first : w->queue.first;

	return it ? it->lsn + (it->generation != 0) : w->newest_lsn + 1;
}

/* Advances the flushed LSN to the newest event that a durable checkpoint contains and that is in
 * neither the queue nor the group. */
static void advance_to_saved(struct wal *w)
{
	const uint64_t last = oldest_waiting(w) - 1;
	const uint64_t lsn = w->saved_lsn < last ? w->saved_lsn : last;

	if (lsn > w->flushed_lsn)
		w->flushed_lsn = lsn;
}

static void advance_flushed(struct wal *w)
{
	advance_to_saved(w);
	if (!has_no_gap(w))
		return;
	if (w->synced_lsn > w->flushed_lsn)
		w->flushed_lsn = w->synced_lsn;
	PS_ASSERT(w->flushed_lsn <= w->newest_lsn); /* invariant 1 */
	if (w->stats.failing)
		log_info("wal", "works_again", "generation=%llu", (unsigned long long)w->durable);
	w->stats.failing = 0;
	w->stats.why[0] = '\0';
}

static void on_group_written(uv_work_t *work, int status);

static void start_group(struct wal *w)
{
	PS_ASSERT(!w->busy && w->queue.first); /* invariant 2 */
	w->busy = 1;
	w->stats.begun++;
	w->begun_s = clock_seconds();
	/* A copy of the list is valid: the list is not empty, so its pointer `end` points into the
	 * last item and not into the struct that is copied. */
	w->group = w->queue;
	list_init(&w->queue);
	memset(&w->done, 0, sizeof(w->done));
	w->sound = w->durable;
	w->kept_free = w->reserve;
	/* uv_queue_work fails only if its function for the pool is NULL */
	(void)uv_queue_work(w->cfg.loop, &w->work, write_group, on_group_written);
}

static void on_group_written(uv_work_t *work, int status)
{
	struct wal *w = work->data;
	const uv_thread_t self = uv_thread_self();

	/* invariant 3: the log has called `done` once after each group but this one */
	PS_ASSERT(w->n_done + 1 == w->stats.begun && uv_thread_equal(&w->loop_thread, &self));
	PS_ASSERT(w->busy && w->done.synced_lsn <= w->newest_lsn);
	w->busy = 0;
	if (status != 0) { /* libuv has cancelled the write */
		w->done.failed = w->base;
		err_set(&w->done.error, PS_EIO, "%s", uv_strerror(status));
	}
	w->stats.newest_seconds = clock_seconds() - w->begun_s;
	w->stats.seconds += w->stats.newest_seconds;
	w->stats.groups += w->done.synced_lsn > 0;
	w->stats.events += w->done.events;
	w->stats.bytes = w->file ? wal_file_bytes(w->file) : 0;
	if (w->done.synced_lsn > w->synced_lsn)
		w->synced_lsn = w->done.synced_lsn;
	if (w->done.failed)
		mark_lost(w, w->done.failed, w->done.gave_way ? NULL : w->done.error.text);
	free_items(w, &w->group);
	advance_flushed(w);
	if (w->queue.first && (w->wanted_lsn > w->synced_lsn || w->waiting >= LAZY_BYTES))
		start_group(w);
	w->n_done++;
	w->cfg.done(w->cfg.arg);
}

void wal_flush(struct wal *w)
{
	w->wanted_lsn = w->newest_lsn;
	if (!w->busy && w->queue.first)
		start_group(w);
}

/* Returns an upper bound of the member `memory` of the item for a message with these frames. */
static size_t max_memory(struct frames *f)
{
	size_t bytes = sizeof(struct item) + WAL_RECORD_HEAD + f->n * sizeof(zmq_msg_t);

	for (size_t i = 0; i < f->n; i++)
		bytes += zmq_msg_size(&f->frame[i]);
	return bytes;
}

int wal_share_is_used(const struct wal *w, const struct event *ev, struct frames *f,
	const char *key, size_t pushes)
{
	const struct share *s = find_share(w, key, ev->peer);

	if (ev->msg->type == MSG_PUSH)
		return s && s->pushes >= pushes;
	const size_t bytes = max_memory(f), own = bytes + (s ? s->memory : 0);
	return w->memory + bytes + own > WAL_MAX_QUEUE;
}

uint64_t wal_append(
	struct wal *w, const struct event *ev, uint64_t now_ms, struct frames *f, const char *key)
{
	PS_UNINITIALIZED unsigned char head[WAL_RECORD_HEAD];

	w->newest_lsn++;
	if (file_is_lost(w)) /* invariant 4: no frame of the event enters the queue */
		return w->newest_lsn;
	struct item *it = new_item(w, head, wal_record_head(ev, now_ms, f, head), f);
	if (!it) {
		mark_lost(w, w->base, why_no_item(w));
		return w->newest_lsn;
	}
	it->lsn = w->newest_lsn;
	it->memory += it->bytes - it->n_data;
	if (ev->kind == EVENT_MESSAGE) {
		it->share = open_share(w, key, ev->peer);
		it->push = ev->msg->type == MSG_PUSH;
	}
	/* the number of waiting pushes is limited instead (wal.h, promise 2) */
	if (it->push)
		it->memory = 0;
	enqueue(w, it);
	if (!w->busy && w->waiting >= LAZY_BYTES)
		start_group(w);
	return w->newest_lsn;
}

void wal_rotate(struct wal *w, uint64_t generation)
{
	unsigned char mark[WAL_RECORD_HEAD];
	struct item *it = new_item(w, mark, wal_record_mark(generation, mark), NULL);
	int stays = w->base > w->durable && !file_is_lost(w);

	PS_ASSERT(generation > w->base);
	w->base = generation;
	w->base_lsn = w->newest_lsn;
	if (!it) {
		mark_lost(w, generation, why_no_item(w));
		return;
	}
	it->lsn = w->newest_lsn;
	it->generation = generation;
	it->stays = stays;
	it->useless = w->gap;
	enqueue(w, it);
	wal_flush(w);
}

void wal_checkpointed(struct wal *w, uint64_t generation)
{
	if (generation != w->base)
		return;
	w->durable = generation;
	w->gap = w->failed >= generation ? w->failed : 0;
	w->saved_lsn = w->base_lsn;
	advance_flushed(w);
}

void wal_reserve(struct wal *w, uint64_t bytes)
{
	/* 1/64 more, because the ledger may grow until the next checkpoint */
	w->reserve = bytes + bytes / 64 + SPARE_ROOM;
}

uint64_t wal_flushed_lsn(const struct wal *w)
{
	return w->flushed_lsn;
}

int wal_wants_snapshot(const struct wal *w)
{
	return !has_no_gap(w) || w->stats.bytes >= w->cfg.max_bytes;
}

size_t wal_pending_bytes(const struct wal *w)
{
	return w->waiting;
}

int wal_busy(const struct wal *w)
{
	return w && w->busy;
}

const struct wal_stats *wal_stats(const struct wal *w)
{
	return &w->stats;
}

/* ---- creation ------------------------------------------------------------------------------- */

/* Begins the first file and syncs it, before the first event. If the disk is full, the function
 * removes checkpoints that are older than the one that the file follows. */
static int begin_first(struct wal *w, struct err *e)
{
	uint64_t generation = w->cfg.generation;
	int rc;

	do {
		rc = begin_file(w, generation, 1, e);
		if (!rc)
			rc = wal_file_sync(w->file, e);
	} while (rc && file_no_space(errno) &&
		 checkpoint_make_space(w->cfg.dir, generation, generation));
	return rc;
}

int wal_new(struct wal **out, const struct wal_config *cfg, struct err *e)
{
	struct wal *w = mem_try(1, sizeof(*w));

	*out = NULL;
	if (!w)
		return err_set(e, PS_ENOMEM, "no memory for the log");
	w->cfg = *cfg;
	w->work.data = w;
	w->loop_thread = uv_thread_self();
	w->base = w->durable = cfg->generation;
	list_init(&w->queue);
	list_init(&w->group);
	int rc = begin_first(w, e);
	if (rc)
		wal_free(&w);
	*out = w;
	return rc;
}

void wal_free(struct wal **w)
{
	if (!*w)
		return;
	free_items(*w, &(*w)->group);
	free_items(*w, &(*w)->queue);
	wal_file_close(&(*w)->file);
	free(*w);
	*w = NULL;
}

/* ---- before the loop ------------------------------------------------------------------------ */

uint64_t wal_newest_file(const char *dir)
{
	return wal_file_newest(dir, UINT64_MAX);
}

void wal_remove_files(const char *dir, uint64_t last)
{
	wal_file_remove(dir, 1, last);
}
