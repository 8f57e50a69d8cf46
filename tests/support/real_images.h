/* real_images.h - subjects of kernel tests with real images: $CNN_DATA or the usual places. */
#ifndef TESTS_SUPPORT_REAL_IMAGES_H
#define TESTS_SUPPORT_REAL_IMAGES_H
#include "tests/support/gradients.h"
#include "worker/data/dataset.h"

extern struct data real_images;

/* Set-up and tear-down of a program. */
int real_load(void **state);
int real_release(void **state);
/* A batch of `n` images, from place `from` of a shuffled order. */
void subject_real(struct subject *s, const char *text, size_t from, size_t n);

#endif
