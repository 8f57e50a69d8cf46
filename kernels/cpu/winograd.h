/*
 * winograd.h - convolutions with Winograd's minimal filtering (Lavin and Gray, "Fast Algorithms for
 * Convolutional Neural Networks", 2016).
 *
 * A tile of 6 x 6 inputs gives 4 x 4 outputs of a filter of 3 x 3, or 2 x 2 outputs of 5 x 5.
 * Filters of 3 x 3 and of 5 x 5 use the points 0, 1, -1, 2, -2 and infinity, so they share the
 * transform of the input. For one channel and one filter a tile takes 36 products instead of 144 or
 * 100:
 *
 *   output = A' [(G g G') * (B' d B)] A   with the input d, the weights g, ' for transposition
 *
 * For each of the 36 points the sum over the channels is a product of matrices. The backward pass
 * is the transpose of the forward pass, with the same tiles. The gradients e of the output become A
 * e A'. The product of A e A' and the transformed input is the gradient of the transformed weights,
 * and the product of A e A' and the transformed weights is the gradient of the transformed input.
 * G' and B transform these two gradients back.
 *
 * The order of the sums of an image depends only on the model.
 *
 * Accuracy: in one dimension, the absolute values of the factors of an output add up to at most 48
 * for 3 weights (3 in the direct sum), and to 58 for 5 weights. So in two dimensions a rounding
 * error is in the worst case 16^2 times as large as in the direct sum. The tests allow gradients
 * that are computed with tiles no larger errors than those of the other ways (plan.h).
 */
#ifndef KERNELS_CPU_WINOGRAD_H
#define KERNELS_CPU_WINOGRAD_H
#include "kernels/cpu/steps.h"

/* Computes the output activation of step i. */
void winograd_forward(struct lane *l, size_t i, const struct block *b);
/* Adds the gradient of the weights of step i to l->grad. Also computes the gradients of the input
 * activation of step i, if an earlier layer needs them. */
void winograd_backward(struct lane *l, size_t i, const struct block *b);

#endif
