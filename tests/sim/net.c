/* net.c - the simulated network of net.h. */
#include "tests/sim/net.h"
#include <stdlib.h>
#include <string.h>
#include "common/mem.h"

void net_init(struct net *n)
{
	memset(n, 0, sizeof(*n));
	n->room = 1 << 14;
	n->heap = mem_must(n->room, sizeof(*n->heap), "simulated time");
	n->item = mem_must(n->room + 1, sizeof(*n->item), "simulated events");
	n->current = (uint32_t)n->room;
	n->room_pool = 1 << 14;
	/* NOLINTNEXTLINE(bugprone-sizeof-expression): an array of pointers */
	n->pool = mem_must(n->room_pool, sizeof(*n->pool), "simulated messages");
}

void net_release(struct net *n)
{
	for (size_t i = 0; i < n->n; i++)
		net_done(n, &n->item[n->heap[i].item]);
	for (size_t i = 0; i < n->n_pool; i++)
		free(n->pool[i]);
	free(n->pool);
	free(n->heap);
	free(n->item);
}

void net_reset(struct net *n, struct rng rng)
{
	for (size_t i = 0; i < n->n; i++)
		net_done(n, &n->item[n->heap[i].item]);
	*n = (struct net){.rng = rng,
		.strikes_to = UINT64_MAX,
		.heap = n->heap,
		.item = n->item,
		.room = n->room,
		.current = (uint32_t)n->room,
		.pool = n->pool,
		.n_pool = n->n_pool,
		.room_pool = n->room_pool};
}

uint64_t net_below(struct net *n, uint64_t bound)
{
	return rng_below(&n->rng, bound);
}

int net_chance(struct net *n, uint32_t per_mille)
{
	return per_mille && net_below(n, 1000) < per_mille;
}

/* Returns the time and the order of an item as one number. The order is in the lower 32 bits: no
 * run lasts 2^32 ms, or adds 2^32 items. */
static uint64_t when_of(uint64_t at_ms, uint64_t order)
{
	if ((at_ms | order) >> 32)
		abort();
	return at_ms << 32 | order;
}

/* Adds an item with this time and order, and returns the place of the item. The caller writes the
 * other members. */
static struct item *add_item(struct net *n, uint64_t at_ms, uint64_t order)
{
	size_t i = n->n;

	/* too many events are pending: stop the run before the machine runs out of memory */
	if (i == n->room)
		abort();
	const struct moment_of moment = {
		when_of(at_ms, order), i < n->n_used ? n->heap[i].item : (uint32_t)i};
	n->n_used = i < n->n_used ? n->n_used : i + 1;
	n->n++;
	n->peak = n->n > n->peak ? n->n : n->peak;
	while (i && moment.when < n->heap[(i - 1) / 2].when) {
		n->heap[i] = n->heap[(i - 1) / 2];
		i = (i - 1) / 2;
	}
	n->heap[i] = moment;
	return &n->item[moment.item];
}

void net_later(struct net *n, uint64_t at_ms, const struct item *it)
{
	struct item *to = add_item(n, at_ms, it->order);

	*to = *it;
	to->at_ms = at_ms;
}

struct item *net_at(struct net *n, uint64_t at_ms, const struct item *it)
{
	uint64_t order = n->next_order++;
	struct item *to = add_item(n, at_ms, order);

	*to = *it;
	to->at_ms = at_ms;
	to->order = order;
	return to;
}

struct item *net_next(struct net *n)
{
	size_t i = 0, child;

	if (!n->n)
		return NULL;
	const struct moment_of first = n->heap[0], last = n->heap[--n->n];
	n->now_ms = first.when >> 32;
	while ((child = 2 * i + 1) < n->n) {
		if (child + 1 < n->n)
			child += n->heap[child + 1].when < n->heap[child].when;
		if (last.when < n->heap[child].when)
			break;
		n->heap[i] = n->heap[child];
		i = child;
	}
	n->heap[i] = last;
	n->heap[n->n].item = n->current; /* the place of the previous item is free again */
	n->current = first.item;
	return &n->item[first.item];
}

#define VALUES 80u /* maximum number of values of a push */

/* A message under way has values of its own, because the next process of its sender overwrites
 * those of the sender. `msg` comes first, so that its address is that of the struct. */
struct message {
	struct msg msg;
	float value[VALUES];
};

/* Copies the values of the push, unless they are in shared memory. */
static void copy_values(struct message *to)
{
	struct slices *slices = &to->msg.push.slices;
	size_t used = 0;

	for (size_t i = 0; i < slices->n; i++) {
		struct slice *s = &slices->slice[i];

		if (!s->data)
			continue;
		if (s->count > VALUES - used)
			abort();
		memcpy(&to->value[used], s->data, s->count * sizeof(float));
		s->data = &to->value[used];
		used += s->count;
	}
}

void net_copy(struct msg *to, const struct msg *m)
{
	size_t size;

	/* struct msg_push has many slices: copy only those in use */
	if (m->type == MSG_PUSH)
		size = (size_t)((const char *)&m->push.slices.slice[m->push.slices.n] -
				(const char *)m);
	else if (m->type == MSG_PARAMS)
		size = (size_t)((const char *)&m->params.slices.slice[m->params.slices.n] -
				(const char *)m);
	else if (m->type == MSG_HELLO)
		size = offsetof(struct msg, hello) + sizeof(m->hello);
	else if (m->type == MSG_WELCOME)
		size = offsetof(struct msg, welcome) + sizeof(m->welcome);
	else { /* all other types are small, and the compiler copies a constant size inline */
		memcpy(to, m, offsetof(struct msg, push) + 128);
		return;
	}
	memcpy(to, m, size);
}

static struct msg *new_msg(struct net *n, const struct msg *m)
{
	struct msg *copy = n->n_pool ? n->pool[--n->n_pool]
				     : mem_must(1, sizeof(struct message), "a simulated message");

	net_copy(copy, m);
	if (m->type == MSG_PUSH)
		copy_values((struct message *)copy);
	return copy;
}

void net_done(struct net *n, struct item *it)
{
	if (it->msg && n->n_pool < n->room_pool)
		n->pool[n->n_pool++] = it->msg;
	it->msg = NULL;
}

static int is_tensor(const struct msg *m)
{
	return m->type == MSG_PUSH || m->type == MSG_PARAMS;
}

static void deliver_later(
	struct net *n, uint32_t worker, int to_server, const struct item *it, const struct msg *m)
{
	uint64_t *last = &n->lane[worker][to_server].last_at_ms[m->type == MSG_HEARTBEAT];
	uint64_t at = n->now_ms + n->delay_ms + net_below(n, n->jitter_ms + 1);

	if (is_tensor(m) && n->now_ms < n->slow_until_ms[worker])
		at = (at > *last ? at : *last) + n->slow_ms[worker];
	else if (n->in_order && at < *last)
		at = *last;
	*last = at > *last ? at : *last;
	struct item *to = net_at(n, at, it);
	to->what = HAPPEN_MESSAGE;
	to->msg = new_msg(n, m);
}

int net_strikes(struct net *n, uint32_t per_mille)
{
	if (!net_chance(n, per_mille))
		return 0;
	n->strikes++;
	return n->strikes > n->strikes_from && n->strikes <= n->strikes_to;
}

void net_send(
	struct net *n, uint32_t worker, int to_server, const struct item *it, const struct msg *m)
{
	n->sent++;
	if (n->now_ms < n->lane[worker][to_server].cut_until_ms) {
		n->cut++;
		return;
	}
	if (net_strikes(n, n->drop)) {
		n->lost++;
		return;
	}
	deliver_later(n, worker, to_server, it, m);
	if (net_strikes(n, n->twice)) {
		n->doubled++;
		deliver_later(n, worker, to_server, it, m);
	}
}
