/*
 * metric_names.h - the names of a run's metrics, which the evaluation of an epoch reports besides
 * the loss. --metrics, HELLO and cnnps_options contain these names.
 *
 * The canonical text is "" if accuracy is the only metric, and "none" if there is no metric. For
 * other metrics the canonical text consists of their names with one blank between two names,
 * accuracy first. The HELLO of an older release has no metrics field. A missing field means the
 * same as "": the worker evaluates accuracy alone.
 *
 * Any thread may call the functions, which have no state.
 */
#ifndef COMMON_METRIC_NAMES_H
#define COMMON_METRIC_NAMES_H
#include <stddef.h>

#define MAX_METRICS     4   /* maximum number of metrics besides accuracy */
#define MAX_METRIC_NAME 24  /* maximum number of characters of a name; they are a-z, 0-9 and _ */
#define METRICS_TEXT    128 /* maximum bytes of the canonical text with its NUL */

struct metric_names {
	int accuracy; /* 1 if accuracy is one of the metrics */
	size_t n;     /* number of the other metrics */
	char name[MAX_METRICS][MAX_METRIC_NAME + 1];
};

/* Reads names with commas or blanks between them; "" means accuracy alone. Returns 0 if there are
 * too many names, or if a name is malformed or occurs twice. After a return of 0, *m is
 * unspecified. */
int metric_names_parse(struct metric_names *m, const char *text);
/* Writes the canonical text of *m to `text`. */
void metric_names_text(const struct metric_names *m, char text[METRICS_TEXT]);

#endif
