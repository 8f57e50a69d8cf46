/* key_connections.c - see key_connections.h. */
#include "server/net/key_connections.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/assert.h"
#include "common/authorized_keys.h"
#include "common/keys.h"
#include "common/mem.h"

/* This struct has the number of connections of a key. An entry with n = 0 can get a new key. */
struct key_count {
	char key[KEY_TEXT];
	uint32_t n;
};

struct connection {
	uint32_t peer;
	/* 1 + the index of the key's entry in `owner` below; 0: the connection does not count */
	uint32_t owner;
};

struct key_connections {
	struct key_count owner[MAX_AUTHORIZED_KEYS];
	/* number of entries that have had a key; the entries after them are unused */
	uint32_t owners;
	uint32_t fds;
	uint32_t used; /* 1 + the largest descriptor of a connection that was ever counted */
	struct connection connection[];
};

static size_t bytes_for(uint32_t fds)
{
	return sizeof(struct key_connections) + fds * sizeof(struct connection);
}

int key_connections_new(struct key_connections **out, uint32_t fds)
{
	*out = mem_lazy(bytes_for(fds));
	if (!*out)
		return PS_ENOMEM;
	(*out)->fds = fds;
	return PS_OK;
}

void key_connections_free(struct key_connections **k)
{
	if (*k)
		mem_lazy_free(*k, bytes_for((*k)->fds));
	*k = NULL;
}

int key_connections_has(const struct key_connections *k, uint32_t fd, uint32_t peer)
{
	return k->connection[fd].owner && k->connection[fd].peer == peer;
}

/* Returns the index of the entry of `key`, which is new if the key has none. Returns
 * MAX_AUTHORIZED_KEYS if no entry is free. */
static uint32_t count_of(struct key_connections *k, const char *key)
{
	uint32_t unused = k->owners;

	for (uint32_t i = 0; i < k->owners; i++) {
		if (strcmp(k->owner[i].key, key) == 0)
			return i;
		if (k->owner[i].n == 0 && unused == k->owners)
			unused = i;
	}
	if (unused == MAX_AUTHORIZED_KEYS)
		return unused;
	snprintf(k->owner[unused].key, sizeof(k->owner[unused].key), "%s", key);
	k->owners += unused == k->owners;
	return unused;
}

uint32_t key_connections_add(struct key_connections *k, uint32_t fd, uint32_t peer, const char *key)
{
	key_connections_remove(k, fd); /* forget an older connection that had the same descriptor */
	uint32_t i = count_of(k, key);

	if (i == MAX_AUTHORIZED_KEYS)
		return 0;
	k->connection[fd] = (struct connection){.peer = peer, .owner = i + 1};
	k->used = fd < k->used ? k->used : fd + 1;
	return ++k->owner[i].n;
}

void key_connections_remove(struct key_connections *k, uint32_t fd)
{
	struct connection *c = &k->connection[fd];

	if (!c->owner)
		return;
	PS_ASSERT(k->owner[c->owner - 1].n > 0); /* invariant 1 */
	k->owner[c->owner - 1].n--;
	c->owner = 0;
}

/* Checks invariant 1 for all keys. */
static void assert_counts(const struct key_connections *k)
{
	uint32_t n[MAX_AUTHORIZED_KEYS] = {0};

	for (uint32_t fd = 0; fd < k->used; fd++)
		if (k->connection[fd].owner)
			n[k->connection[fd].owner - 1]++;
	for (uint32_t i = 0; i < k->owners; i++)
		PS_ASSERT(k->owner[i].n == n[i]); /* invariant 1 */
}

void key_connections_retain(struct key_connections *k, const unsigned char *open, uint32_t but)
{
	for (uint32_t fd = 0; fd < k->used; fd++)
		if (fd != but && !(open[fd / 8] >> (fd % 8) & 1))
			key_connections_remove(k, fd);
	assert_counts(k);
}

const char *key_connections_key(const struct key_connections *k, uint32_t fd)
{
	const uint32_t owner = k->connection[fd].owner;

	return owner ? k->owner[owner - 1].key : NULL;
}

uint32_t key_connections_of(const struct key_connections *k, const char *key)
{
	for (uint32_t i = 0; i < k->owners; i++)
		if (strcmp(k->owner[i].key, key) == 0)
			return k->owner[i].n;
	return 0;
}
