/* authorized_keys.c - see authorized_keys.h. */
#include "common/authorized_keys.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "common/io.h"
#include "common/mem.h"

#define LINE_BYTES 256

struct authorized_key {
	char key[KEY_TEXT];
	enum key_role role;
};

struct authorized_keys {
	size_t n;
	struct authorized_key entry[MAX_AUTHORIZED_KEYS];
};

static const char *const role_name[KEY_ROLES] = {"none", "observer", "admin", "worker"};

const char *key_role_name(enum key_role role)
{
	return role_name[role];
}

size_t authorized_keys_of_role(const struct authorized_keys *a, enum key_role role)
{
	size_t n = 0;

	for (size_t i = 0; i < a->n; i++)
		n += a->entry[i].role == role;
	return n;
}

size_t authorized_keys_count(const struct authorized_keys *a)
{
	return a->n;
}

static int by_key(const void *a, const void *b)
{
	return strcmp(
		((const struct authorized_key *)a)->key, ((const struct authorized_key *)b)->key);
}

enum key_role authorized_keys_role(const struct authorized_keys *a, const char *key)
{
	struct authorized_key wanted;
	const struct authorized_key *found;

	if (strlen(key) != KEY_TEXT - 1)
		return KEY_NONE;
	memcpy(wanted.key, key, KEY_TEXT);
	found = bsearch(&wanted, a->entry, a->n, sizeof(wanted), by_key);
	return found ? found->role : KEY_NONE;
}

/* ---- reading ------------------------------------------------------------------------------- */

static enum key_role role_of(const char *word)
{
	for (int role = KEY_OBSERVER; role < KEY_ROLES; role++)
		if (!strcmp(word, role_name[role]))
			return (enum key_role)role;
	return KEY_NONE;
}

/* Returns the next word of the line, terminated with a NUL, and moves *at past it. Returns "" if
 * the line has no more words. */
static char *next_word(char **at)
{
	char *word = *at + strspn(*at, " \t");
	size_t n = strcspn(word, " \t");

	*at = word + n;
	if (**at)
		*(*at)++ = '\0';
	return word;
}

static int take_line(struct authorized_keys *a, char *line, const char **why)
{
	char *at = line, *role = next_word(&at), *key = next_word(&at);
	struct authorized_key *to = &a->entry[a->n];

	if (*role == '\0' || *role == '#')
		return PS_OK;
	*why = "expected worker, admin or observer, then a public key of 40 characters";
	if (role_of(role) == KEY_NONE || !key_is_text(key))
		return PS_EUSAGE;
	*why = "too many keys";
	if (a->n == MAX_AUTHORIZED_KEYS)
		return PS_EUSAGE;
	memcpy(to->key, key, KEY_TEXT);
	to->role = role_of(role);
	a->n++;
	return PS_OK;
}

static int take_lines(struct authorized_keys *a, FILE *f, const char *path, struct err *e)
{
	char line[LINE_BYTES];
	const char *why = "";

	for (int number = 1; fgets(line, sizeof(line), f); number++) {
		size_t n = strcspn(line, "\r\n");
		int whole = line[n] != '\0' || feof(f);

		line[n] = '\0';
		if (!whole)
			return err_set(e, PS_EUSAGE, "%s:%d: the line is too long", path, number);
		if (take_line(a, line, &why))
			return err_set(e, PS_EUSAGE, "%s:%d: %s", path, number, why);
	}
	if (ferror(f))
		return err_set(e, PS_EUSAGE, "%s: %s", path, strerror(errno));
	qsort(a->entry, a->n, sizeof(*a->entry), by_key);
	for (size_t i = 1; i < a->n; i++)
		if (!by_key(&a->entry[i - 1], &a->entry[i]))
			return err_set(e, PS_EUSAGE, "%s: the key %.*s... is on the list twice",
				path, KEY_SHORT, a->entry[i].key);
	return PS_OK;
}

/* Refuses the list if `path` is missing but the file with the old name exists. In this situation
 * the user has not renamed the file, and a new empty list would refuse all keys of the old file. */
static int refuse_old_name(const char *path, struct err *e)
{
	const char *old = "allow", *slash = strrchr(path, '/');
	int directory = slash ? (int)(slash + 1 - path) : 0;
	char text[4096];

	if (access(path, F_OK) == 0 || errno != ENOENT ||
		strcmp(path + directory, AUTHORIZED_KEYS_FILE) != 0)
		return PS_OK;
	snprintf(text, sizeof(text), "%.*s%s", directory, path, old);
	return access(text, F_OK) != 0 ? PS_OK
				       : err_set(e, PS_EUSAGE, "%s: was renamed: move it to %s",
						 text, AUTHORIZED_KEYS_FILE);
}

int authorized_keys_read(struct authorized_keys **out, const char *path, struct err *e)
{
	*out = NULL;
	if (refuse_old_name(path, e))
		return PS_EUSAGE;
	int fd = key_open(path, KEY_NOT_WRITTEN, e), rc;
	struct authorized_keys *a = fd < 0 ? NULL : mem_try(1, sizeof(*a));
	FILE *f = a ? fdopen(fd, "r") : NULL;

	if (fd < 0)
		return fd;
	rc = f ? take_lines(a, f, path, e) : err_set(e, PS_ENOMEM, "%s: no memory", path);
	if (f)
		fclose(f);
	else
		close(fd);
	if (rc)
		free(a);
	else
		*out = a;
	return rc;
}

void authorized_keys_free(struct authorized_keys **a)
{
	free(*a);
	*a = NULL;
}

int authorized_keys_check(const char *path, struct err *e)
{
	struct authorized_keys *a;
	int rc = refuse_old_name(path, e);

	if (rc || (access(path, F_OK) != 0 && errno == ENOENT))
		return rc;
	rc = authorized_keys_read(&a, path, e);
	authorized_keys_free(&a);
	return rc;
}

/* ---- writing ------------------------------------------------------------------------------- */

static int append_line(
	const char *path, enum key_role role, const char *key, const char *name, struct err *e)
{
	char line[LINE_BYTES];
	int n = snprintf(line, sizeof(line), "%s %s %s\n", role_name[role], key, name);
	int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
	int bad = fd < 0 || n < 0 || (size_t)n >= sizeof(line) ||
		  io_write_all(fd, line, (size_t)n) != 0 || fsync(fd) != 0;

	if (bad)
		err_set(e, PS_EIO, "%s: %s", path, strerror(errno));
	if (fd >= 0)
		close(fd);
	return bad ? PS_EIO : PS_OK;
}

int authorized_keys_add(
	const char *path, enum key_role role, const char *key, const char *name, struct err *e)
{
	struct authorized_keys *a;
	int rc, there;

	if (refuse_old_name(path, e))
		return PS_EUSAGE;
	if (access(path, F_OK) != 0 && errno == ENOENT)
		return append_line(path, role, key, name, e);
	if ((rc = authorized_keys_read(&a, path, e)))
		return rc;
	there = authorized_keys_role(a, key) != KEY_NONE;
	authorized_keys_free(&a);
	return there ? PS_OK : append_line(path, role, key, name, e);
}
