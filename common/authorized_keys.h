/*
 * authorized_keys.h - the list of public keys that may connect to a server, and their roles.
 *
 * A text file, one key per line: `ROLE KEY [NAME]`, ROLE one of worker, admin, observer. Empty lines
 * and lines that begin with # are ignored. A file with any other line, with a key twice, or that
 * others can write is refused as a whole. Thread: any; a list is constant once it was read.
 */
#ifndef COMMON_AUTHORIZED_KEYS_H
#define COMMON_AUTHORIZED_KEYS_H
#include <stddef.h>
#include "common/err.h"
#include "common/keys.h"

#define MAX_AUTHORIZED_KEYS  4096
#define AUTHORIZED_KEYS_FILE "authorized_keys" /* usual name; until 0.1.0 it was "allow" */

enum key_role { KEY_NONE, KEY_OBSERVER, KEY_ADMIN, KEY_WORKER, KEY_ROLES };

struct authorized_keys; /* opaque: sorted by key */

/* PS_EUSAGE names the line, or the new name of a file that still has the old one; PS_ENOMEM. */
int authorized_keys_read(
	struct authorized_keys **out, const char *path, struct err *e) PS_MUST_CHECK;
/* Frees and nulls *a; NULL is fine. */
void authorized_keys_free(struct authorized_keys **a);
/* The role of `key`; KEY_NONE: it is not on the list. */
enum key_role authorized_keys_role(const struct authorized_keys *a, const char *key);
size_t authorized_keys_count(const struct authorized_keys *a);
/* "observer", ... */
const char *key_role_name(enum key_role role);
/* Append a line for `key` unless the list has it; creates the file. PS_EIO, PS_EUSAGE. */
int authorized_keys_add(const char *path, enum key_role role, const char *key, const char *name,
	struct err *e) PS_MUST_CHECK;

#endif
