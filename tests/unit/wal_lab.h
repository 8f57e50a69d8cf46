/*
 * wal_lab.h - a server's journal, core and disk without its sockets: events go to the core and,
 * through server/durability/wal.h, to files of a temporary directory whose disk can be told
 * to fail.
 *
 * One per program (it replaces write and fdatasync). Thread: the test's, which runs the loop.
 */
#ifndef TESTS_UNIT_WAL_LAB_H
#define TESTS_UNIT_WAL_LAB_H
#include "tests/support/capture.h"
#include <errno.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "common/checkpoint.h"
#include "common/generation.h"
#include "server/durability/wal.h"
#include "tests/support/core_fixture.h"
#include "tests/support/temp_dir.h"

/*
 * The journal's disk: how often it still writes and syncs before it fails; -1: always. Set while
 * libuv's pool has nothing to do for us; its 8 bytes to wake the loop may come later, and are let
 * through unread.
 */
static int writes_left = -1, syncs_left = -1;

/* fdatasync does not return while this is set. */
static atomic_int sync_hangs;

/* This thread writes a checkpoint, whose disk is without fault. */
static _Thread_local int saving;

ssize_t write(int fd, const void *bytes, size_t n)
{
	if (n > 8 && !saving && writes_left >= 0 && writes_left-- == 0) {
		writes_left = 0;
		errno = ENOSPC;
		return -1;
	}
	return syscall(SYS_write, fd, bytes, n);
}

int fdatasync(int fd)
{
	while (atomic_load(&sync_hangs))
		usleep(1000);
	if (syncs_left >= 0 && syncs_left-- == 0) {
		syncs_left = 0;
		errno = EIO;
		return -1;
	}
	return (int)syscall(SYS_fdatasync, fd);
}

/* A server's journal, core and disk without its sockets. */
static struct shell {
	char dir[64];
	uv_loop_t loop;
	struct core_fixture f;
	struct wal *wal;
	struct wire *wire;
	struct stamp stamp;
	uint64_t seq, newest;
	unsigned done;
} sh;

static inline void on_done(void *arg)
{
	assert_ptr_equal(arg, &sh);
	sh.done++;
}

/* ---- the disk ------------------------------------------------------------------------------- */

static inline void save(uint64_t generation)
{
	struct core_snapshot img = fixture_save(&sh.f);
	struct checkpoint c = {.generation = generation, .n_sections = IMAGE_SECTIONS};
	struct err e;

	for (int i = 0; i < IMAGE_SECTIONS; i++) {
		snprintf(c.section[i].name, sizeof(c.section[i].name), "%s", image_names[i]);
		c.section[i].data = img.data[i];
		c.section[i].size = img.size[i];
	}
	saving = 1;
	assert_int_equal(checkpoint_write(sh.dir, &c, &e), PS_OK);
	saving = 0;
	fixture_drop(&img);
}

/* What a start would find: the sections at the end of the journals equal the core's. */
static inline void assert_recovers(int accept_loss)
{
	struct core_snapshot img = fixture_save(&sh.f);
	struct checkpoint c;
	struct err e;

	assert_int_equal(checkpoint_read_newest(sh.dir, 0, &c, NULL, &e), PS_OK);
	struct core_config now = sh.f.cfg;
	now.sessions.accept_rollback = accept_loss;
	assert_int_equal(wal_replay(sh.dir, &now, &c, &e), PS_OK);
	for (int i = 0; i < IMAGE_SECTIONS; i++) {
		const struct checkpoint_section *s = checkpoint_find(&c, image_names[i]);
		assert_int_equal(s->size, img.size[i]);
		assert_memory_equal(s->data, img.data[i], s->size);
	}
	checkpoint_release(&c);
	fixture_drop(&img);
}

/* Of the weights a start would have: how often was coordinate 0 moved? */
static inline int recovered_pushes(int accept_loss, int *rc)
{
	struct checkpoint c;
	struct err e;
	float w = 0;

	assert_int_equal(checkpoint_read_newest(sh.dir, 0, &c, NULL, &e), PS_OK);
	struct core_config now = sh.f.cfg;
	now.sessions.accept_rollback = accept_loss;
	*rc = wal_replay(sh.dir, &now, &c, &e);
	memcpy(&w, checkpoint_find(&c, "weights")->data, sizeof(w));
	checkpoint_release(&c);
	return (int)-w;
}

static inline unsigned count_journals(void)
{
	DIR *d = opendir(sh.dir);
	unsigned n = 0;

	assert_non_null(d);
	for (const struct dirent *entry; (entry = readdir(d));)
		n += generation_parse(entry->d_name, "journal", "") != 0;
	closedir(d);
	return n;
}

/* ---- events --------------------------------------------------------------------------------- */

static inline void take(const struct event *ev, struct frames *f)
{
	const struct effect *e;

	sh.newest = wal_append(sh.wal, ev, sh.f.now_ms, f);
	fixture_step(&sh.f, ev);
	e = fixture_effect(&sh.f, EFFECT_SNAPSHOT);
	if (e)
		wal_rotate(sh.wal, e->generation);
}

/* As from the network. */
static inline void receive(uint32_t peer, const struct msg *m)
{
	struct frames f;
	struct msg decoded;

	assert_int_equal(wire_encode(m, &f), PS_OK);
	assert_int_equal(wire_decode(sh.wire, &f, &decoded, NULL), PS_OK);
	take(&(struct event){.kind = EVENT_MESSAGE, .peer = peer, .msg = &decoded}, &f);
	frames_release(&f);
}

static inline void push(int n)
{
	while (n-- > 0) {
		struct msg m = fixture_push_ones(sh.stamp, ++sh.seq);
		receive(9, &m);
	}
}

static inline void tick(void)
{
	sh.f.now_ms += 50;
	take(&(struct event){.kind = EVENT_TICK}, NULL);
}

/* Until the pool has done what it was given. */
static inline void settle(void)
{
	wal_flush(sh.wal);
	while (wal_busy(sh.wal))
		uv_run(&sh.loop, UV_RUN_ONCE);
}

/* The snapshot under way has been taken by now; here its disk is done. */
static inline void saved(int ok)
{
	uint64_t generation = sh.f.saving;

	if (ok)
		wal_checkpointed(sh.wal, generation);
	sh.f.saving = 0;
	take(&(struct event){.kind = ok ? EVENT_DURABLE : EVENT_SAVE_FAILED,
		     .generation = generation},
		NULL);
}

/* The core takes a snapshot, at a time when it would whatever happened to the one before. */
static inline void begin_snapshot(void)
{
	sh.f.now_ms += core_config(sh.f.core)->checkpoint.interval_ms;
	take(&(struct event){.kind = EVENT_SAVE}, NULL);
	assert_int_not_equal(sh.f.saving, 0);
}

/* A snapshot of this instant, on the disk. */
static inline void snapshot(void)
{
	begin_snapshot();
	save(sh.f.saving);
	saved(1);
}

/* Snapshots whose disk fails, with events between them. */
static inline void failing_snapshots(int n)
{
	while (n-- > 0) {
		begin_snapshot();
		push(1);
		settle();
		saved(0);
		push(1);
	}
	settle();
}

/* ---- life ----------------------------------------------------------------------------------- */

static inline void open_journal(void)
{
	const struct core_config *cfg = core_config(sh.f.core);
	const struct wal_config config = {.loop = &sh.loop,
		.dir = sh.dir,
		.run = cfg->run,
		.term = cfg->term,
		.generation = cfg->generation,
		.max_bytes = 100000,
		.done = on_done,
		.arg = &sh};
	struct err e;

	assert_int_equal(wal_new(&sh.wal, &config, &e), PS_OK);
}

static inline int set_up(void **state)
{
	struct core_config cfg = fixture_config();
	struct msg hello = fixture_hello("");

	(void)state;
	memset(&sh, 0, sizeof(sh));
	temp_dir_make(sh.dir);
	assert_int_equal(uv_loop_init(&sh.loop), 0);
	assert_int_equal(wire_new(&sh.wire, FIXTURE_PARAMS), PS_OK);
	cfg.checkpoint.journal = 1;
	cfg.generation = 1;
	fixture_open(&sh.f, cfg);
	save(1);
	open_journal();
	receive(9, &hello);
	sh.stamp = fixture_sent(&sh.f, 9, MSG_WELCOME)->welcome.stamp;
	return 0;
}

static inline int tear_down(void **state)
{
	(void)state;
	writes_left = syncs_left = -1;
	atomic_store(&sync_hangs, 0);
	settle();
	wal_free(&sh.wal);
	wire_free(&sh.wire);
	fixture_close(&sh.f);
	temp_dir_remove(sh.dir);
	return uv_loop_close(&sh.loop);
}

#endif
