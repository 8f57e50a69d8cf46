/* Tests which data of a worker the server accepts for the wall of test images on its web page. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include "server/monitor/wall.h"
#include "tests/support/test.h"
#include "worker/show.h"

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
	/* without the line feed, which would end the server-sent event */
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

/* Each picture costs time and memory in the browsers that show the page. */
TEST(more_pictures_than_a_worker_sends_are_refused)
{
	_Static_assert(WALL_IMAGES >= SHOW_IMAGES, "the pictures of a worker");
	for (size_t n = WALL_IMAGES; n <= WALL_IMAGES + 1; n++) {
		char text[256];
		size_t at = (size_t)snprintf(text, sizeof(text), "{\"images\":[{}");
		struct wall w = {.peer = 7};

		for (size_t i = 1; i < n; i++)
			at += (size_t)snprintf(text + at, sizeof(text) - at, ",{}");
		snprintf(text + at, sizeof(text) - at, "]}");
		char *line = take_reply(&w, 7, text);
		assert_int_equal(line != NULL, n == WALL_IMAGES);
		free(line);
	}
}
