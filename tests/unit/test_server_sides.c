/* test_server_sides.c - proves the invariants and promises of server/net/sides.h. Covers attack A5
 * of docs/faults.md. */
#include "server/net/sides.h"
#include <arpa/inet.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "common/log.h"
#include "common/rng.h"
#include "server/net/line_budget.h"
#include "tests/support/capture.h"
#include "tests/support/core_fixture.h"
#include "tests/support/test.h"

enum { WORKERS = 4, SIDES = 2, BULK = 9, OTHER = 10 };

static struct line_budget lines;
static struct sides *sides;
static struct capture said;

static int set_up_sides(void **state)
{
	(void)state;
	memset(&lines, 0, sizeof(lines));
	return sides_new(&sides, WORKERS, SIDES, &lines);
}

static int tear_down_sides(void **state)
{
	(void)state;
	sides_free(&sides);
	return sides != NULL;
}

/* Lets a worker join on connection `bulk`. Returns the greeting that its side connection 1 must
 * send. */
static struct side_greeting welcome_side(uint32_t worker, uint32_t bulk, const char *key)
{
	struct msg_welcome w = {.stamp = {.worker = worker}};

	sides_hello(sides, bulk, key);
	(void)sides_welcome(sides, bulk, &w);
	assert_int_equal(w.connections, SIDES + 1);
	assert_true(w.side_secret_hi != 0 && w.side_secret_lo != 0);
	return (struct side_greeting){
		.secret_hi = w.side_secret_hi, .secret_lo = w.side_secret_lo, .number = 1};
}

/* Lets connection `peer` send the greeting `g` as side connection `number`. Returns the status. */
static int greets(struct side_greeting g, uint32_t number, uint32_t peer, const char *key)
{
	const char *why = NULL;

	g.number = number;
	int rc = sides_greet(sides, &g, peer, -1, key, &why);
	assert_non_null(why);
	return rc;
}

TEST_IN(a_side_connection_belongs_to_one_session, set_up_sides, tear_down_sides)
{
	const struct side_greeting a = welcome_side(1, BULK, ""), b = welcome_side(2, OTHER, "");
	uint32_t peer[MAX_SIDES];

	assert_int_equal(greets(a, 1, 20, ""), PS_OK);
	assert_int_equal(greets(a, 2, 21, ""), PS_OK);
	assert_int_equal(greets(b, 1, 20, ""), PS_EAUTH);
	assert_int_equal(
		/* refused, because BULK is the bulk connection of another session */
		greets(b, 1, BULK, ""), PS_EAUTH);
	assert_int_equal(greets(b, 1, OTHER, ""), PS_EAUTH);
	assert_int_equal(greets(b, 1, 22, ""), PS_OK);
	assert_int_equal(sides_session(sides, 21), BULK);
	assert_int_equal(sides_session(sides, 22), OTHER);
	assert_int_equal(sides_session(sides, BULK), 0);
	assert_int_equal(sides_session(sides, 0), 0);
	assert_true(sides_has(sides, BULK));
	assert_false(sides_has(sides, 21));
	assert_int_equal(sides_of(sides, BULK, peer), 2);
	assert_int_equal(peer[0], 20);
	assert_int_equal(peer[1], 21);
	assert_int_equal(sides_open(sides), 3);
}

TEST_IN(only_the_newest_secret_opens_a_side_connection, set_up_sides, tear_down_sides)
{
	struct side_greeting old = welcome_side(1, BULK, ""), wrong = old;

	wrong.secret_lo ^= 1;
	assert_int_equal(greets(wrong, 1, 20, ""), PS_EAUTH);
	assert_int_equal(greets((struct side_greeting){0}, 1, 20, ""), PS_EAUTH);
	assert_int_equal(greets(old, 1, 20, ""), PS_OK);
	/* after the worker has reconnected, the recorded secret opens no side connection, not even
	 * one whose number was never used */
	struct side_greeting new = welcome_side(1, OTHER, "");
	assert_int_equal(sides_session(sides, 20), 0);
	assert_int_equal(greets(old, 1, 21, ""), PS_EAUTH);
	assert_int_equal(greets(old, 2, 21, ""), PS_EAUTH);
	assert_int_equal(greets(new, 1, 21, ""), PS_OK);
}

/* On a slow network, the worker repeats HELLO before the first WELCOME arrives. The second WELCOME
 * must then have the same secret, because the worker may use either of them. */
TEST_IN(a_second_welcome_has_the_same_secret_if_it_is_unused, set_up_sides, tear_down_sides)
{
	struct side_greeting first = welcome_side(1, BULK, "a"),
			     second = welcome_side(1, BULK, "a");

	assert_true(first.secret_hi == second.secret_hi && first.secret_lo == second.secret_lo);
	assert_true(welcome_side(2, BULK, "a").secret_lo != first.secret_lo);
	assert_true(welcome_side(1, BULK, "b").secret_lo != first.secret_lo);
	assert_int_equal(greets(first, 1, 20, "a"), PS_EAUTH);
}

TEST_IN(a_secret_opens_each_side_connection_once, set_up_sides, tear_down_sides)
{
	const struct side_greeting g = welcome_side(1, BULK, "");

	assert_int_equal(greets(g, 0, 20, ""), PS_EAUTH);
	/* refused: a higher number than the server permits */
	assert_int_equal(greets(g, SIDES + 1, 20, ""), PS_EAUTH);
	assert_int_equal(greets(g, 255, 20, ""), PS_EAUTH);
	assert_int_equal(greets(g, 1, 20, ""), PS_OK);
	assert_int_equal(greets(g, 1, 21, ""), PS_EAUTH);
	/* refused, because peer 20 is a side connection already */
	assert_int_equal(greets(g, 2, 20, ""), PS_EAUTH);
	assert_true(sides_end(sides, 20));
	assert_false(sides_end(sides, 20));
	assert_int_equal(greets(g, 1, 22, ""), PS_EAUTH);
	assert_int_equal(greets(g, 2, 22, ""), PS_EAUTH);
}

TEST_IN(a_side_connection_has_the_key_of_its_session, set_up_sides, tear_down_sides)
{
	const struct side_greeting g = welcome_side(1, BULK, "a");

	assert_int_equal(greets(g, 1, 20, "b"), PS_EAUTH);
	assert_int_equal(greets(g, 1, 20, ""), PS_EAUTH);
	assert_int_equal(greets(g, 1, 20, "a"), PS_OK);
}

/* A flood of HELLOs can make the server forget the key of a HELLO whose WELCOME still waits. This
 * WELCOME must then offer no side connections. */
TEST_IN(without_a_known_key_nothing_is_offered, set_up_sides, tear_down_sides)
{
	struct msg_welcome w = {.stamp = {.worker = 1}};

	(void)sides_welcome(sides, BULK, &w);
	assert_int_equal(w.connections, 0);
	assert_int_equal(greets((struct side_greeting){0}, 1, 20, ""), PS_EAUTH);
}

TEST_IN(weights_travel_only_while_no_number_is_missing, set_up_sides, tear_down_sides)
{
	const struct side_greeting g = welcome_side(1, BULK, "");
	uint32_t peer[MAX_SIDES];

	assert_int_equal(sides_of(sides, BULK, peer), 0);
	assert_int_equal(greets(g, 2, 21, ""), PS_OK);
	assert_int_equal(sides_of(sides, BULK, peer), 0);
	assert_int_equal(greets(g, 1, 20, ""), PS_OK);
	assert_int_equal(sides_of(sides, BULK, peer), 2);
}

enum { MANY = 50, ROUNDS = 2000 };

/* The test's record of a session, with which the table must agree. */
struct expected_session {
	uint32_t bulk, n, peer[MAX_SIDES];
	struct side_greeting greeting;
};

static void expect_session(const struct expected_session *e)
{
	uint32_t peer[MAX_SIDES];

	assert_int_equal(sides_has(sides, e->bulk), e->n > 0);
	assert_int_equal(sides_session(sides, e->bulk), 0);
	assert_int_equal(sides_of(sides, e->bulk, peer), e->n);
	for (uint32_t i = 0; i < e->n; i++) {
		assert_int_equal(peer[i], e->peer[i]);
		assert_int_equal(sides_session(sides, e->peer[i]), e->bulk);
		assert_false(sides_has(sides, e->peer[i]));
	}
}

static void begin_session(struct expected_session *e, uint32_t worker, uint32_t bulk)
{
	struct msg_welcome w = {.stamp = {.worker = worker}};

	sides_hello(sides, bulk, "");
	assert_int_equal(sides_welcome(sides, bulk, &w), e->bulk);
	*e = (struct expected_session){.bulk = bulk,
		.greeting = {.secret_hi = w.side_secret_hi, .secret_lo = w.side_secret_lo}};
}

/* Sessions begin, open side connections and end at random. The number of each new connection is 1
 * or 1,024 above the last one, so that numbers collide in a table with fewer entries. */
TEST_IN(each_connection_finds_its_session_among_many, NULL, tear_down_sides)
{
	static struct expected_session all[MANY];
	struct rng r = rng_seed(18, RNG_SIM, 6);
	uint32_t fresh = 1;

	assert_int_equal(sides_new(&sides, MANY, MAX_SIDES, &lines), PS_OK);
	for (int round = 0; round < ROUNDS; round++) {
		const uint32_t i = (uint32_t)rng_below(&r, MANY);
		struct expected_session *e = &all[i], old = *e;

		fresh += rng_below(&r, 2) ? 1 : 1024;
		if (!e->bulk || rng_below(&r, 8) == 0) {
			begin_session(e, i + 1, fresh);
		} else if (e->n < MAX_SIDES) {
			assert_int_equal(greets(e->greeting, e->n + 1, fresh, ""), PS_OK);
			e->peer[e->n++] = fresh;
		} else {
			assert_int_equal(sides_end(sides, e->peer[rng_below(&r, MAX_SIDES)]), 1);
			*e = (struct expected_session){0};
		}
		for (uint32_t j = 0; j < old.n && !e->n; j++)
			assert_int_equal(sides_session(sides, old.peer[j]), 0);
		for (size_t j = 0; j < MANY; j++)
			expect_session(&all[j]);
	}
}

/* Makes a TCP connection. Returns the client's end, and writes the server's end to *in. */
static int connect_pair(int *in)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t size = sizeof(at);
	int listener = socket(AF_INET, SOCK_STREAM, 0), out = socket(AF_INET, SOCK_STREAM, 0);

	assert_int_equal(bind(listener, (struct sockaddr *)&at, sizeof(at)), 0);
	assert_int_equal(listen(listener, 1), 0);
	assert_int_equal(getsockname(listener, (struct sockaddr *)&at, &size), 0);
	assert_int_equal(connect(out, (struct sockaddr *)&at, sizeof(at)), 0);
	*in = accept(listener, NULL, NULL);
	assert_true(*in >= 0);
	close(listener);
	return out;
}

static int is_closed(int fd)
{
	char byte;

	return recv(fd, &byte, 1, MSG_DONTWAIT) == 0;
}

/* Opens a side connection of worker 1 of the core. */
static int open_first_side(struct side_greeting g, int *in)
{
	const char *why;
	int out = connect_pair(in);

	assert_int_equal(sides_greet(sides, &g, 20, *in, "", &why), PS_OK);
	assert_false(is_closed(out));
	return out;
}

TEST_IN(side_connections_end_with_their_session, set_up_sides, tear_down_sides)
{
	struct core_fixture f;
	struct stamp s = fixture_open_with_pushes(&f, fixture_config(), 0);
	struct side_greeting g = welcome_side(s.worker, BULK, "");
	int in, out = open_first_side(g, &in);

	sides_check(sides, f.core);
	assert_int_equal(sides_open(sides), 1);
	fixture_bye(&f, BULK, s);
	sides_check(sides, f.core);
	assert_int_equal(sides_open(sides), 0);
	assert_true(is_closed(out));
	assert_int_equal(greets(g, 2, 21, ""), PS_EAUTH);
	close(in);
	close(out);
	fixture_close(&f);
}

TEST_IN(side_connections_end_with_their_bulk_connection, set_up_sides, tear_down_sides)
{
	struct core_fixture f;
	struct stamp s = fixture_open_with_pushes(&f, fixture_config(), 0);
	int in, out = open_first_side(welcome_side(s.worker, BULK, ""), &in);

	fixture_gone(&f, BULK);
	sides_check(sides, f.core);
	assert_int_equal(sides_open(sides), 0);
	assert_true(is_closed(out));
	close(in);
	close(out);
	fixture_close(&f);
}

/* A hostile worker opens its side connections again and again, with a new secret each time. The log
 * must not get a line each time. */
TEST_IN(side_connections_do_not_fill_the_log, set_up_sides, tear_down_sides)
{
	log_set_level(LOG_INFO);
	capture_begin(&said, 2);
	for (uint32_t i = 0; i < 2; i++) {
		const struct side_greeting a = welcome_side(1, BULK, ""),
					   b = welcome_side(2, OTHER, "");

		while (i == 1 && line_budget_take(&lines, 1))
			continue;
		assert_int_equal(greets(a, 1, 20, ""), PS_OK);
		assert_int_equal(greets(b, 1, 21, ""), PS_OK);
		assert_int_equal(sides_end(sides, 20), 1);
		assert_int_equal(sides_end(sides, 21), 1);
	}
	assert_int_equal(count_lines(capture_log(&said)), 3);
	log_set_level(LOG_ERROR);
}
