/* Tests which data of a worker the server accepts for the wall of test images on its web page. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include "server/monitor/wall.h"
#include "tests/support/test.h"

static char *take_reply(struct wall *w, uint32_t peer, const char *text)
{
	return wall_take(w, peer, &(struct msg_status){.reply = STATUS_REPLY, .text = text});
}

TEST(only_the_asked_worker_answers_and_once)
{
	struct wall w = {.peer = 7};

	assert_null(take_reply(&w, 8, "{}"));
	assert_null(take_reply(&w, 0, "{}"));
	char *line = take_reply(&w, 7, "{\"side\":\n[2, 2]}");
	/* the line feed is removed, because it would end the event */
	assert_string_equal(line, "{\"side\":[2,2]}");
	free(line);
	assert_null(take_reply(&w, 7, "{}"));
}

TEST(only_an_object_is_passed_on)
{
	static const char *const bad[] = {"", "{", "[]", "7", "null", "{} {}", "{\"a\":1,\"a\":2}"};

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct wall w = {.peer = 7};

		assert_null(take_reply(&w, 7, bad[i]));
	}
}
