/* generation.c - see generation.h. */
#include "common/generation.h"
#include <string.h>

#define DIGITS 16

void generation_name(const char *prefix, uint64_t generation, char out[GENERATION_NAME])
{
	size_t n = strnlen(prefix, GENERATION_NAME - DIGITS - 2);

	memcpy(out, prefix, n);
	out[n++] = '-';
	for (int shift = 4 * (DIGITS - 1); shift >= 0; shift -= 4)
		out[n++] = "0123456789abcdef"[generation >> shift & 15];
	out[n] = '\0';
}

/* A loop compares the prefix, because most names of other files differ in the first character. */
uint64_t generation_parse(const char *name, const char *prefix, const char *suffix)
{
	uint64_t generation = 0;

	for (; *prefix; prefix++, name++)
		if (*name != *prefix)
			return 0;
	if (*name != '-')
		return 0;
	const char *digits = name + 1;
	for (int i = 0; i < DIGITS; i++) {
		const char c = digits[i];

		if (!(c >= '0' && c <= '9') && !(c >= 'a' && c <= 'f'))
			return 0;
		generation = generation << 4 | (uint64_t)(c <= '9' ? c - '0' : c - 'a' + 10);
	}
	return strcmp(digits + DIGITS, suffix) == 0 ? generation : 0;
}

uint64_t generation_highest(DIR *d, const char *prefix, uint64_t max)
{
	uint64_t best = 0;

	rewinddir(d);
	for (const struct dirent *entry; (entry = readdir(d));) {
		uint64_t g = generation_parse(entry->d_name, prefix, "");

		if (g <= max && g > best)
			best = g;
	}
	return best;
}

uint64_t generation_lowest(DIR *d, const char *prefix, uint64_t min)
{
	uint64_t best = 0;

	rewinddir(d);
	for (const struct dirent *entry; (entry = readdir(d));) {
		uint64_t g = generation_parse(entry->d_name, prefix, "");

		if (g && g >= min && (!best || g < best))
			best = g;
	}
	return best;
}
