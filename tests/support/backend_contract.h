/*
 * backend_contract.h - tests that every device must pass. The tests check the promises of
 * kernels/backend.h with examples computed by hand, and the calls that a device must refuse. The
 * main function of a test program lists the tests that it runs.
 */
#ifndef TESTS_SUPPORT_BACKEND_CONTRACT_H
#define TESTS_SUPPORT_BACKEND_CONTRACT_H
#include "tests/support/gradients.h"

/* The devices that a program tests. Each test gets a pointer to this struct as its cmocka state. */
struct contract {
	const char *device[3]; /* the names of the devices; NULL marks the end */
	/* called at the start of each test; it may skip the test; NULL: no call */
	void (*begin)(void);
};

extern const struct odd_model contract_small;

/* ---- examples computed by hand -------------------------------------------------------------- */

/* The model is fc:2 with zero weights, so the probabilities p are 1/2, the loss is ln 2, and the
 * gradient is the mean of (p - y) * pixel / 255. y is 1 for the class of the label and 0 for the
 * other class. */
void pixels_are_divided_by_255_and_gradients_are_means(void **state);
/* The gradients in the next two tests depend on the value that a pool has chosen as the maximum, so
 * they show which value it was. */
void padded_pixels_are_never_the_argmax(void **state);
void of_equal_values_the_first_in_row_order_is_the_argmax(void **state);
/* The model is fc:2 with zero weights: the gradient of weight i is +-1/2 times pixel i after
 * dropout. */
void dropout_draws_what_the_header_specifies(void **state);

/* ---- evaluation and refusals ---------------------------------------------------------------- */

void evaluation_and_prediction_follow_from_the_same_logits(void **state);
void logits_that_are_no_numbers_are_wrong_answers(void **state);
void bad_indices_and_ranges_are_refused(void **state);
/* A server may send a batch size that does not fit in the worker's memory. */
void a_batch_larger_than_memory_is_refused(void **state);

/* ---- local training ------------------------------------------------------------------------- */

#define LOCAL_STEPS 3

/* Check local training with LOCAL_STEPS batches in two calls. Weights, sum and loss must be within
 * `bound` of the values that the definition of local training gives. If rounding errors of relative
 * size `rounding` flip an argmax or a ReLU, the distance of the sum of the gradients may be larger.
 * A second computation must give the same bytes. */
void check_local(struct subject *s, double bound, double rounding);
void local_training_is_one_gradient_after_the_other(void **state);
void rounds_may_overlap(void **state);
void gradients_may_overlap(void **state);
void rounds_out_of_order_are_refused(void **state);
void local_training_without_steps_changes_nothing(void **state);

#endif
