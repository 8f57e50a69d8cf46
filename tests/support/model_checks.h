/* model_checks.h - checks that hold for every model, for the tests of common/model.h. */
#ifndef TESTS_SUPPORT_MODEL_CHECKS_H
#define TESTS_SUPPORT_MODEL_CHECKS_H
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>
#include "common/model.h"

extern const struct shape mnist_shape;

/* The model that parse_model has parsed. The variable is static because a model is too large for
 * the stack. */
extern struct model parsed;

/* Parse `text` for images of MNIST's shape. `text` must be valid. */
void parse_model(const char *text);
void assert_shape(struct shape s, size_t c, size_t h, size_t w);
void assert_tensor(size_t i, const char *name, size_t offset, size_t count);

/* Check invariant 1 of common/model.h, and that the shapes of successive layers match. */
void assert_consistent(const struct model *x);

#endif
