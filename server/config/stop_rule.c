/* stop_rule.c - see stop_rule.h. */
#include "server/config/stop_rule.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "server/core/core.h"

int stop_rule_parse(const char *text, struct stop_rule *r)
{
	static const char key[] = "accuracy=";
	char *end;

	if (strncmp(text, key, sizeof(key) - 1) != 0)
		return 0;
	text += sizeof(key) - 1;
	r->accuracy = strtod(text, &end);
	return end > text && *end == '\0' && strspn(text, "0123456789.") == strlen(text) &&
	       r->accuracy > 0 && r->accuracy <= 1;
}

/* Returns the accuracy of an epoch, or a negative number if the epoch is not evaluated. */
static double accuracy_of(const struct core *c, uint32_t epoch)
{
	const struct epoch_record *r = core_epoch(c, epoch);

	return core_is_evaluated(c, epoch) ? (double)r->eval_correct / r->eval_done : -1;
}

int stop_rule_is_met(const struct stop_rule *r, const struct core *c, char why[STOP_TEXT])
{
	uint32_t best = 0, last = 0, found = 0;

	if (r->accuracy <= 0 && r->patience == 0)
		return 0;
	for (uint32_t e = 0; e < core_config(c)->training.epochs; e++) {
		double now = accuracy_of(c, e);

		if (now < 0)
			continue;
		if (!found++ || now > accuracy_of(c, best))
			best = e;
		last = e;
	}
	if (!found)
		return 0;
	if (r->accuracy > 0 && accuracy_of(c, best) >= r->accuracy) {
		snprintf(why, STOP_TEXT,
			"the goal of --stop-at is reached: epoch %u has accuracy %.4f", best + 1,
			accuracy_of(c, best));
		return 1;
	}
	if (r->patience == 0 || last - best < r->patience)
		return 0;
	snprintf(why, STOP_TEXT,
		"the run no longer improves (--patience-epochs): no epoch since %u is better than "
		"its accuracy %.4f",
		best + 1, accuracy_of(c, best));
	return 1;
}
