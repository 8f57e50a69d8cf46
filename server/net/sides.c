/* sides.c - see sides.h. Few workers have side connections, so linear scans are fast enough. */
#include "server/net/sides.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>
#include "common/assert.h"
#include "common/keys.h"
#include "common/log.h"
#include "common/mem.h"
#include "server/net/watched.h"

/* This struct describes the sender of a HELLO. */
struct side_hello {
	uint32_t peer;
	char key[KEY_TEXT];
};

/* This struct is the session of one worker slot. */
struct side_session {
	uint32_t bulk; /* the connection that received the WELCOME; 0: the session has ended */
	char key[KEY_TEXT];
	uint64_t secret_hi, secret_lo;
	uint32_t n;               /* open side connections */
	uint32_t peer[MAX_SIDES]; /* 0: not open */
	struct watched connection[MAX_SIDES];
};

struct sides {
	uint32_t max_workers, max;
	uint32_t open; /* side connections of all sessions */
	struct side_session *session;
	struct side_hello *hello; /* ring of the newest HELLOs */
	size_t ring, n;           /* ring: size of the ring; n: HELLOs noted so far */
};

int sides_new(struct sides **out, uint32_t max_workers, uint32_t max)
{
	struct sides *s = mem_try(1, sizeof(*s));

	*out = s;
	if (!s)
		return PS_ENOMEM;
	s->max_workers = max_workers;
	s->max = max;
	s->ring = 2 * (size_t)max_workers + 64;
	s->session = mem_try(max_workers, sizeof(*s->session));
	s->hello = mem_try(s->ring, sizeof(*s->hello));
	if (s->session && s->hello)
		return PS_OK;
	sides_free(out);
	return PS_ENOMEM;
}

void sides_free(struct sides **s)
{
	if (!*s)
		return;
	free((*s)->session);
	free((*s)->hello);
	free(*s);
	*s = NULL;
}

void sides_hello(struct sides *s, uint32_t peer, const char *key)
{
	struct side_hello *h = &s->hello[s->n++ % s->ring];

	h->peer = peer;
	snprintf(h->key, sizeof(h->key), "%s", key);
}

/* Returns the key of the newest HELLO of `peer`, or NULL if it is not known. */
static const char *key_of_hello(const struct sides *s, uint32_t peer)
{
	size_t known = s->n < s->ring ? s->n : s->ring;

	for (size_t i = 1; i <= known; i++)
		if (s->hello[(s->n - i) % s->ring].peer == peer)
			return s->hello[(s->n - i) % s->ring].key;
	return NULL;
}

/* Closes the side connections of a session. Its secret opens no other one. */
static void end_side_session(struct sides *s, struct side_session *e, const char *why)
{
	if (e->n)
		log_info("net", "side_connections_closed", "worker=%u n=%u reason=\"%s\"",
			(uint32_t)(e - s->session) + 1, e->n, why);
	for (size_t i = 0; i < MAX_SIDES; i++)
		if (e->peer[i])
			watched_shut_down(&e->connection[i]);
	PS_ASSERT(s->open >= e->n);
	s->open -= e->n;
	*e = (struct side_session){0};
}

uint32_t sides_welcome(struct sides *s, uint32_t peer, struct msg_welcome *m)
{
	const char *key = key_of_hello(s, peer);
	uint32_t worker = m->stamp.worker, before;
	uint64_t secret[2];

	if (worker < 1 || worker > s->max_workers)
		return 0;
	struct side_session *e = &s->session[worker - 1];
	before = e->bulk;
	secret[0] = e->secret_hi;
	secret[1] = e->secret_lo;
	int is_new = !key || e->n || e->bulk != peer || strcmp(e->key, key) != 0;
	end_side_session(s, e, "the worker has a new WELCOME");
	if (!key || (is_new && uv_random(NULL, NULL, secret, sizeof(secret), 0, NULL) != 0))
		return before;
	e->bulk = peer;
	snprintf(e->key, sizeof(e->key), "%s", key);
	e->secret_hi = m->side_secret_hi = secret[0];
	e->secret_lo = m->side_secret_lo = secret[1];
	m->connections = s->max + 1;
	return before;
}

/* Returns the session with this secret, or NULL. The time of the comparison does not depend on the
 * secret. */
static struct side_session *session_of_secret(struct sides *s, const struct side_greeting *g)
{
	struct side_session *found = NULL;

	for (uint32_t i = 0; i < s->max_workers; i++) {
		struct side_session *e = &s->session[i];
		uint64_t differs = (g->secret_hi ^ e->secret_hi) | (g->secret_lo ^ e->secret_lo);

		if (e->bulk && !differs)
			found = e;
	}
	return found;
}

/* Returns the session of side connection `peer`, or NULL. */
static struct side_session *session_of_side(const struct sides *s, uint32_t peer)
{
	uint32_t left = peer ? s->open : 0;

	for (uint32_t i = 0; i < s->max_workers && left > 0; i++) {
		struct side_session *e = &s->session[i];

		left -= e->n;
		for (size_t j = 0; j < MAX_SIDES && e->n; j++)
			if (e->peer[j] == peer)
				return e;
	}
	return NULL;
}

/* Returns the session with this bulk connection and at least one side connection, or NULL. */
static struct side_session *session_of_bulk(const struct sides *s, uint32_t bulk)
{
	uint32_t left = bulk ? s->open : 0;

	for (uint32_t i = 0; i < s->max_workers && left > 0; i++) {
		struct side_session *e = &s->session[i];

		left -= e->n;
		if (e->n && e->bulk == bulk)
			return e;
	}
	return NULL;
}

/* Returns 1 if a session or a HELLO names `peer` as its bulk connection. */
static int is_bulk(const struct sides *s, uint32_t peer)
{
	if (key_of_hello(s, peer))
		return 1;
	for (uint32_t i = 0; i < s->max_workers; i++)
		if (s->session[i].bulk == peer)
			return 1;
	return 0;
}

int sides_greet(struct sides *s, const struct side_greeting *g, uint32_t peer, int fd,
	const char *key, const char **why)
{
	struct side_session *e = session_of_secret(s, g);
	uint32_t i = g->number - 1;

	*why = "no session has this secret";
	if (!e)
		return PS_EAUTH;
	*why = "the session of this secret belongs to another key";
	if (strcmp(e->key, key) != 0)
		return PS_EAUTH;
	*why = "this secret has already opened a side connection with this number";
	if (i >= s->max || e->peer[i])
		return PS_EAUTH;
	*why = "a connection with messages of its own cannot become a side connection";
	if (is_bulk(s, peer) || session_of_side(s, peer))
		return PS_EAUTH;
	PS_ASSERT(!session_of_side(s, peer) && !session_of_bulk(s, peer)); /* invariant 1 */
	PS_ASSERT(!e->peer[i] && e->n < s->max);                           /* invariant 2 */
	e->peer[i] = peer;
	watched_begin(&e->connection[i], fd);
	e->n++;
	s->open++;
	return PS_OK;
}

uint32_t sides_session(const struct sides *s, uint32_t peer)
{
	const struct side_session *e = session_of_side(s, peer);

	return e ? e->bulk : 0;
}

int sides_has(const struct sides *s, uint32_t peer)
{
	return session_of_bulk(s, peer) != NULL;
}

uint32_t sides_of(const struct sides *s, uint32_t bulk, uint32_t peer[MAX_SIDES])
{
	const struct side_session *e = session_of_bulk(s, bulk);
	uint32_t n = 0;

	while (e && n < MAX_SIDES && e->peer[n]) {
		peer[n] = e->peer[n];
		n++;
	}
	return e && n == e->n ? n : 0;
}

uint64_t sides_moved(struct sides *s, uint32_t bulk)
{
	struct side_session *e = session_of_bulk(s, bulk);
	uint64_t moved = 0;

	for (size_t i = 0; e && i < MAX_SIDES; i++)
		if (e->peer[i])
			moved += watched_moved(&e->connection[i]);
	return moved;
}

int sides_end(struct sides *s, uint32_t peer)
{
	struct side_session *e = session_of_side(s, peer);

	if (e)
		end_side_session(s, e, "one of them is closed");
	return e != NULL;
}

void sides_check(struct sides *s, const struct core *c)
{
	for (uint32_t i = 0; i < s->max_workers; i++) {
		struct side_session *e = &s->session[i];
		struct worker_view w;

		if (!e->bulk)
			continue;
		core_worker(c, i, &w);
		if (w.peer != e->bulk || w.excluded || w.state == SESSION_DEAD ||
			w.state == SESSION_AWAY)
			end_side_session(s, e, "the session has ended");
	}
}

uint32_t sides_open(const struct sides *s)
{
	return s->open;
}

void sides_clear(struct sides *s)
{
	for (uint32_t i = 0; i < s->max_workers; i++)
		end_side_session(s, &s->session[i], "all connections are closed");
}
