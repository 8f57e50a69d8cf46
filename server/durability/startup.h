/*
 * startup.h - resumes the run of the checkpoint directory, or begins a new one.
 *
 * A start has four steps. First, startup_open locks the directory. Second, the caller binds its
 * ports. Third, startup_core reads the newest good checkpoint, replays the log that follows this
 * checkpoint, sets the term and builds the core. Last, the caller writes the first checkpoint of
 * this term (checkpointer_write). In this order, a server that cannot bind its ports changes
 * nothing in the directory. The server reads no message before the first checkpoint is on disk. The
 * main thread calls these functions before it runs the loop.
 */
#ifndef SERVER_DURABILITY_STARTUP_H
#define SERVER_DURABILITY_STARTUP_H
#include "common/err.h"
#include "server/config/options.h"
#include "server/net/param_buffers.h"

struct startup {
	struct core *core;
	void *memory; /* the memory of the core, from mem_lazy */
	size_t memory_bytes;
	struct param_buffers *params; /* the buffers of the weights */
	int lock_fd;                  /* descriptor that holds the lock of the directory, or -1 */
	int resumed;                  /* 1 if the run continues from a checkpoint, 0 if it is new */
	/* generation of the checkpoint from which the run continues, or 0 if the run is new */
	uint64_t sound;
	uint64_t written_term; /* the term in the file TERM, or 0 if there is no such file */
	/* the checkpoint directory if startup_open made it, otherwise NULL; borrowed */
	const char *made;
};

/* Reserves the memory of the core and its weights, and locks the directory. After PS_ELOCKED,
 * PS_EIO or PS_ENOMEM, the function has released *out. */
int startup_open(struct startup *out, const struct options *o, struct err *e) PS_MUST_CHECK;
/* Removes the directory if startup_open made it. Call this function if the start failed before
 * startup_core. */
void startup_undo(const struct startup *r);
/* Builds the core. The function returns the same errors as startup(). The caller must call
 * startup_release even if startup_core fails. */
int startup_core(struct startup *out, const struct options *o, struct err *e) PS_MUST_CHECK;
/*
 * Calls startup_open and startup_core. If the content of a checkpoint is bad, the function logs a
 * warning and tries the checkpoint of the previous generation. Before it returns an error, the
 * function releases *out. The errors are PS_ELOCKED, PS_ECHECKPOINT (no usable checkpoint, or one
 * with another model, seed or batch size), PS_EIO, PS_EDATA (--init) and PS_EUSAGE.
 */
int startup(struct startup *out, const struct options *o, struct err *e) PS_MUST_CHECK;
/* Releases everything. Call this function after router_free, because until then libzmq may still
 * send frames that point to the weights. */
void startup_release(struct startup *r);

#endif
