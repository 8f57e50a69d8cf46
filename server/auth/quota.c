/* quota.c - see quota.h. */
#include "server/auth/quota.h"
#include <stdio.h>
#include <string.h>

/* Returns the entry of `key`. A key that has no entry takes over the entry of the key that was
 * silent for longest. */
static struct quota_entry *entry_of(struct quota *q, const char *key)
{
	struct quota_entry *oldest = &q->entry[0];

	for (uint32_t i = 0; i < QUOTA_KEYS; i++) {
		struct quota_entry *e = &q->entry[i];

		if (strcmp(e->key, key) == 0)
			return e;
		if (!e->key[0]) { /* the entries behind this one are not in use either */
			oldest = e;
			break;
		}
		if (e->used < oldest->used)
			oldest = e;
	}
	*oldest = (struct quota_entry){.key = ""};
	snprintf(oldest->key, sizeof(oldest->key), "%s", key);
	return oldest;
}

int quota_take(struct quota *q, const char *key, enum quota_kind kind, uint32_t per_second,
	uint64_t now_ms)
{
	struct quota_entry *e = entry_of(q, key);
	uint64_t passed_us = (now_ms - e->now_ms[kind]) * 1000, price_us = 1000000 / per_second;
	uint64_t *spent_us = &e->spent_us[kind];

	e->used = ++q->calls;
	*spent_us -= passed_us < *spent_us ? passed_us : *spent_us;
	e->now_ms[kind] = now_ms;
	if (*spent_us + price_us > 1000000) {
		q->dropped++;
		return 0;
	}
	*spent_us += price_us;
	return 1;
}
