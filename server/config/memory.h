/*
 * memory.h - computes the maximum memory of a server (docs/cluster.md, "Limits").
 *
 * Thread: any.
 */
#ifndef SERVER_CONFIG_MEMORY_H
#define SERVER_CONFIG_MEMORY_H
#include <stdint.h>
#include "server/config/options.h"

/* The resident bytes of a server with --max-workers workers, each with --push-window pushes under
 * way. */
uint64_t memory_needed(const struct options *o);
/* The bytes for a model of `n_params`. With less, the server hangs up on everybody, again and again. */
uint64_t memory_least(uint64_t n_params);

#endif
