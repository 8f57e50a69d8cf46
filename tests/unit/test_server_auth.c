/*
 * test_server_auth.c - tests which peers the server accepts. Proves the invariants and promises of
 * server/auth/auth.h with real sockets, and with a list of keys whose reads can hang. Covers
 * attacks A7 and A10 of docs/faults.md.
 */
#include <stdatomic.h>
#include <zmq.h>
#include "common/clock.h"
#include "common/log.h"
#include "common/zmonitor.h"
#include "tests/support/capture.h"
#include "tests/support/temp_dir.h"
#include "server/auth/auth.h"
#include "server/auth/curve_memory.h"
#include "tests/support/test.h"

#define DEADLINE_MS 20000
#define WORKERS     4

/* Runs the event loop until `condition` holds. */
#define UNTIL(condition)                                                                           \
	for (uint64_t end_ = clock_ms() + DEADLINE_MS; !(condition);) {                            \
		assert_true(clock_ms() < end_);                                                    \
		loop_step();                                                                       \
	}

static char dir[64];
static uv_loop_t loop;
static void *context, *server;
static struct auth *auth;
static struct err e;
static char endpoint[128];
static struct key_pair server_key, worker, other;

/* auth.c reads the list of keys with the function below. While `hang` is 1, the read hangs. */
static atomic_int hang, hanging;

static int read_slowly(struct authorized_keys **out, const char *path, struct err *why)
{
	while (atomic_load(&hang)) {
		atomic_store(&hanging, 1);
		usleep(1000);
	}
	atomic_store(&hanging, 0);
	return authorized_keys_read(out, path, why);
}

static void loop_step(void)
{
	uv_run(&loop, UV_RUN_NOWAIT);
	usleep(500);
}

static void write_list(const char *text)
{
	temp_dir_write(dir, "authorized_keys", text, strlen(text));
}

static const char *line_for(const char *role, const struct key_pair *k)
{
	static char line[128];

	snprintf(line, sizeof(line), "%s %s\n", role, k->public_key);
	return line;
}

static int set_up_auth(void **state)
{
	char path[320];
	int made, handshake_ms = 2000;
	size_t size = sizeof(endpoint);
	struct auth_config cfg = {.loop = &loop, .max_workers = WORKERS, .read = read_slowly};

	(void)state;
	log_set_level(LOG_ERROR);
	atomic_store(&hang, 0);
	temp_dir_make(dir);
	assert_int_equal(key_random(&worker, &e), PS_OK);
	assert_int_equal(key_random(&other, &e), PS_OK);
	assert_int_equal(key_make_files(dir, "server", server_key.public_key, &made, &e), PS_OK);
	write_list(line_for("worker", &worker));
	assert_int_equal(uv_loop_init(&loop), 0);
	cfg.key_file = temp_dir_path(dir, "server.key", path);
	assert_int_equal(auth_new(&auth, &cfg, &e), PS_OK);
	context = zmq_ctx_new();
	server = zmq_socket(context, ZMQ_ROUTER);
	zmq_setsockopt(server, ZMQ_HANDSHAKE_IVL, &handshake_ms, sizeof(handshake_ms));
	assert_int_equal(auth_open(auth, context, &e), PS_OK);
	assert_int_equal(auth_secure(auth, server, &e), PS_OK);
	assert_int_equal(auth_self_test(auth, server, &e), PS_OK);
	assert_int_equal(zmq_bind(server, "tcp://127.0.0.1:*"), 0);
	assert_int_equal(zmq_getsockopt(server, ZMQ_LAST_ENDPOINT, endpoint, &size), 0);
	return 0;
}

static int tear_down_auth(void **state)
{
	(void)state;
	atomic_store(&hang, 0);
	auth_stop(auth);
	zmq_close(server);
	uv_run(&loop, UV_RUN_DEFAULT);
	assert_int_equal(uv_loop_close(&loop), 0);
	zmq_ctx_term(context);
	auth_free(&auth);
	temp_dir_remove(dir);
	return 0;
}

/* A DEALER socket with a key and a ZeroMQ context of its own. After the handshake, the test sends
 * one byte over this socket instead of a HELLO. */
struct client {
	void *context, *socket, *monitor;
};

static void connect_with(struct client *c, const struct key_pair *own, const char *wanted)
{
	const int none = 0, one = 1;

	c->context = zmq_ctx_new();
	c->socket = zmq_socket(c->context, ZMQ_DEALER);
	zmq_setsockopt(c->socket, ZMQ_LINGER, &none, sizeof(none));
	zmq_setsockopt(c->socket, ZMQ_RECONNECT_IVL, &one, sizeof(one));
	assert_int_equal(zmq_setsockopt(c->socket, ZMQ_CURVE_SERVERKEY, wanted, KEY_TEXT), 0);
	zmq_setsockopt(c->socket, ZMQ_CURVE_PUBLICKEY, own->public_key, KEY_TEXT);
	zmq_setsockopt(c->socket, ZMQ_CURVE_SECRETKEY, own->secret_key, KEY_TEXT);
	c->monitor = zmonitor_open(c->context, c->socket,
		ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH);
	assert_non_null(c->monitor);
	assert_int_equal(zmq_connect(c->socket, endpoint), 0);
	assert_int_equal(zmq_send(c->socket, "x", 1, ZMQ_DONTWAIT), 1);
}

static void disconnect_client(struct client *c)
{
	zmonitor_close(c->socket, &c->monitor);
	zmq_close(c->socket);
	zmq_ctx_term(c->context);
}

/* Returns the next event of the handshake, or 0 if there is none yet. */
static int next_event(struct client *c)
{
	struct zmonitor_event event;

	return zmonitor_next(c->monitor, &event) ? (int)event.number : 0;
}

static int outcome(struct client *c)
{
	int event = 0;

	UNTIL((event = next_event(c)) != 0)
	return event;
}

/* Connects a client with the key pair `own`. Returns the socket event that ends the handshake. */
static int outcome_with_key(const struct key_pair *own)
{
	struct client c;

	connect_with(&c, own, server_key.public_key);
	int event = outcome(&c);
	disconnect_client(&c);
	return event;
}

/* Receives the next message, and checks the rights of its sender as if the message were `m`.
 * Returns the status. */
static int check_message(struct client *c, struct msg *m, const char **why)
{
	struct frames f;
	uint32_t peer = 0;
	int got = 0;

	(void)c;
	UNTIL((got = wire_recv(server, &peer, &f)) != 0)
	assert_int_equal(got, 1);
	int rc = auth_check(auth, peer, &f, m, why);
	frames_release(&f);
	return rc;
}

/* ---- promises 1 and 3 of auth.h ------------------------------------------------------------- */

TEST_IN(only_keys_of_the_list_get_in, set_up_auth, tear_down_auth)
{
	assert_int_equal(outcome_with_key(&worker), ZMQ_EVENT_HANDSHAKE_SUCCEEDED);
	assert_int_equal(outcome_with_key(&other), ZMQ_EVENT_HANDSHAKE_FAILED_AUTH);
	assert_int_equal(auth_stats(auth)->admitted, 1);
	assert_int_equal(auth_stats(auth)->refused, 1);
}

TEST_IN(a_new_list_counts_when_it_is_read, set_up_auth, tear_down_auth)
{
	write_list(line_for("worker", &other));
	assert_int_equal(outcome_with_key(&worker), ZMQ_EVENT_HANDSHAKE_SUCCEEDED);
	write_list("");
	auth_reload(auth);
	UNTIL(auth_stats(auth)->keys == 0)
	assert_int_equal(outcome_with_key(&worker), ZMQ_EVENT_HANDSHAKE_FAILED_AUTH);
	write_list(line_for("observer", &other));
	auth_reload(auth);
	UNTIL(auth_stats(auth)->keys == 1)
	assert_int_equal(outcome_with_key(&other), ZMQ_EVENT_HANDSHAKE_SUCCEEDED);
}

TEST_IN(a_list_that_cannot_be_read_changes_nothing, set_up_auth, tear_down_auth)
{
	struct capture said;

	write_list("nonsense\n");
	capture_begin(&said, 2);
	auth_reload(auth);
	UNTIL(!auth_busy(auth))
	assert_non_null(strstr(capture_end(&said), "authorized_keys:1"));
	assert_int_equal(outcome_with_key(&worker), ZMQ_EVENT_HANDSHAKE_SUCCEEDED);
	assert_int_equal(outcome_with_key(&other), ZMQ_EVENT_HANDSHAKE_FAILED_AUTH);
}

/* While the disk with the list of keys hangs, the server uses the list in memory, and its event
 * loop goes on. */
TEST_IN(a_list_on_a_hanging_disk_blocks_nothing, set_up_auth, tear_down_auth)
{
	uint64_t longest = 0;

	atomic_store(&hang, 1);
	write_list(line_for("worker", &other));
	auth_reload(auth);
	UNTIL(atomic_load(&hanging))
	assert_int_equal(auth_busy(auth), 1);
	assert_int_equal(outcome_with_key(&worker), ZMQ_EVENT_HANDSHAKE_SUCCEEDED);
	assert_int_equal(outcome_with_key(&other), ZMQ_EVENT_HANDSHAKE_FAILED_AUTH);
	for (uint64_t end = clock_ms() + 1500; clock_ms() < end;) {
		uint64_t begin = clock_ms(), took;

		loop_step();
		took = clock_ms() - begin;
		longest = took > longest ? took : longest;
	}
	assert_true(longest < 1000);
	write_list("");
	/* only one read of the list runs at a time, so the read that this call requests begins
	 * after the hanging one has ended */
	auth_reload(auth);
	atomic_store(&hang, 0);
	UNTIL(auth_stats(auth)->keys == 0 && !auth_busy(auth))
	assert_int_equal(outcome_with_key(&worker), ZMQ_EVENT_HANDSHAKE_FAILED_AUTH);
	assert_int_equal(outcome_with_key(&other), ZMQ_EVENT_HANDSHAKE_FAILED_AUTH);
}

/* The test ends while a read is in progress. The tear-down must wait for this read (auth_busy). */
TEST_IN(a_list_that_is_being_read_at_the_end_is_harmless, set_up_auth, tear_down_auth)
{
	atomic_store(&hang, 1);
	auth_reload(auth);
	UNTIL(atomic_load(&hanging))
	auth_reload(auth);
}

TEST_IN(a_deleted_key_is_refused_on_its_open_connection, set_up_auth, tear_down_auth)
{
	struct msg m = {.type = MSG_PUSH};
	const char *why = NULL;
	struct client c;

	connect_with(&c, &worker, server_key.public_key);
	assert_int_equal(check_message(&c, &m, &why), PS_OK);
	write_list(line_for("worker", &other));
	auth_reload(auth);
	struct client d; /* only the new list has the key of d */
	UNTIL(auth_stats(auth)->keys == 1 &&
		outcome_with_key(&other) == ZMQ_EVENT_HANDSHAKE_SUCCEEDED)
	connect_with(&d, &other, server_key.public_key);
	zmq_send(c.socket, "x", 1, 0);
	int refused = 0, taken = 0;
	/* up to three messages: from c, from d, and perhaps from the client in outcome_with_key */
	for (int i = 0; i < 3; i++) {
		if (refused && taken)
			break;
		if (check_message(&c, &m, &why))
			refused++;
		else
			taken++;
	}
	assert_int_equal(refused, 1);
	assert_true(taken >= 1);
	disconnect_client(&c);
	disconnect_client(&d);
}

/* ---- promises 2 and 4 of auth.h ------------------------------------------------------------- */

static int say_and_check(struct client *c, struct msg m)
{
	const char *why = "";

	zmq_send(c->socket, "x", 1, 0);
	return check_message(c, &m, &why);
}

TEST_IN(a_role_decides_which_messages_are_allowed, set_up_auth, tear_down_auth)
{
	static const struct {
		const char *role;
		unsigned may; /* the message types that the role may send, one bit for each type */
	} row[] = {
		{"observer", 1u << MSG_STATUS | 1u << MSG_BYE},
		{"admin", 1u << MSG_STATUS | 1u << MSG_BYE | 1u << MSG_PULL | 1u << MSG_ADMIN},
		{"worker", 1u << MSG_STATUS | 1u << MSG_BYE | 1u << MSG_PULL | 1u << MSG_PUSH |
				   1u << MSG_LEASE | 1u << MSG_RESULT | 1u << MSG_HEARTBEAT |
				   1u << MSG_HELLO},
	};
	struct client c;

	connect_with(&c, &worker, server_key.public_key);
	struct msg first = {.type = MSG_STATUS};
	const char *why;
	assert_int_equal(check_message(&c, &first, &why), PS_OK);
	for (size_t i = 0; i < 3; i++) {
		uint64_t read;

		write_list("");
		auth_reload(auth);
		UNTIL((read = auth_stats(auth)->keys) == 0)
		write_list(line_for(row[i].role, &worker));
		auth_reload(auth);
		UNTIL((read = auth_stats(auth)->keys) == 1)
		for (int type = MSG_HELLO; type < MSG_TYPES; type++) {
			struct msg m = {.type = (enum msg_type)type};

			if (type == MSG_HELLO)
				m.hello.role = ROLE_WORKER;
			assert_int_equal(
				say_and_check(&c, m), row[i].may & 1u << type ? PS_OK : PS_EAUTH);
		}
		struct msg hello = {.type = MSG_HELLO, .hello = {.role = ROLE_OBSERVER}};
		assert_int_equal(say_and_check(&c, hello), PS_OK);
	}
	disconnect_client(&c);
}

TEST_IN(a_message_without_a_key_is_refused, set_up_auth, tear_down_auth)
{
	struct msg m = {.type = MSG_STATUS};
	const char *why;
	struct frames f;

	frames_init(&f);
	assert_int_equal(zmq_msg_init_size(&f.frame[f.n++], 1), 0);
	assert_int_equal(auth_check(auth, 1, &f, &m, &why), PS_EAUTH);
	frames_release(&f);
}

TEST_IN(a_worker_id_belongs_to_its_key, set_up_auth, tear_down_auth)
{
	char list[256];
	struct client c, d;
	struct msg hello = {.type = MSG_HELLO, .hello = {.role = ROLE_WORKER}};
	struct msg push = {.type = MSG_PUSH};
	struct frames f;
	uint32_t peer;
	const char *why;

	snprintf(list, sizeof(list), "worker %s\nworker %s\n", worker.public_key, other.public_key);
	write_list(list);
	auth_reload(auth);
	UNTIL(auth_stats(auth)->keys == 2)
	connect_with(&c, &worker, server_key.public_key);
	UNTIL(wire_recv(server, &peer, &f) == 1)
	assert_int_equal(auth_check(auth, peer, &f, &hello, &why), PS_OK);
	frames_release(&f);
	push.push.stamp = (struct stamp){.worker = 3, .incarnation = 7};
	auth_assign(auth, peer, 3, 7);
	assert_int_equal(say_and_check(&c, push), PS_OK);
	connect_with(&d, &other, server_key.public_key);
	assert_int_equal(check_message(&d, &push, &why), PS_EAUTH);
	assert_non_null(strstr(why, "another key"));
	hello.hello.resume = push.push.stamp;
	assert_int_equal(say_and_check(&d, hello), PS_EAUTH);
	/* worker id 4 has no session, so auth.c leaves the decision to the core */
	push.push.stamp.worker = 4;
	assert_int_equal(say_and_check(&d, push), PS_OK);
	disconnect_client(&c);
	disconnect_client(&d);
}

TEST_IN(a_name_belongs_to_its_key, set_up_auth, tear_down_auth)
{
	struct msg m = {.type = MSG_HELLO, .hello = {.role = ROLE_WORKER, .name = "hans"}};
	const char *why;
	struct client c;
	char expected[64];

	connect_with(&c, &worker, server_key.public_key);
	assert_int_equal(check_message(&c, &m, &why), PS_OK);
	snprintf(expected, sizeof(expected), "hans@%.8s", worker.public_key);
	assert_string_equal(m.hello.name, expected);
	memset(m.hello.name, 'a', 54);
	m.hello.name[54] = '\0';
	zmq_send(c.socket, "x", 1, 0);
	assert_int_equal(check_message(&c, &m, &why), PS_OK);
	assert_int_equal(strlen(m.hello.name), 63);
	zmq_send(c.socket, "x", 1, 0);
	assert_int_equal(check_message(&c, &m, &why), PS_EAUTH);
	disconnect_client(&c);
}

/* ---- the self-test --------------------------------------------------------------------------- */

TEST_IN(a_server_that_accepts_unknown_keys_fails_its_self_test, set_up_auth, tear_down_auth)
{
	struct key_pair mine;
	char path[320];
	int on = 1;

	assert_int_equal(key_read_secret(temp_dir_path(dir, "server.key", path), &mine, &e), PS_OK);
	void *careless_context = zmq_ctx_new(),
	     *careless = zmq_socket(careless_context, ZMQ_ROUTER);
	zmq_setsockopt(careless, ZMQ_CURVE_SERVER, &on, sizeof(on));
	zmq_setsockopt(careless, ZMQ_CURVE_SECRETKEY, mine.secret_key, KEY_TEXT);
	assert_int_equal(auth_self_test(auth, careless, &e), PS_EAUTH);
	assert_non_null(strstr(e.text, "was accepted"));
	zmq_close(careless);
	zmq_ctx_term(careless_context);
}

TEST_IN(a_server_without_curve_notices, set_up_auth, tear_down_auth)
{
	void *plain = zmq_socket(context, ZMQ_ROUTER);

	assert_int_equal(auth_self_test(auth, plain, &e), PS_EAUTH);
	assert_non_null(strstr(e.text, "not refused"));
	zmq_close(plain);
}

/* If libsodium allocated the memory of handshakes itself, its system calls would slow down the
 * whole server. */
TEST_IN(handshakes_take_their_memory_from_the_program, set_up_auth, tear_down_auth)
{
	uint64_t before = curve_memory_taken();

	/* more than 0, because the handshake of the self-test in set_up_auth has already used this
	 * memory */
	assert_true(before > 0);
	assert_null(sodium_allocarray(SIZE_MAX / 2, 3));
	assert_null(sodium_malloc(SIZE_MAX));
	unsigned char *buffer = sodium_allocarray(3, 7);
	assert_non_null(buffer);
	memset(buffer, 1, 21);
	sodium_free(buffer);
	sodium_free(NULL);
	assert_true(curve_memory_taken() > before);
}
