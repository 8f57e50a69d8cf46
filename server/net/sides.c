/*
 * sides.c - see sides.h. A hash table finds the session of a connection, because the server looks
 * it up for each message. Only a connection that presents a secret makes the server scan all slots.
 */
#include "server/net/sides.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>
#include "common/assert.h"
#include "common/keys.h"
#include "common/log.h"
#include "common/mem.h"
#include "server/net/line_budget.h"
#include "server/net/watched.h"

/* This struct describes the sender of a HELLO. */
struct side_hello {
	uint32_t peer;
	char key[KEY_TEXT];
};

/* This struct is the session of one worker slot. */
struct side_session {
	/* the bulk connection, on which the worker received WELCOME; 0: the session has ended */
	uint32_t bulk;
	char key[KEY_TEXT];
	uint64_t secret_hi, secret_lo;
	uint32_t n;               /* number of open side connections of this session */
	uint32_t peer[MAX_SIDES]; /* the side connections; 0: not open */
	struct watched connection[MAX_SIDES];
};

/* Each slot has a node in the hash table for each side connection and, as the last one, a node for
 * its bulk connection. */
#define NODES (MAX_SIDES + 1)

struct sides {
	uint32_t max_workers, max;
	struct line_budget *lines;
	uint32_t *first; /* 1 + the first node of each chain; 0: the chain is empty */
	uint32_t *next;  /* 1 + the node after each node in its chain; 0: none */
	uint32_t mask;   /* the number of chains is mask + 1, a power of two */
	uint32_t open;   /* number of side connections of all sessions */
	struct side_session *session;
	struct side_hello *hello; /* ring of the senders of the newest HELLOs */
	size_t ring, n;           /* ring: size of the ring; n: number of HELLOs noted so far */
};

int sides_new(struct sides **out, uint32_t max_workers, uint32_t max, struct line_budget *lines)
{
	struct sides *s = mem_try(1, sizeof(*s));

	*out = s;
	if (!s)
		return PS_ENOMEM;
	s->max_workers = max_workers;
	s->max = max;
	s->lines = lines;
	s->ring = 2 * (size_t)max_workers + 64;
	s->session = mem_try(max_workers, sizeof(*s->session));
	s->hello = mem_try(s->ring, sizeof(*s->hello));
	while (s->mask + 1 < NODES * max_workers)
		s->mask = 2 * s->mask + 1;
	s->first = mem_try(s->mask + 1, sizeof(*s->first));
	s->next = mem_try((size_t)NODES * max_workers, sizeof(*s->next));
	if (s->session && s->hello && s->first && s->next)
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
	free((*s)->first);
	free((*s)->next);
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

/* ---- the hash table -------------------------------------------------------------------------- */

/* Returns the start of the chain for `peer`. The low bits of `peer` are a good hash, because libzmq
 * numbers the connections one after the other. */
static uint32_t *chain_of(const struct sides *s, uint32_t peer)
{
	return &s->first[peer & s->mask];
}

/* Adds `node` to the chain of `peer`. Does nothing if `peer` is 0. */
static void add_peer(struct sides *s, uint32_t node, uint32_t peer)
{
	uint32_t *first = chain_of(s, peer);

	if (!peer)
		return;
	s->next[node] = *first;
	*first = node + 1;
}

/* Removes the node of `peer` if `peer` is not 0. */
static void remove_peer(struct sides *s, uint32_t node, uint32_t peer)
{
	uint32_t *at = chain_of(s, peer);

	if (!peer)
		return;
	while (*at != node + 1) {
		PS_ASSERT(*at != 0); /* the node must be in the chain of `peer` */
		at = &s->next[*at - 1];
	}
	*at = s->next[node];
}

static uint32_t node_of_slot(const struct sides *s, const struct side_session *e, size_t i)
{
	return (uint32_t)(e - s->session) * NODES + (uint32_t)i;
}

/* ---- sessions -------------------------------------------------------------------------------- */

/* Closes the side connections of a session. After that, the secret of the session opens no new
 * ones. */
static void end_side_session(struct sides *s, struct side_session *e, const char *why)
{
	const uint32_t worker = (uint32_t)(e - s->session) + 1;

	for (size_t i = 0; i < MAX_SIDES; i++)
		remove_peer(s, node_of_slot(s, e, i), e->peer[i]);
	remove_peer(s, node_of_slot(s, e, MAX_SIDES), e->bulk);
	if (e->n && line_budget_take(s->lines, worker))
		log_info("net", "side_connections_closed", "worker=%u n=%u reason=\"%s\"", worker,
			e->n, why);
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
	add_peer(s, node_of_slot(s, e, MAX_SIDES), peer);
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
	for (uint32_t at = *chain_of(s, peer); peer && at; at = s->next[at - 1]) {
		const uint32_t i = (at - 1) % NODES;
		struct side_session *e = &s->session[(at - 1) / NODES];

		if (i < MAX_SIDES && e->peer[i] == peer)
			return e;
	}
	return NULL;
}

/* Returns the session with this bulk connection and at least `sides` side connections, or NULL. */
static struct side_session *session_of_bulk(const struct sides *s, uint32_t bulk, uint32_t sides)
{
	for (uint32_t at = *chain_of(s, bulk); bulk && at; at = s->next[at - 1]) {
		struct side_session *e = &s->session[(at - 1) / NODES];

		if ((at - 1) % NODES == MAX_SIDES && e->bulk == bulk && e->n >= sides)
			return e;
	}
	return NULL;
}

/* Returns 1 if a session or a HELLO names `peer` as its bulk connection. */
static int is_bulk(const struct sides *s, uint32_t peer)
{
	return key_of_hello(s, peer) || session_of_bulk(s, peer, 0);
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
	PS_ASSERT(!session_of_side(s, peer) && !session_of_bulk(s, peer, 0)); /* invariant 1 */
	PS_ASSERT(!e->peer[i] && e->n < s->max);                              /* invariant 2 */
	e->peer[i] = peer;
	add_peer(s, node_of_slot(s, e, i), peer);
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
	return session_of_bulk(s, peer, 1) != NULL;
}

uint32_t sides_of(const struct sides *s, uint32_t bulk, uint32_t peer[MAX_SIDES])
{
	const struct side_session *e = session_of_bulk(s, bulk, 1);
	uint32_t n = 0;

	while (e && n < MAX_SIDES && e->peer[n]) {
		peer[n] = e->peer[n];
		n++;
	}
	return e && n == e->n ? n : 0;
}

uint64_t sides_moved(struct sides *s, uint32_t bulk)
{
	struct side_session *e = session_of_bulk(s, bulk, 1);
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
		if (w.peer != e->bulk || !w.in_session)
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
