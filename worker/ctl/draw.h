/*
 * draw.h - draws a picture on the terminal, with the network's prediction for the picture. Thread:
 * main.
 */
#ifndef WORKER_CTL_DRAW_H
#define WORKER_CTL_DRAW_H
#include <stddef.h>
#include <stdint.h>
#include "common/model.h"
#include "worker/data/class_names.h"

struct drawing {
	struct shape shape;
	const uint8_t *pixels;    /* shape_count(shape) bytes */
	const float *probability; /* probability of each class */
	size_t classes;
	int label;                       /* class of the picture; -1: not known */
	const struct class_names *names; /* names of the classes; NULL: there are none */
};

/* Returns the index of the largest of n >= 1 values. If several values are equally large, returns
 * the index of the first one. */
size_t draw_best(const float *p, size_t n);
/* Returns 1 unless NO_COLOR is set and not empty (no-color.org). */
int draw_may_colour(void);
/* Prints one line with the best class, then the picture beside its classes. */
void draw_prediction(const char *name, const struct drawing *d);

#endif
