/* test_endpoint.c - proves the promises of common/endpoint.h. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include "common/endpoint.h"
#include "tests/support/test.h"

TEST(host_and_port_are_taken_apart_and_put_together)
{
	static const struct {
		const char *text, *host, *port;
		unsigned number;
	} good[] = {
		{"127.0.0.1:5555", "127.0.0.1", "5555", 5555},
		{"localhost:0", "localhost", "0", 0},
		{"*:*", "*", "*", 0},
		{"eth0:65535", "eth0", "65535", 65535},
		{"a.b-c_d:00080", "a.b-c_d", "00080", 80},
		{"[::1]:1", "::1", "1", 1},
		{"[fe80::1%eth0]:9", "fe80::1%eth0", "9", 9},
	};

	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
		char text[ENDPOINT_TEXT], again[ENDPOINT_TEXT];
		struct endpoint e;

		assert_int_equal(endpoint_parse_address(good[i].text, &e), PS_OK);
		assert_string_equal(e.host, good[i].host);
		assert_string_equal(e.port, good[i].port);
		assert_int_equal(e.number, good[i].number);
		snprintf(text, sizeof(text), "tcp://%s", good[i].text);
		endpoint_format(&e, again, sizeof(again));
		assert_string_equal(again, text);
		assert_int_equal(endpoint_parse(text, &e), PS_OK);
		assert_string_equal(e.host, good[i].host);
		assert_int_equal(endpoint_parse(good[i].text, &e), PS_EUSAGE);
	}
}

TEST(everything_else_is_refused_and_leaves_nothing)
{
	static const char *const bad[] = {"", ":", ":1", "a", "a:", "a: 1", "a:1 ", "a:-1", "a:+1",
		"a:0x1", "a:65536", "a:000001", "a:99999999999999999999999", "a:**", "a:1*",
		"a b:1", "a/b:1", "a:1/", "::1:1", "a:b:1", "[]:1", "[:1", "]:1", "[::1:1",
		"::1]:1", "[::1]1:1", "[[::1]]:1", "[::1]", "[::1 ]:1", "tcp://a:1"};

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		char text[ENDPOINT_TEXT];
		struct endpoint e = {.host = "old", .port = "1", .number = 1};

		assert_int_equal(endpoint_parse_address(bad[i], &e), PS_EUSAGE);
		assert_string_equal(e.host, "");
		assert_string_equal(e.port, "");
		assert_int_equal(e.number, 0);
		snprintf(text, sizeof(text), "tcp://%s", bad[i]);
		assert_int_equal(endpoint_parse(text, &e), PS_EUSAGE);
	}
	struct endpoint e;
	assert_int_equal(endpoint_parse("udp://a:1", &e), PS_EUSAGE);
	assert_int_equal(endpoint_parse("tcp:/a:1", &e), PS_EUSAGE);
	assert_int_equal(endpoint_parse("TCP://a:1", &e), PS_EUSAGE);
}

TEST(a_host_has_its_limit)
{
	char text[ENDPOINT_HOST + 8];
	struct endpoint e;

	memset(text, 'h', sizeof(text));
	memcpy(text + ENDPOINT_HOST - 1, ":1", 3);
	assert_int_equal(endpoint_parse_address(text, &e), PS_OK);
	assert_int_equal(strlen(e.host), ENDPOINT_HOST - 1);
	memcpy(text + ENDPOINT_HOST - 1, "h:1", 4);
	assert_int_equal(endpoint_parse_address(text, &e), PS_EUSAGE);
}

TEST(a_port_alone_is_this_machines)
{
	struct endpoint e;

	assert_int_equal(endpoint_parse_port("8080", &e), PS_OK);
	assert_string_equal(e.host, "127.0.0.1");
	assert_int_equal(e.number, 8080);
	assert_int_equal(endpoint_parse_port("", &e), PS_EUSAGE);
	assert_int_equal(endpoint_parse_port("65536", &e), PS_EUSAGE);
	assert_int_equal(endpoint_parse_port("a:1", &e), PS_EUSAGE);
	assert_string_equal(e.host, "");
}
