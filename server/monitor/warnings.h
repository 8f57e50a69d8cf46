/*
 * warnings.h - what makes a run doubtful although nothing fails: a rate far above the usual, a
 * batch larger than the data set, a result no better than chance. In the log once each, and in the
 * status and the result for as long as they hold.
 *
 * Thread: the loop's.
 */
#ifndef SERVER_MONITOR_WARNINGS_H
#define SERVER_MONITOR_WARNINGS_H
#include <stddef.h>
#include <stdint.h>
#include "server/core/core.h"

/* A rate that is so many times the usual one of its optimizer is warned about. */
#define WARNING_RATE_FACTOR 20
/* A net that always gives one answer is right as often as its class occurs. Of N classes the
 * largest one may have 1.25 / N of the images: up to 3 standard errors above that is chance. */
#define WARNING_CLASS_SHARE 1.25
#define WARNING_ERRORS      3
#define WARNING_TEXT        256 /* bytes, with the NUL */

enum warning { WARNING_RATE, WARNING_LOCAL_RATE, WARNING_BATCH, WARNING_STEP, WARNING_CHANCE };
#define WARNINGS 5

struct warnings {
	size_t classes;     /* of the model; 0: it is no classifier */
	double usual_rate;  /* of the mode and the optimizer */
	int said[WARNINGS]; /* is in the log */
};

/* The accuracy up to which a result on `n_test` images is no better than chance. */
double warning_chance(size_t classes, uint32_t n_test);
/* Does it hold? Then its text is in `out`. `over`: the run has ended. */
int warning_text(const struct warnings *w, enum warning kind, const struct core *c, int over,
	char out[WARNING_TEXT]);
/* Log what holds and is not in the log yet. */
void warnings_look(struct warnings *w, const struct core *c, int over);

#endif
