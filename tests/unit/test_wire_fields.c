/* test_wire_fields.c - a message is refused if a value is out of range or contradicts another
 * value, and the error contains the name of the field. Covers attack A16 of docs/faults.md. */
#include <math.h>
#include "tests/support/wire_bytes.h"
#include "tests/support/test.h"

TEST(numbers_out_of_range_are_refused)
{
	struct bytes *b = bytes_fresh();

	bytes_number(b, 3, 0);
	assert_refused(MSG_PULL, b, "pull.which is out of range");
	b = bytes_fresh();
	bytes_number(b, 3, 3);
	assert_refused(MSG_PULL, b, "pull.which is out of range");
	b = bytes_fresh();
	bytes_number(b, 3, UINT64_MAX); /* refused, because this number would be -1 as an enum */
	assert_refused(MSG_PULL, b, "number too large for its field");
	b = bytes_pull();
	bytes_text(b, 1, "\x20\x81\x08"); /* worker id 1025 */
	assert_refused(MSG_PULL, b, "worker is out of range");
	b = bytes_pull();
	bytes_text(b, 1, "\x20\x80\x80\x80\x80\x10"); /* worker id 2^32 */
	assert_refused(MSG_PULL, b, "number too large for its field");
	b = bytes_fresh();
	bytes_number(b, 1, 2);
	assert_refused(MSG_STATUS, b, "number too large for its field");
	b = bytes_fresh();
	bytes_number(b, 1, 27);
	assert_refused(MSG_ERROR, b, "error.status is out of range");
	assert_refused(MSG_ERROR, bytes_fresh(), "error.status is out of range");
	b = bytes_fresh();
	bytes_number(b, 2, UINT32_MAX);
	assert_refused(MSG_BYE, b, "bye.status is out of range");
	b = bytes_fresh();
	/* a first batch of 2^20, which is above the limit */
	bytes_text(b, 4, "\x10\x80\x80\x40\x18\x01");
	assert_refused(MSG_PUSH, b, "push.work is out of range");
	b = bytes_fresh();
	bytes_text(b, 4, "\x08\x80\x80\x04"); /* epoch 65536 */
	assert_refused(MSG_PUSH, b, "epoch is out of range");
}

TEST(decisions_must_make_sense)
{
	static const char reason[] = "verdict and reject contradict each other";
	struct bytes *b = bytes_fresh();

	bytes_number(b, 2, VERDICT_OK);
	assert_accepted(MSG_ACK, b);
	bytes_number(b, 3, REJECT_NORM);
	assert_refused(MSG_ACK, b, reason);
	b = bytes_fresh();
	bytes_number(b, 2, VERDICT_REJECTED);
	assert_refused(MSG_ACK, b, reason);
	b = bytes_fresh();
	bytes_number(b, 9, REJECT_NORM);
	assert_refused(MSG_PUSH, b, reason);
	bytes_number(b, 8, VERDICT_REJECTED);
	assert_accepted(MSG_PUSH, b);
	b = bytes_fresh();
	bytes_number(b, 8, VERDICT_REJECTED);
	bytes_number(b, 9, REJECT_REASONS);
	assert_refused(MSG_PUSH, b, "push.reject is out of range");
	b = bytes_fresh();
	bytes_number(b, 2, VERDICT_REJECTED);
	bytes_number(b, 3, REJECT_REASONS);
	assert_refused(MSG_ACK, b, "ack.reject is out of range");
	b = bytes_fresh();
	bytes_number(b, 2, VERDICT_OK);
	bytes_number(b, 8, 1);
	assert_refused(MSG_ACK, b, "superseded, but not rejected");
}

TEST(grants_and_results_must_make_sense)
{
	struct bytes *b = bytes_fresh();

	bytes_number(b, 2, GRANT_TRAIN);
	bytes_number(b, 5, 100);
	assert_refused(MSG_GRANT, b, "grant without batches and images");
	b = bytes_fresh();
	bytes_number(b, 2, GRANT_EVAL);
	bytes_number(b, 4, WIRE_MAX_IMAGES);
	bytes_number(b, 5, 1);
	assert_refused(MSG_GRANT, b, "grant.eval is out of range");
	b = bytes_fresh();
	bytes_number(b, 4, 10);
	bytes_number(b, 5, 10);
	assert_accepted(MSG_RESULT, b);
	b = bytes_fresh();
	bytes_number(b, 4, 10);
	bytes_number(b, 5, 11);
	assert_refused(MSG_RESULT, b, "result.correct exceeds result.eval_count");
}

static struct bytes *welcome_with_limits(
	unsigned push_window, unsigned replay_window, unsigned heartbeat_ms, unsigned dead_ms)
{
	struct bytes *b = bytes_fresh();

	bytes_number(b, 6, 1);
	bytes_number(b, 8, 1);
	bytes_number(b, 10, push_window);
	bytes_number(b, 11, replay_window);
	bytes_number(b, 12, heartbeat_ms);
	bytes_number(b, 13, dead_ms);
	bytes_number(b, 14, 1);
	bytes_number(b, 15, MODE_DOWNPOUR);
	bytes_number(b, 16, 1);
	bytes_number(b, 17, 1);
	bytes_number(b, 22, WIRE_PROTOCOL);
	return b;
}

static struct bytes *welcome_with(unsigned field, double value)
{
	struct bytes *b = welcome_with_limits(8, 8, 1, 2);

	/* the tag of a field with wire type 1, after which eight bytes follow */
	bytes_varint(b, field << 3 | 1);
	memcpy(b->at + b->n, &value, sizeof(value));
	b->n += sizeof(value);
	return b;
}

TEST(welcomes_must_make_sense)
{
	assert_accepted(MSG_WELCOME, welcome_with_limits(8, 8, 1, 2));
	assert_refused(MSG_WELCOME, welcome_with_limits(8, 7, 1, 2),
		"replay_window is smaller than push_window");
	assert_refused(MSG_WELCOME, welcome_with_limits(8, 8, 2, 2),
		"heartbeat_ms is not smaller than dead_ms");
	assert_refused(MSG_WELCOME, welcome_with_limits(0, 8, 1, 2),
		"welcome.push_window is out of range");
	struct bytes *b = welcome_with_limits(8, 8, 1, 2);
	bytes_number(b, 32, 1);
	assert_accepted(MSG_WELCOME, b);
	bytes_number(b, 32, 1);
	assert_refused(MSG_WELCOME, b, "a field is given twice");
	b = welcome_with_limits(8, 8, 1, 2);
	bytes_number(b, 32, 2);
	assert_refused(MSG_WELCOME, b, "number too large for its field");
	for (unsigned field = 20; field <= 21; field++) {
		const double bad[] = {-0.1, 1e7, (double)NAN, (double)INFINITY};

		assert_accepted(MSG_WELCOME, welcome_with(field, 0.5));
		for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
			assert_refused(MSG_WELCOME, welcome_with(field, bad[i]),
				"welcome.local_rate or welcome.momentum is out of range");
	}
}

/* The next seq after 2^64 - 1 would be 0, on which an assertion of the worker would fail. Therefore
 * a worker refuses such a seq. */
TEST(seqs_that_no_run_reaches_are_refused)
{
	struct bytes *b = welcome_with_limits(8, 8, 1, 2);

	bytes_number(b, 2, WIRE_MAX_SEQ + 1);
	assert_refused(MSG_WELCOME, b, "welcome.last_seq is out of range");
	b = bytes_fresh();
	bytes_number(b, 3, UINT64_MAX);
	assert_refused(MSG_HEARTBEAT, b, "heartbeat.durable_seq is out of range");
	b = bytes_fresh();
	bytes_number(b, 1, UINT64_MAX);
	bytes_number(b, 2, VERDICT_OK);
	assert_refused(MSG_ACK, b, "ack.seq is out of range");
	b = bytes_fresh();
	bytes_number(b, 1, WIRE_MAX_SEQ);
	bytes_number(b, 2, VERDICT_OK);
	assert_accepted(MSG_ACK, b);
	b = bytes_fresh();
	bytes_number(b, 2, WIRE_MAX_SEQ + 1);
	assert_refused(MSG_PUSH, b, "push.seq is out of range");
	b = bytes_hello();
	bytes_number(b, 7, WIRE_MAX_SEQ + 1);
	assert_refused(MSG_HELLO, b, "hello.last_seq is out of range");
}

/* ---- texts ----------------------------------------------------------------------------------- */

static void assert_name(const char *name, size_t n, const char *reason)
{
	struct bytes *b = bytes_hello();

	bytes_bytes(b, 3, name, n);
	if (reason)
		assert_refused(MSG_HELLO, b, reason);
	else
		assert_accepted(MSG_HELLO, b);
}

TEST(texts_are_utf8_on_one_line)
{
	static const char no_text[] = "text is not UTF-8 or has a NUL in it";
	static const char *const bad[] = {"\x80", "\xc0\xaf", "\xc1\xbf", "\xe0\x9f\xbf", "\xc3",
		"\xed\xa0\x80", "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff",
		"a\xe2\x82", "\xc3\x29"};
	static const char *const good[] = {"w1", "\xc2\xa0", "\xdf\xbf", "\xe0\xa0\x80",
		"\xe2\x82\xac", "\xed\x9f\xbf", "\xee\x80\x80", "\xf0\x90\x80\x80",
		"\xf4\x8f\xbf\xbf", "\x7e"};
	char name[WIRE_MAX_NAME + 2];

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		assert_name(bad[i], strlen(bad[i]), no_text);
	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++)
		assert_name(good[i], strlen(good[i]), NULL);
	assert_name("a\0b", 3, no_text);
	assert_name("a\nb", 3, "hello.name is out of range");
	assert_name("a\x1b[2J", 5, "hello.name is out of range");
	assert_name("\x7f", 1, "hello.name is out of range");
	/* these names have C1 control characters, which end at U+009F */
	assert_name("\xc2\x80", 2, "hello.name is out of range");
	assert_name("\xc2\x9f", 2, "hello.name is out of range");
	memset(name, 'n', sizeof(name));
	assert_name(name, WIRE_MAX_NAME, NULL);
	assert_name(name, WIRE_MAX_NAME + 1, "hello.name is out of range");
}

TEST(a_host_is_a_short_line)
{
	char host[WIRE_MAX_HOST + 1];
	struct bytes *b = bytes_hello();

	memset(host, 'h', sizeof(host));
	bytes_bytes(b, 9, host, WIRE_MAX_HOST);
	bytes_number(b, 10, UINT32_MAX);
	assert_accepted(MSG_HELLO, b);
	b = bytes_hello();
	bytes_bytes(b, 9, host, WIRE_MAX_HOST + 1);
	assert_refused(MSG_HELLO, b, "hello.host is out of range");
	b = bytes_hello();
	bytes_bytes(b, 9, "a\nb", 3);
	assert_refused(MSG_HELLO, b, "hello.host is out of range");
	b = bytes_hello();
	bytes_number(b, 10, (uint64_t)UINT32_MAX + 1);
	assert_refused(MSG_HELLO, b, "number too large for its field");
}

TEST(long_texts_are_refused)
{
	static char text[WIRE_MAX_TEXT + 1];
	struct bytes *b = bytes_fresh();

	memset(text, 't', sizeof(text));
	bytes_bytes(b, 2, text, WIRE_MAX_TEXT);
	assert_accepted(MSG_STATUS, b);
	b = bytes_fresh();
	bytes_bytes(b, 2, text, WIRE_MAX_TEXT + 1);
	assert_refused(MSG_STATUS, b, "text is too long");
}

TEST_GROUP(bytes_set_up, bytes_tear_down)
