/*
 * show.h - the network's predictions for the first test images, as JSON, for the server's page:
 *
 *   {"side": [rows, columns], "images": [{"pixels": base64, "label": 7, "class": 1, "sure": 0.9}],
 *    "names": {"1": "cat", "7": "dog"}}
 *
 * "label" is the label of the image, "class" the most probable class, and "sure" its probability. A
 * pixel is one byte: a grey value or, if the answer has the field "color": true, 3 bits of red, 3
 * of green and 2 of blue. For an image of more than SHOW_SIDE rows or columns, "pixels" has only
 * every second, third, ... row and column. "names" has the names of these labels and classes, if
 * the data set has names (class_names.h), and as many as fit in the answer. Thread: the trainer's.
 */
#ifndef WORKER_SHOW_H
#define WORKER_SHOW_H
#include "common/err.h"
#include "common/model.h"

struct backend;
struct class_names;
struct data;

#define SHOW_IMAGES 24
#define SHOW_SIDE   32

/* Predicts with `weights` and returns the JSON, which the caller frees. If the test images are in
 * memory, the backend `b` must use them. If they are not, the function makes `b` use copies of a
 * few images, and frees these copies before it returns. The caller must therefore call backend_use
 * before the next use of `b`. Returns NULL if the predictions are not possible. */
char *show_json(const struct data *d, const struct class_names *names, const struct model *m,
	struct backend *b, const float *weights);

#endif
