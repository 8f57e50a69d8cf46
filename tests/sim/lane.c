/*
 * lane.c - the shared-memory lanes of the simulator (server/net/lane.h, worker/client/lane.h): the
 * values of a push are in a slot, and only its header is a message.
 *
 * The simulated lanes have the same rules as the real lanes. A lane belongs to one connection and
 * one process of the server. A slot gets new values only after the push in it is durable. The
 * server copies a slot before it uses the values, and a push whose copy has a wrong checksum counts
 * as lost. The model has three faults of shared memory. A header can arrive late, when its slot
 * already has other values. A process can die at any byte of a write. A write can continue while
 * the server copies the slot, so that the copy has bytes of two writes.
 */
#include <string.h>
#include "proto/wire.h"
#include "server/core/vec.h"
#include "tests/sim/sim.h"

/* Overwrites the bytes [from, to) of a slot. */
static void scribble(struct sim *s, float *slot, size_t from, size_t to)
{
	unsigned char *byte = (unsigned char *)slot;

	for (size_t i = from; i < to; i++)
		byte[i] ^= (unsigned char)(1 + net_below(&s->net, 255));
}

/* ---- the worker ------------------------------------------------------------------------------ */

void sim_lane_welcomed(struct sim *s, struct sim_worker *w)
{
	struct shm_lane *l = &w->lane;
	const struct stamp *stamp = &session_welcome(w->session)->stamp;

	if (!s->has_lanes || !s->server.core || stamp->term != s->cfg.term || l->link != w->bulk)
		/* no lane: the server offers none, or the WELCOME of the worker is not the
		 * newest */
		return;
	if (l->server_process == s->server.process)
		return; /* the worker has reconnected, and its lane has stayed open */
	l->server_process = net_chance(&s->net, 800) ? s->server.process : 0;
	memset(l->seq, 0, sizeof(l->seq));
}

/* Takes a free slot for a push that the worker has not sent yet. Returns 0 if no slot is free. */
static uint32_t take_slot(struct shm_lane *l, uint64_t seq, const struct gradient *g)
{
	uint32_t i = 0;

	while (i < SIM_LANE_SLOTS && l->seq[i])
		i++;
	if (i == SIM_LANE_SLOTS)
		return 0;
	l->seq[i] = seq;
	memcpy(l->slot[i], g->value, g->count * sizeof(float));
	l->xxh3[i] = wire_checksum(l->slot[i], g->count);
	return i + 1;
}

void sim_lane_push(struct sim *s, struct sim_worker *w, struct msg_push *p)
{
	struct shm_lane *l = &w->lane;
	const struct gradient *g = &w->gradient[p->seq % SIM_WINDOW];
	int is_new = p->seq > l->newest, is_lost = l->server_process != s->server.process;
	uint32_t slot = 0;

	p->lane_slot = 0;
	l->newest = is_new ? p->seq : l->newest;
	/* a worker may detect late that the server of its lane was killed, and then still writes to
	 * the lane */
	if (!l->server_process || p->slices.n != 1 || (is_lost && net_chance(&s->net, 500)))
		return;
	for (uint32_t i = 0; i < SIM_LANE_SLOTS; i++)
		if (l->seq[i] == p->seq)
			slot = i + 1;
	if (!slot && is_new)
		slot = take_slot(l, p->seq, g);
	if (!slot)
		return;
	p->lane_slot = slot;
	p->lane_count = g->count;
	p->slices.slice[0].xxh3 = l->xxh3[slot - 1];
	p->slices.slice[0].data = NULL;
}

void sim_lane_release(struct sim_worker *w, uint64_t durable)
{
	for (uint32_t i = 0; i < SIM_LANE_SLOTS; i++)
		if (w->lane.seq[i] && w->lane.seq[i] <= durable)
			w->lane.seq[i] = 0;
}

/* Called when the process was killed while it wrote its next gradient: overwrites some bytes of a
 * free slot. The memory of a lane exists until the server detects that the connection of the lane
 * is closed. */
void sim_lane_killed(struct sim *s, struct sim_worker *w)
{
	struct shm_lane *l = &w->lane;

	for (uint32_t i = 0; i < SIM_LANE_SLOTS && l->server_process; i++)
		if (!l->seq[i]) {
			scribble(s, l->slot[i], 0, net_below(&s->net, sizeof(l->slot[i]) + 1));
			break;
		}
	if (net_chance(&s->net, 500))
		l->server_process = 0;
}

/* ---- the server ------------------------------------------------------------------------------ */

void sim_lane_offer(struct sim *s, uint32_t node, uint32_t link, uint32_t slot)
{
	/* the worker slot belongs to another process now, so the lane of the old process ends */
	for (uint32_t i = 0; i < SIM_WORKERS + SIM_TWINS; i++)
		if (i + 1 != node && s->worker[i].lane.worker == slot)
			s->worker[i].lane.server_process = 0;
	s->worker[node - 1].lane.worker = slot;
	s->worker[node - 1].lane.link = link;
}

/* Copies the values of a push and checks the copy. Returns 0 if the copy has a wrong checksum. */
static int copy_slot(struct sim *s, struct shm_lane *l, struct msg_push *p)
{
	struct slice *slice = &p->slices.slice[0];
	float *slot = l->slot[p->lane_slot - 1], before[SIM_PORTIONS];
	size_t bytes = p->lane_count * sizeof(float), from = net_below(&s->net, bytes);
	const struct wire_pass pass = {.squares = core_needs_squares(&s->cfg) ? vec_squares : NULL,
		.trained = s->cfg.n_params - s->cfg.n_running};
	struct chunk chunk;

	memcpy(before, slot, bytes);
	if (net_strikes(&s->net, s->net.tear))
		scribble(s, slot, from, bytes);
	wire_copy_chunk(s->lane_copy, slot, p->lane_count, &chunk, &pass);
	memcpy(slot, before, bytes);
	if (chunk.xxh3 != slice->xxh3)
		return 0;
	slice->data = s->lane_copy;
	slice->peak = chunk.peak;
	slice->squared = chunk.squared;
	slice->squares = chunk.squares;
	return 1;
}

static struct shm_lane *lane_of_link(struct sim *s, uint32_t link)
{
	for (uint32_t i = 0; i < SIM_WORKERS + SIM_TWINS; i++) {
		struct shm_lane *l = &s->worker[i].lane;

		if (l->link == link && l->server_process == s->server.process)
			return l;
	}
	return NULL;
}

int sim_lane_join(struct sim *s, const struct item *it)
{
	struct msg_push *p = &it->msg->push;

	if (it->msg->type != MSG_PUSH || !p->lane_slot)
		return PS_OK;
	struct shm_lane *l = lane_of_link(s, it->link);
	if (!l)
		return PS_ESTATE;
	if (!copy_slot(s, l, p)) {
		s->torn_pushes++;
		return PS_EAGAIN;
	}
	s->lane_pushes++;
	return PS_OK;
}
