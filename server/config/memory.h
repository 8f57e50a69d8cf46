/*
 * memory.h - computes the maximum memory of a server (docs/cluster.md, "Limits").
 *
 * Any thread may call these functions.
 */
#ifndef SERVER_CONFIG_MEMORY_H
#define SERVER_CONFIG_MEMORY_H
#include <stddef.h>
#include <stdint.h>
#include "server/config/options.h"

/* Returns the number of bytes of RAM that a server needs if --max-workers workers each have
 * --push-window pushes under way. */
uint64_t memory_needed(const struct options *o);
/* Returns the number of bytes for the chunks of pushes of all keys together (chunked_push.h): half
 * of the memory that a server with the memory limit `limit` has for its workers, but at least the
 * bytes of one push. */
uint64_t memory_for_pushes(const struct options *o, uint64_t limit);
/* Returns the number of shared buffers for the weights, in which workers on this host read the
 * weights without a copy. This is the number of buffers that fit into 4 GiB, but at most one for
 * each worker slot plus two for the core, and at least four. Returns 0 if the server has no shared
 * memory (--lane tcp). */
size_t memory_lane_buffers(const struct options *o);
/* Returns the minimum memory limit, in bytes, of a server with the options `o` and a model of
 * `n_params` parameters; o->core.n_params need not be set. `n_params` is 0 if the images of a
 * worker will determine it later. A server with a lower limit would close all its connections again
 * and again to free memory. */
uint64_t memory_min(const struct options *o, size_t n_params);

#endif
