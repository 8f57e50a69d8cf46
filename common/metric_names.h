/*
 * metric_names.h - the names of a run's metrics, which the evaluation of an epoch reports besides
 * the loss. --metrics, HELLO and cnnps_options contain these names.
 *
 * The canonical text is "" for accuracy alone and "none" for no metric. Otherwise it is the names
 * with one blank between them, accuracy first. A HELLO from an older release has no metrics
 * field, so it reads as "": that worker evaluates accuracy alone.
 *
 * Thread: any; the functions have no state.
 */
#ifndef COMMON_METRIC_NAMES_H
#define COMMON_METRIC_NAMES_H
#include <stddef.h>

#define METRICS_MAX     4   /* metrics besides accuracy */
#define METRIC_NAME_MAX 24  /* characters of a name: a-z, 0-9, _ */
#define METRICS_TEXT    128 /* bytes of the canonical text and its NUL, at most */

struct metric_names {
	int accuracy; /* 1: accuracy is one of the metrics */
	size_t n;     /* the others */
	char name[METRICS_MAX][METRIC_NAME_MAX + 1];
};

/* Reads names with commas or blanks between them; "" means accuracy. Returns 0 if there are too
 * many names, or one is malformed or occurs twice; *m is then unspecified. */
int metric_names_parse(struct metric_names *m, const char *text);
/* Writes the canonical text. */
void metric_names_text(const struct metric_names *m, char text[METRICS_TEXT]);

#endif
