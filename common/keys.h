/*
 * keys.h - CURVE keys in files. Each file has one secret or one public key, as Z85 text after a
 * header line.
 *
 * The owner of a key file must be this user or root. The mode of a key file must allow only the
 * owner to read a secret key, and only the owner to write to the file of a public key. If a key
 * file has another owner or mode, the functions return PS_EUSAGE. As an exception, a group of this
 * process or root's group may read the file of a secret key if root owns the file (mode 0440, as
 * Kubernetes mounts a secret, and systemd a credential). The functions also return PS_EUSAGE if
 * another user could replace the file, or a directory or a symbolic link on the way to it. A user
 * passes only the name of a key file in an option, so that no command line or environment contains
 * a key. Any thread may call the functions, which have no state.
 */
#ifndef COMMON_KEYS_H
#define COMMON_KEYS_H
#include <stddef.h>
#include "common/err.h"

#define KEY_TEXT  41 /* 40 characters of Z85, and a NUL */
#define KEY_SHORT 8  /* number of characters of a public key that logs and names show */

/* This struct has the public and the secret half of one key. The owner of the struct must erase it
 * with key_wipe. */
struct key_pair {
	char public_key[KEY_TEXT], secret_key[KEY_TEXT];
};

/* Makes a new random key pair. Returns PS_EUSAGE if libzmq was built without CURVE. */
int key_random(struct key_pair *k, struct err *e) PS_MUST_CHECK;
/* Reads the secret key in `path` and computes its public key. */
int key_read_secret(const char *path, struct key_pair *k, struct err *e) PS_MUST_CHECK;
int key_read_public(const char *path, char key[KEY_TEXT], struct err *e) PS_MUST_CHECK;
/* Returns 1 if `text` is 40 characters of Z85. */
int key_is_text(const char *text);
void key_wipe(struct key_pair *k);

/* Writes dir/NAME.key (mode 0600) and dir/NAME.pub unless they exist, and the public key into
 * `key`. If only NAME.pub is missing, the function computes it from NAME.key. Sets *made to 1 if
 * the secret key is new. */
int key_make_files(const char *dir, const char *name, char key[KEY_TEXT], int *made,
	struct err *e) PS_MUST_CHECK;
/* Writes to `out` the path of the file `name` in the directory of `path`. Returns PS_EUSAGE if the
 * result is too long. */
int key_beside(
	const char *path, const char *name, char *out, size_t size, struct err *e) PS_MUST_CHECK;
/* Opens a file of a key, or of authorized keys, for reading. The file must be a regular file of
 * this user or root, and its mode must have none of the bits in `never`. Returns the descriptor, or
 * PS_EUSAGE if the file cannot be opened or has another owner or mode. */
int key_open(const char *path, unsigned never, struct err *e) PS_MUST_CHECK;
/* value of `never` for the file of a secret: only the owner may have rights */
#define KEY_NOT_READ 077u
/* value of `never` for the file of a public key or of authorized keys: only the owner may write */
#define KEY_NOT_WRITTEN 022u

/* Denies core files and ptrace for this process, because its memory has a secret key. */
void key_protect_process(void);

#endif
