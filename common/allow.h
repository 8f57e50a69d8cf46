/*
 * allow.h - the allow-list: which public keys may speak to a server, and as what.
 *
 * A text file, one key a line: `ROLE KEY [NAME]`, ROLE one of worker, admin, observer; lines that
 * are empty or begin with # say nothing. A file with any other line is refused as a whole, so is
 * one with a key twice, or one that others can change. Thread: any; a list never changes.
 */
#ifndef COMMON_ALLOW_H
#define COMMON_ALLOW_H
#include <stddef.h>
#include "common/err.h"
#include "common/keys.h"

#define ALLOW_MAX 4096 /* keys on a list */

enum key_role { KEY_STRANGER, KEY_OBSERVER, KEY_ADMIN, KEY_WORKER, KEY_ROLES };

struct allow; /* opaque: sorted by key */

/* PS_EUSAGE names the line; PS_ENOMEM. */
int allow_read(struct allow **out, const char *path, struct err *e) PS_MUST_CHECK;
int allow_copy(struct allow **out, const struct allow *from) PS_MUST_CHECK;
/* Frees and nulls *a; NULL is fine. */
void allow_free(struct allow **a);
/* What the owner of `key` may be; KEY_STRANGER: it is not on the list. */
enum key_role allow_role(const struct allow *a, const char *key);
size_t allow_count(const struct allow *a);
/* "observer", ... */
const char *allow_role_name(enum key_role role);
/* Append a line for `key` unless the list has it; makes the file. PS_EIO, PS_EUSAGE. */
int allow_add(const char *path, enum key_role role, const char *key, const char *name,
	struct err *e) PS_MUST_CHECK;

#endif
