/*
 * keep_rule.h - which epochs' weights --keep keeps. Thread: any; no state.
 */
#ifndef SERVER_CONFIG_KEEP_RULE_H
#define SERVER_CONFIG_KEEP_RULE_H
#include <stdint.h>

struct keep_rule {
	int best;       /* 1: the best epoch so far */
	uint32_t every; /* each N-th epoch; 0: no */
};

/* Reads "best", "every=N", or both with a comma. Returns 0 if `text` is something else. */
int keep_rule_parse(const char *text, struct keep_rule *r);

#endif
