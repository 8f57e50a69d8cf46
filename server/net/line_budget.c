/* line_budget.c - see line_budget.h. */
#include "server/net/line_budget.h"

void line_budget_tick(struct line_budget *b, uint64_t now_ms)
{
	b->now_ms = now_ms;
}

int line_budget_take(struct line_budget *b, uint32_t worker)
{
	const uint64_t passed_ms = b->now_ms - b->taken_ms[worker];
	uint32_t *spent_ms = &b->spent_ms[worker];

	*spent_ms -= passed_ms < *spent_ms ? (uint32_t)passed_ms : *spent_ms;
	b->taken_ms[worker] = b->now_ms;
	if (*spent_ms > (SLOT_LINES - 1) * SLOT_LINE_MS) {
		b->left_out++;
		return 0;
	}
	*spent_ms += SLOT_LINE_MS;
	return 1;
}
