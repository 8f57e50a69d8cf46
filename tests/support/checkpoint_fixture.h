/*
 * checkpoint_fixture.h - a temporary directory of checkpoints. The content of each one depends on its
 * generation.
 */
#ifndef TESTS_SUPPORT_CHECKPOINT_FIXTURE_H
#define TESTS_SUPPORT_CHECKPOINT_FIXTURE_H
#include "tests/support/capture.h"
#include "tests/support/temp_dir.h"
#include "common/checkpoint.h"
#include "common/file.h"

extern char checkpoint_dir[64];
extern struct err checkpoint_err;
extern struct capture checkpoint_log; /* of read_newest */

int checkpoint_set_up(void **state);
int checkpoint_tear_down(void **state);

/* checkpoint_write of generation `g`, with three sections. */
int write_generation(uint64_t g);
void assert_is_generation(const struct checkpoint *c, uint64_t g);
/* The name of its file, and the content, which the caller frees. */
const char *name_of(uint64_t g);
unsigned char *bytes_of(uint64_t g, size_t *size);
/* checkpoint_read of a file of the directory. */
int read_name(const char *name, struct checkpoint *c);
/* checkpoint_read_newest of the directory. */
int read_newest(int clean, struct checkpoint *c, uint64_t *seen);

#endif
