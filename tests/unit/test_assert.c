/* Proves the promises of common/assert.h. An assertion that holds evaluates only its condition. An
 * assertion that fails prints file, line and condition, and stops the process. This file also
 * proves that the core stops the process instead of dropping an effect. */
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>
#include "common/assert.h"
#include "tests/support/core_fixture.h"
#include "tests/support/test.h"

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
