/* checkpointer.c - see checkpointer.h. */
#include "server/durability/checkpointer.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/assert.h"
#include "common/checkpoint.h"
#include "common/clones.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/mem.h"
#include "server/core/snapshot.h"

struct checkpointer {
	uv_loop_t *loop;
	const char *dir;
	checkpointer_done_fn *done;
	void *arg;

	/* the sections, one after the other; later checkpoints use the same buffer */
	unsigned char *buffer;
	size_t room;
	struct checkpoint snapshot; /* its sections point into `buffer` */
	/* the device that keeps some values of the snapshot until the pool copies them to their
	 * places in `buffer`, or NULL */
	const struct param_device *device;
	struct snapshot_kept kept;

	uv_work_t work;
	/* started: number of calls of checkpointer_start that have returned; ended: number of these
	 * checkpoints for which the checkpointer has called `done` */
	uint64_t started, ended;
	uv_thread_t loop_thread; /* the thread that called checkpointer_new */
	int held,
		/* held: 1: no write begins; waits: 1: a snapshot waits for checkpointer_release */
		waits;
	int busy, rc; /* while busy, the pool owns rc, error and seconds */
	struct err error;
	double seconds;
	struct checkpointer_stats stats;
	/* newest generation whose file is known to be complete and undamaged, or 0 if there is
	 * none */
	uint64_t sound;
	/* generation that a write removed to make space, or 0 if it removed none. The pool owns
	 * this field while `busy` is 1 */
	uint64_t dropped;
	int reported; /* 1 if the log has reported a removed generation */
};

int checkpointer_new(struct checkpointer **out, uv_loop_t *loop, const char *dir,
	checkpointer_done_fn *done, void *arg)
{
	struct checkpointer *s = mem_try(1, sizeof(*s));

	*out = s;
	if (!s)
		return PS_ENOMEM;
	s->loop = loop;
	s->dir = dir;
	s->done = done;
	s->arg = arg;
	s->work.data = s;
	s->loop_thread = uv_thread_self();
	return PS_OK;
}

void checkpointer_keep(struct checkpointer *s, uint64_t sound)
{
	s->sound = sound;
}

void checkpointer_free(struct checkpointer **s)
{
	if (!*s)
		return;
	free((*s)->buffer);
	free(*s);
	*s = NULL;
}

/* Ensures that the buffer has room for `bytes` bytes. The function allocates an eighth more than
 * `bytes`, because the ledger grows when workers join. */
static int grow_buffer(struct checkpointer *s, size_t bytes)
{
	if (bytes <= s->room)
		return PS_OK;
	free(s->buffer);
	s->room = 0;
	s->buffer = mem_try(bytes + bytes / 8, 1);
	if (!s->buffer)
		return err_set(
			&s->error, PS_ENOMEM, "no memory for a snapshot of %zu bytes", bytes);
	s->room = bytes + bytes / 8;
	return PS_OK;
}

/* Copies the sections of the core into the buffer, as far as it has room. Returns the number of
 * bytes of all sections. */
static size_t copy_sections(struct checkpointer *s, struct core *core)
{
	size_t bytes = 0;

	s->snapshot.n_sections = 0;
	for (int i = 0; i < SNAPSHOT_SECTIONS; i++) {
		struct checkpoint_section *section = &s->snapshot.section[s->snapshot.n_sections];
		unsigned char *to = bytes < s->room ? s->buffer + bytes : NULL;
		size_t size = snapshot_encode(core, (enum snapshot_section)i, to,
			to ? s->room - bytes : 0, s->device ? &s->kept : NULL);

		if (SNAPSHOT_MAY_LACK(i) && size == 0)
			continue;
		s->snapshot.n_sections++;
		memcpy(section->name, snapshot_names[i],
			strnlen(snapshot_names[i], sizeof(section->name) - 1));
		section->data = to;
		section->size = size;
		bytes += size;
	}
	return bytes;
}

/* Copies the sections of the core into the buffer. The checkpoint will contain the state of the
 * core at this instant: if a device has the values, it keeps them as they are now. */
static int encode_snapshot(struct checkpointer *s, struct core *core, uint64_t generation)
{
	s->snapshot = (struct checkpoint){.generation = generation};
	s->device = snapshot_keep(core) ? core_config(core)->device : NULL;
	size_t bytes = copy_sections(s, core);
	if (bytes > s->room) {
		int rc = grow_buffer(s, bytes);

		if (rc)
			return rc;
		s->snapshot = (struct checkpoint){.generation = generation};
		bytes = copy_sections(s, core);
	}
	PS_ASSERT(bytes <= s->room);
	s->stats.bytes = bytes;
	return PS_OK;
}

/* Returns 1 if all floats are finite. If the bits of a float without the sign bit are read as an
 * integer, NaN and infinity are larger than any finite number. `data` may be unaligned. */
PS_CLONES static int floats_are_finite(const unsigned char *data, size_t n)
{
	uint32_t max = 0;

	for (size_t i = 0; i < n; i++) {
		uint32_t bits;

		memcpy(&bits, data + i * sizeof(bits), sizeof(bits));
		bits &= 0x7fffffffu;
		max = bits > max ? bits : max;
	}
	return max < 0x7f800000u;
}

/* Refuses to write weights that are not finite, so that a checkpoint with such weights never
 * replaces an older one. The core already keeps its weights finite (store.c), so this check only
 * guards against a defect of the core. */
static int check_weights(struct checkpointer *s)
{
	const struct checkpoint_section *w =
		checkpoint_find(&s->snapshot, snapshot_names[SNAPSHOT_WEIGHTS]);

	if (floats_are_finite(w->data, w->size / sizeof(float)))
		return PS_OK;
	return err_set(
		&s->error, PS_EDIVERGED, "the weights are not finite: no checkpoint is written");
}

/* Completes, checks and writes the snapshot. Runs on a thread of the pool. */
static void write_snapshot(uv_work_t *work)
{
	struct checkpointer *s = work->data;

	if (s->rc == PS_OK && s->device)
		s->device->kept(s->device->self, s->kept.weights, s->kept.state);
	double begin = clock_seconds();
	if (s->rc == PS_OK)
		s->rc = check_weights(s);
	if (s->rc == PS_OK)
		s->rc = checkpoint_write_beside(
			s->dir, &s->snapshot, s->sound, &s->dropped, &s->error);
	s->seconds = clock_seconds() - begin;
}

static void note_outcome(struct checkpointer *s, uint64_t generation)
{
	struct checkpointer_stats *t = &s->stats;

	if (s->dropped && !s->reported++)
		log_warn("checkpoint", "dropped",
			"generation=%llu reason=\"no space for generation %llu; further "
			"generations "
			"that are dropped for space are not logged\"",
			(unsigned long long)s->dropped, (unsigned long long)generation);
	if (s->rc) {
		t->failed++;
		if (!t->failing)
			log_error("checkpoint", "failed", "generation=%llu reason=\"%s\"",
				(unsigned long long)generation, s->error.text);
		t->failing = 1;
		snprintf(t->why, sizeof(t->why), "%.255s", s->error.text);
		return;
	}
	if (t->failing)
		log_info("checkpoint", "works_again", "generation=%llu failed=%llu",
			(unsigned long long)generation, (unsigned long long)t->failed);
	t->failing = 0;
	t->why[0] = '\0';
	t->saved++;
	t->generation = s->sound = generation;
	t->seconds = s->seconds;
}

static void on_checkpoint_written(uv_work_t *work, int status)
{
	struct checkpointer *s = work->data;
	uint64_t generation = s->snapshot.generation;
	const uv_thread_t self = uv_thread_self();

	if (status != 0) /* libuv has cancelled the write */
		s->rc = err_set(&s->error, PS_EIO, "%s", uv_strerror(status));
	/* invariant 2: checkpointer_start has returned, and `done` is called once for each of its
	 * calls */
	PS_ASSERT(s->busy && s->ended + 1 == s->started);
	PS_ASSERT(uv_thread_equal(&s->loop_thread, &self));
	s->busy = 0;
	s->ended++;
	note_outcome(s, generation);
	s->done(s->arg, generation, s->rc);
}

static void queue_snapshot(struct checkpointer *s)
{
	/* uv_queue_work fails only if its function for the pool is NULL */
	(void)uv_queue_work(s->loop, &s->work, write_snapshot, on_checkpoint_written);
}

void checkpointer_start(struct checkpointer *s, struct core *core, uint64_t generation)
{
	PS_ASSERT(!s->busy); /* invariant 1 */
	s->busy = 1;
	s->rc = encode_snapshot(s, core, generation);
	s->snapshot.generation = generation;
	s->waits = s->held;
	if (!s->waits)
		queue_snapshot(s);
	s->started++;
}

void checkpointer_hold(struct checkpointer *s)
{
	s->held = 1;
}

void checkpointer_release(struct checkpointer *s)
{
	s->held = 0;
	if (s->waits)
		queue_snapshot(s);
	s->waits = 0;
}

int checkpointer_write(
	struct checkpointer *s, struct core *core, uint64_t generation, struct err *e)
{
	s->rc = encode_snapshot(s, core, generation);
	write_snapshot(&s->work);
	if (s->rc) {
		*e = s->error;
		return s->rc;
	}
	note_outcome(s, generation);
	return PS_OK;
}

void checkpointer_abandon(const struct checkpointer *s)
{
	checkpoint_clean(s->dir);
}

int checkpointer_busy(const struct checkpointer *s)
{
	return s && s->busy;
}

const struct checkpointer_stats *checkpointer_stats(const struct checkpointer *s)
{
	return &s->stats;
}
