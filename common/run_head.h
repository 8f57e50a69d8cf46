/*
 * run_head.h - the first bytes of a checkpoint's "run" section, which name the model, so that a
 * tool without the server's code (cnn-ctl export --checkpoint) can read the "weights" section. The
 * first bytes of the "leases" section identify the data set.
 *
 * The bytes are, in order: u64 run.hi, u64 run.lo, u64 term and u64 version, all little-endian, and
 * the model text of RUN_HEAD_MODEL bytes, which ends in one or more NULs. The functions are pure,
 * and any thread may call them.
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
/* the section whose first six numbers identify the data set; the sixth one is the fingerprint */
#define RUN_HEAD_LEASES "leases"
#define RUN_HEAD_FORMAT 9u /* number that follows the head: version of the format of all sections */
#define RUN_HEAD_MODEL  512
#define RUN_HEAD_BYTES  (4 * 8 + RUN_HEAD_MODEL)

struct run_head {
	uint64_t run_hi, run_lo, term, version;
	char model[RUN_HEAD_MODEL];
};

/* Writes exactly RUN_HEAD_BYTES to `out`. */
void run_head_write(const struct run_head *h, unsigned char *out);
/* Reads the beginning of a "run" section. Returns PS_ECHECKPOINT if `size` is too small, or the
 * model text is empty or has no NUL. */
int run_head_read(const unsigned char *section, size_t size, struct run_head *h) PS_MUST_CHECK;
/* Returns the fingerprint of the data set of the run from the sections RUN_HEAD_SECTION and
 * RUN_HEAD_LEASES. Returns 0 if the run has no data set, or if the sections have another format, as
 * those of release 0.2.0. */
uint64_t run_head_data(
	const unsigned char *run, size_t run_size, const unsigned char *leases, size_t leases_size);

#endif
