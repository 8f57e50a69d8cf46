/* Proves the promises of common/assert.h. An assertion that holds evaluates only its condition. An
 * assertion that fails prints file, line and condition, and stops the process. This file also
 * breaks some of the numbered invariants of the server on purpose, and proves that an assertion
 * then stops the process. */
#include <math.h>
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

/* ---- the full checks of the core ------------------------------------------------------------ */

static void change_a_weight(struct core *c)
{
	c->store.weights[1] += 1;
}

static void overflow_a_weight(struct core *c)
{
	c->store.weights[1] = INFINITY;
	c->store.version++;
}

static void exceed_a_bound(struct core *c)
{
	c->store.measured = 1;
	c->store.reach.weight = 0;
	c->store.version++;
	c->store.weights[1] = 1;
}

static void miscount_done_batches(struct core *c)
{
	c->leases.n_done++;
}

static void note_this_epoch(struct core *c)
{
	c->later.work[c->later.n++] = (struct work){.epoch = c->leases.epoch, .count = 1};
}

static void note_a_batch_twice(struct core *c)
{
	for (int i = 0; i < 2; i++)
		c->later.work[c->later.n++] = (struct work){c->leases.epoch + 1, 0, 1};
}

static void check_nothing(struct core *c)
{
	c->leases.evaluating = 0;
	c->checks.n = 1;
}

static void vote_twice(struct core *c)
{
	c->checks.n = 1;
	c->checks.check[0] = (struct check){.n = 2, .vote = {{.worker = 1}, {.worker = 1}}};
}

static void enter_quarantine_without_reason(struct core *c)
{
	c->quarantine.n = 1;
	c->quarantine.entry[0] = (struct quarantine_entry){.name = "a"};
}

static void know_a_later_push(struct core *c)
{
	c->worker[0].ledger.durable_seq = c->worker[0].ledger.last_seq + 1;
}

static void exclude_a_live_worker(struct core *c)
{
	c->worker[0].quarantine.excluded = 1;
}

static void miscount_references(struct core *c)
{
	c->backups.copy[0].refs++;
}

static void swap_held_versions(struct core *c)
{
	struct held *held = c->worker[0].backups.held;

	held[0].version = held[1].version + 1;
}

TEST(the_full_checks_find_what_is_broken)
{
	const struct {
		void (*breaks)(struct core *c);
		const char *finds;
	} broken[] = {{change_a_weight, "store.c (2)"}, {overflow_a_weight, "store.c (3)"},
		{exceed_a_bound, "store.c (3)"}, {miscount_done_batches, "batch_ledger.h (2)"},
		{note_this_epoch, "later_epochs.h (2)"}, {note_a_batch_twice, "later_epochs.h (3)"},
		{check_nothing, "checks.h (3)"}, {vote_twice, "checks.h (1)"},
		{enter_quarantine_without_reason, "quarantine.h (1)"},
		{know_a_later_push, "ledger.c (4)"}, {exclude_a_live_worker, "departure.h (5)"},
		{miscount_references, "backups.c (1)"}, {swap_held_versions, "backups.c (2)"}};

	for (size_t i = 0; i < sizeof(broken) / sizeof(broken[0]); i++) {
		struct core_config cfg = fixture_training();
		struct core_fixture f;

		cfg.dc.kind = DC_CONSTANT;
		cfg.dc.lambda = 1;
		fixture_open(&f, cfg);
		struct stamp s = fixture_join(&f, 9, "");
		struct msg m = fixture_batch(s, 1, 0, 0, 4);
		fixture_applied(&f, 9, &m);
		for (int pulls = 0; pulls < 2; pulls++)
			fixture_pull(&f, 9, s, WEIGHTS_CURRENT);
		assert_null(core_broken_invariant(&f.values, f.core));
		broken[i].breaks(f.core);
		const char *found = core_broken_invariant(&f.values, f.core);
		assert_non_null(found);
		assert_memory_equal(found, broken[i].finds, strlen(broken[i].finds));
		fixture_close(&f);
	}
}
