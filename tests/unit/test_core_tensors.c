/*
 * Proves what server/core/tensors.h says about lists of tensors: a run gets one list of tensors,
 * keeps it over a restart, sends it to observers, and refuses workers with another list.
 */
#include "tests/support/core_fixture.h"
#include "tests/support/test.h"

static const char list[] = "first F32 2x3\nlast F32 2\ncount I64 scalar 0\n";
static const char later[] = "first F32 2x3\nlast F32 2\ncount I64 scalar 7\n";
static const char other[] = "first F32 3x2\nlast F32 2\ncount I64 scalar 0\n";

static void hello_with_tensors(struct core_fixture *f, uint32_t peer, const char *tensors)
{
	struct msg m = fixture_hello("");

	m.hello.tensors = tensors;
	fixture_message(f, peer, &m);
}

static void observe(struct core_fixture *f, const char *expected)
{
	struct msg m = fixture_hello("");

	m.hello.role = ROLE_OBSERVER;
	fixture_message(f, 99, &m);
	assert_string_equal(fixture_sent(f, 99, MSG_WELCOME)->welcome.tensors, expected);
}

static void open_core(struct core_fixture *f)
{
	struct core_config cfg = fixture_training();

	cfg.sessions.max_workers = 8;
	cfg.durable = 0;
	fixture_open(f, cfg);
}

TEST(the_first_worker_with_a_list_gives_it_to_the_run)
{
	struct core_fixture f;

	open_core(&f);
	hello_with_tensors(&f, 1, NULL);
	observe(&f, "");
	hello_with_tensors(&f, 2, list);
	assert_non_null(fixture_sent(&f, 2, MSG_WELCOME));
	/* the WELCOME has no list, because the worker has a list of its own */
	assert_null(fixture_sent(&f, 2, MSG_WELCOME)->welcome.tensors);
	observe(&f, list);
	hello_with_tensors(&f, 3, later);
	assert_non_null(fixture_sent(&f, 3, MSG_WELCOME));
	hello_with_tensors(&f, 4, "");
	assert_non_null(fixture_sent(&f, 4, MSG_WELCOME));
	observe(&f, list);
	fixture_restart(&f);
	observe(&f, list);
	fixture_close(&f);
}

TEST(a_list_is_on_disk_before_its_welcome)
{
	struct core_config cfg = fixture_training();
	struct core_fixture f;

	fixture_open(&f, cfg);
	fixture_join(&f, 1, "a");
	hello_with_tensors(&f, 2, list);
	assert_null(fixture_sent(&f, 2, MSG_WELCOME));
	assert_int_equal(fixture_count(&f, EFFECT_SNAPSHOT), 1);
	fixture_close(&f);
}

TEST(another_or_malformed_list_is_refused)
{
	struct core_fixture f;
	size_t line;

	open_core(&f);
	/* refused: the tensors of this list have another number of values than the model */
	hello_with_tensors(&f, 1, "first F32 9\n");
	fixture_refused(&f, 1, PS_EWRONGDATA);
	hello_with_tensors(&f, 1, "first\n");
	fixture_refused(&f, 1, PS_EWRONGDATA);
	observe(&f, "");
	assert_non_null(core_name_tensors(f.core, "first F32 9\n", &line));
	observe(&f, "");
	assert_null(core_name_tensors(f.core, list, &line));
	hello_with_tensors(&f, 1, other);
	fixture_refused(&f, 1, PS_EWRONGDATA);
	assert_string_equal(fixture_sent(&f, 1, MSG_ERROR)->error.text,
		"this worker's list of tensors, line 1: the run has another tensor there: all "
		"workers of a run have one model");
	observe(&f, list);
	fixture_close(&f);
}

TEST(a_worker_that_resumes_has_the_list_of_the_run)
{
	struct core_fixture f;
	struct msg m;

	open_core(&f);
	hello_with_tensors(&f, 1, list);
	m = fixture_resume(fixture_sent(&f, 1, MSG_WELCOME)->welcome.stamp, 0, 0);
	fixture_restart(&f);
	m.hello.tensors = other;
	fixture_message(&f, 2, &m);
	fixture_refused(&f, 2, PS_EWRONGDATA);
	m.hello.tensors = list;
	fixture_message(&f, 2, &m);
	assert_non_null(fixture_sent(&f, 2, MSG_WELCOME));
	fixture_close(&f);
}
