/*
 * accumulator.h - collects gradients until a step, or an update from a buffer (--buffer-size),
 * applies them together. A mode that collects gradients uses one of three methods:
 *
 * - Running sum: sandblaster, and the asynchronous modes with a buffer, add each gradient to a sum
 *   in double precision when it arrives. The order of arrival therefore hardly changes the result.
 *   In a buffer, a gradient with a higher staleness can have a lower weight.
 * - One gradient of each worker: a buffer with a robust rule (aggregate.h) keeps the mean of each
 *   worker's gradients, so no worker counts twice.
 * - One gradient of each batch: sync keeps all gradients and adds them in the order of their
 *   batches when the step ends. The order of arrival therefore does not change the result at all.
 *   This method needs memory for n_params floats for each gradient of a step. The system provides
 *   this memory only when a gradient is written to it.
 *
 * Several workers can share an authentication key. If the workers with a session have at least
 * three different keys together, a robust rule gets one gradient for each key: the mean of the
 * gradients of the workers with this key. So a key counts once, however many workers it has.
 */
#ifndef SERVER_CORE_ACCUMULATOR_H
#define SERVER_CORE_ACCUMULATOR_H
#include "server/core/core.h"

struct worker;

/* This struct has a gradient that the accumulator keeps apart from the others. In sync, this is the
 * gradient of batch `batch`, which has `images` images. In a buffer, this is the mean of the
 * gradients of one worker: `batch` is then the number of the worker's slot, and `images` is the
 * number of gradients in the mean. */
struct part {
	uint32_t batch, images;
	float loss;
	float *g; /* the gradient: n_params floats */
	/* with a robust rule: the key of the worker that sent the gradient; "": it had no key */
	char owner[WIRE_MAX_OWNER + 1];
};
struct gradient_accumulator {
	/* running sum of the gradients, n_params values; NULL: the mode has no running sum */
	double *sum;
	/* `room` entries, sorted by batch; the first `parts` are in use; NULL: the mode keeps no
	 * gradients */
	struct part *part;
	uint32_t room, parts;
	/* weight: sum of the weights of all gradients; loss_sum: sum of loss times images over the
	 * pushes that accumulator_count has counted */
	double weight, loss_sum;
	/* number of images of the counted pushes, all from the epoch in training */
	uint64_t images;
	uint32_t pushes;
	double peak; /* upper bound of the magnitudes of the values in `sum` */
	/* 1: peak is valid. No snapshot contains this flag, so a restarted server computes peak
	 * again */
	int measured;
};
/* Returns 1 if all values stay finite when a step applies the collected gradients together with the
 * gradient of push `p`. */
int accumulator_fits(struct core *c, const struct worker *w, const struct msg_push *p);
void accumulator_add(struct core *c, const struct msg_push *p);
/* Adds `scale` (at most 1) times the gradient `s` to the running sum, with weight `weight`. The
 * caller counts the images and the loss with accumulator_count. */
void accumulator_add_weighted(struct core *c, const struct slices *s, double weight, double scale);
/* Counts the images and the loss of push `p`. When a step applies the sum, it adds these counts to
 * the record of the epoch in training. */
void accumulator_count(struct core *c, const struct msg_push *p);
/* Returns 1 if all values stay finite when a step applies the collected gradients together with one
 * more gradient, whose weight is `weight` and whose values have magnitudes of at most `peak`. */
int accumulator_holds(struct core *c, double weight, double peak);
void accumulator_keep(struct core *c, const struct worker *w, const struct msg_push *p);
/* Includes `scale` (at most 1) times the gradient `s` in the mean of the gradients of worker `w`,
 * and adds `weight` to the sum of the weights. */
void accumulator_average(struct core *c, const struct worker *w, const struct slices *s,
	double weight, double scale);
/* Combines the collected gradients by the rule cfg.push.aggregate and writes the result to `g`
 * (n_params floats). The rule `mean` gives the weighted mean. If cfg.push.sum is set, the rule
 * `mean` gives the sum of the gradients; for a buffer, this sum is the weighted mean times the
 * number of gradients. A robust rule then gives its result times accumulator_gradients. The
 * statistics of batches, which follow the values of each gradient, are never summed, and no robust
 * rule combines them. With a robust rule, the statistics in the result are the mean of the
 * statistics of all gradients that the rule gets; each gradient has the same weight. The caller
 * calls accumulator_clear next, because a robust rule changes the collected gradients. */
void accumulator_mean(struct core *c, float *g);
/* Scales each kept gradient whose norm is above `max` down to the norm `max`. */
void accumulator_limit_norms(struct core *c, double max);
/* Returns 1 if a robust rule gets one gradient for each key, not one for each worker. */
int accumulator_merges_keys(const struct core *c);
/* Returns the number of gradients that a robust rule would get now: one for each key, or one for
 * each worker (accumulator_merges_keys). Only parts whose member `images` is at least `min` count;
 * in a buffer, this member is the number of gradients in the part. */
uint32_t accumulator_voices(const struct core *c, uint32_t min);
/* Returns the number of gradients that accumulator_mean would combine now: all of them or, with a
 * robust rule, accumulator_voices(c, 1). The learning rate may grow with this number. With a robust
 * rule the gradients themselves do not count, because a worker or a key can have several of them:
 * otherwise a single one could raise the rate by pushing often. */
uint32_t accumulator_gradients(const struct core *c);
double accumulator_loss_sum(const struct core *c);
void accumulator_clear(struct core *c);

#endif
