/*
 * names.h - the directory entries of the simulated disk, for disk.c: the entries that processes
 * see, the entries at the last fsync of the directory, and the changes since that fsync.
 */
#ifndef TESTS_SIM_NAMES_H
#define TESTS_SIM_NAMES_H
#include "tests/sim/disk.h"

/* Copies `text` to `to`, truncated to the maximum length of a name. */
void names_copy(char to[DISK_NAME], const char *text);
/* Returns the entry with the name `text`, or NULL if there is no such entry. */
struct disk_name *names_find(struct disk_names *names, const char *text);
void names_apply(struct disk_names *names, const struct disk_change *c);
/* Syncs the directory, so that all changes so far survive a power cut. */
void names_commit(struct disk *d);
/* Applies a power cut to the unsynced changes of the directory: either the first few of them
 * survive, or any subset. */
void names_survive(struct disk *d);
/* Empties the directory. */
void names_forget(struct disk *d);

#endif
