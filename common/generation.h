/*
 * generation.h - names of numbered files in a directory: PREFIX-<generation, 16 hex digits>SUFFIX.
 *
 * Generations are numbered from 1; the number 0 means that there is no generation. Any thread may
 * call the functions, whose only state is the caller's DIR.
 */
#ifndef COMMON_GENERATION_H
#define COMMON_GENERATION_H
#include <dirent.h>
#include <stdint.h>

#define GENERATION_NAME 48 /* size in bytes of a buffer for the file name of a generation */

/* Writes the file name of a generation, without a suffix, to `out`. The prefix has at most 16
 * bytes. */
void generation_name(const char *prefix, uint64_t generation, char out[GENERATION_NAME]);
/* Returns the generation in a file name, or 0 if the name has another form. */
uint64_t generation_parse(const char *name, const char *prefix, const char *suffix);
/* generation_highest returns the highest generation in `d` that is at most `max`. generation_lowest
 * returns the lowest generation that is at least `min`. If there is no such generation,
 * generation_highest and generation_lowest return 0. */
uint64_t generation_highest(DIR *d, const char *prefix, uint64_t max);
uint64_t generation_lowest(DIR *d, const char *prefix, uint64_t min);

#endif
