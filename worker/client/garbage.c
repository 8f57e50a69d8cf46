/* garbage.c - see garbage.h. */
#include "worker/client/garbage.h"
#include "common/log.h"

static uint64_t next_pause(uint64_t pause_ms)
{
	if (!pause_ms)
		return GARBAGE_PAUSE_MS;
	return 2 * pause_ms < GARBAGE_MAX_PAUSE_MS ? 2 * pause_ms : GARBAGE_MAX_PAUSE_MS;
}

/* Adds one to the count. Returns 1 if the count is then above `limit`. */
static int is_too_much(struct garbage_count *c, uint32_t limit, uint64_t now_ms)
{
	const uint64_t passed_ms = now_ms - c->newest_ms, max_ms = limit * GARBAGE_MS;

	c->newest_ms = now_ms;
	c->spent_ms -= passed_ms < c->spent_ms ? passed_ms : c->spent_ms;
	c->spent_ms += GARBAGE_MS;
	if (c->spent_ms <= max_ms)
		return 0;
	c->spent_ms = max_ms;
	return 1;
}

uint64_t garbage_note_loss(struct garbage *g, uint64_t now_ms)
{
	return is_too_much(&g->losses, GARBAGE_LOSSES, now_ms) ? GARBAGE_PAUSE_MS : 0;
}

uint64_t garbage_note(struct garbage *g, const char *why, uint64_t now_ms)
{
	if (now_ms - g->messages.newest_ms >= GARBAGE_FORGET_MS)
		g->pause_ms = 0;
	g->total++;
	if (g->total == 1 || now_ms - g->line_ms >= GARBAGE_LINE_MS) {
		g->line_ms = now_ms;
		log_warn("net", "dropped", "reason=\"%s\" total=%llu", why,
			(unsigned long long)g->total);
	}
	if (!is_too_much(&g->messages, GARBAGE_AT_ONCE, now_ms))
		return 0;
	g->messages.spent_ms = 0;
	return g->pause_ms = next_pause(g->pause_ms);
}
