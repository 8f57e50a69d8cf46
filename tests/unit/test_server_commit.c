/*
 * Proves the invariants numbered in server/commit.h, and that recover() comes from a directory to
 * the very bytes of the core whose events went there (server/recover.h).
 */
#include <errno.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "common/checkpoint.h"
#include "server/commit.h"
#include "server/recover.h"
#include "tests/unit/core_bench.h"
#include "tests/unit/scratch.h"

/*
 * The journal's disk: how often it still writes and syncs before it fails; -1: always. Set while
 * libuv's pool has nothing to do for us; its 8 bytes to wake the loop may come later, and are let
 * through unread.
 */
static int writes_left = -1, syncs_left = -1;

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
	struct bench b;
	struct commit *commit;
	struct wire *wire;
	struct stamp stamp;
	uint64_t seq, newest;
	unsigned done;
} sh;

static void on_done(void *arg)
{
	assert_ptr_equal(arg, &sh);
	sh.done++;
}

/* ---- the disk ------------------------------------------------------------------------------- */

static void save(uint64_t generation)
{
	struct bench_image img = bench_save(&sh.b);
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
	bench_drop(&img);
}

/* What a start would find: the sections at the end of the journals equal the core's. */
static void assert_recovers(int accept_loss)
{
	struct bench_image img = bench_save(&sh.b);
	struct checkpoint c;
	struct err e;

	assert_int_equal(checkpoint_read_newest(sh.dir, 0, &c, NULL, &e), PS_OK);
	assert_int_equal(recover(sh.dir, accept_loss, &c, &e), PS_OK);
	for (int i = 0; i < IMAGE_SECTIONS; i++) {
		const struct checkpoint_section *s = checkpoint_find(&c, image_names[i]);
		assert_int_equal(s->size, img.size[i]);
		assert_memory_equal(s->data, img.data[i], s->size);
	}
	checkpoint_release(&c);
	bench_drop(&img);
}

/* Of the weights a start would have: how often was coordinate 0 moved? */
static int recovered_pushes(int accept_loss, int *rc)
{
	struct checkpoint c;
	struct err e;
	float w = 0;

	assert_int_equal(checkpoint_read_newest(sh.dir, 0, &c, NULL, &e), PS_OK);
	*rc = recover(sh.dir, accept_loss, &c, &e);
	memcpy(&w, checkpoint_find(&c, "weights")->data, sizeof(w));
	checkpoint_release(&c);
	return (int)-w;
}

/* ---- events --------------------------------------------------------------------------------- */

static void take(const struct event *ev, struct frames *f)
{
	const struct effect *e;

	sh.newest = commit_event(sh.commit, ev, sh.b.now_ms, f);
	bench_step(&sh.b, ev);
	e = bench_effect(&sh.b, EFFECT_SNAPSHOT);
	if (e)
		commit_rotate(sh.commit, e->generation);
}

/* As from the network. */
static void receive(uint32_t peer, const struct msg *m)
{
	struct frames f;
	struct msg decoded;

	assert_int_equal(wire_encode(m, &f), PS_OK);
	assert_int_equal(wire_decode(sh.wire, &f, &decoded, NULL), PS_OK);
	take(&(struct event){.kind = EVENT_MESSAGE, .peer = peer, .msg = &decoded}, &f);
	frames_release(&f);
}

static void push(int n)
{
	while (n-- > 0) {
		struct msg m = bench_push_ones(sh.stamp, ++sh.seq);
		receive(9, &m);
	}
}

static void tick(void)
{
	sh.b.now_ms += 50;
	take(&(struct event){.kind = EVENT_TICK}, NULL);
}

/* Until the pool has done what it was given. */
static void settle(void)
{
	commit_start(sh.commit);
	while (commit_busy(sh.commit))
		uv_run(&sh.loop, UV_RUN_ONCE);
}

/* The snapshot under way has been taken by now; here its disk is done. */
static void saved(int ok)
{
	uint64_t generation = sh.b.saving;

	if (ok)
		commit_durable(sh.commit, generation);
	sh.b.saving = 0;
	take(&(struct event){.kind = ok ? EVENT_DURABLE : EVENT_SAVE_FAILED,
		     .generation = generation},
		NULL);
}

/* A snapshot of this instant, on the disk. */
static void snapshot(void)
{
	take(&(struct event){.kind = EVENT_SAVE}, NULL);
	assert_int_not_equal(sh.b.saving, 0);
	save(sh.b.saving);
	saved(1);
}

/* ---- life ----------------------------------------------------------------------------------- */

static void open_journal(void)
{
	const struct core_config *cfg = core_config(sh.b.core);
	const struct commit_config config = {.loop = &sh.loop,
		.dir = sh.dir,
		.run = cfg->run,
		.epoch = cfg->epoch,
		.generation = cfg->generation,
		.most_bytes = 100000,
		.done = on_done,
		.arg = &sh};
	struct err e;

	assert_int_equal(commit_new(&sh.commit, &config, &e), PS_OK);
}

static int set_up(void **state)
{
	struct core_config cfg = bench_config();
	struct msg hello = bench_hello("");

	(void)state;
	memset(&sh, 0, sizeof(sh));
	scratch_make(sh.dir);
	assert_int_equal(uv_loop_init(&sh.loop), 0);
	assert_int_equal(wire_new(&sh.wire, BENCH_PARAMS), PS_OK);
	cfg.journal = 1;
	cfg.generation = 1;
	bench_open(&sh.b, cfg);
	save(1);
	open_journal();
	receive(9, &hello);
	sh.stamp = bench_sent(&sh.b, 9, MSG_WELCOME)->welcome.stamp;
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	writes_left = syncs_left = -1;
	settle();
	commit_free(&sh.commit);
	wire_free(&sh.wire);
	bench_close(&sh.b);
	scratch_remove(sh.dir);
	return uv_loop_close(&sh.loop);
}

/* ---- tests ---------------------------------------------------------------------------------- */

static void what_was_reached_is_found_again(void **state)
{
	(void)state;
	assert_int_equal(commit_reached(sh.commit), 0);
	for (int i = 0; i < 100; i++) {
		push(1);
		if (i % 7 == 0)
			tick();
		if (i % 30 == 29)
			snapshot();
		if (i % 11 == 0) {
			settle();
			assert_int_equal(commit_reached(sh.commit), sh.newest);
			assert_recovers(0);
		}
	}
	settle();
	assert_recovers(0);
	assert_int_equal(commit_stats(sh.commit)->events, sh.newest);
	assert_true(commit_stats(sh.commit)->groups < sh.newest); /* several in one */
	assert_int_equal(sh.done > 0, 1);
}

/* The snapshot under way may never end: both journals together have everything. */
static void an_unfinished_snapshot_is_not_needed(void **state)
{
	(void)state;
	push(5);
	take(&(struct event){.kind = EVENT_SAVE}, NULL);
	push(5);
	settle();
	assert_int_equal(commit_reached(sh.commit), sh.newest);
	assert_recovers(0);
	saved(0); /* it has failed; the core begins the next at once */
	push(3);
	sh.b.now_ms += core_config(sh.b.core)->checkpoint_ms;
	tick();
	assert_int_not_equal(sh.b.saving, 0);
	push(1);
	settle();
	assert_recovers(0);
}

/* A disk that holds nothing more, or whose sync fails: nothing is reached until a snapshot is on
 * disk, then everything is, and the next journal works. */
static void a_lost_journal_is_replaced_by_the_next_snapshot(void **state)
{
	(void)state;
	for (int how = 0; how < 2; how++) {
		push(1);
		settle();
		uint64_t before = commit_reached(sh.commit);
		assert_int_equal(before, sh.newest);
		*(how ? &syncs_left : &writes_left) = 0;
		for (int i = 0; i < 20; i++) {
			push(1);
			settle();
		}
		assert_int_equal(commit_reached(sh.commit), before);
		assert_true(commit_wants_snapshot(sh.commit));
		assert_true(commit_stats(sh.commit)->failing);
		assert_true(strlen(commit_stats(sh.commit)->why) > 0);
		assert_int_equal(commit_waiting(sh.commit), 0); /* no memory is spent on it */
		writes_left = syncs_left = -1;
		push(1); /* the disk is well, but this journal is not touched again */
		settle();
		assert_int_equal(commit_reached(sh.commit), before);
		uint64_t in_snapshot = sh.newest + 1;
		snapshot();
		assert_true(commit_reached(sh.commit) >= in_snapshot);
		push(1);
		settle();
		assert_int_equal(commit_reached(sh.commit), sh.newest);
		assert_false(commit_stats(sh.commit)->failing);
		assert_false(commit_wants_snapshot(sh.commit));
		assert_recovers(0);
	}
}

/* The journal of a snapshot that is not on disk yet is worth nothing while the one before it has a
 * hole. */
static void behind_a_hole_nothing_is_reached(void **state)
{
	(void)state;
	settle();
	uint64_t before = commit_reached(sh.commit);
	writes_left = 0;
	push(1);
	settle();
	writes_left = -1;
	take(&(struct event){.kind = EVENT_SAVE}, NULL);
	push(5);
	settle();
	assert_int_equal(commit_reached(sh.commit), before);
	int rc, pushes = recovered_pushes(0, &rc);
	assert_int_equal(rc, PS_OK);
	assert_int_equal(pushes, 0);
	saved(0);
	push(1);
	settle();
	assert_int_equal(commit_reached(sh.commit), before);
}

static void a_large_journal_asks_for_a_snapshot(void **state)
{
	(void)state;
	for (int i = 0; i < 2000 && !commit_wants_snapshot(sh.commit); i++) {
		push(1);
		if (i % 50 == 0)
			settle();
	}
	assert_true(commit_wants_snapshot(sh.commit));
	assert_true(commit_stats(sh.commit)->bytes >= 100000);
	snapshot();
	settle();
	assert_false(commit_wants_snapshot(sh.commit));
	assert_recovers(0);
}

/* ---- what a start finds --------------------------------------------------------------------- */

static void journal_path(uint64_t generation, char out[320])
{
	char name[32];

	snprintf(name, sizeof(name), "journal-%016llx", (unsigned long long)generation);
	scratch_path(sh.dir, name, out);
}

/* The newest checkpoint is bad: the one before it and two journals come to the same bytes. */
static void a_bad_checkpoint_costs_nothing(void **state)
{
	char path[320];

	(void)state;
	push(3);
	snapshot();
	push(3);
	settle();
	assert_int_equal(truncate(scratch_path(sh.dir, "ckpt-0000000000000002", path), 100), 0);
	assert_recovers(0);
}

static void a_torn_end_is_an_end(void **state)
{
	char path[320];
	int rc;

	(void)state;
	push(4);
	settle();
	journal_path(1, path);
	assert_int_equal(recovered_pushes(0, &rc), 4);
	assert_int_equal(truncate(path, (long)commit_stats(sh.commit)->bytes - 9), 0);
	assert_int_equal(recovered_pushes(0, &rc), 3);
	assert_int_equal(rc, PS_OK);
}

static void a_loss_in_the_middle_is_refused_unless_it_is_accepted(void **state)
{
	char path[320];
	int rc;

	(void)state;
	for (int i = 0; i < 6; i++) {
		push(1);
		settle();
	}
	journal_path(1, path);
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	assert_int_equal(pwrite(fd, "x", 1, 700), 1);
	close(fd);
	recovered_pushes(0, &rc);
	assert_int_equal(rc, PS_ECHECKPOINT);
	int pushes = recovered_pushes(1, &rc);
	assert_int_equal(rc, PS_OK);
	assert_in_range(pushes, 0, 5);
}

static void a_journal_of_another_start_is_refused(void **state)
{
	struct commit_config config = {.loop = &sh.loop,
		.dir = sh.dir,
		.run = core_config(sh.b.core)->run,
		.epoch = 4711,
		.generation = 1,
		.done = on_done};
	struct err e;
	int rc;

	(void)state;
	settle();
	commit_free(&sh.commit);
	assert_int_equal(commit_new(&sh.commit, &config, &e), PS_OK);
	recovered_pushes(1, &rc);
	assert_int_equal(rc, PS_ECHECKPOINT);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
	const struct CMUnitTest tests[] = {
		TEST(what_was_reached_is_found_again),
		TEST(an_unfinished_snapshot_is_not_needed),
		TEST(a_lost_journal_is_replaced_by_the_next_snapshot),
		TEST(behind_a_hole_nothing_is_reached),
		TEST(a_large_journal_asks_for_a_snapshot),
		TEST(a_bad_checkpoint_costs_nothing),
		TEST(a_torn_end_is_an_end),
		TEST(a_loss_in_the_middle_is_refused_unless_it_is_accepted),
		TEST(a_journal_of_another_start_is_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
