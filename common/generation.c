/* generation.c - see generation.h. */
#include "common/generation.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define DIGITS 16

void generation_name(const char *prefix, uint64_t generation, char out[GENERATION_NAME])
{
	snprintf(out, GENERATION_NAME, "%.16s-%016" PRIx64, prefix, generation);
}

uint64_t generation_parse(const char *name, const char *prefix, const char *suffix)
{
	size_t n = strlen(prefix);
	uint64_t generation = 0;

	if (strncmp(name, prefix, n) != 0 || name[n] != '-' ||
		strspn(name + n + 1, "0123456789abcdef") < DIGITS)
		return 0;
	for (const char *c = name + n + 1; c < name + n + 1 + DIGITS; c++)
		generation = generation << 4 | (uint64_t)(*c <= '9' ? *c - '0' : *c - 'a' + 10);
	return strcmp(name + n + 1 + DIGITS, suffix) == 0 ? generation : 0;
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
