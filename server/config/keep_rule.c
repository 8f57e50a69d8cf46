/* keep_rule.c - see keep_rule.h. */
#include "server/config/keep_rule.h"
#include <stdlib.h>
#include <string.h>
#include "proto/msg.h"

int keep_rule_parse(const char *text, struct keep_rule *r)
{
	static const char every[] = "every=";
	const char *end = text;

	*r = (struct keep_rule){0};
	if (!*text)
		return 0;
	for (; *end; text = end + 1) {
		size_t n = strcspn(text, ",");
		char *digits_end = NULL;

		end = text + n;
		if (n == 4 && !strncmp(text, "best", n) && !r->best) {
			r->best = 1;
			continue;
		}
		if (r->every || strncmp(text, every, sizeof(every) - 1) != 0)
			return 0;
		text += sizeof(every) - 1;
		unsigned long number = strtoul(text, &digits_end, 10);
		if (*text < '1' || *text > '9' || digits_end != end || number > WIRE_MAX_EPOCHS)
			return 0;
		r->every = (uint32_t)number;
	}
	return 1;
}
