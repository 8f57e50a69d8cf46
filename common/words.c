/*
 * words.c - see words.h.
 */
#include "common/words.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLANKS " \t"

enum words_result words_next(const char **text, struct word *w)
{
	*text += strspn(*text, BLANKS);
	size_t n = strcspn(*text, BLANKS);

	if (n == 0)
		return WORDS_END;
	snprintf(w->text, sizeof(w->text), "%.*s", n > WORDS_MAX_BYTES ? WORDS_MAX_BYTES : (int)n,
		*text);
	if (n > WORDS_MAX_BYTES)
		return WORDS_TOO_LONG;
	*text += n;
	memcpy(w->split, w->text, sizeof(w->split));
	w->n_fields = 0;
	for (char *at = w->split; at;) {
		if (w->n_fields == WORDS_MAX_FIELDS)
			return WORDS_TOO_MANY_FIELDS;
		w->field[w->n_fields++] = at;
		at = strchr(at, ':');
		if (at)
			*at++ = '\0';
	}
	return WORDS_ONE;
}

const char *words_value(const char *field, const char *key)
{
	size_t n = strlen(key);

	return strncmp(field, key, n) == 0 && field[n] == '=' ? field + n + 1 : NULL;
}

int words_size(const char *text, size_t min, size_t max, size_t *out)
{
	size_t v = 0;

	if (!*text)
		return 0;
	for (; *text; text++) {
		if (*text < '0' || *text > '9' || v > max)
			return 0;
		v = v * 10 + (size_t)(*text - '0');
	}
	*out = v;
	return v >= min && v <= max;
}

int words_real(const char *text, float *out)
{
	char *end;

	if (*text == '-' || *text == '+' || strspn(text, "0123456789.eE+-") != strlen(text))
		return 0;
	*out = (float)strtod(text, &end);
	return end != text && !*end && *out >= 0;
}

void words_put_real(char text[WORDS_REAL], float v)
{
	for (int digits = 1; digits <= 9; digits++) {
		snprintf(text, WORDS_REAL, "%.*g", digits, (double)v);
		if (!(strtof(text, NULL) < v || strtof(text, NULL) > v))
			return;
	}
}
