/*
 * snapshot.h - encodes the core as bytes, in sections, and decodes it. A snapshot contains all
 * state that must survive the server's process, as it is at one instant.
 *
 * Ledger and weights are in the same snapshot, so they can never disagree. The encoder writes the
 * fields one by one, little-endian, without padding or pointers. The decoder trusts nothing: it
 * checks every count against the configuration and the size of the section. (The checksums of the
 * checkpoint file show damage by a bad disk, but not a file that somebody has forged.)
 *
 * snapshot_decode resumes the run of a snapshot bit for bit, except for what a restart changes on
 * purpose: a worker that was not DEAD is AWAY, the term is the configuration's, no peer waits for a
 * reply, and one more recovery is counted.
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
	/* the secret of the run and the keys of the workers; release 0.2.0 has no such section */
	SNAPSHOT_TRUST,
	/* names and sums of the metrics besides accuracy; release 0.2.0 has no such section */
	SNAPSHOT_METRICS,
	/* the list of the tensors of vector:N (common/tensor_list.h); older checkpoints have no
	 * list */
	SNAPSHOT_TENSORS,
	/* means of the norms of the workers' gradients; empty without --norm-ratio */
	SNAPSHOT_NORMS,
	/* excluded workers (quarantine.h); empty if there is none */
	SNAPSHOT_QUARANTINE,
	/* results of the evaluation under check (checks.h); empty if there was none */
	SNAPSHOT_CHECKS,
	/* configuration, connections, times; only the replay of a log reads it */
	SNAPSHOT_SESSIONS,
	SNAPSHOT_SECTIONS
};

/* Is 1 if a checkpoint may lack this section. The server leaves out such a section if it is empty.
 * The `data` of a section that a checkpoint lacks is NULL. */
#define SNAPSHOT_MAY_LACK(section)                                                                 \
	((section) == SNAPSHOT_TRUST || (section) == SNAPSHOT_METRICS ||                           \
		(section) == SNAPSHOT_TENSORS || (section) == SNAPSHOT_NORMS ||                    \
		(section) == SNAPSHOT_QUARANTINE || (section) == SNAPSHOT_CHECKS)

/* The names of the sections in the checkpoint file. SNAPSHOT_RUN begins with a struct run_head
 * (run_head.h); SNAPSHOT_WEIGHTS is n_params float32. */
extern const char *const snapshot_names[SNAPSHOT_SECTIONS];

/* Returns the exact size in bytes of a section of `c` now. The function does not change `c`. The
 * only reason why the parameter `c` is not const is that the same code also decodes the fields. */
size_t snapshot_size(struct core *c, enum snapshot_section s);
/* The places in a snapshot of the values that the core's device keeps (common/param_device.h). */
struct snapshot_kept {
	void *weights, *state[PARAM_DEVICE_VECTORS];
};
/* Returns 1 if the core's device keeps the weights and the optimizer's state as they are now, so
 * that the device can write them to the snapshot later. */
int snapshot_keep(const struct core *c);
/* Encodes section `s`, and returns its size as snapshot_size does. Writes the section to `out` if
 * this size is at most `room`; otherwise the content of `out` is unspecified. If `kept` is not
 * NULL, writes everything but the values that the device keeps, and sets the places of these values
 * in *kept. */
size_t snapshot_encode(struct core *c, enum snapshot_section s, unsigned char *out, size_t room,
	struct snapshot_kept *kept);
/*
 * Makes a core in `memory` and `weights` (as core_init does) from sections. `cfg` is the
 * configuration of this start; if its run id is 0, the core takes the run id of the snapshot. On
 * failure `*why` is a static sentence, and the memory is unspecified. Returns PS_ECHECKPOINT if a
 * section is malformed or contradicts another one, or if a weight is not finite. Returns PS_EUSAGE
 * if options of this start do not fit the run, for example another model, seed or batch size.
 */
int snapshot_decode(void *memory, float *weights, const struct core_config *cfg,
	const unsigned char *const data[SNAPSHOT_SECTIONS], const size_t size[SNAPSHOT_SECTIONS],
	struct core **out, const char **why) PS_MUST_CHECK;
/* Reads the configuration under which the section SNAPSHOT_SESSIONS (`size` bytes) was written.
 * Every option in *cfg is then in its range. If the section is of an older release that did not
 * have an option, the option keeps its value in *cfg, so the caller first sets the value that gives
 * the behaviour of the older release. Returns PS_ECHECKPOINT if the section is malformed. */
int snapshot_config(
	const unsigned char *sessions, size_t size, struct core_config *cfg) PS_MUST_CHECK;
/* Reads the data set of the run from a sound section SNAPSHOT_LEASES. Returns PS_ECHECKPOINT if the
 * section is malformed. */
int snapshot_data_id(const unsigned char *leases, size_t size, struct data_id *d) PS_MUST_CHECK;
/* Reads the names of the run's metrics from a sound section SNAPSHOT_METRICS. Returns
 * PS_ECHECKPOINT if the section is malformed. */
int snapshot_metrics(
	const unsigned char *metrics, size_t size, char names[METRICS_TEXT]) PS_MUST_CHECK;
/*
 * Decodes the core as it was while the server ran, to replay the events that followed (the
 * write-ahead log). If the decoded core gets the same events, it takes the same steps and ends with
 * the same bytes. `cfg` comes from snapshot_config. All other parameters and results are those of
 * snapshot_decode.
 */
int snapshot_decode_running(void *memory, float *weights, const struct core_config *cfg,
	const unsigned char *const data[SNAPSHOT_SECTIONS], const size_t size[SNAPSHOT_SECTIONS],
	struct core **out, const char **why) PS_MUST_CHECK;

struct cursor;
/* Writes or reads all fields of the configuration, with which SNAPSHOT_SESSIONS begins. A value
 * outside the range of its option sets the error of a reading cursor. snapshot_v5.c also calls this
 * function. */
void snapshot_put_config(struct cursor *k, struct core_config *cfg);

#endif
