/*
 * run_head.h - the first bytes of a checkpoint's "run" section, which name the model, so that a
 * tool without the server's code (cnn-ctl export --checkpoint) can read the "weights" section.
 *
 * The bytes are, in order: u64 run.hi, u64 run.lo, u64 term and u64 version, all little-endian, and
 * the model text of RUN_HEAD_MODEL bytes, which ends in one or more NULs. Pure. Thread: any.
 */
#ifndef COMMON_RUN_HEAD_H
#define COMMON_RUN_HEAD_H
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"

#define RUN_HEAD_SECTION "run"     /* the section that starts with this head */
#define RUN_HEAD_WEIGHTS "weights" /* the section with the model's float32 values */
/* the section with the names of the tensors (tensor_list.h), if they have names */
#define RUN_HEAD_TENSORS "tensors"
#define RUN_HEAD_MODEL   512
#define RUN_HEAD_BYTES   (4 * 8 + RUN_HEAD_MODEL)

struct run_head {
	uint64_t run_hi, run_lo, term, version;
	char model[RUN_HEAD_MODEL];
};

/* Writes exactly RUN_HEAD_BYTES to `out`. */
void run_head_write(const struct run_head *h, unsigned char *out);
/* Reads the beginning of a "run" section. Returns PS_ECHECKPOINT if `size` is too small, or the
 * model text is empty or has no NUL. */
int run_head_read(const unsigned char *section, size_t size, struct run_head *h) PS_MUST_CHECK;

#endif
