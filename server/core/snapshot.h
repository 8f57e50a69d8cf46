/*
 * snapshot.h - encodes the core as bytes, in sections, and decodes it: everything that must survive
 * the process, as it is at one instant.
 *
 * Ledger and weights are in the same snapshot, so they can never disagree. The fields are written
 * one by one, little-endian, without padding or pointers. The decoder trusts nothing: it checks
 * every count against the configuration and the size of the section. (The checksums of the
 * checkpoint file protect from bad disks, not from malicious files.)
 *
 * snapshot_decode of what snapshot_encode wrote resumes the run bit for bit, except for what a
 * restart changes on purpose: a worker that was not DEAD is AWAY, the term is the configuration's,
 * no peer waits for a reply, and one more recovery is counted.
 */
#ifndef SERVER_CORE_SNAPSHOT_H
#define SERVER_CORE_SNAPSHOT_H
#include <stddef.h>
#include "server/core/core.h"

#define SNAPSHOT_FORMAT 9u

enum snapshot_section {
	SNAPSHOT_RUN,
	SNAPSHOT_LEDGER,
	SNAPSHOT_LEASES,
	SNAPSHOT_WEIGHTS,
	SNAPSHOT_OPTIM,
	SNAPSHOT_SESSIONS, /* configuration, connections and times: for the replay of a log */
	SNAPSHOT_SECTIONS
};

/* Their names in the checkpoint file. SNAPSHOT_RUN begins with a struct run_head (run_head.h);
 * SNAPSHOT_WEIGHTS is n_params float32. */
extern const char *const snapshot_names[SNAPSHOT_SECTIONS];

/* The exact size in bytes of a section of `c` now. (`c` is not changed. It is not const because one
 * function describes the fields for encoding and decoding.) */
size_t snapshot_size(struct core *c, enum snapshot_section s);
/* Write the section to `out`, which has snapshot_size bytes. */
void snapshot_encode(struct core *c, enum snapshot_section s, unsigned char *out);
/*
 * Make a core in `memory` and `weights` (as for core_init) from sections. `cfg`: the configuration
 * of this start, with run.hi == run.lo == 0 to take over the run id of the snapshot. On failure
 * `*why` is a static sentence, and the memory is unspecified. PS_ECHECKPOINT: a section is malformed
 * or contradicts another one, or a weight is not finite. PS_EUSAGE: options of this start do not fit
 * the run, for example another model, seed or batch size.
 */
int snapshot_decode(void *memory, float *weights, const struct core_config *cfg,
	const unsigned char *const data[SNAPSHOT_SECTIONS], const size_t size[SNAPSHOT_SECTIONS],
	struct core **out, const char **why) PS_MUST_CHECK;
/* The configuration under which the section SNAPSHOT_SESSIONS (`size` bytes) was written. Every
 * option is in its range. An option that the section lacks, because it is newer, stays as it is in
 * *cfg: the caller sets the value that the program had before there was the option. PS_ECHECKPOINT.
 */
int snapshot_config(
	const unsigned char *sessions, size_t size, struct core_config *cfg) PS_MUST_CHECK;
/* The data set of the run, from a sound section SNAPSHOT_LEASES. PS_ECHECKPOINT. */
int snapshot_data_id(const unsigned char *leases, size_t size, struct data_id *d) PS_MUST_CHECK;
/*
 * The same core in the middle of its life, to replay the events that followed (the write-ahead log):
 * with the same events it takes the same steps, to the same bytes. `cfg`: of snapshot_config;
 * otherwise as snapshot_decode.
 */
int snapshot_decode_running(void *memory, float *weights, const struct core_config *cfg,
	const unsigned char *const data[SNAPSHOT_SECTIONS], const size_t size[SNAPSHOT_SECTIONS],
	struct core **out, const char **why) PS_MUST_CHECK;

struct cursor;
/* Write or read the configuration, with which SNAPSHOT_SESSIONS begins: every field. Reading refuses
 * a value that no option can have. For snapshot_v5.c. */
void snapshot_put_config(struct cursor *k, struct core_config *cfg);

#endif
