/*
 * words.h - splits a text into words at blanks, and each word into fields at ':'.
 *
 * The functions are pure and allocate no memory. Any thread may call them.
 */
#ifndef COMMON_WORDS_H
#define COMMON_WORDS_H
#include <stddef.h>

#define WORDS_MAX_BYTES  63 /* maximum number of bytes of a word */
#define WORDS_MAX_FIELDS 6
#define WORDS_REAL       32 /* size of a buffer for the text that words_put_real writes */

struct word {
	char text[WORDS_MAX_BYTES + 1]; /* the word as it was typed, for error messages */
	const char *field[WORDS_MAX_FIELDS];
	size_t n_fields;
	char split[WORDS_MAX_BYTES + 1]; /* a copy of `text` that is split into fields */
};

enum words_result { WORDS_END, WORDS_ONE, WORDS_TOO_LONG, WORDS_TOO_MANY_FIELDS };

/* Reads the next word of *text into *w and advances *text. If the word is too long, w->text
 * contains the beginning of the word. */
enum words_result words_next(const char **text, struct word *w);
/* Returns the text after "key=" in `field`, or NULL if `field` has another key. */
const char *words_value(const char *field, const char *key);
/* Returns 1 if `text` has only digits and is a number in [min, max], and sets *out to the number.
 * `max` must be less than SIZE_MAX / 16. */
int words_size(const char *text, size_t min, size_t max, size_t *out);
/* Returns 1 if `text` is a number of at least 0 without blanks, such as 0.25 or 1e-3, and sets *out
 * to the number. */
int words_real(const char *text, float *out);
/* Writes `v` with the fewest digits from which words_real reads the same number. */
void words_put_real(char text[WORDS_REAL], float v);

#endif
