/* admission.c - see admission.h. */
#include "server/net/admission.h"

#define PRICE_US (1000000 / ADMISSION_BURST)

int admission_ask(struct admission *a, uint64_t now_ms)
{
	uint64_t passed_ms = now_ms - a->now_ms;

	a->now_ms = now_ms;
	if (passed_ms >= 1000 || a->spent_us <= passed_ms * 1000)
		a->spent_us = 0;
	else
		a->spent_us -= passed_ms * 1000;
	if (a->spent_us + PRICE_US > 1000000) {
		a->turned_away++;
		return 0;
	}
	a->spent_us += PRICE_US;
	return 1;
}
