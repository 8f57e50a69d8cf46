/*
 * run_head.h - the start of a checkpoint's "run" section: enough for a tool that knows nothing of
 * the server (cnn-ctl export --checkpoint) to make sense of the "weights" section beside it.
 *
 * Layout, little-endian: u64 run.hi, u64 run.lo, u64 term, u64 version, model text of
 * RUN_HEAD_MODEL bytes, NUL-padded and NUL-terminated. Pure. Thread: any.
 */
#ifndef COMMON_RUN_HEAD_H
#define COMMON_RUN_HEAD_H
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"

#define RUN_HEAD_SECTION "run"     /* name in the container of what starts with a head */
#define RUN_HEAD_WEIGHTS "weights" /* name of the section that is the model's float32 vector */
#define RUN_HEAD_MODEL   512
#define RUN_HEAD_BYTES   (4 * 8 + RUN_HEAD_MODEL)

struct run_head {
	uint64_t run_hi, run_lo, term, version;
	char model[RUN_HEAD_MODEL];
};

/* Exactly RUN_HEAD_BYTES into `out`. */
void run_head_write(const struct run_head *h, unsigned char *out);
/* PS_ECHECKPOINT: `size` is too small, or the text is empty or not terminated. */
int run_head_read(const unsigned char *section, size_t size, struct run_head *h) PS_MUST_CHECK;

#endif
