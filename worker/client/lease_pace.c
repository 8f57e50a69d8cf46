/* lease_pace.c - see lease_pace.h. */
#include "worker/client/lease_pace.h"

#define LEASE 1000u /* the amount of one lease in `taken` */

int lease_pace_allows(struct lease_pace *p, uint64_t waited_ms, uint64_t now_ms)
{
	uint64_t ms = now_ms - p->ms, back = ms < LEASE ? ms * LEASES_PER_S : p->taken;

	p->taken -= back < p->taken ? back : p->taken;
	p->ms = now_ms;
	if (p->empty >= MAX_EMPTY_LEASES && waited_ms < LEASE_PAUSE_MS)
		return 0;
	return !p->idle || p->taken + LEASE <= LEASES_AT_ONCE * LEASE;
}

void lease_pace_lease(struct lease_pace *p)
{
	p->taken += p->idle ? LEASE : 0;
	p->idle = 1;
	p->empty++;
}

void lease_pace_push(struct lease_pace *p)
{
	p->idle = 0;
	p->empty = 0;
}

void lease_pace_result(struct lease_pace *p)
{
	p->empty = 0;
}
