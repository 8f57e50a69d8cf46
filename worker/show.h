/*
 * show.h - the network's predictions for the first test images, as JSON, for the server's page:
 *
 *   {"side": [rows, columns], "images": [{"pixels": base64, "label": 7, "class": 1, "sure": 0.9}]}
 *
 * "label" is the label of the image, "class" the most probable class, and "sure" its probability. A
 * pixel is one byte: grey, or 3 bits of red, 3 of green and 2 of blue ("color": true). Images of
 * more than SHOW_SIDE rows or columns are sampled down. Thread: the trainer's.
 */
#ifndef WORKER_SHOW_H
#define WORKER_SHOW_H
#include "common/err.h"
#include "common/model.h"

struct backend;
struct data;

#define SHOW_IMAGES 24
#define SHOW_SIDE   32

/* Predicts with `weights` and returns the JSON, which the caller frees. If the test images are in
 * memory, the backend `b` must use them. If they are not, the function makes `b` use a few copied
 * images, and the caller must call backend_use before the next use of `b`. Returns NULL if the
 * predictions are not possible. */
char *show_json(
	const struct data *d, const struct model *m, struct backend *b, const float *weights);

#endif
