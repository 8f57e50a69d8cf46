/* roles.c - see roles.h. */
#include "server/auth/roles.h"
#include <stdlib.h>
#include <string.h>
#include "common/assert.h"
#include "common/mem.h"
#include "proto/wire.h"

/* The table says which roles may send each message type. */
#define MAY(role) (1u << (role))
#define ANYBODY   (MAY(KEY_OBSERVER) | MAY(KEY_ADMIN) | MAY(KEY_WORKER))
static const unsigned may[MSG_TYPES] = {
	[MSG_HELLO] = ANYBODY, /* HELLO with ROLE_WORKER needs a worker's key */
	[MSG_STATUS] = ANYBODY,
	[MSG_BYE] = ANYBODY,
	[MSG_PULL] = MAY(KEY_ADMIN) | MAY(KEY_WORKER),
	[MSG_ADMIN] = MAY(KEY_ADMIN),
	[MSG_PUSH] = MAY(KEY_WORKER),
	[MSG_LEASE] = MAY(KEY_WORKER),
	[MSG_RESULT] = MAY(KEY_WORKER),
	[MSG_HEARTBEAT] = MAY(KEY_WORKER),
};

/* This struct has the key that owns a worker id. */
struct owner {
	uint32_t incarnation; /* incarnation of the worker id; 0: the id has no owner */
	char key[KEY_TEXT];
};

/* This struct describes an accepted HELLO, to which a worker id may be assigned later. */
struct greeting {
	uint32_t peer;
	char key[KEY_TEXT];
};

struct roles {
	struct owner owner[WIRE_MAX_WORKERS + 1]; /* owner[i]: the owner of worker id i */
	/* ring of the senders of the newest accepted HELLOs */
	struct greeting *greeting;
	size_t ring, n_greetings;
};

struct roles *roles_new(uint32_t max_workers)
{
	struct roles *r = mem_try(1, sizeof(*r));

	if (!r)
		return NULL;
	r->ring = 2 * (size_t)max_workers;
	r->greeting = mem_try(r->ring, sizeof(*r->greeting));
	if (!r->greeting)
		roles_free(&r);
	return r;
}

static void remember_hello(struct roles *r, uint32_t peer, const char *key)
{
	struct greeting *g = &r->greeting[r->n_greetings++ % r->ring];

	g->peer = peer;
	memcpy(g->key, key, KEY_TEXT);
}

static int belongs_to_other(const struct roles *r, const struct stamp *s, const char *key)
{
	if (!s || s->worker == 0 || s->worker > WIRE_MAX_WORKERS)
		return 0;
	const struct owner *o = &r->owner[s->worker];
	return o->incarnation != 0 && o->incarnation == s->incarnation && strcmp(o->key, key) != 0;
}

int roles_check(struct roles *r, enum key_role role, uint32_t peer, const char *key,
	const struct msg *m, const char **why)
{
	PS_ASSERT((unsigned)m->type < MSG_TYPES); /* invariant 1 */
	*why = "your key is no longer on the server's list";
	if (role == KEY_NONE)
		return PS_EAUTH;
	*why = "the role of your key may not send this: it needs a worker's key, or an admin's for "
	       "ADMIN";
	if (!(may[m->type] & MAY(role)) ||
		(m->type == MSG_HELLO && m->hello.role == ROLE_WORKER && role != KEY_WORKER))
		return PS_EAUTH;
	*why = "that worker id belongs to another key";
	if (belongs_to_other(r, msg_stamp(m), key))
		return PS_EAUTH;
	if (m->type == MSG_HELLO)
		remember_hello(r, peer, key);
	return PS_OK;
}

void roles_assign(struct roles *r, uint32_t peer, uint32_t worker, uint32_t incarnation)
{
	size_t known = r->n_greetings < r->ring ? r->n_greetings : r->ring;

	if (worker == 0 || worker > WIRE_MAX_WORKERS)
		return;
	struct owner *o = &r->owner[worker];
	o->incarnation = 0;
	for (size_t i = 1; i <= known; i++) {
		const struct greeting *g = &r->greeting[(r->n_greetings - i) % r->ring];

		if (g->peer != peer)
			continue;
		o->incarnation = incarnation;
		memcpy(o->key, g->key, KEY_TEXT);
		return;
	}
}

void roles_free(struct roles **r)
{
	if (!*r)
		return;
	free((*r)->greeting);
	free(*r);
	*r = NULL;
}
