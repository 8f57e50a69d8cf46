/*
 * warnings.h - warns about a run that does not fail but may be misconfigured: a learning rate far
 * above the usual one, a batch larger than the data set, a result no better than chance. Each
 * warning is logged once. As long as the condition of a warning is true, the status and the result
 * show this warning.
 *
 * Only the loop's thread may call these functions.
 */
#ifndef SERVER_MONITOR_WARNINGS_H
#define SERVER_MONITOR_WARNINGS_H
#include <stddef.h>
#include <stdint.h>
#include "server/core/core.h"

/* A learning rate of at least this multiple of the optimizer's usual rate causes a warning. */
#define WARNING_RATE_FACTOR 20
/* The accuracy of a network that always answers the same class is the share of this class in the
 * images. The server assumes that the largest of N classes has at most 1.25 / N of the images. An
 * accuracy counts as chance up to 3 standard errors above 1.25 / N. */
#define WARNING_CLASS_SHARE 1.25
#define WARNING_ERRORS      3
#define WARNING_TEXT        256 /* size of a buffer for a warning, in bytes */

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
	size_t classes; /* number of classes of the model; 0: the model has no classes */
	/* the defaults of --lr and --local-lr, which depend on other options */
	double usual_rate, usual_local_rate;
	int logged[WARNINGS]; /* for each warning, 1 if it was logged */
};

/* Returns the accuracy up to which a result on `n_test` images is no better than chance; 1 or more:
 * the images are too few to know. */
double warning_chance(size_t classes, uint32_t n_test);
/* If the condition of the warning is true, writes the text of the warning to `out` and returns 1.
 * `over` is 1 if the run has ended. */
int warning_text(const struct warnings *w, enum warning kind, const struct core *c, int over,
	char out[WARNING_TEXT]);
/* Logs the warnings whose condition is true and that were not logged before. */
void warnings_check(struct warnings *w, const struct core *c, int over);

#endif
