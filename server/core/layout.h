/*
 * layout.h - places all state of the core in the one block of memory that the caller provides. The
 * configuration alone determines the maximum size of each array, so the core needs no other memory
 * during the run. layout.c also defines core_bytes and core_init, which core.h declares.
 */
#ifndef SERVER_CORE_LAYOUT_H
#define SERVER_CORE_LAYOUT_H
#include "server/core/core.h"

/* Places the state of the core in `memory` (core_bytes bytes) and clears it. The caller fills in
 * the weights and the vectors of the optimizer. */
struct core *core_place(void *memory, float *weights, const struct core_config *cfg);

#endif
