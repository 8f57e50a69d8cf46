/*
 * restore.h - what a start finds in the checkpoint directory: the run to go on with, or none.
 *
 * Order: lock the directory, read the newest good checkpoint, replay the journals behind it, settle
 * the server epoch, build the core. Nothing of this life is on disk before saver_write; nothing is
 * bound before that. Thread: main, before the loop.
 */
#ifndef SERVER_RESTORE_H
#define SERVER_RESTORE_H
#include "common/err.h"
#include "server/options.h"
#include "server/versions.h"

struct restored {
	struct core *core;
	void *memory;              /* what core lies in; free() */
	struct versions *versions; /* whose buffers it changes */
	int lock_fd;               /* or -1; keep it open as long as the process writes there */
	int resumed;               /* from a checkpoint; 0: a fresh run */
};

/*
 * Build the core of this start into *out. PS_ELOCKED, PS_ECHECKPOINT (none good, or of another
 * model, seed, batch...), PS_EIO, PS_EDATA (--init), PS_EUSAGE; *out is released then.
 */
int restore(struct restored *out, const struct options *o, struct err *e) PS_MUST_CHECK;
/* After router_free: frames of the weights may be under way until then. */
void restore_release(struct restored *r);

#endif
