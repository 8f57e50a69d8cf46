/* Proves the promises of common/err.h. */
#include <stddef.h>
#include <stdint.h>
#include <limits.h>
#include <string.h>
#include "common/err.h"
#include "tests/support/test.h"

/* The statuses of common/err.h, written by hand a second time, so that this test notices every
 * changed number: messages contain the numbers, and scripts of users test the exit statuses. */
static const struct {
	const char *name;
	int status, value, exit_code;
} documented[] = {
	{"PS_OK", PS_OK, 0, 0},
	{"PS_EUSAGE", PS_EUSAGE, -1, 2},
	{"PS_ENOMEM", PS_ENOMEM, -2, 1},
	{"PS_EIO", PS_EIO, -3, 10},
	{"PS_EUNREACHABLE", PS_EUNREACHABLE, -4, 3},
	{"PS_EWRONGRUN", PS_EWRONGRUN, -5, 4},
	{"PS_EFENCED", PS_EFENCED, -6, 5},
	{"PS_EDATA", PS_EDATA, -7, 6},
	{"PS_EWRONGDATA", PS_EWRONGDATA, -8, 6},
	{"PS_ECHECKPOINT", PS_ECHECKPOINT, -9, 7},
	{"PS_ELOCKED", PS_ELOCKED, -10, 8},
	{"PS_EAUTH", PS_EAUTH, -11, 9},
	{"PS_EPROTO", PS_EPROTO, -12, 1},
	{"PS_EVERSION", PS_EVERSION, -13, 2},
	{"PS_ETERM", PS_ETERM, -14, 1},
	{"PS_EGAP", PS_EGAP, -15, 1},
	{"PS_ESTATE", PS_ESTATE, -16, 1},
	{"PS_EFULL", PS_EFULL, -17, 3},
	{"PS_EROLLEDBACK", PS_EROLLEDBACK, -18, 4},
	{"PS_ESHUTDOWN", PS_ESHUTDOWN, -19, 0},
	{"PS_EDONE", PS_EDONE, -20, 0},
	{"PS_EAGAIN", PS_EAGAIN, -21, 1},
	{"PS_EDEVICE", PS_EDEVICE, -22, 1},
	{"PS_ETOOBIG", PS_ETOOBIG, -23, 1},
	{"PS_EQUARANTINE", PS_EQUARANTINE, -24, 11},
	{"PS_EDIVERGED", PS_EDIVERGED, -25, 1},
	{"PS_ENET", PS_ENET, -26, 1},
};

TEST(every_status_keeps_its_number_name_and_exit_code)
{
	for (size_t i = 0; i < sizeof(documented) / sizeof(documented[0]); i++) {
		assert_int_equal(documented[i].status, documented[i].value);
		assert_string_equal(err_name(documented[i].value), documented[i].name);
		assert_int_equal(err_exit_code(documented[i].value), documented[i].exit_code);
		assert_true(err_known(documented[i].value));
		assert_true(strlen(err_text(documented[i].value)) > 0);
	}
}

TEST(a_number_outside_the_table_is_never_a_status)
{
	const int first_free = -(int)(sizeof(documented) / sizeof(documented[0]));
	const long unknown[] = {1, 2, first_free, -1000, LONG_MAX, LONG_MIN, INT_MAX, INT_MIN,
		(long)UINT32_MAX + 1, -((long)UINT32_MAX + 1 + 20)};

	for (size_t i = 0; i < sizeof(unknown) / sizeof(unknown[0]); i++)
		assert_false(err_known(unknown[i]));
	assert_string_equal(err_name(first_free), "PS_E?");
	assert_string_equal(err_text(first_free), "unknown status");
	assert_int_equal(err_exit_code(first_free), 1);
}

TEST(err_set_fills_the_message_and_returns_the_status)
{
	struct err e;

	assert_int_equal(err_set(&e, PS_EDATA, "%s, offset %d", "file", 8), PS_EDATA);
	assert_int_equal(e.status, PS_EDATA);
	assert_string_equal(e.text, "file, offset 8");
	assert_int_equal(err_set(NULL, PS_EIO, "nobody asked"), PS_EIO);
}

TEST(a_message_is_one_line_whatever_it_quotes)
{
	struct err e;

	assert_int_equal(
		err_set(&e, PS_EPROTO, "peer says \"%s\"", "a\nb\r\x1b[2J\x7f"), PS_EPROTO);
	assert_string_equal(e.text, "peer says \"a?b??[2J?\"");
	err_set(&e, PS_EPROTO, "%s", "a\u202eb\u2066c\u200fd\u00e9\xff");
	assert_string_equal(e.text, "a?b?c?d\u00e9?");
}

TEST(a_long_message_is_cut_not_overrun)
{
	struct err e;
	char text[2000];

	memset(text, 'x', sizeof(text) - 1);
	text[sizeof(text) - 1] = '\0';
	assert_int_equal(err_set(&e, PS_EIO, "%s", text), PS_EIO);
	assert_int_equal(strlen(e.text), sizeof(e.text) - 1);
}

TEST(context_can_be_put_before_a_message_one_has)
{
	struct err e;

	assert_int_equal(err_set(&e, PS_EIO, "disk full"), PS_EIO);
	assert_int_equal(err_set(&e, e.status, "checkpoint 7: %s", e.text), PS_EIO);
	assert_string_equal(e.text, "checkpoint 7: disk full");
}
