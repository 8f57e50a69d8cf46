/* reminder.c - see reminder.h. */
#include "common/reminder.h"

int reminder_due(struct reminder *r, int what, uint64_t since_ms, uint64_t now_ms)
{
	if (what != r->what)
		*r = (struct reminder){.what = what,
			.since_ms = since_ms,
			.next_ms = since_ms + REMINDER_FIRST_MS,
			.step_ms = REMINDER_STEP_MS};
	if (!what || now_ms < r->next_ms)
		return 0;
	r->next_ms = now_ms + r->step_ms;
	r->step_ms = 2 * r->step_ms < REMINDER_MAX_MS ? 2 * r->step_ms : REMINDER_MAX_MS;
	return 1;
}
