/* memory.c - see memory.h. */
#include "server/config/memory.h"

/* memory of the program itself: code, libraries, connections, HTTP, log */
#define PROGRAM_BYTES (32u << 20)
/* maximum bytes of the buffers of the weights that workers on this host read in shared memory */
#define LANE_BYTES ((uint64_t)4 << 30)
/* for each worker, the number of freed messages whose memory the allocator keeps, measured with
 * tests/e2e/test_memory.py */
#define KEPT_MESSAGES 3

/* Returns the number of bytes that snapshots take. The buffer of a checkpoint is an eighth larger
 * than the snapshot (checkpointer.c). A start that replays a log has the old and the new snapshot
 * in memory at the same time (wal_replay.c). */
static uint64_t snapshot_bytes(const struct options *o, uint64_t core)
{
	uint64_t weights = (uint64_t)o->core.n_params * sizeof(float), snapshot = core + weights;

	if (!o->checkpoint_dir)
		return 0;
	return snapshot + snapshot / 8 + (o->core.checkpoint.wal ? snapshot : 0);
}

/* Returns the number of workers without which the run cannot begin, or cannot make a step. */
static uint32_t workers_needed(const struct core_config *c)
{
	uint32_t n =
		c->sync.workers > c->leases.min_workers ? c->sync.workers : c->leases.min_workers;

	return n < c->sessions.max_workers ? n : c->sessions.max_workers;
}

/* The minimum is the sum of the memory of six things: the program, the weights, the next version of
 * the weights, the snapshots, and, for each of workers_needed, one message and the state of the
 * core, such as the gradients that sync keeps. */
uint64_t memory_min(const struct options *o, size_t n_params)
{
	struct options fewest = *o;
	uint64_t weights = (uint64_t)n_params * sizeof(float), workers = workers_needed(&o->core);

	fewest.core.n_params = n_params ? n_params : 1;
	fewest.core.sessions.max_workers = (uint32_t)workers;
	uint64_t core = core_bytes(&fewest.core);

	return PROGRAM_BYTES + (2 + workers) * weights + core + snapshot_bytes(&fewest, core);
}

size_t memory_lane_buffers(const struct options *o)
{
	uint64_t weights = (uint64_t)o->core.n_params * sizeof(float);
	uint64_t max = (uint64_t)o->core.sessions.max_workers + 2;
	uint64_t n = weights ? LANE_BYTES / weights : 0;

	if (!o->lane_path[0])
		return 0;
	return (size_t)(n < 4 ? 4 : n > max ? max : n);
}

/* Returns the bytes that a server needs without workers: those of the program, the core and the
 * snapshots, and two buffers of weights (param_buffers.h), one of the core and one for the next
 * version. */
static uint64_t memory_base(const struct options *o)
{
	uint64_t core = core_bytes(&o->core);

	return PROGRAM_BYTES + core + snapshot_bytes(o, core) +
	       2 * (uint64_t)o->core.n_params * sizeof(float);
}

uint64_t memory_needed(const struct options *o)
{
	const struct core_config *c = &o->core;
	uint64_t weights = (uint64_t)c->n_params * sizeof(float), workers = c->sessions.max_workers;
	/* bytes of the buffers (param_buffers.h): one buffer for each worker that reads weights */
	uint64_t readers = workers * weights;
	/* bytes of the messages of each worker that are being received (net.c), and of the freed
	 * messages whose memory the allocator keeps */
	uint64_t messages = workers * (c->sessions.push_window + 2 + KEPT_MESSAGES) * weights;

	return memory_base(o) + readers + messages;
}

uint64_t memory_for_pushes(const struct options *o, uint64_t limit)
{
	uint64_t base = memory_base(o), push = (uint64_t)o->core.n_params * sizeof(float);

	return limit > base + 2 * push ? (limit - base) / 2 : push;
}
