/*
 * startup.h - resumes the run of the checkpoint directory, or begins a new one.
 *
 * Order: lock the directory; the caller binds its ports; read the newest good checkpoint, replay
 * the log behind it, set the term, build the core; the caller writes the first checkpoint of this
 * term (checkpointer_write). A start that cannot bind its ports changes nothing in the directory.
 * No message is read before the first checkpoint is on disk. Thread: main, before the loop.
 */
#ifndef SERVER_DURABILITY_STARTUP_H
#define SERVER_DURABILITY_STARTUP_H
#include "common/err.h"
#include "server/config/options.h"
#include "server/net/param_buffers.h"

struct startup {
	struct core *core;
	void *memory; /* of the core; mem_lazy */
	size_t memory_bytes;
	struct param_buffers *params; /* the buffers of its weights */
	int lock_fd;                  /* or -1; open as long as the process writes there */
	int resumed;                  /* from a checkpoint; 0: a new run */
	uint64_t sound;               /* the generation that was resumed; 0: a new run */
	const char *made;             /* the directory, if startup_open made it; of the options */
};

/* Reserve the memory of the core and its weights, and lock the directory. PS_ELOCKED, PS_EIO,
 * PS_ENOMEM; *out is released then. */
int startup_open(struct startup *out, const struct options *o, struct err *e) PS_MUST_CHECK;
/* The start failed before startup_core: remove a directory that it made. */
void startup_undo(const struct startup *r);
/* Then build the core, with the errors of startup; startup_release in any case. */
int startup_core(struct startup *out, const struct options *o, struct err *e) PS_MUST_CHECK;
/*
 * Both steps. A checkpoint whose content is refused is skipped in favour of the generation before
 * it, and the log reports it. PS_ELOCKED, PS_ECHECKPOINT (none usable, or of
 * another model, seed, batch...), PS_EIO, PS_EDATA (--init), PS_EUSAGE; *out is released then.
 */
int startup(struct startup *out, const struct options *o, struct err *e) PS_MUST_CHECK;
/* After router_free: until then, frames of the weights may be on their way. */
void startup_release(struct startup *r);

#endif
