/*
 * quarantine.h - the list of the workers that this run has excluded, and how often. After
 * QUARANTINE_AFTER exclusions a worker is in quarantine: the server refuses its new processes,
 * until an admin releases the worker. A snapshot contains the list.
 *
 * A worker is identified by its key or, if the server has no keys, by its name. A worker that has
 * neither is never in quarantine. If the list is full, a new entry replaces the oldest of the
 * entries with the fewest exclusions.
 *
 * Invariants:
 * (1) each key, and each name without a key, has at most one entry, and each entry has at least one
 *     exclusion (asserted by quarantine_count; a_worker_has_one_entry).
 */
#ifndef SERVER_CORE_QUARANTINE_H
#define SERVER_CORE_QUARANTINE_H
#include "server/core/core.h"

#define QUARANTINE_AFTER 3u  /* number of exclusions after which a worker is in quarantine */
#define MAX_QUARANTINE   64u /* maximum number of entries of the list */

struct quarantine_entry {
	char owner[WIRE_MAX_OWNER + 1]; /* the key of the worker; "": the server has no keys */
	/* the name of the worker. If the entry is that of a key: the name of the worker with this
	 * key that was excluded last, or "" if that worker has no name */
	char name[WIRE_MAX_NAME + 1];
	uint32_t exclusions;
};

struct quarantine {
	uint32_t n;
	struct quarantine_entry entry[MAX_QUARANTINE]; /* the oldest entry is the first */
};

/* Counts one more exclusion of the worker with this key and name. Returns the number of its
 * exclusions, or 0 if the worker has no key and no name. */
uint32_t quarantine_count(struct quarantine *q, const char *owner, const char *name);
/* Returns 1 if invariant (1) holds for entry `i`: no other entry is of the same worker. */
int quarantine_entry_is_valid(const struct quarantine *q, uint32_t i);
/* Returns 1 if the worker is in quarantine. */
int quarantine_has(const struct quarantine *q, const char *owner, const char *name);
/* Releases each worker whose name or key is `worker` from quarantine. If `worker` has at least
 * QUARANTINE_KEY characters, the function also releases each key that begins with these characters.
 * Returns the number of released workers. */
#define QUARANTINE_KEY 8u
uint32_t quarantine_release(struct quarantine *q, const char *worker);

#endif
