/* chunked_push.c - see chunked_push.h. */
#include "server/net/chunked_push.h"
#include <stdlib.h>
#include "common/mem.h"

struct early {
	uint32_t peer; /* 0: free */
	uint64_t turn; /* when its last frame came */
	size_t n, bytes;
	struct frame_seen seen[WIRE_MAX_AHEAD];
	zmq_msg_t frame[WIRE_MAX_AHEAD];
};

struct ahead {
	size_t most, bytes_each, used; /* used: peers that have any */
	uint64_t turn;
	struct early *early;
};

int ahead_new(struct ahead **out, size_t n_params, size_t most)
{
	struct ahead *a = mem_try(1, sizeof(*a));

	*out = a;
	if (!a)
		return PS_ENOMEM;
	a->most = most;
	a->bytes_each = n_params * sizeof(float);
	a->early = mem_try(most, sizeof(*a->early));
	if (a->early)
		return PS_OK;
	ahead_free(out);
	return PS_ENOMEM;
}

/* Its frames are closed, or were moved on. */
static void forget(struct ahead *a, struct early *e)
{
	for (size_t i = 0; i < e->n; i++)
		(void)zmq_msg_close(&e->frame[i]);
	e->n = e->bytes = 0;
	e->peer = 0;
	a->used--;
}

void ahead_clear(struct ahead *a)
{
	for (size_t i = 0; i < a->most; i++)
		if (a->early[i].peer)
			forget(a, &a->early[i]);
}

void ahead_free(struct ahead **a)
{
	if (!*a)
		return;
	if ((*a)->early)
		ahead_clear(*a);
	free((*a)->early);
	free(*a);
	*a = NULL;
}

/* peer 0: a free place. */
static struct early *find(struct ahead *a, uint32_t peer)
{
	for (size_t i = 0; (a->used || !peer) && i < a->most; i++)
		if (a->early[i].peer == peer)
			return &a->early[i];
	return NULL;
}

static struct early *oldest(struct ahead *a)
{
	struct early *e = NULL;

	for (size_t i = 0; i < a->most; i++)
		if (a->early[i].peer && (!e || a->early[i].turn < e->turn))
			e = &a->early[i];
	return e;
}

static struct early *make(struct ahead *a, uint32_t peer, size_t peers)
{
	struct early *e;

	while (a->used && (a->used >= peers || a->used == a->most))
		forget(a, oldest(a));
	e = find(a, 0);
	e->peer = peer;
	a->used++;
	return e;
}

int ahead_keep(struct ahead *a, uint32_t peer, struct frames *f, size_t peers)
{
	struct early *e = find(a, peer);
	zmq_msg_t *from = &f->frame[1];

	if (!e)
		e = make(a, peer, peers);
	e->bytes += zmq_msg_size(from);
	int rc = e->n == WIRE_MAX_AHEAD || e->bytes > a->bytes_each
			 ? PS_EAGAIN
			 : wire_see(from, &e->seen[e->n]);
	if (rc) {
		forget(a, e);
		return rc;
	}
	(void)zmq_msg_init(&e->frame[e->n]);
	(void)zmq_msg_move(&e->frame[e->n++], from);
	e->turn = ++a->turn;
	return PS_OK;
}

static void put_first(struct frames *f, struct early *e)
{
	for (size_t i = f->n; i-- > 1;) {
		(void)zmq_msg_init(&f->frame[i + e->n]);
		(void)zmq_msg_move(&f->frame[i + e->n], &f->frame[i]);
		(void)zmq_msg_close(&f->frame[i]);
	}
	for (size_t i = 0; i < e->n; i++) {
		(void)zmq_msg_init(&f->frame[1 + i]);
		(void)zmq_msg_move(&f->frame[1 + i], &e->frame[i]);
		f->seen[i] = e->seen[i];
	}
	f->n += e->n;
	f->n_seen = e->n;
}

int ahead_join(struct ahead *a, uint32_t peer, struct frames *f)
{
	struct early *e = find(a, peer);
	size_t wanted = wire_wants_ahead(f), here = e ? e->n : 0;
	int fits = here == wanted && f->n + here <= 1 + WIRE_MAX_SLICES;

	if (fits && e)
		put_first(f, e);
	if (e)
		forget(a, e);
	return fits || !wanted ? PS_OK : PS_EAGAIN;
}
