/* auth.c - see auth.h: the ZAP socket, the list, and the rights of messages. */
#include "server/auth/auth.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>
#include "common/assert.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/zloop.h"
#include "server/auth/curve_memory.h"
#include "server/auth/quota.h"
#include "server/auth/roles.h"
#include "server/auth/selftest.h"

#define ZAP_ENDPOINT "inproc://zeromq.zap.01"
#define ZAP_DOMAIN   "cnn-ps"
/* libzmq's number for ZMQ_ZAP_ENFORCE_DOMAIN, a draft option that the usual header does not define.
 * If this option is not set and the context has no ZAP handler, libzmq accepts every key. */
#define ZAP_ENFORCE_DOMAIN 93
#define ZAP_FRAMES         9
#define CURVE_KEY_BYTES    32
#define SLOW_MS            1000 /* if a read of the list takes longer than this, it is logged */
#define LOG_MS             1000
#define ID_BYTES           8
#define REQUEST_BYTES      255
#define ADDRESS_BYTES      64
#define NAME_SEPARATOR     '@'

/* In a ZAP request, libzmq asks whether the owner of `key` may connect. */
struct zap_request {
	unsigned char peer[ID_BYTES], id[REQUEST_BYTES];
	size_t peer_bytes, id_bytes;
	char address[ADDRESS_BYTES], key[KEY_TEXT];
};

struct auth {
	struct auth_config cfg;
	char keys_file[4096];
	struct key_pair key;
	struct authorized_keys *list;
	uint64_t log_ms;
	/* 1: auth_self_test runs, so a refused key is the random key of this test and needs no log
	 * line */
	int testing;

	void *socket; /* the ROUTER socket of the ZAP handler, bound to ZAP_ENDPOINT */
	struct zloop zloop;
	uv_timer_t slow;
	/* number of open libuv handles. 0: none; 1: only the timer is open; 2: the ZAP socket's
	 * handle is open, too */
	int open;

	uv_work_t work;
	/* reading: 1: a read is under way; again: 1: auth_reload was called during this read */
	int reading, again;
	/* fresh, why: the result of a read; both belong to the pool while `reading` is 1 */
	struct authorized_keys *fresh;
	struct err why;

	struct auth_stats stats;
	struct roles *roles;
	struct quota quota;
};

static void count_keys(struct auth *a)
{
	a->stats.keys = authorized_keys_count(a->list);
	a->stats.worker_keys = authorized_keys_of_role(a->list, KEY_WORKER);
}

/* ---- messages -------------------------------------------------------------------------------- */

/* Returns the public key of a message's sender, or "" if the sender has none. */
static const char *key_of(struct frames *f)
{
	const char *key = wire_key(f);

	return key && strlen(key) == KEY_TEXT - 1 ? key : "";
}

/* Writes the key of the sender into a HELLO. Appends the start of the key to the name of a worker,
 * so that two workers with the same name and different keys stay two workers. The function also
 * changes the frame, because the write-ahead log stores the frame. */
static int write_owner(struct frames *f, struct msg *m, const char *key, const char **why)
{
	char *name = m->hello.name;
	size_t n = strlen(name);
	zmq_msg_t header;

	*why = "with keys a name has at most 54 bytes";
	if (n && n + 1 + KEY_SHORT > WIRE_MAX_NAME)
		return PS_EAUTH;
	snprintf(m->hello.owner, sizeof(m->hello.owner), "%s", key);
	if (n) {
		name[n++] = NAME_SEPARATOR;
		memcpy(name + n, key, KEY_SHORT);
		name[n + KEY_SHORT] = '\0';
	}
	*why = "no memory";
	if (wire_encode_header(m, &header))
		return PS_ENOMEM;
	/* frees the old frame, whose bytes `key` points to */
	(void)zmq_msg_move(&f->frame[0], &header);
	(void)zmq_msg_close(&header);
	return PS_OK;
}

static int log_is_due(struct auth *a)
{
	uint64_t now = uv_now(a->cfg.loop);

	if (a->log_ms && now - a->log_ms < LOG_MS)
		return 0;
	a->log_ms = now;
	return 1;
}

static uint32_t worker_keys(const struct auth *a)
{
	return a->stats.worker_keys < 1 ? 1 : (uint32_t)a->stats.worker_keys;
}

uint32_t auth_share(const struct auth *a, uint32_t slots)
{
	return (slots + worker_keys(a) - 1) / worker_keys(a);
}

uint32_t auth_even_share(const struct auth *a, uint32_t slots)
{
	return slots / worker_keys(a);
}

uint32_t auth_left_over(const struct auth *a, uint32_t slots)
{
	return slots % worker_keys(a);
}

uint32_t auth_connections(const struct auth *a)
{
	return (4 + a->cfg.sides) * auth_share(a, a->cfg.max_workers) + AUTH_CONNECTIONS;
}

/* Returns the number of workers of each key that may connect in a second. */
static uint32_t workers_of_key(const struct auth *a)
{
	uint32_t share = auth_share(a, a->cfg.max_workers);

	return share < QUOTA_HELLO ? QUOTA_HELLO : share;
}

/* Returns the number of HELLOs of this role that each key may send in a second. The HELLOs of
 * workers, cfg.hellos in a second, are divided equally among the keys, but each key may send at
 * least QUOTA_JOINS. So a key that floods the server with HELLOs leaves the other keys their
 * part. */
static uint32_t hellos_of_key(const struct auth *a, enum role role)
{
	uint32_t part = a->cfg.hellos / worker_keys(a);

	if (role != ROLE_WORKER)
		return QUOTA_HELLO;
	return part < QUOTA_JOINS ? QUOTA_JOINS : part;
}

/* Returns 1 if `key`, the key of the sender of `m`, has exceeded its quota of messages, so that the
 * server must drop `m`. */
static int is_over_quota(struct auth *a, const char *key, const struct msg *m)
{
	uint64_t now = uv_now(a->cfg.loop);
	int over = (m->type == MSG_HELLO && !quota_take(&a->quota, key, QUOTA_OF_HELLO,
						    hellos_of_key(a, m->hello.role), now)) ||
		   (m->type == MSG_STATUS &&
			   !quota_take(&a->quota, key, QUOTA_OF_STATUS, QUOTA_STATUS, now));

	if (over && log_is_due(a))
		log_warn("auth", "over_quota", "key=\"%.*s\" type=%d total=%llu", KEY_SHORT, key,
			(int)m->type, (unsigned long long)a->quota.dropped);
	return over;
}

/* Counts a message that was refused because of the role of its key. */
static void note_unauthorized(struct auth *a, const char *key, int type, const char *why)
{
	a->stats.unauthorized++;
	if (log_is_due(a))
		log_warn("auth", "unauthorized", "key=\"%.*s\" type=%d reason=\"%s\"", KEY_SHORT,
			key, type, why);
}

int auth_admit(struct auth *a, struct frames *f, int is_chunk, const char **why)
{
	const char *key = key_of(f);
	enum key_role role = authorized_keys_role(a->list, key);

	if (role != KEY_NONE && (!is_chunk || role == KEY_WORKER))
		return PS_OK;
	*why = role == KEY_NONE ? "your key is no longer on the server's list"
				: "the role of your key may not send this: it needs a worker's key";
	note_unauthorized(a, key, is_chunk ? (int)MSG_PUSH : 0, *why);
	return PS_EAUTH;
}

int auth_check(struct auth *a, uint32_t peer, struct frames *f, struct msg *m, const char **why)
{
	const char *key = key_of(f);
	int rc = roles_check(a->roles, authorized_keys_role(a->list, key), peer, key, m, why);

	if (rc == PS_OK && is_over_quota(a, key, m))
		return PS_EAGAIN;
	if (rc) {
		note_unauthorized(a, key, (int)m->type, *why);
	} else if (m->type == MSG_HELLO) {
		rc = write_owner(f, m, key, why);
	}
	return rc;
}

int auth_is_listed(const struct auth *a, const char *key)
{
	return authorized_keys_role(a->list, key) != KEY_NONE;
}

void auth_assign(struct auth *a, uint32_t peer, uint32_t worker, uint32_t incarnation)
{
	roles_assign(a->roles, peer, worker, incarnation);
}

/* ---- handshakes: ZAP ------------------------------------------------------------------------- */

static void put_frame(struct auth *a, const void *data, size_t n, int more)
{
	(void)zmq_send(a->socket, data, n, ZMQ_DONTWAIT | (more ? ZMQ_SNDMORE : 0));
}

/* Answers ZAP request `q` with ZAP's status code `code`, such as "200". */
static void send_answer(
	struct auth *a, const struct zap_request *q, const char *code, const char *text)
{
	const char *user = code[0] == '2' ? q->key : "";

	put_frame(a, q->peer, q->peer_bytes, 1);
	put_frame(a, "", 0, 1);
	put_frame(a, "1.0", 3, 1);
	put_frame(a, q->id, q->id_bytes, 1);
	put_frame(a, code, 3, 1);
	put_frame(a, text, strlen(text), 1);
	put_frame(a, user, strlen(user), 1);
	put_frame(a, "", 0, 0);
}

static void answer_zap(struct auth *a, const struct zap_request *q)
{
	enum key_role role = authorized_keys_role(a->list, q->key);
	int admit = role != KEY_NONE;

	/* for each of its HELLOs a worker opens two connections, each with one handshake */
	if (admit && !quota_take(&a->quota, q->key, QUOTA_OF_HANDSHAKE, 2 * workers_of_key(a),
			     uv_now(a->cfg.loop))) {
		a->stats.deferred++;
		if (log_is_due(a))
			log_warn("auth", "deferred", "key=\"%.*s\" address=%s total=%llu",
				KEY_SHORT, q->key, q->address,
				(unsigned long long)a->stats.deferred);
		send_answer(a, q, "300", "too many handshakes of this key");
		return;
	}
	a->stats.admitted += admit != 0;
	a->stats.refused += !admit;
	if (admit || a->testing)
		log_debug("auth", admit ? "admitted" : "refused", "key=\"%.*s\" role=%s address=%s",
			KEY_SHORT, q->key, key_role_name(role), q->address);
	else if (log_is_due(a))
		log_warn("auth", "refused", "key=\"%.*s\" address=%s total=%llu", KEY_SHORT, q->key,
			q->address, (unsigned long long)a->stats.refused);
	send_answer(a, q, admit ? "200" : "400", admit ? "" : "not on the list");
}

static size_t copy_frame(void *to, size_t size, zmq_msg_t *frame)
{
	size_t n = zmq_msg_size(frame);

	if (n > size)
		return 0;
	memcpy(to, zmq_msg_data(frame), n);
	return n;
}

static int frame_is(zmq_msg_t *frame, const char *text)
{
	size_t n = strlen(text);

	return zmq_msg_size(frame) == n && memcmp(zmq_msg_data(frame), text, n) == 0;
}

/* Reads a ZAP request from the `n` frames `f`: peer, empty, version, request, domain, address,
 * identity, mechanism, credentials. Returns 0 if the request is not for this server. The server
 * does not answer such a request, and libzmq ends the handshake of this request after a time
 * limit. */
static int read_request(struct zap_request *q, zmq_msg_t *f, size_t n)
{
	*q = (struct zap_request){.peer_bytes = 0};
	if (n != ZAP_FRAMES)
		return 0;
	q->peer_bytes = copy_frame(q->peer, sizeof(q->peer), &f[0]);
	q->id_bytes = copy_frame(q->id, sizeof(q->id), &f[3]);
	(void)copy_frame(q->address, sizeof(q->address) - 1, &f[5]);
	return q->peer_bytes && frame_is(&f[2], "1.0") && frame_is(&f[4], ZAP_DOMAIN) &&
	       frame_is(&f[7], "CURVE") && zmq_msg_size(&f[8]) == CURVE_KEY_BYTES &&
	       zmq_z85_encode(q->key, zmq_msg_data(&f[8]), CURVE_KEY_BYTES);
}

static int on_zap_readable(void *arg)
{
	struct auth *a = arg;
	struct zap_request q;
	struct frames f;
	int rc = wire_recv(a->socket, NULL, &f);

	if (rc == 0 || rc == PS_ENET)
		return 0;
	if (rc == 1 && read_request(&q, f.frame, f.n))
		answer_zap(a, &q);
	frames_release(&f);
	return 1;
}

/* ---- the list -------------------------------------------------------------------------------- */

/* Reads the list. Runs on a thread of the pool. */
static void read_list(uv_work_t *work)
{
	struct auth *a = work->data;

	if (a->cfg.read(&a->fresh, a->keys_file, &a->why))
		a->fresh = NULL;
}

/* Replaces the list in memory by the list that the pool's thread has read. If that thread could not
 * read the file, keeps the old list. */
static void take_list(struct auth *a)
{
	if (!a->fresh) {
		log_error("auth", "list_kept", "reason=\"%s\"", a->why.text);
		return;
	}
	authorized_keys_free(&a->list);
	a->list = a->fresh;
	a->fresh = NULL;
	count_keys(a);
	log_info("auth", "list_read", "file=\"%s\" keys=%zu", a->keys_file, a->stats.keys);
}

static void on_slow(uv_timer_t *t)
{
	struct auth *a = t->data;

	log_error("auth", "list_slow",
		"file=\"%s\" reason=\"the disk has not delivered it yet: the previous list stays "
		"in use\"",
		a->keys_file);
}

static void on_list_read(uv_work_t *work, int status)
{
	struct auth *a = work->data;

	if (status != 0) /* libuv has cancelled the read */
		err_set(&a->why, PS_EIO, "%s", uv_strerror(status));
	PS_ASSERT(a->reading); /* invariant 1 */
	a->reading = 0;
	take_list(a);
	if (!a->open)
		return;
	uv_timer_stop(&a->slow);
	if (a->again)
		auth_reload(a);
}

void auth_reload(struct auth *a)
{
	a->again = a->reading;
	if (a->reading)
		return;
	PS_ASSERT(!a->fresh); /* invariant 1: the result of the previous read is taken */
	a->reading = 1;
	uv_timer_start(&a->slow, on_slow, SLOW_MS, 0);
	/* uv_queue_work fails only if its function for the pool is NULL */
	(void)uv_queue_work(a->cfg.loop, &a->work, read_list, on_list_read);
}

int auth_busy(const struct auth *a)
{
	return a && a->reading;
}

/* ---- creation -------------------------------------------------------------------------------- */

static int read_files(struct auth *a, struct err *e)
{
	const char *file = a->cfg.keys_file;
	int rc = key_read_secret(a->cfg.key_file, &a->key, e);

	if (rc)
		return rc;
	if (file)
		snprintf(a->keys_file, sizeof(a->keys_file), "%s", file);
	else
		rc = key_beside(a->cfg.key_file, AUTHORIZED_KEYS_FILE, a->keys_file,
			sizeof(a->keys_file), e);
	if (!rc)
		rc = a->cfg.read(&a->list, a->keys_file, e);
	if (!rc && authorized_keys_role(a->list, a->key.public_key) != KEY_NONE)
		rc = err_set(e, PS_EUSAGE, "%s: contains the server's own key", a->keys_file);
	return rc;
}

int auth_new(struct auth **out, const struct auth_config *cfg, struct err *e)
{
	struct auth *a = mem_try(1, sizeof(*a));
	int rc;

	*out = NULL;
	if (!a)
		return err_set(e, PS_ENOMEM, "no memory for keys");
	a->cfg = *cfg;
	if (!a->cfg.read)
		a->cfg.read = authorized_keys_read;
	a->roles = roles_new(cfg->max_workers);
	rc = a->roles ? read_files(a, e) : err_set(e, PS_ENOMEM, "no memory for keys");
	if (rc) {
		auth_free(&a);
		return rc;
	}
	count_keys(a);
	log_info("auth", "keys", "server=\"%.*s\" list=\"%s\" keys=%zu", KEY_SHORT,
		a->key.public_key, a->keys_file, a->stats.keys);
	*out = a;
	return PS_OK;
}

int auth_open(struct auth *a, void *context, struct err *e)
{
	int linger = 0;

	a->socket = zmq_socket(context, ZMQ_ROUTER);
	if (!a->socket || zmq_setsockopt(a->socket, ZMQ_LINGER, &linger, sizeof(linger)) != 0 ||
		zmq_bind(a->socket, ZAP_ENDPOINT) != 0)
		return err_set(e, PS_ENET, "no ZAP handler: %s", zmq_strerror(errno));
	uv_timer_init(a->cfg.loop, &a->slow);
	a->slow.data = a->work.data = a;
	a->open = 1;
	if (zloop_start(&a->zloop, a->cfg.loop, a->socket, on_zap_readable, a) != 0)
		return err_set(e, PS_ENET, "the ZAP handler cannot be watched");
	a->open = 2;
	return PS_OK;
}

int auth_secure(struct auth *a, void *socket, struct err *e)
{
	int on = 1;
	int bad = zmq_setsockopt(socket, ZMQ_CURVE_SERVER, &on, sizeof(on)) ||
		  zmq_setsockopt(socket, ZMQ_CURVE_SECRETKEY, a->key.secret_key, KEY_TEXT) ||
		  zmq_setsockopt(socket, ZMQ_ZAP_DOMAIN, ZAP_DOMAIN, strlen(ZAP_DOMAIN)) ||
		  zmq_setsockopt(socket, ZAP_ENFORCE_DOMAIN, &on, sizeof(on));

	return bad ? err_set(e, PS_EAUTH, "CURVE cannot be switched on: %s", zmq_strerror(errno))
		   : PS_OK;
}

int auth_self_test(struct auth *a, void *socket, struct err *e)
{
	struct auth_stats before = a->stats;
	int rc;

	a->testing = 1;
	rc = auth_selftest(a->cfg.loop, socket, a->key.public_key, e);
	a->testing = 0;
	a->stats = before;
	if (!rc && !curve_memory_taken())
		log_info("auth", "slow_handshakes",
			"reason=\"libzmq takes the memory of handshakes from libsodium\"");
	return rc;
}

const struct auth_stats *auth_stats(const struct auth *a)
{
	return &a->stats;
}

void auth_stop(struct auth *a)
{
	if (!a || !a->open)
		return;
	if (a->open == 2)
		zloop_stop(&a->zloop, NULL);
	uv_close((uv_handle_t *)&a->slow, NULL);
	zmq_close(a->socket);
	a->socket = NULL;
	a->open = 0;
}

void auth_free(struct auth **a)
{
	if (!*a)
		return;
	if ((*a)->socket)
		zmq_close((*a)->socket);
	authorized_keys_free(&(*a)->list);
	roles_free(&(*a)->roles);
	explicit_bzero(*a, sizeof(**a));
	free(*a);
	*a = NULL;
}
