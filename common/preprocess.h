/*
 * preprocess.h - the changes to the pixels of an image before the first layer: the words norm,
 * shift and flip of a model text.
 *
 * With norm:MEANS:DEVIATIONS, the first layer gets (v / 255 - mean) / deviation for a pixel of
 * value v, in training and in evaluation. MEANS and DEVIATIONS are lists with commas, one number
 * per channel, or one number for all channels. With shift:P, each image in training is moved by up
 * to P pixels in each direction, and black pixels fill the gap. With flip, each image in training
 * is mirrored, left to right, with probability 1/2.
 *
 * Shift and flip depend on the seed of the run, the epoch and the number of the image, so every
 * worker computes the same bytes. The functions are pure, and any thread may call them.
 */
#ifndef COMMON_PREPROCESS_H
#define COMMON_PREPROCESS_H
#include <stddef.h>
#include <stdint.h>
#include "common/words.h"

#define PREPROCESS_MAX_NORM  4    /* maximum number of values in each list of the word norm */
#define PREPROCESS_MAX_SHIFT 4095 /* maximum P of shift:P, in pixels */
#define PREPROCESS_MAX_TEXT  (3 * WORDS_MAX_BYTES)

struct preprocess {
	/* count of numbers in each of the two lists; 0: the model text has no norm, and the first
	 * layer gets v / 255 for a pixel of value v */
	size_t n_norm;
	float mean[PREPROCESS_MAX_NORM], deviation[PREPROCESS_MAX_NORM];
	size_t shift;
	int flip;
};

enum preprocess_word { PREPROCESS_NONE, PREPROCESS_NORM, PREPROCESS_SHIFT, PREPROCESS_FLIP };

/* Returns which of the words norm, shift and flip the word `w` is, or PREPROCESS_NONE if it is none
 * of them. */
enum preprocess_word preprocess_find(const struct word *w);
/* Reads the word `w`, which is norm, shift or flip, into *p. Returns NULL, or an error text if the
 * word is wrong. */
const char *preprocess_parse(struct preprocess *p, const struct word *w);
/* Writes the canonical words, each with a blank after it, such as "norm:0.5:0.25 flip ". */
void preprocess_text(const struct preprocess *p, char text[PREPROCESS_MAX_TEXT]);
/* Returns 1 if the pixels of an image differ from epoch to epoch. */
int preprocess_is_random(const struct preprocess *p);
/* Sets table[v] to the value that the first layer gets for a pixel with byte v in `channel`: v /
 * 255, normalised if the model text has norm. */
void preprocess_table(const struct preprocess *p, size_t channel, float table[256]);
/*
 * Copies an image of c x h x w pixels, shifted and flipped by the rules of `p` for image number
 * `image` of epoch `epoch`.
 */
void preprocess_image(const struct preprocess *p, uint64_t seed, uint32_t epoch, uint32_t image,
	size_t c, size_t h, size_t w, const uint8_t *from, uint8_t *to);

#endif
