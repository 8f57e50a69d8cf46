/*
 * snapshot.h - the core as bytes: everything that must survive, in sections, taken at one instant.
 *
 * Ledger and weights are in the same image, so they can never disagree. Written explicitly,
 * little-endian, field by field: no padding, no pointer. Reading trusts nothing: every count is
 * checked against the configuration and the section's size (the container's checksums guard against
 * disks, not against people).
 *
 * image_read of what image_write wrote resumes the run bit for bit, except for what a restart
 * changes on purpose: a worker slot in use becomes AWAY unless it is DEAD, the term is the
 * configuration's, no peer is owed a reply, and one more recovery is counted.
 */
#ifndef SERVER_CORE_SNAPSHOT_H
#define SERVER_CORE_SNAPSHOT_H
#include <stddef.h>
#include "server/core/core.h"

#define IMAGE_FORMAT 9u

enum image_section {
	IMAGE_RUN,
	IMAGE_LEDGER,
	IMAGE_LEASES,
	IMAGE_WEIGHTS,
	IMAGE_OPTIM,
	IMAGE_LIVE, /* configuration, connections, times: for image_read_live and image_config */
	IMAGE_SECTIONS
};

/* Names in the checkpoint container, by section. IMAGE_RUN starts with what is compared at a
 * resume; IMAGE_WEIGHTS is n_params float32. */
extern const char *const image_names[IMAGE_SECTIONS];

/* Exact size in bytes of a section of `c` now. (`c` is not changed; reading and writing share one
 * description of the fields, which is why it is not const.) */
size_t image_size(struct core *c, enum image_section s);
/* Write it; `out` has image_size bytes. */
void image_write(struct core *c, enum image_section s, unsigned char *out);
/*
 * Make a core in `memory` and `weights` (as core_init's) from sections. `cfg` is this start's
 * configuration with run.hi == run.lo == 0 to take over the image's run id. 0; or with `*why` a
 * static sentence PS_ECHECKPOINT (a malformed or contradictory section, weights that are not
 * finite) or PS_EUSAGE (options of this start do not fit: other model, seed, batch...). Memory is
 * then unspecified.
 */
int image_read(void *memory, float *weights, const struct core_config *cfg,
	const unsigned char *const data[IMAGE_SECTIONS], const size_t size[IMAGE_SECTIONS],
	struct core **out, const char **why) PS_MUST_CHECK;
/* The configuration under which `live` (section IMAGE_LIVE, `size` bytes) was written, every option
 * in its range. An option that the section lacks, because it is newer, stays as `*cfg` has it: the
 * caller fills in what the program did before there was the option. PS_ECHECKPOINT. */
int image_config(const unsigned char *live, size_t size, struct core_config *cfg) PS_MUST_CHECK;
/* The data set that a sound section IMAGE_LEASES says the run has. PS_ECHECKPOINT. */
int image_data(const unsigned char *leases, size_t size, struct data_id *d) PS_MUST_CHECK;
/*
 * The same core in the middle of its life, to replay the events that followed (a journal): given
 * those it takes the same steps to the same bytes. `cfg` is image_config's; otherwise as
 * image_read.
 */
int image_read_live(void *memory, float *weights, const struct core_config *cfg,
	const unsigned char *const data[IMAGE_SECTIONS], const size_t size[IMAGE_SECTIONS],
	struct core **out, const char **why) PS_MUST_CHECK;
#endif
