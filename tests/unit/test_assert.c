/* Proves the promises of common/assert.h. An assertion that holds evaluates only its condition. An
 * assertion that fails prints file, line and condition, and stops the process. This file also
 * breaks some of the numbered invariants of the server on purpose, and proves that an assertion
 * then stops the process. */
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>
#include "common/assert.h"
#include "common/checkpoint.h"
#include "common/pool.h"
#include "server/net/owners.h"
#include "server/net/param_buffers.h"
#include "tests/support/core_fixture.h"
#include "tests/support/test.h"
#include "worker/client/outbox.h"

typedef void act_fn(void);

/* Runs `act` in a child process, and writes the child's output to `said`. Returns the signal that
 * ended the child, or 0 if the child exited. */
static int signal_of(act_fn *act, char *said, size_t size)
{
	int end[2], status;

	assert_int_equal(pipe(end), 0);
	pid_t child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		dup2(end[1], STDERR_FILENO);
		signal(SIGABRT, SIG_DFL);
		act();
		_exit(0);
	}
	close(end[1]);
	ssize_t n = read(end[0], said, size - 1);
	said[n > 0 ? n : 0] = '\0';
	close(end[0]);
	assert_int_equal(waitpid(child, &status, 0), child);
	return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

static void two_is_even(void)
{
	PS_ASSERT(2 % 2 == 0);
}

static void three_is_even(void)
{
	PS_ASSERT(3 % 2 == 0);
}

TEST(an_assertion_that_fails_stops_the_process)
{
	char said[256];

	assert_int_equal(signal_of(two_is_even, said, sizeof(said)), 0);
	assert_string_equal(said, "");
	assert_int_equal(signal_of(three_is_even, said, sizeof(said)), SIGABRT);
	assert_non_null(strstr(said, "test_assert.c:"));
	assert_non_null(strstr(said, "assertion failed: 3 % 2 == 0\n"));
}

static void answer_without_room(void)
{
	struct core_fixture f;

	fixture_open(&f, fixture_config());
	f.core->effects.max = 0;
	fixture_tick(&f, 0);
	struct msg m = {.type = MSG_STATUS};
	fixture_message(&f, 1, &m);
}

TEST(the_core_stops_rather_than_drop_an_effect)
{
	char said[256];

	assert_int_equal(signal_of(answer_without_room, said, sizeof(said)), SIGABRT);
	assert_non_null(strstr(said, "effects.n"));
}

/* Opens a core in which epoch 0 is under evaluation, and epoch 1 in training. */
static struct stamp open_with_evaluation(struct core_fixture *f)
{
	fixture_open(f, fixture_training());
	struct stamp s = fixture_join(f, 9, "");
	struct msg m = fixture_batch(s, 1, 0, 0, 4);
	fixture_applied(f, 9, &m);
	return s;
}

static void end_evaluation_too_early(void)
{
	struct core_fixture f;

	(void)open_with_evaluation(&f);
	f.core->leases.n_evaluated = f.core->leases.n_portions;
	core_step(f.core, &(struct event){.kind = EVENT_TICK}, f.now_ms + 50);
}

static void miscount_free_batches(void)
{
	struct core_fixture f;
	struct stamp s = open_with_evaluation(&f);

	f.core->leases.evaluating = 0;
	memset(f.core->leases.batch, BATCH_DONE, 4);
	const struct msg m = {.type = MSG_LEASE, .lease = {.stamp = s, .request = 1}};
	core_step(f.core, &(struct event){EVENT_MESSAGE, 9, .msg = &m}, f.now_ms);
}

static void encode_within_a_step(void)
{
	struct core_fixture f;
	struct stamp s = open_with_evaluation(&f);
	struct msg m = fixture_batch(s, 2, 1, 0, 1);

	fixture_slice(&m, 0, FIXTURE_PARAMS, fixture_ones);
	core_decide(f.core, &(struct event){EVENT_MESSAGE, 9, .msg = &m}, f.now_ms);
	(void)fixture_save(&f);
}

static void exclude_a_worker_with_two_entries(void)
{
	struct quarantine q = {0};

	(void)quarantine_count(&q, "key", "a");
	q.entry[q.n++] = q.entry[0];
	(void)quarantine_count(&q, "key", "a");
}

static void return_a_buffer_twice(void)
{
	struct pool *p;

	assert_int_equal(pool_new(&p, 8), PS_OK);
	float *one = pool_acquire(p), *same = one;
	pool_release(p, &one);
	pool_release(p, &same);
}

/* Makes two steps of the core that change the weights, and calls param_buffers_after_step only
 * after the second one, although it must be called after each step. */
static void miss_an_update(void)
{
	struct core_config cfg = fixture_config();
	struct core_fixture f = {.cfg = cfg, .now_ms = 1000, .memory = fixture_memory(&cfg)};
	struct param_buffers *buffers;

	assert_int_equal(param_buffers_new(&buffers, cfg.n_params, 0), PS_OK);
	f.core = core_init(f.memory, &f.cfg, param_buffers_first(buffers));
	param_buffers_use_core(buffers, f.core);
	struct stamp s = fixture_join(&f, 9, "");
	param_buffers_after_step(buffers);
	for (uint64_t seq = 1; seq <= 2; seq++) {
		struct msg m = fixture_push_ones(s, seq);

		fixture_applied(&f, 9, &m);
	}
	param_buffers_after_step(buffers);
}

static void count_bytes_that_no_push_has(void)
{
	static struct outbox out;

	outbox_init(&out, NULL);
	out.retained_bytes = 1;
	outbox_clear(&out);
}

static void free_owners_before_their_frames(void)
{
	struct owners *o = owners_new();
	zmq_msg_t frame;

	assert_true(o && owners_may_pull(o, 9, "key", 8));
	assert_int_equal(zmq_msg_init_size(&frame, 8), 0);
	owners_count(o, 9, &frame);
	owners_free(&o);
}

static void write_generation_0(void)
{
	struct checkpoint c = {.generation = 0};
	struct err e;

	assert_int_equal(checkpoint_write_beside("/nowhere", &c, 0, NULL, &e), PS_OK);
}

TEST(a_broken_invariant_stops_the_process)
{
	const struct {
		act_fn *act;
		const char *condition;
	} broken[] = {{end_evaluation_too_early, "all_done(l->portion"},
		{miscount_free_batches, "failed: first\n"},
		{encode_within_a_step, "!c->store.update.pending"},
		{exclude_a_worker_with_two_entries, "quarantine_entry_is_valid"},
		{return_a_buffer_twice, "!came_back"}, {write_generation_0, "c->generation >= 1"},
		{miss_an_update, "w->version == core_stats(c)->version"},
		{count_bytes_that_no_push_has, "bytes == o->retained_bytes"},
		{free_owners_before_their_frames, "owner[i].bytes) == 0"}};
	char said[256];

	for (size_t i = 0; i < sizeof(broken) / sizeof(broken[0]); i++) {
		assert_int_equal(signal_of(broken[i].act, said, sizeof(said)), SIGABRT);
		assert_non_null(strstr(said, broken[i].condition));
	}
}
