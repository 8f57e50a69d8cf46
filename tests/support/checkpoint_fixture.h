/*
 * checkpoint_fixture.h - a temporary directory of checkpoints. The content of each checkpoint
 * depends on its generation.
 */
#ifndef TESTS_SUPPORT_CHECKPOINT_FIXTURE_H
#define TESTS_SUPPORT_CHECKPOINT_FIXTURE_H
#include "tests/support/capture.h"
#include "tests/support/temp_dir.h"
#include "common/checkpoint.h"
#include "common/file.h"

extern char checkpoint_dir[64];
extern struct err checkpoint_err;
extern struct capture checkpoint_log; /* receives the log lines of read_newest */

int checkpoint_set_up(void **state);
int checkpoint_tear_down(void **state);

/* Write a checkpoint of generation `g` with three sections. */
int write_generation(uint64_t g);
void assert_is_generation(const struct checkpoint *c, uint64_t g);
/* name_of returns the file name of generation `g` in a static buffer; bytes_of reads the file. The
 * caller frees the bytes. */
const char *name_of(uint64_t g);
unsigned char *bytes_of(uint64_t g, size_t *size);
/* Call checkpoint_read for a file of the directory. */
int read_name(const char *name, struct checkpoint *c);
/* Call checkpoint_read_newest for the directory. */
int read_newest(int clean, struct checkpoint *c, uint64_t *seen);

#endif
