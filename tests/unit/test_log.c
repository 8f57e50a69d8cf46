/* Proves the promises of common/log.h. */
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <errno.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <time.h>
#include "common/log.h"
#include "tests/support/capture.h"
#include "tests/support/test.h"

static struct capture c;

static int reset_level(void **state)
{
	(void)state;
	log_set_level(LOG_INFO);
	log_set_format(LOG_TEXT);
	return 0;
}

TEST_IN(a_line_is_time_level_message_and_fields, reset_level, NULL)
{
	capture_begin(&c, 2);
	log_info("net", "bound", "endpoint=%s port=%d", "127.0.0.1", 5555);
	log_error("checkpointer", "stopped", "%s", "");
	assert_string_equal(capture_log(&c),
		"level=info msg=\"net bound\" endpoint=127.0.0.1 port=5555\n"
		"level=error msg=\"checkpointer stopped\"\n");
}

/* Returns the time of the clock that the log reads. The clock that time() reads can be one tick
 * behind the log's clock. */
static time_t wall_seconds(void)
{
	struct timespec now;

	assert_int_equal(clock_gettime(CLOCK_REALTIME, &now), 0);
	return now.tv_sec;
}

TEST_IN(the_time_is_utc_now, reset_level, NULL)
{
	struct tm t = {0};
	int ms;

	setenv("TZ", "Asia/Kolkata", 1); /* a time zone 5 h 30 min from UTC */
	tzset();
	const time_t before = wall_seconds();
	capture_begin(&c, 2);
	log_info("a", "b", "%s", "");
	const char *line = capture_end(&c);
	const time_t after = wall_seconds();
	const char *rest = strptime(line, "ts=%Y-%m-%dT%H:%M:%S.", &t);
	assert_non_null(rest);
	ms = (int)strtol(rest, NULL, 10);
	assert_memory_equal(rest + 3, "Z level", 7);
	assert_true(ms >= 0 && ms <= 999);
	assert_true(timegm(&t) >= before && timegm(&t) <= after);
}

TEST_IN(only_the_level_and_above_is_written, reset_level, NULL)
{
	const char *names[] = {"error", "warn", "info", "debug"};
	char expected[256] = "";

	for (int level = LOG_ERROR; level <= LOG_DEBUG; level++) {
		size_t n = strlen(expected);

		snprintf(
			expected + n, sizeof(expected) - n, "level=%s msg=\"a b\"\n", names[level]);
		log_set_level((enum log_level)level);
		assert_int_equal(log_get_level(), level);
		assert_string_equal(log_level_name((enum log_level)level), names[level]);
		capture_begin(&c, 2);
		log_error("a", "b", "%s", "");
		log_warn("a", "b", "%s", "");
		log_info("a", "b", "%s", "");
		log_debug("a", "b", "%s", "");
		assert_string_equal(capture_log(&c), expected);
	}
}

TEST_IN(level_names_are_in_the_order_of_the_enum, reset_level, NULL)
{
	const char *name = LOG_LEVEL_NAMES;

	for (int level = LOG_ERROR; level <= LOG_DEBUG; level++) {
		size_t n = strcspn(name, "|");
		const char *one = log_level_name((enum log_level)level);

		assert_int_equal(strlen(one), n);
		assert_memory_equal(one, name, n);
		name += n + (name[n] == '|');
	}
	assert_string_equal(name, "");
}

/* Covers attack A22 of docs/faults.md. */
TEST_IN(what_a_peer_sent_cannot_start_a_line_or_steer_a_terminal, reset_level, NULL)
{
	capture_begin(&c, 2);
	log_info("net", "hello", "name=\"%s\"", "x\nerror core lost\r\x1b[2J\x7f\xc2\x9b");
	assert_string_equal(capture_log(&c),
		"level=info msg=\"net hello\" "
		"name=\"x\\nerror core lost\\r\\u001b[2J\\u007f\\u009b\"\n");
	/* the log must escape characters that change the order in which a terminal shows other
	 * characters */
	capture_begin(&c, 2);
	log_info("net", "hello", "name=\"%s\"", "a\u202eb\u2066c\u200fd\u061ce\u2028\u00e9");
	assert_string_equal(capture_log(&c),
		"level=info msg=\"net hello\" "
		"name=\"a\\u202eb\\u2066c\\u200fd\\u061ce\\u2028\u00e9\"\n");
}

TEST_IN(a_value_cannot_end_itself_or_add_a_field, reset_level, NULL)
{
	capture_begin(&c, 2);
	log_info("a", "b", "name=\"%s\" dir=%s n=%d", "x\" admin=\"1", "/a b=\\", 7);
	log_info("a", "b", "empty=%s quoted=\"%s\" last=%s", "", "", "\xc3\xa4\xff\xc3");
	assert_string_equal(capture_log(&c),
		"level=info msg=\"a b\" name=\"x\\\" admin=\\\"1\" dir=\"/a b=\\\\\" n=7\n"
		"level=info msg=\"a b\" empty=\"\" quoted=\"\" last=\"\xc3\xa4\\ufffd\\ufffd\"\n");
}

TEST_IN(json_has_a_line_per_event_and_numbers_are_numbers, reset_level, NULL)
{
	log_set_format(LOG_JSON);
	assert_int_equal(log_get_format(), LOG_JSON);
	capture_begin(&c, 2);
	log_info("a", "b", "n=%d x=%.2f id=%016llx nan=%f text=%s name=\"%s\" all=%d%s", -7, 1.5,
		12ULL, (double)NAN, "12", "\"\n", 3, "");
	log_info("a", "b", "%s", "");
	const char *out = capture_end(&c), *after = strstr(out, "Z\"");
	assert_memory_equal(out, "{\"ts\":\"2", 8);
	assert_non_null(after);
	static const char first[] =
		"Z\",\"level\":\"info\",\"msg\":\"a b\",\"n\":-7,\"x\":1.50,"
		"\"id\":\"000000000000000c\",\"nan\":null,\"text\":\"12\",\"name\":\"\\\"\\n\","
		"\"all\":\"3\"}\n{";
	assert_memory_equal(after, first, sizeof(first) - 1);
	after = strstr(after + 2, "Z\"");
	assert_non_null(after);
	assert_string_equal(after, "Z\",\"level\":\"info\",\"msg\":\"a b\"}\n");
}

/* JSON has no NaN and no infinity, so a field with such a value is null; in logfmt it is a dash. */
TEST_IN(a_number_that_is_not_finite_is_null_or_a_dash, reset_level, NULL)
{
	static const double values[] = {NAN, -NAN, INFINITY, -INFINITY, 0.5};
	static const char *const json[] = {"null", "null", "null", "null", "0.5"};
	static const char *const text[] = {"-", "-", "-", "-", "0.5"};
	char expected[64];

	for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
		log_set_format(LOG_TEXT);
		capture_begin(&c, 2);
		log_info("a", "b", "x=%.1f word=%s", values[i], "nan");
		snprintf(expected, sizeof(expected), "level=info msg=\"a b\" x=%s word=nan\n",
			text[i]);
		assert_string_equal(capture_log(&c), expected);
		log_set_format(LOG_JSON);
		capture_begin(&c, 2);
		log_info("a", "b", "x=%.1f word=%s", values[i], "nan");
		snprintf(expected, sizeof(expected), ",\"x\":%s,\"word\":\"nan\"}\n", json[i]);
		assert_non_null(strstr(capture_end(&c), expected));
	}
}

TEST_IN(a_long_line_is_cut_and_still_one_line, reset_level, NULL)
{
	static char text[10000];

	memset(text, '\n', sizeof(text) - 1);
	for (int format = LOG_TEXT; format <= LOG_JSON; format++)
		for (size_t before = 0; before < 12;
			/* the text can be cut at any position by the maximum length of a line */
			before++) {
			log_set_format((enum log_format)format);
			capture_begin(&c, 2);
			log_info(text, text, "a=\"%.*s%s\" b=%d", (int)before, "xxxxxxxxxxxx", text,
				7);
			log_info("net", "next", "%s", "");
			const char *out = capture_end(&c);
			const char *end = format == LOG_JSON ? "...\"}\n{" : "...\"\nts=";
			assert_int_equal(count_lines(out), 2);
			assert_in_range(strlen(out), 4000, 4096 + 100);
			assert_non_null(strstr(out, end));
		}
}

TEST_IN(errno_survives_a_log_line, reset_level, NULL)
{
	fflush(stderr);
	int saved = dup(2);
	close(2); /* from now on, every write to stderr fails */
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

TEST_IN(lines_of_many_threads_do_not_mix, reset_level, NULL)
{
	pthread_t thread[THREADS];
	char name[THREADS] = {'a', 'b', 'c', 'd'};

	capture_begin(&c, 2);
	for (size_t i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&thread[i], NULL, log_lines, &name[i]), 0);
	for (size_t i = 0; i < THREADS; i++)
		pthread_join(thread[i], NULL);
	char *out = c.text;
	capture_log(&c);
	int next[THREADS] = {0};
	for (char *end; (end = strchr(out, '\n')); out = end + 1) {
		char expected[64];
		*end = '\0';
		int who = strlen(out) > 33 ? out[33] - 'a' : -1;

		assert_true(who >= 0 && who < THREADS);
		snprintf(expected, sizeof(expected),
			"level=info msg=\"thread line\" who=%c%c%c%c n=%d", name[who], name[who],
			name[who], name[who], next[who]++);
		assert_string_equal(out, expected);
	}
	for (int i = 0; i < THREADS; i++)
		assert_int_equal(next[i], LINES);
}

TEST_IN(off_a_terminal_progress_writes_nothing, reset_level, NULL)
{
	capture_begin(&c, 2);
	assert_false(log_on_terminal());
	log_progress("50 %");
	log_info("a", "b", "%s", "");
	log_progress(NULL);
	assert_string_equal(capture_log(&c), "level=info msg=\"a b\"\n");
}

/* Reads the output of a terminal from its master side until the output ends in `last`. */
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

TEST_IN(on_a_terminal_lines_appear_above_the_progress_line, reset_level, NULL)
{
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
	/* the log cuts the progress line to 10 columns, because a wrapped line cannot be erased */
	log_progress("50 % of it\nall");
	log_info("a", "b", "%s", "");
	log_progress(NULL);
	log_info("a", "c", "%s", "");
	/* with JSON, log_progress must print nothing, because a progress line is not JSON */
	log_set_format(LOG_JSON);
	log_progress("75 %");
	log_info("a", "d", "%s", "");
	dup2(saved, 2);
	close(saved);
	assert_true(is_terminal);
	const char *out = read_terminal(master, "\"a d\"}\r\n", text, sizeof(text));
	static const char first[] = "\r\033[K50 % of it\r\033[Kts=";
	assert_memory_equal(out, first, sizeof(first) - 1);
	assert_non_null(strstr(out, "level=info msg=\"a b\"\r\n50 % of it\r\033[Kts="));
	assert_non_null(strstr(out, "level=info msg=\"a c\"\r\n{\"ts\""));
	close(terminal);
	close(master);
}
