/*
 * zmtp.c - fuzzes the server's ports: a TCP connection sends the bytes of the input to a ROUTER
 * socket. The bits of byte 0 choose what the connection sends before these bytes:
 *
 *   none      nothing
 *   GREETED   the greeting and READY of a DEALER, so that the ROUTER takes the bytes for frames
 *   SIDE      the same, and then the greeting of a side connection (proto/side.h) with the secret
 *             of a worker's session, so that the frames are messages of a side connection. With the
 *             bit PARTS, the worker then sends the PUSH of a part, number 0 of its push 1
 *   CURVE     to the port of a server with keys: with GREETED, the greeting of a CURVE client, so
 *             that the ROUTER takes the bytes for the first commands of the handshake
 *
 * The messages that follow a CURVE handshake are not fuzzed here. They are encrypted with keys of
 * this connection, so every changed byte would only fail the authentication inside libzmq. After
 * the decryption, these messages go through the same code as messages without keys, which this
 * target does fuzz.
 *
 * After every 16th input, the target checks that both ROUTERs answer an honest client.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>
#include <uv.h>
#include <zmq.h>
#include "common/endpoint.h"
#include "common/keys.h"
#include "proto/side.h"
#include "proto/wire.h"
#include "server/auth/auth.h"
#include "server/net/line_budget.h"
#include "server/net/net.h"
#include "server/net/param_buffers.h"
#include "tests/support/fuzz_input.h"
#include "tests/support/zmtp.h"

#define GREETED 1
#define SIDE    2
#define PARTS   4
#define CURVE   8

#define PARAMS         64u
#define WORKERS        4u
#define SIDES          2u
#define OWN_WORKER     1u /* the worker id of the target's own worker, which has the sides */
#define FUZZ_WORKER    2u /* the worker id of all other workers */
#define GREETING_BYTES 64
#define PATIENCE       20000 /* rounds of the loop until an honest client must have its answer */

/* A server with keys or without keys. */
struct fuzzed_server {
	struct auth *auth; /* NULL: without keys */
	struct router *router;
	unsigned number;
	char key[KEY_TEXT]; /* the server's public key */
};

static uv_loop_t loop;
static struct line_budget lines;
static struct param_buffers *params;
static struct fuzzed_server plain, curve;
static struct key_pair client_key;

/* ---- the servers ----------------------------------------------------------------------------- */

static struct stamp stamp_of(uint32_t worker)
{
	return (struct stamp){.run = {1, 1}, .term = 1, .worker = worker, .incarnation = 1};
}

/* Answers HELLO with WELCOME, and every other message with HEARTBEAT. The target's own worker sends
 * its process id in HELLO. An input cannot contain this number, so the function knows its own
 * worker by it. */
static void on_router_message(void *arg, uint32_t peer, const struct msg *m, struct frames *frames)
{
	struct fuzzed_server *server = arg;
	struct msg reply = {.type = MSG_HEARTBEAT};

	(void)frames;
	if (m->type == MSG_HELLO)
		reply = (struct msg){.type = MSG_WELCOME,
			.welcome = {
				.stamp = stamp_of(m->hello.pid == (uint32_t)getpid() ? OWN_WORKER
										     : FUZZ_WORKER),
				.model = "vector:64",
				.n_params = PARAMS,
				.batch = 1,
				.push_window = 8,
				.replay_window = 8,
				.heartbeat_ms = 100,
				.dead_ms = 1000,
				.session_ttl_ms = 5000,
				.mode = MODE_DOWNPOUR,
				.n_push = 1,
				.n_fetch = 1}};
	router_send(server->router, peer, &reply);
}

static void on_gone(void *arg, uint32_t peer)
{
	(void)arg;
	(void)peer;
}

static void write_client_list(const char *path)
{
	FILE *f = fopen(path, "we");

	PS_ASSERT(f);
	fprintf(f, "worker %s\n", client_key.public_key);
	PS_ASSERT(fclose(f) == 0);
}

/* Make the server's key and the list with the client's key, in a directory that this function
 * removes again. */
static struct auth *make_auth(char key[KEY_TEXT])
{
	char dir[] = "/tmp/fuzz-zmtp-XXXXXX", secret[64], public[64], list[64];
	const struct auth_config cfg = {
		.loop = &loop, .key_file = secret, .keys_file = list, .max_workers = WORKERS};
	struct auth *auth = NULL;
	struct err e = {0};
	int made;

	PS_ASSERT(mkdtemp(dir));
	snprintf(secret, sizeof(secret), "%s/server.key", dir);
	snprintf(public, sizeof(public), "%s/server.pub", dir);
	snprintf(list, sizeof(list), "%s/list", dir);
	PS_ASSERT(key_make_files(dir, "server", key, &made, &e) == PS_OK);
	PS_ASSERT(key_random(&client_key, &e) == PS_OK);
	write_client_list(list);
	PS_ASSERT(auth_new(&auth, &cfg, &e) == PS_OK);
	PS_ASSERT(unlink(secret) == 0 && unlink(public) == 0 && unlink(list) == 0);
	PS_ASSERT(rmdir(dir) == 0);
	return auth;
}

static void open_server(struct fuzzed_server *server)
{
	struct err e = {0};
	struct endpoint at;
	const struct router_config cfg = {.loop = &loop,
		.bind = "tcp://127.0.0.1:0",
		.n_params = PARAMS,
		.push_window = 8,
		.max_workers = WORKERS,
		.lines = &lines,
		.params = params,
		.sides = SIDES,
		.auth = server->auth,
		.on_message = on_router_message,
		.on_gone = on_gone,
		.arg = server};

	PS_ASSERT(router_new(&server->router, &cfg, &e) == 0);
	PS_ASSERT(endpoint_parse(router_endpoint(server->router), &at) == 0);
	server->number = at.number;
}

static void flush_routers(void)
{
	uv_run(&loop, UV_RUN_NOWAIT);
	router_flush(plain.router);
	router_flush(curve.router);
}

static void run_loop(int rounds)
{
	for (int i = 0; i < rounds; i++) {
		flush_routers();
		usleep(100);
	}
}

/* ---- raw connections ------------------------------------------------------------------------- */

/* Run the loop until `size` bytes of the ROUTER have arrived, and read them. */
static void read_bytes(int fd, unsigned char *to, size_t size)
{
	struct pollfd ready = {.fd = fd, .events = POLLIN};

	for (int i = 0; size > 0; i++) {
		ssize_t n = recv(fd, to, size, MSG_DONTWAIT);

		PS_ASSERT(n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR)));
		PS_ASSERT(i < PATIENCE);
		if (n > 0) {
			to += n;
			size -= (size_t)n;
		} else {
			flush_routers();
			(void)poll(&ready, 1, 1);
		}
	}
}

/* Read a frame or command of the ROUTER with less than 256 bytes. Returns its size. */
static size_t read_frame(int fd, unsigned char to[256])
{
	unsigned char head[2];

	read_bytes(fd, head, sizeof(head));
	read_bytes(fd, to, head[1]);
	return head[1];
}

/* Complete the handshake of a DEALER. Until the ROUTER has sent its READY, it accepts no frames. */
static void greet_router(int fd)
{
	unsigned char bytes[256];

	zmtp_greet(fd);
	read_bytes(fd, bytes, GREETING_BYTES);
	(void)read_frame(fd, bytes);
}

/* Begin a CURVE handshake. The ROUTER then waits for the command HELLO. */
static void greet_curve(int fd)
{
	unsigned char bytes[GREETING_BYTES];

	zmtp_greet_curve(fd);
	read_bytes(fd, bytes, GREETING_BYTES);
}

/* ---- honest clients -------------------------------------------------------------------------- */

static void use_key(void *socket, const char *server)
{
	const struct {
		int option;
		const char *key;
	} row[] = {{ZMQ_CURVE_SERVERKEY, server}, {ZMQ_CURVE_PUBLICKEY, client_key.public_key},
		{ZMQ_CURVE_SECRETKEY, client_key.secret_key}};

	for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++)
		PS_ASSERT(zmq_setsockopt(socket, row[i].option, row[i].key, KEY_TEXT) == 0);
}

static void check_alive(const struct fuzzed_server *server)
{
	void *context = zmq_ctx_new(), *socket = zmq_socket(context, ZMQ_DEALER);
	const struct msg m = {.type = MSG_HEARTBEAT, .heartbeat.stamp = stamp_of(FUZZ_WORKER + 1)};
	struct frames f;
	int linger = 0, rc = 0;

	PS_ASSERT(zmq_setsockopt(socket, ZMQ_LINGER, &linger, sizeof(linger)) == 0);
	if (server->auth)
		use_key(socket, server->key);
	PS_ASSERT(zmq_connect(socket, router_endpoint(server->router)) == 0);
	PS_ASSERT(wire_encode(&m, &f) == 0);
	PS_ASSERT(wire_send(socket, 0, &f) == 0);
	for (int i = 0; i < PATIENCE && rc != 1; i++) {
		run_loop(1);
		rc = wire_recv_within(socket, 0, &f);
	}
	PS_ASSERT(rc == 1);
	frames_release(&f);
	zmq_close(socket);
	zmq_ctx_term(context);
}

/* ---- side connections ------------------------------------------------------------------------ */

/* Send `size` bytes as a frame of ZMTP. */
static void send_frame(int fd, const void *data, size_t size)
{
	unsigned char bytes[256] = {0, (unsigned char)size};

	PS_ASSERT(size <= sizeof(bytes) - 2);
	memcpy(bytes + 2, data, size);
	(void)!send(fd, bytes, 2 + size, MSG_NOSIGNAL);
}

/* Send only the header of a message. */
static void send_header(int fd, const struct msg *m)
{
	struct frames f;

	PS_ASSERT(wire_encode(m, &f) == 0);
	send_frame(fd, zmq_msg_data(&f.frame[0]), zmq_msg_size(&f.frame[0]));
	frames_release(&f);
}

/* Let the target's own worker join on connection `fd`. Returns the WELCOME, which
 * has a new secret. */
static struct msg_welcome join_worker(int fd)
{
	static struct wire *wire;
	const struct msg hello = {.type = MSG_HELLO,
		.hello = {.role = ROLE_WORKER, .name = "anna", .pid = (uint32_t)getpid()}};
	unsigned char bytes[256];
	struct msg m;
	const char *why;
	struct frames f;

	if (!wire)
		PS_ASSERT(wire_new(&wire, PARAMS) == 0);
	send_header(fd, &hello);
	size_t size = read_frame(fd, bytes);
	frames_init(&f);
	PS_ASSERT(zmq_msg_init_size(&f.frame[0], size) == 0);
	memcpy(zmq_msg_data(&f.frame[0]), bytes, size);
	f.n = 1;
	PS_ASSERT(wire_decode(wire, &f, &m, &why) == 0 && m.type == MSG_WELCOME);
	frames_release(&f);
	return m.welcome;
}

/* Make `fd`, on which the handshake is complete, side connection 1 of the target's own worker.
 * Returns the bulk connection of this worker. */
static int open_fuzzed_side(int fd)
{
	int bulk = input_connect(plain.number, NULL, 0);

	greet_router(bulk);
	const struct msg_welcome welcome = join_worker(bulk);
	const struct side_greeting greeting = {.secret_hi = welcome.side_secret_hi,
		.secret_lo = welcome.side_secret_lo,
		.number = 1};
	struct router_stats stats = {0};
	zmq_msg_t frame;

	PS_ASSERT(welcome.connections == SIDES + 1);
	PS_ASSERT(side_encode_greeting(&greeting, &frame) == 0);
	send_frame(fd, zmq_msg_data(&frame), zmq_msg_size(&frame));
	zmq_msg_close(&frame);
	for (int i = 0; i < PATIENCE && stats.sides == 0; i++) {
		run_loop(1);
		router_stats(plain.router, &stats);
	}
	PS_ASSERT(stats.sides == 1);
	return bulk;
}

/* Send the PUSH of a part that has all values. */
static void push_parts(int bulk)
{
	static const float zeros[PARAMS];
	const struct msg m = {.type = MSG_PUSH,
		.push = {.stamp = stamp_of(OWN_WORKER),
			.seq = 1,
			.chunks = 1,
			.slices = {.n = 1,
				.slice = {{.count = PARAMS,
					.encoding = ENCODING_F32,
					.data = zeros}}}}};

	send_header(bulk, &m);
	run_loop(4);
}

/* ---- the target ------------------------------------------------------------------------------ */

static void open_servers(void)
{
	PS_ASSERT(uv_loop_init(&loop) == 0);
	PS_ASSERT(param_buffers_new(&params, PARAMS, 0) == 0);
	open_server(&plain);
	curve.auth = make_auth(curve.key);
	open_server(&curve);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static unsigned n;
	struct input in = {data, size};

	if (!plain.router)
		open_servers();
	uint8_t how = input_u8(&in);
	int fd = input_connect(how & CURVE ? curve.number : plain.number, NULL, 0);
	if (how & CURVE && how & GREETED)
		greet_curve(fd);
	else if (how & (GREETED | SIDE) && !(how & CURVE))
		greet_router(fd);
	int bulk = how & SIDE && !(how & CURVE) ? open_fuzzed_side(fd) : -1;
	if (in.left)
		(void)!send(fd, in.at, in.left, MSG_NOSIGNAL);
	run_loop(4);
	if (bulk >= 0 && how & PARTS)
		push_parts(bulk);
	if (bulk >= 0)
		input_close(bulk);
	input_close(fd);
	if (++n % 16 == 0) {
		check_alive(&plain);
		check_alive(&curve);
	}
	return 0;
}
