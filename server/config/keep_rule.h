/*
 * keep_rule.h - the rule of --keep: at the end of which epochs the server writes the weights to a
 * file. Thread: any; no state.
 */
#ifndef SERVER_CONFIG_KEEP_RULE_H
#define SERVER_CONFIG_KEEP_RULE_H
#include <stdint.h>

struct keep_rule {
	int best;       /* 1: keep the best epoch so far */
	uint32_t every; /* N: keep each N-th epoch; 0: keep no epoch for its number */
};

/* Reads "best", "every=N", or both with a comma. Returns 0 if `text` is something else. */
int keep_rule_parse(const char *text, struct keep_rule *r);

#endif
