/*
 * names.h - the entries of the simulated disk's directory: as processes see them, as its last fsync
 * left them, and what was done in between. For disk.c.
 */
#ifndef TESTS_SIM_NAMES_H
#define TESTS_SIM_NAMES_H
#include "tests/sim/disk.h"

/* As much of it as a name has room for. */
void names_copy(char to[DISK_NAME], const char *text);
/* NULL: there is none. */
struct disk_name *names_find(struct disk_name *names, const char *text);
void names_apply(struct disk_name *names, const struct disk_change *c);
/* All that was done is safe. */
void names_commit(struct disk *d);
/* A power cut: the first few changes are there, or any of them. */
void names_survive(struct disk *d);
/* An empty directory. */
void names_forget(struct disk *d);

#endif
