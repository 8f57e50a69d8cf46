/*
 * keep_rule.h - the rule of --keep. The rule decides for each epoch whether the server writes the
 * weights at the end of the epoch to a file. Any thread may call the function, which has no state.
 */
#ifndef SERVER_CONFIG_KEEP_RULE_H
#define SERVER_CONFIG_KEEP_RULE_H
#include <stdint.h>

struct keep_rule {
	int best;       /* 1: keep the epoch with the best result so far */
	uint32_t every; /* N > 0: keep every N-th epoch; 0: keep no epoch because of its number */
};

/* Reads "best", "every=N", or both with a comma between them. Returns 0 if `text` has another
 * form. */
int keep_rule_parse(const char *text, struct keep_rule *r);

#endif
