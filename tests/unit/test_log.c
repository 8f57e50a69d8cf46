/* Proves the contract of common/log.h. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include "common/log.h"
#include "scratch.h"

static struct capture c;

static int reset_level(void **state)
{
	(void)state;
	log_set_level(LOG_INFO);
	return 0;
}

static void a_line_is_level_subsystem_event_and_details(void **state)
{
	(void)state;
	capture_begin(&c, 2);
	log_info("net", "bound", "endpoint=%s port=%d", "127.0.0.1", 5555);
	log_error("saver", "stopped", "%s", "");
	assert_string_equal(capture_end(&c),
		"info net bound endpoint=127.0.0.1 port=5555\nerror saver stopped\n");
}

static void only_the_level_and_above_is_written(void **state)
{
	(void)state;
	const char *expected[] = {"error a b\n", "error a b\nwarn a b\n",
		"error a b\nwarn a b\ninfo a b\n", "error a b\nwarn a b\ninfo a b\ndebug a b\n"};
	for (int level = LOG_ERROR; level <= LOG_DEBUG; level++) {
		log_set_level((enum log_level)level);
		assert_int_equal(log_get_level(), level);
		capture_begin(&c, 2);
		log_error("a", "b", "%s", "");
		log_warn("a", "b", "%s", "");
		log_info("a", "b", "%s", "");
		log_debug("a", "b", "%s", "");
		assert_string_equal(capture_end(&c), expected[level]);
	}
}

static void level_names_are_in_the_order_of_the_enum(void **state)
{
	(void)state;
	const char *name = LOG_LEVEL_NAMES;
	log_set_level(LOG_DEBUG);
	for (int level = LOG_ERROR; level <= LOG_DEBUG; level++) {
		size_t n = strcspn(name, "|");
		capture_begin(&c, 2);
		log_write((enum log_level)level, "x", "y", "%s", "");
		const char *line = capture_end(&c);
		assert_int_equal(strcspn(line, " "), n);
		assert_memory_equal(line, name, n);
		name += n + (name[n] == '|');
	}
	assert_string_equal(name, "");
}

static void what_a_peer_sent_cannot_start_a_line_or_steer_a_terminal(void **state)
{
	(void)state;
	capture_begin(&c, 2);
	log_info("net", "hello", "name=\"%s\"", "x\nerror core lost\r\x1b[2J");
	assert_string_equal(capture_end(&c), "info net hello name=\"x?error core lost??[2J\"\n");
}

static void a_long_line_is_cut_and_still_one_line(void **state)
{
	(void)state;
	static char text[10000];
	memset(text, 'x', sizeof text - 1);
	capture_begin(&c, 2);
	log_info(text, text, "%s", text);
	log_info("net", "next", "%s", "");
	const char *out = capture_end(&c);
	assert_int_equal(count_lines(out), 2);
	assert_true(strlen(out) > 1500 && strlen(out) < 2100);
	assert_non_null(strstr(out, "x\ninfo net next\n"));
}

static void errno_survives_a_log_line(void **state)
{
	(void)state;
	fflush(stderr);
	int saved = dup(2);
	close(2); /* the write fails */
	errno = ENOSPC;
	log_info("a", "b", "c=%d", 1);
	int after = errno;
	dup2(saved, 2);
	close(saved);
	assert_int_equal(after, ENOSPC);
}

enum { THREADS = 4, LINES = 300 };

static void *log_lines(void *arg)
{
	for (int i = 0; i < LINES; i++)
		log_info("thread", "line", "who=%c%c%c%c n=%d", *(char *)arg, *(char *)arg,
			*(char *)arg, *(char *)arg, i);
	return NULL;
}

static void lines_of_many_threads_do_not_mix(void **state)
{
	(void)state;
	pthread_t thread[THREADS];
	char name[THREADS] = {'a', 'b', 'c', 'd'};
	capture_begin(&c, 2);
	for (size_t i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&thread[i], NULL, log_lines, &name[i]), 0);
	for (size_t i = 0; i < THREADS; i++)
		pthread_join(thread[i], NULL);
	char *out = c.text;
	capture_end(&c);
	int next[THREADS] = {0};
	for (char *end; (end = strchr(out, '\n')); out = end + 1) {
		char expected[64];
		*end = '\0';
		int who = strlen(out) > 21 ? out[21] - 'a' : -1;
		assert_true(who >= 0 && who < THREADS);
		snprintf(expected, sizeof expected, "info thread line who=%c%c%c%c n=%d", name[who],
			name[who], name[who], name[who], next[who]++);
		assert_string_equal(out, expected);
	}
	for (int i = 0; i < THREADS; i++)
		assert_int_equal(next[i], LINES);
}

static void off_a_terminal_progress_writes_nothing(void **state)
{
	(void)state;
	capture_begin(&c, 2);
	assert_false(log_on_terminal());
	log_progress("50 %");
	log_info("a", "b", "%s", "");
	log_progress(NULL);
	assert_string_equal(capture_end(&c), "info a b\n");
}

/* Read what arrives at a terminal's master side until it ends in `last`. */
static const char *read_terminal(int master, const char *last, char *out, size_t size)
{
	size_t used = 0;
	struct pollfd ready = {.fd = master, .events = POLLIN};
	out[0] = '\0';
	while (!strstr(out, last) && used + 1 < size && poll(&ready, 1, 10000) == 1) {
		ssize_t n = read(master, out + used, size - 1 - used);
		assert_true(n > 0);
		used += (size_t)n;
		out[used] = '\0';
	}
	return out;
}

static void on_a_terminal_lines_appear_above_the_progress_line(void **state)
{
	(void)state;
	char text[4096];
	int master = posix_openpt(O_RDWR | O_NOCTTY);
	assert_true(master >= 0 && grantpt(master) == 0 && unlockpt(master) == 0);
	int terminal = open(ptsname(master), O_RDWR | O_NOCTTY);
	const struct winsize size = {.ws_row = 24, .ws_col = 11};
	assert_true(terminal >= 0 && ioctl(master, TIOCSWINSZ, &size) == 0);
	fflush(stderr);
	int saved = dup(2);
	dup2(terminal, 2);
	int is_terminal = log_on_terminal();
	log_progress("50 % of it\nall"); /* cut to 10 columns: a wrapped line cannot be erased */
	log_info("a", "b", "%s", "");
	log_progress(NULL);
	log_info("a", "c", "%s", "");
	dup2(saved, 2);
	close(saved);
	assert_true(is_terminal);
	assert_string_equal(read_terminal(master, "info a c\r\n", text, sizeof text),
		"\r\033[K50 % of it"
		"\r\033[Kinfo a b\r\n50 % of it"
		"\r\033[K"
		"info a c\r\n");
	close(terminal);
	close(master);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(a_line_is_level_subsystem_event_and_details, reset_level),
		cmocka_unit_test_setup(only_the_level_and_above_is_written, reset_level),
		cmocka_unit_test_setup(level_names_are_in_the_order_of_the_enum, reset_level),
		cmocka_unit_test_setup(
			what_a_peer_sent_cannot_start_a_line_or_steer_a_terminal, reset_level),
		cmocka_unit_test_setup(a_long_line_is_cut_and_still_one_line, reset_level),
		cmocka_unit_test_setup(errno_survives_a_log_line, reset_level),
		cmocka_unit_test_setup(lines_of_many_threads_do_not_mix, reset_level),
		cmocka_unit_test_setup(off_a_terminal_progress_writes_nothing, reset_level),
		cmocka_unit_test_setup(
			on_a_terminal_lines_appear_above_the_progress_line, reset_level),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
