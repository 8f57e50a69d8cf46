/* auth.c - see auth.h: the ZAP socket and the judge's watchdog. */
#include "server/auth/auth.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>
#include "common/log.h"
#include "common/mem.h"
#include "common/zloop.h"
#include "server/auth/roles.h"
#include "server/auth/selftest.h"

#define ZAP_ENDPOINT "inproc://zeromq.zap.01"
#define ZAP_DOMAIN   "cnn-ps"
/* libzmq's number for ZMQ_ZAP_ENFORCE_DOMAIN, which its header keeps among the drafts: without it a
 * context that has no ZAP handler lets every key in. */
#define ZAP_ENFORCE_DOMAIN 93
#define ZAP_FRAMES         7 /* of a request before its credentials, with ours: */
#define WATCH_MS           250
#define HANG_MS            1000 /* without an answer: well under a handshake's 2 s */
#define MOST_HUNG          3    /* threads given up and not ended yet: then we only wait */
#define LOG_MS             1000
#define NAME_SEPARATOR     '@'

struct auth {
	struct auth_config cfg;
	char allow_file[4096];
	struct key_pair key;
	struct allow *list; /* for messages; the judge has its own for handshakes */
	struct judge *judge, *hung[MOST_HUNG];
	size_t n_hung;
	uint64_t waiting;     /* questions with the judge */
	uint64_t progress_ms; /* the newest answer, or the first question after none */
	uint64_t log_ms;

	void *socket; /* ROUTER: libzmq's handshakes ask here */
	struct zloop zloop;
	uv_async_t wake;
	uv_timer_t watchdog;
	int open;    /* handles: 1 wake and watchdog, 2 the ZAP socket's too */
	int testing; /* the one who is refused now is ourselves */

	struct auth_stats stats;
	struct roles *roles;
};

/* ---- messages -------------------------------------------------------------------------------- */

/* The key of a message's sender, or "". */
static const char *key_of(struct frames *f)
{
	const char *key = f->n ? zmq_msg_gets(&f->frame[0], "User-Id") : NULL;

	return key && strlen(key) == KEY_TEXT - 1 ? key : "";
}

/* Two keys with one name are two workers. In the frame, too: that is what a journal keeps. */
static int own_name(struct frames *f, struct msg *m, const char *key, const char **why)
{
	char *name = m->hello.name;
	size_t n = strlen(name);
	zmq_msg_t header;

	if (n == 0)
		return PS_OK;
	*why = "with keys a name has at most 54 bytes";
	if (n + 1 + KEY_SHORT > WIRE_MAX_NAME)
		return PS_EAUTH;
	name[n++] = NAME_SEPARATOR;
	memcpy(name + n, key, KEY_SHORT);
	name[n + KEY_SHORT] = '\0';
	*why = "no memory";
	if (wire_encode_header(m, &header))
		return PS_ENOMEM;
	(void)zmq_msg_move(&f->frame[0], &header); /* ends `key`, which lies in it */
	(void)zmq_msg_close(&header);
	return PS_OK;
}

static int may_log(struct auth *a)
{
	uint64_t now = uv_now(a->cfg.loop);

	if (a->log_ms && now - a->log_ms < LOG_MS)
		return 0;
	a->log_ms = now;
	return 1;
}

int auth_check(struct auth *a, uint32_t peer, struct frames *f, struct msg *m, const char **why)
{
	const char *key = key_of(f);
	int rc = roles_check(a->roles, allow_role(a->list, key), peer, key, m, why);

	if (rc) {
		a->stats.overruled++;
		if (may_log(a))
			log_warn("auth", "overruled", "key=\"%.*s\" type=%d why=\"%s\"", KEY_SHORT,
				key, (int)m->type, *why);
	} else if (m->type == MSG_HELLO) {
		rc = own_name(f, m, key, why);
	}
	return rc;
}

void auth_note(struct auth *a, uint32_t peer, const struct msg *m)
{
	roles_note(a->roles, peer, m);
}

/* ---- handshakes: a question from libzmq, to the judge, and back ------------------------------ */

static void put_frame(struct auth *a, const void *data, size_t n, int more)
{
	(void)zmq_send(a->socket, data, n, ZMQ_DONTWAIT | (more ? ZMQ_SNDMORE : 0));
}

static void reply(struct auth *a, const struct question *q)
{
	int in = q->role != KEY_STRANGER;
	const char *code = in ? "200" : "400", *text = in ? "" : "not on the list";
	const char *user = in ? q->key : "";

	put_frame(a, q->peer, q->peer_bytes, 1);
	put_frame(a, "", 0, 1);
	put_frame(a, "1.0", 3, 1);
	put_frame(a, q->request, q->request_bytes, 1);
	put_frame(a, code, 3, 1);
	put_frame(a, text, strlen(text), 1);
	put_frame(a, user, strlen(user), 1);
	put_frame(a, "", 0, 0);
}

static void on_judged(struct auth *a, const struct question *q)
{
	int in = q->role != KEY_STRANGER;

	a->stats.admitted += in != 0;
	a->stats.refused += !in;
	if (in || a->testing)
		log_debug("auth", in ? "admitted" : "refused", "key=\"%.*s\" role=%s address=%s",
			KEY_SHORT, q->key, allow_role_name(q->role), q->address);
	else if (may_log(a))
		log_warn("auth", "refused", "key=\"%.*s\" address=%s total=%llu", KEY_SHORT, q->key,
			q->address, (unsigned long long)a->stats.refused);
	reply(a, q);
}

static void on_list(struct auth *a, struct question *q)
{
	if (!q->list) {
		log_error("auth", "list_kept", "reason=\"%s\"", q->why.text);
		return;
	}
	allow_free(&a->list);
	a->list = q->list;
	q->list = NULL;
	a->stats.keys = allow_count(a->list);
	log_info("auth", "list_read", "file=\"%s\" keys=%zu", a->allow_file, a->stats.keys);
}

static void on_wake(uv_async_t *h)
{
	struct auth *a = h->data;
	struct question *q;

	while ((q = judge_answer(a->judge)) != NULL) {
		a->waiting--;
		a->progress_ms = uv_now(a->cfg.loop);
		if (q->reload)
			on_list(a, q);
		else
			on_judged(a, q);
		question_free(&q);
	}
}

/* A question that does not fit is dropped: that handshake ends by its own time limit. */
static void ask(struct auth *a, struct question *q)
{
	if (q && judge_ask(a->judge, &q) == PS_OK && a->waiting++ == 0)
		a->progress_ms = uv_now(a->cfg.loop);
	question_free(&q);
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

/* Frames: peer, empty, version, request, domain, address, identity, mechanism, credentials. */
static struct question *new_question(zmq_msg_t *f, size_t n)
{
	struct question *q = n == 9 ? mem_try(1, sizeof *q) : NULL;

	if (!q)
		return NULL;
	q->peer_bytes = copy_frame(q->peer, sizeof q->peer, &f[0]);
	q->request_bytes = copy_frame(q->request, sizeof q->request, &f[3]);
	(void)copy_frame(q->address, sizeof q->address - 1, &f[5]);
	if (!q->peer_bytes || !frame_is(&f[2], "1.0") || !frame_is(&f[4], ZAP_DOMAIN) ||
		!frame_is(&f[7], "CURVE") || zmq_msg_size(&f[8]) != 32 ||
		!zmq_z85_encode(q->key, zmq_msg_data(&f[8]), 32))
		question_free(&q);
	return q;
}

static int on_readable(void *arg)
{
	struct auth *a = arg;
	struct frames f;
	int rc = wire_recv(a->socket, NULL, &f);

	if (rc == 0 || rc == PS_ENET)
		return 0;
	if (rc == 1)
		ask(a, new_question(f.frame, f.n));
	frames_release(&f);
	return 1;
}

void auth_reload(struct auth *a)
{
	struct question *q = mem_try(1, sizeof *q);

	if (q)
		q->reload = 1;
	ask(a, q);
}

/* ---- the judge's watchdog -------------------------------------------------------------------- */

/* Nobody gets in until the new judge has read the list itself: the old one may have hung on that.
 */
static void replace_judge(struct auth *a)
{
	struct judge *fresh;

	if (a->n_hung == MOST_HUNG ||
		judge_start(&fresh, a->list, a->allow_file, a->cfg.read, &a->wake))
		return;
	log_error("auth", "judge_hangs", "waiting=%llu action=restart",
		(unsigned long long)a->waiting);
	a->stats.restarts++;
	a->hung[a->n_hung++] = a->judge;
	a->stats.hanging = a->n_hung;
	a->judge = fresh;
	a->waiting = 0;
	auth_reload(a);
	a->waiting += judge_give_up(a->hung[a->n_hung - 1], fresh);
}

/* Those that were given up and have come to an end after all. */
static void reap(struct auth *a)
{
	size_t kept = 0;

	for (size_t i = 0; i < a->n_hung; i++)
		if (judge_ended(a->hung[i]))
			judge_stop(&a->hung[i]);
		else
			a->hung[kept++] = a->hung[i];
	a->stats.hanging = a->n_hung = kept;
}

static void on_watchdog(uv_timer_t *t)
{
	struct auth *a = t->data;

	reap(a);
	if (a->waiting && uv_now(a->cfg.loop) - a->progress_ms >= HANG_MS)
		replace_judge(a);
}

/* ---- birth ----------------------------------------------------------------------------------- */

static int read_files(struct auth *a, struct err *e)
{
	const char *file = a->cfg.allow_file;
	int rc = key_read_secret(a->cfg.key_file, &a->key, e);

	if (rc)
		return rc;
	if (file)
		snprintf(a->allow_file, sizeof a->allow_file, "%s", file);
	else
		rc = key_beside(a->cfg.key_file, "allow", a->allow_file, sizeof a->allow_file, e);
	if (!rc)
		rc = a->cfg.read(&a->list, a->allow_file, e);
	if (!rc && allow_role(a->list, a->key.public_key) != KEY_STRANGER)
		rc = err_set(e, PS_EUSAGE, "%s: has the server's own key on it", a->allow_file);
	return rc;
}

int auth_new(struct auth **out, const struct auth_config *cfg, struct err *e)
{
	struct auth *a = mem_try(1, sizeof *a);
	int rc;

	*out = NULL;
	if (!a)
		return err_set(e, PS_ENOMEM, "no memory for keys");
	a->cfg = *cfg;
	if (!a->cfg.read)
		a->cfg.read = allow_read;
	a->roles = roles_new(cfg->max_workers);
	rc = a->roles ? read_files(a, e) : err_set(e, PS_ENOMEM, "no memory for keys");
	if (rc) {
		auth_free(&a);
		return rc;
	}
	a->stats.keys = allow_count(a->list);
	log_info("auth", "keys", "server=\"%.*s\" list=\"%s\" keys=%zu", KEY_SHORT,
		a->key.public_key, a->allow_file, a->stats.keys);
	*out = a;
	return PS_OK;
}

int auth_open(struct auth *a, void *context, struct err *e)
{
	int linger = 0;

	a->socket = zmq_socket(context, ZMQ_ROUTER);
	if (!a->socket || zmq_setsockopt(a->socket, ZMQ_LINGER, &linger, sizeof linger) != 0 ||
		zmq_bind(a->socket, ZAP_ENDPOINT) != 0 ||
		uv_async_init(a->cfg.loop, &a->wake, on_wake) != 0)
		return err_set(e, PS_ENET, "no ZAP handler: %s", zmq_strerror(errno));
	uv_timer_init(a->cfg.loop, &a->watchdog);
	a->wake.data = a->watchdog.data = a;
	a->open = 1;
	if (zloop_start(&a->zloop, a->cfg.loop, a->socket, on_readable, a) != 0)
		return err_set(e, PS_ENET, "the ZAP handler cannot be watched");
	a->open = 2;
	uv_timer_start(&a->watchdog, on_watchdog, WATCH_MS, WATCH_MS);
	if (judge_start(&a->judge, a->list, a->allow_file, a->cfg.read, &a->wake))
		return err_set(e, PS_ENOMEM, "no thread for keys");
	return PS_OK;
}

int auth_secure(struct auth *a, void *socket, struct err *e)
{
	int on = 1;
	int bad = zmq_setsockopt(socket, ZMQ_CURVE_SERVER, &on, sizeof on) ||
		  zmq_setsockopt(socket, ZMQ_CURVE_SECRETKEY, a->key.secret_key, KEY_TEXT) ||
		  zmq_setsockopt(socket, ZMQ_ZAP_DOMAIN, ZAP_DOMAIN, strlen(ZAP_DOMAIN)) ||
		  zmq_setsockopt(socket, ZAP_ENFORCE_DOMAIN, &on, sizeof on);

	return bad ? err_set(e, PS_EAUTH, "CURVE cannot be switched on: %s", zmq_strerror(errno))
		   : PS_OK;
}

int auth_self_test(struct auth *a, void *socket, struct err *e)
{
	struct auth_stats before = a->stats;
	int rc;

	a->testing = 1;
	rc = stranger_is_refused(a->cfg.loop, socket, a->key.public_key, e);
	a->testing = 0;
	a->stats = before;
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
	judge_stop(&a->judge);
	uv_close((uv_handle_t *)&a->wake, NULL);
	uv_close((uv_handle_t *)&a->watchdog, NULL);
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
	for (size_t i = 0; i < (*a)->n_hung; i++)
		judge_stop(&(*a)->hung[i]);
	allow_free(&(*a)->list);
	roles_free(&(*a)->roles);
	explicit_bzero(*a, sizeof **a);
	free(*a);
	*a = NULL;
}
