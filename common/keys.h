/*
 * keys.h - CURVE keys in files: one secret or one public key each, as Z85 text under a header line.
 *
 * A secret is read only from a file that its owner (us, or root) alone can read, a public key only
 * from a file that its owner alone can write: else PS_EUSAGE. Options name files, so that no key is
 * part of a command line or an environment. Thread: any; no state.
 */
#ifndef COMMON_KEYS_H
#define COMMON_KEYS_H
#include <stddef.h>
#include "common/err.h"

#define KEY_TEXT  41 /* 40 characters of Z85, and a NUL */
#define KEY_SHORT 8  /* characters that identify a public key in logs and names */

/* Both halves of one key; the owner calls key_wipe. */
struct key_pair {
	char public_key[KEY_TEXT], secret_key[KEY_TEXT];
};

/* A new pair. PS_EUSAGE: this libzmq has no CURVE. */
int key_random(struct key_pair *k, struct err *e) PS_MUST_CHECK;
/* The secret key in `path`, and the public one that belongs to it. */
int key_read_secret(const char *path, struct key_pair *k, struct err *e) PS_MUST_CHECK;
int key_read_public(const char *path, char key[KEY_TEXT], struct err *e) PS_MUST_CHECK;
/* 1 if `text` is 40 characters of Z85. */
int key_is_text(const char *text);
void key_wipe(struct key_pair *k);

/* Write dir/NAME.key (mode 0600) and dir/NAME.pub unless they are there; the public key of the pair
 * into `key`. A lost .pub is made again from its .key. *made: 1 if there was no secret yet. */
int key_make_files(const char *dir, const char *name, char key[KEY_TEXT], int *made,
	struct err *e) PS_MUST_CHECK;
/* The path of `name` in the directory of `path`. PS_EUSAGE: too long. */
int key_beside(
	const char *path, const char *name, char *out, size_t size, struct err *e) PS_MUST_CHECK;
/* Open a file that decides about rights: regular, owned by us or root, without the mode bits
 * `never`. The descriptor, or PS_EUSAGE. */
int key_open(const char *path, unsigned never, struct err *e) PS_MUST_CHECK;
#define KEY_NOT_READ    077u /* by others: a secret */
#define KEY_NOT_WRITTEN 022u /* by others: a public key, an list of authorized keys */

/* Deny core files and ptrace: the process holds a secret. */
void key_protect_process(void);

#endif
