/*
 * words.h - a text split into words at blanks, and each word into fields at ':'.
 *
 * Pure; nothing is allocated. Thread: any.
 */
#ifndef COMMON_WORDS_H
#define COMMON_WORDS_H
#include <stddef.h>

#define WORDS_MAX_BYTES  63 /* of a word */
#define WORDS_MAX_FIELDS 6

struct word {
	char text[WORDS_MAX_BYTES + 1]; /* as typed, for messages */
	const char *field[WORDS_MAX_FIELDS];
	size_t n_fields;
	char split[WORDS_MAX_BYTES + 1]; /* what the fields point into */
};

enum words_result { WORDS_END, WORDS_ONE, WORDS_TOO_LONG, WORDS_TOO_MANY_FIELDS };

/* Take the next word off *text into *w. When it is refused, w->text holds as much as fits. */
enum words_result words_next(const char **text, struct word *w);
/* What stands behind "key=" in `field`, or NULL if it has another key. */
const char *words_value(const char *field, const char *key);
/* 1 if `text` is a whole number in [min, max], digits only; *out has it then. max is below
 * SIZE_MAX / 16. */
int words_size(const char *text, size_t min, size_t max, size_t *out);

#endif
