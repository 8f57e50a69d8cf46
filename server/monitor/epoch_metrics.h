/*
 * epoch_metrics.h - the metrics of an evaluated epoch besides its loss: accuracy and the other
 * metrics of --metrics, as means over the test images.
 *
 * Only the thread of the core may call these functions.
 */
#ifndef SERVER_MONITOR_EPOCH_METRICS_H
#define SERVER_MONITOR_EPOCH_METRICS_H
#include <jansson.h>
#include "server/core/core.h"

#define EPOCH_METRICS_TEXT 256

/* Returns the accuracy of the epoch. Returns NaN if no image of the epoch is evaluated, or if
 * accuracy is not one of the run's metrics. */
double epoch_accuracy(const struct core *c, const struct epoch_record *r);
/* Returns the result of epoch_accuracy as a JSON number, or as null if it is NaN. */
json_t *epoch_accuracy_json(const struct core *c, const struct epoch_record *r);
/* Returns the JSON object {"name": mean, ...} with all metrics except accuracy. A mean is null if
 * no image is evaluated. */
json_t *epoch_metrics(const struct core *c, const struct epoch_record *r);
/* Returns the results of an epoch as a JSON object. The parameter `epoch` counts from 0. The fields
 * "epoch" (counted from 1), "accuracy", "test_loss" and "metrics" are as in the line of the epoch
 * in the history; "validate" is the number of images that are held back. The caller frees the text.
 * Returns NULL if there is no memory.
 */
char *epoch_results_text(const struct core *c, uint32_t epoch);
/* Writes all metrics as one line, such as "accuracy=0.9 name=1.5", or "none" if there are none. */
void epoch_metrics_text(
	const struct core *c, const struct epoch_record *r, char text[EPOCH_METRICS_TEXT]);
/* Writes all metrics except accuracy for the progress bar, such as "  name 1.5", or "". */
void epoch_metrics_bar(
	const struct core *c, const struct epoch_record *r, char text[EPOCH_METRICS_TEXT]);

#endif
