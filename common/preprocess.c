/* preprocess.c - see preprocess.h. */
#include "common/preprocess.h"
#include <stdio.h>
#include <string.h>
#include "common/rng.h"

static const char *const names[] = {
	[PREPROCESS_NORM] = "norm", [PREPROCESS_SHIFT] = "shift", [PREPROCESS_FLIP] = "flip"};

enum preprocess_word preprocess_find(const struct word *w)
{
	for (int i = PREPROCESS_NORM; i <= PREPROCESS_FLIP; i++)
		if (strcmp(w->field[0], names[i]) == 0)
			return (enum preprocess_word)i;
	return PREPROCESS_NONE;
}

/* ---- words ----------------------------------------------------------------------------------- */

/* Reads numbers in [min, max] that are separated by commas. Returns their count, or 0 if the list
 * is malformed. */
static size_t read_numbers(const char *list, float min, float max, float value[PREPROCESS_MAX_NORM])
{
	size_t n = 0;

	while (n < PREPROCESS_MAX_NORM) {
		char number[WORDS_MAX_BYTES + 1];
		size_t size = strcspn(list, ",");

		snprintf(number, sizeof(number), "%.*s", (int)size, list);
		if (!words_real(number, &value[n]) || !(value[n] >= min && value[n] <= max))
			return 0;
		n++;
		if (!list[size])
			return n;
		list += size + 1;
	}
	return 0;
}

static const char *parse_norm(struct preprocess *p, const struct word *w)
{
	size_t n = w->n_fields == 3 ? read_numbers(w->field[1], 0, 1, p->mean) : 0;

	if (n == 0 || read_numbers(w->field[2], 1e-6f, 1e6f, p->deviation) != n)
		return "expected norm:MEANS:DEVIATIONS, two lists of 1 to 4 numbers with commas: "
		       "means of 0 to 1, deviations of 1e-6 to 1e6";
	p->n_norm = n;
	return NULL;
}

static const char *parse_shift(struct preprocess *p, const struct word *w)
{
	if (w->n_fields == 2 && words_size(w->field[1], 1, PREPROCESS_MAX_SHIFT, &p->shift))
		return NULL;
	return "expected shift:PIXELS, 1 to 4095";
}

static const char *parse_flip(struct preprocess *p, const struct word *w)
{
	p->flip = 1;
	return w->n_fields == 1 ? NULL : "expected flip alone";
}

const char *preprocess_parse(struct preprocess *p, const struct word *w)
{
	switch (preprocess_find(w)) {
	case PREPROCESS_NORM:
		return p->n_norm ? "it occurs twice" : parse_norm(p, w);
	case PREPROCESS_SHIFT:
		return p->shift ? "it occurs twice" : parse_shift(p, w);
	case PREPROCESS_FLIP:
		return p->flip ? "it occurs twice" : parse_flip(p, w);
	case PREPROCESS_NONE:
		break;
	}
	return "unknown word";
}

static size_t put_list(char *text, size_t at, const float *value, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		char number[WORDS_REAL];

		words_put_real(number, value[i]);
		at += (size_t)snprintf(
			text + at, PREPROCESS_MAX_TEXT - at, "%s%s", i ? "," : ":", number);
	}
	return at;
}

void preprocess_text(const struct preprocess *p, char text[PREPROCESS_MAX_TEXT])
{
	size_t at = 0;

	text[0] = '\0';
	if (p->n_norm) {
		at += (size_t)snprintf(text, PREPROCESS_MAX_TEXT, "norm");
		at = put_list(text, at, p->mean, p->n_norm);
		at = put_list(text, at, p->deviation, p->n_norm);
		at += (size_t)snprintf(text + at, PREPROCESS_MAX_TEXT - at, " ");
	}
	if (p->shift)
		at += (size_t)snprintf(text + at, PREPROCESS_MAX_TEXT - at, "shift:%zu ", p->shift);
	if (p->flip)
		snprintf(text + at, PREPROCESS_MAX_TEXT - at, "flip ");
}

/* ---- pixels ---------------------------------------------------------------------------------- */

int preprocess_is_random(const struct preprocess *p)
{
	return p->shift || p->flip;
}

void preprocess_table(const struct preprocess *p, size_t channel, float table[256])
{
	size_t i = p->n_norm > 1 ? channel : 0;

	for (int v = 0; v < 256; v++)
		table[v] = p->n_norm ? (float)((v / 255.0 - (double)p->mean[i]) /
					       (double)p->deviation[i])
				     : (float)v / 255;
}

static int64_t draw_shift(struct rng *r, size_t shift)
{
	return (int64_t)rng_below(r, 2 * shift + 1) - (int64_t)shift;
}

/* Copies a row of `w` pixels, moved to the right by `dx`, and mirrored if `flip` is 1. */
static void move_row(const uint8_t *from, uint8_t *to, int64_t w, int64_t dx, int flip)
{
	for (int64_t x = 0; x < w; x++) {
		int64_t at = x - dx;

		to[x] = at < 0 || at >= w ? 0 : from[flip ? w - 1 - at : at];
	}
}

void preprocess_image(const struct preprocess *p, uint64_t seed, uint32_t epoch, uint32_t image,
	size_t c, size_t h, size_t w, const uint8_t *from, uint8_t *to)
{
	struct rng r = rng_seed(seed, RNG_AUGMENT, (uint64_t)epoch << 32 | image);
	int64_t dy = p->shift ? draw_shift(&r, p->shift) : 0;
	int64_t dx = p->shift ? draw_shift(&r, p->shift) : 0;
	int flip = p->flip && rng_below(&r, 2) == 1;

	for (size_t row = 0; row < c * h; row++, to += w) {
		int64_t y = (int64_t)(row % h) - dy;

		if (y < 0 || y >= (int64_t)h)
			memset(to, 0, w);
		else
			move_row(from + (row - row % h + (size_t)y) * w, to, (int64_t)w, dx, flip);
	}
}
