/*
 * authorized_keys.h - the list of public keys that may connect to a server, and their roles.
 *
 * The list is a text file with one key per line, `ROLE KEY [NAME]`. ROLE is worker, admin or
 * observer. The reader ignores empty lines and lines that begin with #. The reader refuses the
 * whole file if a line has another form, if a key appears twice, or if other users can write to the
 * file. Any thread may use a list, because it does not change after the read.
 */
#ifndef COMMON_AUTHORIZED_KEYS_H
#define COMMON_AUTHORIZED_KEYS_H
#include <stddef.h>
#include "common/err.h"
#include "common/keys.h"

#define MAX_AUTHORIZED_KEYS 4096
/* usual name of the file; release 0.1.0 called it "allow" */
#define AUTHORIZED_KEYS_FILE "authorized_keys"

enum key_role { KEY_NONE, KEY_OBSERVER, KEY_ADMIN, KEY_WORKER, KEY_ROLES };

struct authorized_keys; /* opaque; the keys are in ascending order */

/* Reads the list. If a line is bad or the file still has its old name, returns PS_EUSAGE, and the
 * message names the line or asks the user to rename the file. Other error: PS_ENOMEM. */
int authorized_keys_read(
	struct authorized_keys **out, const char *path, struct err *e) PS_MUST_CHECK;
/* Frees the list and sets *a to NULL; *a may be NULL. */
void authorized_keys_free(struct authorized_keys **a);
/* Returns the role of `key`, or KEY_NONE if the key is not on the list. */
enum key_role authorized_keys_role(const struct authorized_keys *a, const char *key);
size_t authorized_keys_count(const struct authorized_keys *a);
/* Returns the number of keys that have the role `role`. */
size_t authorized_keys_of_role(const struct authorized_keys *a, enum key_role role);
/* Returns the name of the role: "observer", "admin" or "worker". */
const char *key_role_name(enum key_role role);
/* Returns PS_OK if authorized_keys_add can extend the list, that is, if the file is missing or
 * correct. If the file is wrong, returns the status with which authorized_keys_read refuses it. */
int authorized_keys_check(const char *path, struct err *e) PS_MUST_CHECK;
/* Appends a line for `key` unless the list already has the key. Creates the file if it does not
 * exist. Errors: PS_EIO, PS_EUSAGE. */
int authorized_keys_add(const char *path, enum key_role role, const char *key, const char *name,
	struct err *e) PS_MUST_CHECK;

#endif
