/*
 * run.h - whether the run has begun, gives out work, takes pushes, and ends.
 */
#ifndef SERVER_CORE_RUN_H
#define SERVER_CORE_RUN_H
#include "server/core/core.h"

enum ending { END_NOT, END_SNAPSHOT, END_SAVING, END_OVER };

/* min_workers workers have been live at once. A run without a data set has always begun. */
int run_has_begun(const struct core *c);
/* Begin to end the run: the last snapshot, then BYE to all workers, then EFFECT_FINISH(status). */
void run_end(struct core *c, int status);
/* The core decides and answers no new push. */
int run_is_closed(const struct core *c);
/* The run has begun, and new work is given out. */
int run_gives_work(struct core *c);

#endif
