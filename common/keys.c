/* keys.c - see keys.h. */
#include "common/keys.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zmq.h>
#include "common/file.h"
#include "common/io.h"

#define SECRET_HEADER "cnn-ps secret key\n"
#define PUBLIC_HEADER "cnn-ps public key\n"
#define MAX_KEY_FILE  128 /* maximum bytes of a key file */
#define PATH_BYTES    4096
#define BINARY        32 /* bytes of a key in binary form */
#define MAX_LINKS     40 /* symbolic links on the way to a file, as many as the kernel follows */

int key_is_text(const char *text)
{
	unsigned char binary[BINARY];
	int good = strlen(text) == KEY_TEXT - 1 && zmq_z85_decode(binary, text) != NULL;

	explicit_bzero(binary, sizeof(binary));
	return good;
}

void key_wipe(struct key_pair *k)
{
	explicit_bzero(k, sizeof(*k));
}

int key_random(struct key_pair *k, struct err *e)
{
	if (zmq_curve_keypair(k->public_key, k->secret_key) == 0)
		return PS_OK;
	return err_set(
		e, PS_EUSAGE, "no key: %s; libzmq was built without CURVE", zmq_strerror(errno));
}

/* ---- reading ------------------------------------------------------------------------------- */

/* Returns the bits of `never` that the mode of this file must not have. A process that does not run
 * as root accepts a file of root that one of the process's groups may read, because Kubernetes
 * mounts a secret in this form. Such a process also accepts a file of root that root's group may
 * read, because systemd makes a credential in this form: an access control list lets the user of
 * the service read the file, and the mode shows this as a right of the group. */
static unsigned forbidden_bits(const struct stat *st, unsigned never)
{
	int is_own_group = st->st_gid == 0 || st->st_gid == getegid() || group_member(st->st_gid);
	int is_mounted = st->st_uid == 0 && geteuid() != 0 && is_own_group;

	return is_mounted ? never & ~(unsigned)S_IRGRP : never;
}

static int check_rights(const struct stat *st, const char *path, unsigned never, struct err *e)
{
	unsigned mode = st->st_mode & 07777u;

	if (!S_ISREG(st->st_mode))
		return err_set(e, PS_EUSAGE, "%s: not a regular file", path);
	if (st->st_uid != 0 && st->st_uid != geteuid())
		return err_set(e, PS_EUSAGE, "%s: belongs to user %u; expected user %u or root",
			path, (unsigned)st->st_uid, (unsigned)geteuid());
	if (mode & forbidden_bits(st, never))
		return err_set(e, PS_EUSAGE, "%s: mode %04o permits others to %s it; run chmod %s",
			path, mode, never & 044u ? "read" : "change",
			never & 044u ? "600" : "go-w");
	return PS_OK;
}

/* The way to a file: the directory `dir`, an absolute path without symbolic links, and the part of
 * the path that remains from there. */
struct way {
	char dir[PATH_MAX], rest[2 * PATH_MAX];
	int n_links; /* number of symbolic links so far */
};

static int is_trusted_owner(const struct stat *st)
{
	return st->st_uid == 0 || st->st_uid == geteuid();
}

/* Refuses a directory in which other users could replace what is in it. A directory with the sticky
 * bit is permitted, because the bit prevents other users from replacing files. */
static int check_key_directory(const char *dir, struct err *e)
{
	struct stat st;

	if (stat(dir, &st) != 0)
		return err_set(e, PS_EUSAGE, "%.200s: %s", dir, strerror(errno));
	if (!is_trusted_owner(&st))
		return err_set(e, PS_EUSAGE,
			"%.200s: belongs to user %u, who can replace the key files in it; expected "
			"user %u or root",
			dir, (unsigned)st.st_uid, (unsigned)geteuid());
	if (!(st.st_mode & KEY_NOT_WRITTEN) || st.st_mode & S_ISVTX)
		return PS_OK;
	return err_set(e, PS_EUSAGE,
		"%.200s: mode %04o permits others to replace the key files in it; run chmod go-w",
		dir, (unsigned)(st.st_mode & 07777u));
}

/* Refuses a symbolic link that another user could replace: in a directory in which others can
 * write, and which has the sticky bit, the owner of the link can replace it. */
static int check_link(const char *dir, const char *path, const struct stat *link, struct err *e)
{
	struct stat st;

	if (stat(dir, &st) != 0)
		return err_set(e, PS_EUSAGE, "%.200s: %s", dir, strerror(errno));
	if (!(st.st_mode & KEY_NOT_WRITTEN) || is_trusted_owner(link))
		return PS_OK;
	return err_set(e, PS_EUSAGE,
		"%.200s: belongs to user %u, who can replace this link; expected user %u or root",
		path, (unsigned)link->st_uid, (unsigned)geteuid());
}

/* Puts the target of a symbolic link before the rest of the way. */
static int follow_link(struct way *w, const char *path, struct err *e)
{
	char target[2 * PATH_MAX];
	ssize_t n = readlink(path, target, PATH_MAX);

	if (n < 0)
		return err_set(e, PS_EUSAGE, "%.200s: %s", path, strerror(errno));
	if (n == 0 || n >= PATH_MAX || (size_t)n + strlen(w->rest) + 2 > sizeof(w->rest) ||
		++w->n_links > MAX_LINKS)
		return err_set(e, PS_EUSAGE, "%.200s: the path is too long", path);
	if (target[0] == '/')
		memcpy(w->dir, "/", 2);
	target[n] = '/';
	memcpy(target + n + 1, w->rest, strlen(w->rest) + 1);
	memcpy(w->rest, target, strlen(target) + 1);
	return PS_OK;
}

/* Changes an absolute path to the path of the parent directory. */
static void go_up(char *path)
{
	char *slash = strrchr(path, '/');

	slash[slash == path] = '\0';
}

/* Goes to `name` in w->dir, which may be a link or a directory. After the last name of the path,
 * w->dir is the directory of the file. */
static int go_to(struct way *w, const char *name, struct err *e)
{
	char path[PATH_MAX];
	struct stat st;
	int n = snprintf(path, sizeof(path), "%s/%s", w->dir[1] ? w->dir : "", name);

	if (n < 0 || (size_t)n >= sizeof(path))
		return err_set(e, PS_EUSAGE, "%.100s...: the path is too long", path);
	if (lstat(path, &st) != 0)
		return err_set(e, PS_EUSAGE, "%.200s: %s", path, strerror(errno));
	if (S_ISLNK(st.st_mode)) {
		int rc = check_link(w->dir, path, &st, e);

		return rc ? rc : follow_link(w, path, e);
	}
	if (!S_ISDIR(st.st_mode))
		return PS_OK;
	memcpy(w->dir, path, (size_t)n + 1);
	return check_key_directory(w->dir, e);
}

/* Checks each directory and each symbolic link on the way to the file `path`. A user who can
 * replace one of them can make the path lead to another file. */
static int check_way_to(const char *path, struct err *e)
{
	struct way w = {.dir = "/"};
	char name[NAME_MAX + 1];
	size_t n = 0;

	if (path[0] != '/' && !getcwd(w.rest, PATH_MAX))
		return err_set(e, PS_EUSAGE, "%.200s: %s", path, strerror(errno));
	n = strlen(w.rest);
	if (n + strlen(path) + 2 > sizeof(w.rest) || (n && w.rest[0] != '/'))
		return err_set(e, PS_EUSAGE, "%.100s...: the path is too long", path);
	snprintf(w.rest + n, sizeof(w.rest) - n, "/%s", path);
	int rc = check_key_directory(w.dir, e);
	while (!rc && w.rest[0]) {
		const char *at = w.rest + strspn(w.rest, "/");

		n = strcspn(at, "/");
		if (n > NAME_MAX)
			return err_set(e, PS_EUSAGE, "%.100s...: the path is too long", path);
		memcpy(name, at, n);
		name[n] = '\0';
		memmove(w.rest, at + n, strlen(at + n) + 1);
		if (strcmp(name, "..") == 0)
			go_up(w.dir);
		else if (n > 0 && strcmp(name, ".") != 0)
			rc = go_to(&w, name, e);
	}
	return rc;
}

int key_open(const char *path, unsigned never, struct err *e)
{
	struct stat st;
	int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC), rc;

	if (fd < 0)
		return err_set(e, PS_EUSAGE, "%s: %s", path, strerror(errno));
	rc = fstat(fd, &st) == 0 ? check_rights(&st, path, never, e)
				 : err_set(e, PS_EUSAGE, "%s: %s", path, strerror(errno));
	if (!rc)
		rc = check_way_to(path, e);
	if (rc) {
		close(fd);
		return rc;
	}
	return fd;
}

/* Copies the key from `text` to `key`. `text` must be the header, a key, and an optional newline.
 * The text has n <= MAX_KEY_FILE bytes and then a NUL. */
static int take_key(const char *text, size_t n, const char *header, char key[KEY_TEXT])
{
	size_t head = strlen(header), end = head + KEY_TEXT - 1;

	if (strlen(text) != n || n < end || n > end + 1 || memcmp(text, header, head) != 0)
		return PS_EUSAGE;
	if (n == end + 1 && text[end] != '\n')
		return PS_EUSAGE;
	memcpy(key, text + head, KEY_TEXT - 1);
	key[KEY_TEXT - 1] = '\0';
	return key_is_text(key) ? PS_OK : PS_EUSAGE;
}

static int read_key(
	const char *path, const char *header, unsigned never, char key[KEY_TEXT], struct err *e)
{
	char text[MAX_KEY_FILE + 1];
	int fd = key_open(path, never, e), rc = fd < 0 ? fd : PS_OK;
	ssize_t n;

	if (rc)
		return rc;
	n = read(fd, text, MAX_KEY_FILE);
	close(fd);
	text[n > 0 ? n : 0] = '\0';
	if (n < 0)
		rc = err_set(e, PS_EUSAGE, "%s: %s", path, strerror(errno));
	else if (take_key(text, (size_t)n, header, key))
		rc = err_set(e, PS_EUSAGE,
			"%s: expected \"%.*s\" and 40 characters of Z85 in the line under it", path,
			(int)strlen(header) - 1, header);
	explicit_bzero(text, sizeof(text));
	return rc;
}

int key_read_secret(const char *path, struct key_pair *k, struct err *e)
{
	int rc = read_key(path, SECRET_HEADER, KEY_NOT_READ, k->secret_key, e);

	if (!rc && zmq_curve_public(k->public_key, k->secret_key) != 0)
		rc = err_set(e, PS_EUSAGE, "%s: %s", path, zmq_strerror(errno));
	if (rc)
		key_wipe(k);
	return rc;
}

int key_read_public(const char *path, char key[KEY_TEXT], struct err *e)
{
	return read_key(path, PUBLIC_HEADER, KEY_NOT_WRITTEN, key, e);
}

int key_beside(const char *path, const char *name, char *out, size_t size, struct err *e)
{
	const char *slash = strrchr(path, '/');
	int dir = slash ? (int)(slash - path) + 1 : 0;
	int n = snprintf(out, size, "%.*s%s", dir, path, name);

	if (n < 0 || (size_t)n >= size)
		return err_set(e, PS_EUSAGE, "%.100s...: the path is too long", path);
	return PS_OK;
}

/* ---- writing ------------------------------------------------------------------------------- */

/* Creates a file atomically: the file gets its name after the text is on disk. */
static int write_new(
	const char *path, const char *header, const char *key, unsigned mode, struct err *e)
{
	char temporary[PATH_BYTES + 8], text[MAX_KEY_FILE];
	int n = snprintf(text, sizeof(text), "%s%s\n", header, key), fd, bad;

	snprintf(temporary, sizeof(temporary), "%s.tmp", path);
	(void)unlink(temporary); /* a killed keygen may have left this file */
	fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
	bad = fd < 0 || fchmod(fd, mode) != 0 || io_write_all(fd, text, (size_t)n) != 0 ||
	      fsync(fd) != 0;
	explicit_bzero(text, sizeof(text));
	if (fd >= 0)
		close(fd);
	if (!bad && rename(temporary, path) == 0)
		return PS_OK;
	err_set(e, PS_EIO, "%s: %s", path, strerror(errno));
	if (fd >= 0)
		(void)unlink(temporary);
	return PS_EIO;
}

static int read_or_make(const char *path, struct key_pair *k, int *made, struct err *e)
{
	int rc;

	*made = access(path, F_OK) != 0 && errno == ENOENT;
	if (!*made)
		return key_read_secret(path, k, e);
	rc = key_random(k, e);
	return rc ? rc : write_new(path, SECRET_HEADER, k->secret_key, 0600, e);
}

int key_make_files(const char *dir, const char *name, char key[KEY_TEXT], int *made, struct err *e)
{
	char secret[PATH_BYTES], public[PATH_BYTES], there[KEY_TEXT];
	struct key_pair k;
	int a = snprintf(secret, sizeof(secret), "%s/%s.key", dir, name);
	int b = snprintf(public, sizeof(public), "%s/%s.pub", dir, name);

	*made = 0;
	if (a < 0 || b < 0 || a >= PATH_BYTES || b >= PATH_BYTES)
		return err_set(e, PS_EUSAGE, "%.100s...: the path is too long", dir);
	int rc = read_or_make(secret, &k, made, e);
	if (rc)
		return rc;
	memcpy(key, k.public_key, KEY_TEXT);
	key_wipe(&k);
	if (access(public, F_OK) != 0)
		return write_new(public, PUBLIC_HEADER, key, 0644, e);
	rc = key_read_public(public, there, e);
	if (!rc && strcmp(there, key) != 0)
		rc = err_set(e, PS_EUSAGE, "%s is not the public key of %s", public, secret);
	return rc;
}

/* ---- the process --------------------------------------------------------------------------- */

void key_protect_process(void)
{
	const struct rlimit none = {0, 0};

	(void)prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
	(void)setrlimit(RLIMIT_CORE, &none);
}
