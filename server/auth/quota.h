/*
 * quota.h - limits how many messages and handshakes the server accepts from a key, so that one key
 * cannot take the time that the server needs for the other keys.
 *
 * A token bucket for each key and kind has room for the messages of one second. The server drops
 * messages above the quota without an answer; clients send them again later.
 *
 * The function is pure: the caller passes the time, which must never decrease. Only the thread that
 * owns the struct may call the function; in auth.c this is the loop's thread.
 */
#ifndef SERVER_AUTH_QUOTA_H
#define SERVER_AUTH_QUOTA_H
#include <stdint.h>
#include "common/authorized_keys.h"
#include "common/keys.h"

/* maximum number of keys with an entry; a new key replaces the key that was silent for longest. The
 * table has room for all keys on a list. In a smaller table, a key could lose its entry while other
 * keys send, and its new entry would permit the messages of another second. */
#define QUOTA_KEYS   MAX_AUTHORIZED_KEYS
#define QUOTA_STATUS 50u /* quota of STATUS messages of a key, per second */
/* quota of observers' HELLOs of a key, per second. The quota of handshakes is at least twice this
 * number, and at least twice the number of the key's worker slots, so that all workers of a key can
 * connect at once */
#define QUOTA_HELLO 25u
#define QUOTA_JOINS 5u /* minimum quota of workers' HELLOs of a key, per second */

enum quota_kind { QUOTA_OF_HELLO, QUOTA_OF_STATUS, QUOTA_OF_HANDSHAKE, QUOTA_KINDS };

struct quota_entry {
	char key[KEY_TEXT]; /* key of the entry; "": the entry is not in use */
	/* number of the newest call of quota_take for `key`, counted over the calls for all keys */
	uint64_t used;
	uint64_t now_ms[QUOTA_KINDS];
	/* time from now_ms until the bucket is full again, in us */
	uint64_t spent_us[QUOTA_KINDS];
};

/* This struct has the quotas of all keys. A struct of zeros is valid, and means that no key has
 * sent anything. */
struct quota {
	struct quota_entry entry[QUOTA_KEYS];
	uint64_t calls, dropped;
};

/* Takes one token from the bucket of `key` for messages of `kind`. `per_second` is the number of
 * tokens that this bucket gets in a second. Returns 0 if the bucket is empty. */
int quota_take(struct quota *q, const char *key, enum quota_kind kind, uint32_t per_second,
	uint64_t now_ms);

#endif
