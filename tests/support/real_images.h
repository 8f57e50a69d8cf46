/* real_images.h - batches of real images for tests of kernels. The images come from $CNN_DATA or
 * the default data directories. */
#ifndef TESTS_SUPPORT_REAL_IMAGES_H
#define TESTS_SUPPORT_REAL_IMAGES_H
#include "tests/support/gradients.h"
#include "worker/data/dataset.h"

extern struct data real_images;

/* Set-up and tear-down functions of a whole test program: they load and release real_images. */
int real_load(void **state);
int real_release(void **state);
/* Set up the model `text` with initial weights and a batch of `n` images: the `n` images from
 * number `from` on in a shuffled order. */
void subject_real(struct subject *s, const char *text, size_t from, size_t n);

#endif
