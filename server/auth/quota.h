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
#include "common/keys.h"

/* maximum number of keys with an entry; a new key replaces the key that was silent for longest */
#define QUOTA_KEYS   64u
#define QUOTA_STATUS 50u /* STATUS per second */
/* HELLOs of observers per second. The quota of handshakes is at least twice this number, and at
 * least twice the number of the key's worker slots, so that all workers of a key can connect at
 * once */
#define QUOTA_HELLO 25u
#define QUOTA_JOINS 5u /* minimum quota of HELLO of workers per second */

enum quota_kind { QUOTA_OF_HELLO, QUOTA_OF_STATUS, QUOTA_OF_HANDSHAKE, QUOTA_KINDS };

struct quota_entry {
	char key[KEY_TEXT]; /* "": unused */
	uint64_t used;      /* the number of the newest call of quota_take for this key */
	uint64_t now_ms[QUOTA_KINDS];
	uint64_t spent_us[QUOTA_KINDS]; /* time until the bucket is full again */
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
