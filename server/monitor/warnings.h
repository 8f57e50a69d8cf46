/*
 * warnings.h - warns of a run that does not fail but is doubtful: a rate far above the usual one, a
 * batch larger than the data set, a result no better than chance. Each is logged once, and is in the
 * status and the result while it holds.
 *
 * Thread: the loop's.
 */
#ifndef SERVER_MONITOR_WARNINGS_H
#define SERVER_MONITOR_WARNINGS_H
#include <stddef.h>
#include <stdint.h>
#include "server/core/core.h"

/* A rate of this many times the usual one of its optimizer causes a warning. */
#define WARNING_RATE_FACTOR 20
/* A network with a constant answer has the accuracy of that class's share. The largest of N classes
 * may have 1.25 / N of the images; up to 3 standard errors above that is chance. */
#define WARNING_CLASS_SHARE 1.25
#define WARNING_ERRORS      3
#define WARNING_TEXT        256 /* bytes, with the NUL */

enum warning {
	WARNING_RATE,
	WARNING_LOCAL_RATE,
	WARNING_BATCH,
	WARNING_STEP,
	WARNING_EXCLUDED,
	WARNING_CHANCE
};
#define WARNINGS 6

struct warnings {
	size_t classes;                      /* of the model; 0: it is no classifier */
	double usual_rate, usual_local_rate; /* the defaults of --lr and --local-lr */
	int logged[WARNINGS];                /* it was logged */
};

/* The accuracy up to which a result on `n_test` images is no better than chance. */
double warning_chance(size_t classes, uint32_t n_test);
/* 1: the warning holds, and `out` has its text. `over`: the run has ended. */
int warning_text(const struct warnings *w, enum warning kind, const struct core *c, int over,
	char out[WARNING_TEXT]);
/* Log the warnings that hold and were not logged yet. */
void warnings_check(struct warnings *w, const struct core *c, int over);

#endif
