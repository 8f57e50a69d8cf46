/* owners.c - see owners.h. */
#include "server/net/owners.h"
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/assert.h"
#include "common/keys.h"
#include "common/mem.h"

/* This struct has the waiting bytes of a key. An entry without waiting bytes can get a new key. */
struct owner_bytes {
	char key[KEY_TEXT];
	atomic_size_t bytes;
};

struct owners {
	struct owner_bytes owner[OWNERS];
	struct {
		uint32_t peer;
		/* the entry of the connection's key; NULL if the key is not known */
		struct owner_bytes *owner;
		/* key of the connection; if `owner` has another key now, `owner` is not valid any
		 * more */
		char key[KEY_TEXT];
	} peer[OWNER_PEERS];
};

/* This struct describes a frame that libzmq sends, and the bytes to subtract when it is sent. */
struct waiting_frame {
	zmq_msg_t inner; /* the frame whose bytes libzmq sends */
	struct owner_bytes *owner;
	char key[KEY_TEXT]; /* the key of `owner` */
	size_t bytes;
};

struct owners *owners_new(void)
{
	return mem_try(1, sizeof(struct owners));
}

void owners_free(struct owners **o)
{
	for (size_t i = 0; *o && i < OWNERS; i++)
		PS_ASSERT(atomic_load(&(*o)->owner[i].bytes) == 0); /* invariant 1 */
	free(*o);
	*o = NULL;
}

static const struct owner_bytes *find_owner(const struct owners *o, const char *key)
{
	for (size_t i = 0; i < OWNERS; i++)
		if (strcmp(o->owner[i].key, key) == 0)
			return &o->owner[i];
	return NULL;
}

/* Returns the entry of `key`, which is new if the key has none. Returns NULL if no entry is
 * free. */
static struct owner_bytes *owner_of(struct owners *o, const char *key)
{
	struct owner_bytes *free_entry = NULL;

	for (size_t i = 0; i < OWNERS; i++) {
		struct owner_bytes *e = &o->owner[i];

		if (strcmp(e->key, key) == 0)
			return e;
		if (!free_entry && atomic_load(&e->bytes) == 0)
			free_entry = e;
	}
	if (free_entry)
		snprintf(free_entry->key, sizeof(free_entry->key), "%s", key);
	return free_entry;
}

int owners_may_pull(struct owners *o, uint32_t peer, const char *key, size_t limit)
{
	struct owner_bytes *owner = owner_of(o, key);
	size_t i = peer % OWNER_PEERS;

	o->peer[i].peer = peer;
	o->peer[i].owner = owner;
	if (!owner)
		return 1;
	memcpy(o->peer[i].key, owner->key, sizeof(o->peer[i].key));
	return atomic_load(&owner->bytes) < limit;
}

size_t owners_waiting(const struct owners *o, const char *key)
{
	const struct owner_bytes *e = find_owner(o, key);

	return e ? atomic_load(&e->bytes) : 0;
}

/* libzmq calls this function when it has sent or dropped a frame. */
static void on_sent(void *data, void *arg)
{
	struct waiting_frame *w = arg;

	(void)data;
	/* invariant 1: while frames of a key exist, its entry gets no other key */
	PS_ASSERT(strcmp(w->owner->key, w->key) == 0);
	size_t before = atomic_fetch_sub(&w->owner->bytes, w->bytes);
	PS_ASSERT(before >= w->bytes); /* invariant 1 */
	(void)zmq_msg_close(&w->inner);
	free(w);
}

void owners_count(struct owners *o, uint32_t peer, zmq_msg_t *frame)
{
	size_t i = peer % OWNER_PEERS;
	struct owner_bytes *owner = o->peer[i].peer == peer ? o->peer[i].owner : NULL;
	struct waiting_frame *w;

	if (!owner || strcmp(owner->key, o->peer[i].key) != 0 || !(w = mem_try(1, sizeof(*w))))
		return;
	w->owner = owner;
	memcpy(w->key, owner->key, sizeof(w->key));
	w->bytes = zmq_msg_size(frame);
	(void)zmq_msg_init(&w->inner);
	(void)zmq_msg_move(&w->inner, frame);
	atomic_fetch_add(&owner->bytes, w->bytes);
	if (zmq_msg_init_data(frame, zmq_msg_data(&w->inner), w->bytes, on_sent, w) == 0)
		return;
	(void)zmq_msg_init(frame);
	(void)zmq_msg_move(frame, &w->inner);
	on_sent(NULL, w);
}
