/* promise.c - see promise.h. */
#include "server/durability/promise.h"

int promise_waits(const struct msg *m)
{
	switch (m->type) {
	case MSG_BEAT:
	case MSG_ERROR:
	case MSG_STATUS:
	case MSG_ADMIN:
		return 0;
	case MSG_WELCOME:
		return m->welcome.stamp.worker != 0;
	default:
		return 1;
	}
}

int promise_binds(const struct core *c, uint64_t version_before)
{
	const struct effect *e;

	if (core_stats(c)->version != version_before)
		return 1;
	for (size_t i = 0; (e = core_effect(c, i)) != NULL; i++)
		if (e->kind == EFFECT_SEND && e->msg.type != MSG_PARAMS && promise_waits(&e->msg))
			return 1;
	return 0;
}
