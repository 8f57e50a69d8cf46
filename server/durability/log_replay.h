/*
 * log_replay.h - what the journals add to a checkpoint: the core of then takes the steps again that
 * it took after the checkpoint, and its image at their end is what a restart goes on with.
 *
 * The steps are the same to the last bit because the core is a function of its state and its
 * events: the checkpoint has all of the state (snapshot.h, IMAGE_LIVE), the journals have every
 * event. Thread: main, before the loop.
 */
#ifndef SERVER_DURABILITY_LOG_REPLAY_H
#define SERVER_DURABILITY_LOG_REPLAY_H
#include "common/checkpoint.h"
#include "common/err.h"

/*
 * Replace the sections of `c`, the newest good checkpoint of `dir`, by those of the end of the
 * journals that follow it; without any it stays as it is. A journal that lost events which had been
 * called durable is refused with PS_ECHECKPOINT, unless `accept_loss`: then what was before the
 * loss is taken, and the log says so. PS_EIO, PS_ENOMEM. On failure *c is as it was.
 */
int recover(const char *dir, int accept_loss, struct checkpoint *c, struct err *e) PS_MUST_CHECK;

#endif
