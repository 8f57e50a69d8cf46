/*
 * startup.h - what a start finds in the checkpoint directory: the run to go on with, or none.
 *
 * Order: lock the directory; the caller binds its ports; read the newest good checkpoint, replay
 * the journals behind it, settle the term, build the core. A start that cannot have its
 * ports changes nothing in the directory. Nothing of this life is on disk before saver_write. No
 * message is read before that. Thread: main, before the loop.
 */
#ifndef SERVER_DURABILITY_STARTUP_H
#define SERVER_DURABILITY_STARTUP_H
#include "common/err.h"
#include "server/config/options.h"
#include "server/net/param_buffers.h"

struct restored {
	struct core *core;
	void *memory; /* what core lies in; mem_lazy */
	size_t memory_bytes;
	struct param_buffers *params; /* whose buffers it changes */
	int lock_fd;                  /* or -1; keep it open as long as the process writes there */
	int resumed;                  /* from a checkpoint; 0: a fresh run */
	uint64_t sound;               /* the generation that it goes on from; 0: a fresh run */
	const char *made;             /* the directory, if restore_open made it; of the options */
};

/* Room for the core and its weights, and the lock on the directory, into *out. PS_ELOCKED, PS_EIO,
 * PS_ENOMEM; *out is released then. */
int restore_open(struct restored *out, const struct options *o, struct err *e) PS_MUST_CHECK;
/* This start is refused before restore_core: take away a directory that it has made. */
void restore_undo(const struct restored *r);
/* Then the core, with the errors of restore; restore_release in any case. */
int restore_core(struct restored *out, const struct options *o, struct err *e) PS_MUST_CHECK;
/*
 * Both: build the core of this start into *out. A checkpoint whose content is refused gives way to
 * the generation before it, and the log says so. PS_ELOCKED, PS_ECHECKPOINT (none usable, or of
 * another model, seed, batch...), PS_EIO, PS_EDATA (--init), PS_EUSAGE; *out is released then.
 */
int restore(struct restored *out, const struct options *o, struct err *e) PS_MUST_CHECK;
/* After router_free: frames of the weights may be under way until then. */
void restore_release(struct restored *r);

#endif
