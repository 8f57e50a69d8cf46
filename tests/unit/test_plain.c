/* test_plain.c - common/plain.h removes control characters from the text of a peer, so that the
 * text cannot change the state of a terminal. Covers attack A22 of docs/faults.md. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include "common/plain.h"
#include "tests/support/test.h"

static void check_plain(const char *from, int lines, const char *to)
{
	char text[64];

	assert_true(strlen(from) < sizeof(text));
	memcpy(text, from, strlen(from) + 1);
	plain_text(text, lines);
	assert_string_equal(text, to);
}

TEST(controls_are_replaced)
{
	check_plain("", 0, "");
	check_plain("worker 1, \u00e9\u20ac\U0001f600", 0, "worker 1, \u00e9\u20ac\U0001f600");
	check_plain("\033]0;title\007", 0, "?]0;title?");
	check_plain("a\nb\tc", 0, "a?b?c");
	check_plain("a\nb\tc", 1, "a\nb?c");
	check_plain("\xc2\x9b"
		    "2J \x7f",
		0, "?2J ?"); /* U+009B must be replaced, because a terminal treats it like ESC [ */
	check_plain("a\u202eb\u2066c\u200fd\u061c", 0, "a?b?c?d?");
	/* replaced, because these bytes are not valid UTF-8 */
	check_plain("\x9b\xff\xc3", 0, "???");
}
