/* test_wire_versions.c - proves the section "Versions" of WIRE.md: which programs are compatible,
 * and that a program that lacks a required feature names this feature in its refusal, no matter
 * what else the message contains. */
#include "tests/support/wire_bytes.h"
#include "tests/support/test.h"

#define RELEASES ": install releases at most one protocol version apart"

/* The numbers of the fields of HELLO and WELCOME that give the protocol versions of the sender and
 * the features that it requires. */
static const struct {
	enum msg_type type;
	unsigned newest, oldest, requires;
} row[] = {{MSG_HELLO, 1, 11, 12}, {MSG_WELCOME, 22, 23, 24}};

/* Returns a body of HELLO or WELCOME with these protocol versions and required features. In a
 * WELCOME the version fields follow the required fields. In a HELLO the version fields come
 * first. */
static struct bytes *greeting(int which, uint64_t newest, uint64_t oldest, const char *requires)
{
	struct bytes *b = bytes_fresh();

	if (row[which].type == MSG_HELLO) {
		bytes_number(b, 2, ROLE_OBSERVER);
	} else {
		bytes_number(b, 6, BYTES_PARAMS);
		bytes_number(b, 8, 1);
		for (unsigned field = 10; field <= 12; field++)
			bytes_number(b, field, 1);
		for (unsigned field = 13; field <= 17; field++)
			bytes_number(b, field, 2);
	}
	if (newest)
		bytes_number(b, row[which].newest, newest);
	if (oldest)
		bytes_number(b, row[which].oldest, oldest);
	if (requires)
		bytes_text(b, row[which].requires, requires);
	return b;
}

static void assert_version_refused(int which, const struct bytes *body, const char *reason)
{
	static struct bytes whole;

	whole.n = 0;
	bytes_bytes(&whole, row[which].type, body->at, body->n);
	assert_frame_refused(whole.at, whole.n, PS_EVERSION, reason);
}

TEST(peers_of_a_common_version_understand_each_other)
{
	const uint64_t ours = WIRE_PROTOCOL, oldest = WIRE_OLDEST_PROTOCOL;

	for (int which = 0; which < 2; which++) {
		assert_accepted(row[which].type, greeting(which, ours, 0, NULL));
		assert_accepted(row[which].type, greeting(which, ours, oldest, NULL));
		assert_accepted(row[which].type, greeting(which, oldest, 1, NULL));
		assert_accepted(row[which].type, greeting(which, ours + 1, ours, NULL));
		assert_accepted(row[which].type, greeting(which, UINT32_MAX, 1, NULL));
	}
}

TEST(a_version_without_a_common_one_is_refused)
{
	for (int which = 0; which < 2; which++) {
		assert_version_refused(which, greeting(which, 8, 0, NULL),
			"protocol 8 is not supported here, only 6 to 7" RELEASES);
		assert_version_refused(which, greeting(which, 9, 8, NULL),
			"protocol 9 is not supported here, only 6 to 7" RELEASES);
		assert_version_refused(which, greeting(which, 5, 0, NULL),
			"protocol 5 is not supported here, only 6 to 7" RELEASES);
		assert_version_refused(which,
			/* refused, because oldest_protocol is above protocol */
			greeting(which, 6, 7, NULL),
			"protocol 6 is not supported here, only 6 to 7" RELEASES);
		assert_version_refused(which, greeting(which, 0, 0, NULL),
			"protocol 0 is not supported here, only 6 to 7" RELEASES);
		assert_version_refused(which, greeting(which, UINT64_MAX, 0, NULL),
			"protocol 18446744073709551615 is not supported here, only 6 to "
			"7" RELEASES);
	}
}

TEST(it_is_refused_whatever_the_rest_says)
{
	for (int which = 0; which < 2; which++) {
		struct bytes *b = greeting(which, 9, 9, NULL);

		/* an invalid value and a wrong type in other fields: they must not hide the
		 * versions, because another protocol version may allow them */
		bytes_number(b, 2, 99);
		bytes_text(b, 1, "or of another type");
		assert_version_refused(
			which, b, "protocol 9 is not supported here, only 6 to 7" RELEASES);
		b = greeting(which, WIRE_PROTOCOL, 0, "fp8");
		bytes_number(b, 2, 99);
		assert_version_refused(which, b,
			"feature \"fp8\" is required and not supported here: update the older of "
			"server and worker");
	}
}

TEST(a_required_feature_is_supported_or_named)
{
	static const char malformed[] = "the name of a required feature is malformed";
	static const char *const bad[] = {" ", "chunked-push ", " chunked-push",
		"chunked-push  chunked-push", "Bf16", "a\nb", "\x1b[2J", "\xc3\xa4",
		"a-name-of-sixty-four-bytes-is-longer-than-any-name-that-we-shall-"};

	for (int which = 0; which < 2; which++) {
		assert_accepted(row[which].type, greeting(which, WIRE_PROTOCOL, 0, ""));
		assert_accepted(row[which].type, greeting(which, WIRE_PROTOCOL, 0, "chunked-push"));
		assert_accepted(row[which].type,
			greeting(which, WIRE_PROTOCOL, 0, "chunked-push chunked-push"));
		assert_version_refused(which,
			greeting(which, WIRE_PROTOCOL, 0, "chunked-push top-k bf16"),
			"feature \"top-k\" is required and not supported here: update the older of "
			"server and worker");
		assert_version_refused(which, greeting(which, WIRE_PROTOCOL, 0, "chunked"),
			"feature \"chunked\" is required and not supported here: update the older "
			"of "
			"server and worker");
		for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
			assert_version_refused(
				which, greeting(which, WIRE_PROTOCOL, 0, bad[i]), malformed);
	}
}

/* A worker of the oldest version lacks the codes that the section "Rights" describes. The server
 * must serve such a worker without codes. */
TEST(workers_of_all_versions_are_served)
{
	for (uint64_t newest = WIRE_OLDEST_PROTOCOL; newest <= WIRE_PROTOCOL + 1; newest++) {
		struct bytes *b = bytes_fresh();

		bytes_number(b, 1, newest);
		bytes_number(b, 2, ROLE_WORKER);
		bytes_number(b, 11, newest - 1);
		assert_accepted(MSG_HELLO, b);
	}
}

TEST(every_sender_of_this_build_says_what_it_speaks)
{
	/* the empty inner messages are `data` and `resume` */
	static const char said[] = {MSG_HELLO << 3 | 2, 10, 1 << 3, WIRE_PROTOCOL, 2 << 3,
		ROLE_OBSERVER, 5 << 3 | 2, 0, 6 << 3 | 2, 0, 11 << 3, WIRE_OLDEST_PROTOCOL};
	struct msg m = {.type = MSG_HELLO, .hello = {.role = ROLE_OBSERVER}};
	zmq_msg_t header;

	assert_int_equal(wire_encode_header(&m, &header), PS_OK);
	assert_int_equal(zmq_msg_size(&header), sizeof(said));
	assert_memory_equal(zmq_msg_data(&header), said, sizeof(said));
	zmq_msg_close(&header);
}

TEST_GROUP(bytes_set_up, bytes_tear_down)
