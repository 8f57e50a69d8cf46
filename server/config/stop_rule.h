/*
 * stop_rule.h - decides whether a run ends before its last epoch (--stop-at and --patience-epochs).
 *
 * A rule reads only the evaluated epochs of the core, so it gives the same result after a restart.
 * Any thread may call the functions, which have no state.
 */
#ifndef SERVER_CONFIG_STOP_RULE_H
#define SERVER_CONFIG_STOP_RULE_H
#include <stddef.h>
#include <stdint.h>

#define STOP_TEXT 128

struct core;

struct stop_rule {
	/* the run ends after an epoch with at least this accuracy; 0: there is no such rule */
	double accuracy;
	/* the run ends after this number of epochs in a row without a better accuracy; 0: there is
	 * no such rule */
	uint32_t patience;
};

/* Reads "accuracy=X", where X is above 0 and at most 1. Returns 0 if `text` has another form. */
int stop_rule_parse(const char *text, struct stop_rule *r);
/* Returns 1 if the rule ends the run after its newest evaluated epoch, and writes the reason to
 * `why`. The caller must ask after each evaluation, before the core can complete the next one: a
 * better epoch hides the epochs without a better accuracy that precede it. For the same reason, a
 * rule that is new in a resumed run does not end this run because of epochs of long ago. */
int stop_rule_is_met(const struct stop_rule *r, const struct core *c, char why[STOP_TEXT]);

#endif
