/*
 * admission.h - how many newcomers are let in: after a restart all workers say HELLO at once, and
 * one whose supervisor starts it again and again says nothing else.
 *
 * A bucket of ADMISSION_BURST tokens, filled again at that rate a second; each worker's HELLO takes
 * one (an observer costs nothing). A HELLO that finds none gets no answer, and its sender says it
 * again after a while (proto/WIRE.md, "Session").
 *
 * Pure. Thread: any.
 */
#ifndef SERVER_NET_ADMISSION_H
#define SERVER_NET_ADMISSION_H
#include <stdint.h>

#define ADMISSION_BURST 50 /* HELLOs at once, and HELLOs a second */

struct admission {
	uint64_t spent_us; /* time that the HELLOs taken in are worth, not yet paid back */
	uint64_t now_ms;   /* of the last call */
	uint64_t turned_away;
};

/* Whether a HELLO may be taken in now. All zero is a full bucket; `now_ms` never goes back. */
int admission_ask(struct admission *a, uint64_t now_ms);

#endif
