/* allow.c - see allow.h. */
#include "common/allow.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "common/mem.h"

#define LINE_BYTES 256

struct allowed {
	char key[KEY_TEXT];
	enum key_role role;
};

struct allow {
	size_t n;
	struct allowed entry[ALLOW_MAX];
};

static const char *const role_name[KEY_ROLES] = {"stranger", "observer", "admin", "worker"};

const char *allow_role_name(enum key_role role)
{
	return role_name[role];
}

size_t allow_count(const struct allow *a)
{
	return a->n;
}

static int by_key(const void *a, const void *b)
{
	return strcmp(((const struct allowed *)a)->key, ((const struct allowed *)b)->key);
}

enum key_role allow_role(const struct allow *a, const char *key)
{
	struct allowed wanted;
	const struct allowed *found;

	if (strlen(key) != KEY_TEXT - 1)
		return KEY_STRANGER;
	memcpy(wanted.key, key, KEY_TEXT);
	found = bsearch(&wanted, a->entry, a->n, sizeof wanted, by_key);
	return found ? found->role : KEY_STRANGER;
}

/* ---- reading ------------------------------------------------------------------------------- */

static enum key_role role_of(const char *word)
{
	for (int role = KEY_OBSERVER; role < KEY_ROLES; role++)
		if (!strcmp(word, role_name[role]))
			return (enum key_role)role;
	return KEY_STRANGER;
}

/* The next word of *at, ended with a NUL; "" at the line's end. */
static char *next_word(char **at)
{
	char *word = *at + strspn(*at, " \t");
	size_t n = strcspn(word, " \t");

	*at = word + n;
	if (**at)
		*(*at)++ = '\0';
	return word;
}

static int take_line(struct allow *a, char *line, const char **why)
{
	char *at = line, *role = next_word(&at), *key = next_word(&at);
	struct allowed *to = &a->entry[a->n];

	if (*role == '\0' || *role == '#')
		return PS_OK;
	*why = "expected worker, admin or observer, then a public key of 40 characters";
	if (role_of(role) == KEY_STRANGER || !key_is_text(key))
		return PS_EUSAGE;
	*why = "too many keys";
	if (a->n == ALLOW_MAX)
		return PS_EUSAGE;
	memcpy(to->key, key, KEY_TEXT);
	to->role = role_of(role);
	a->n++;
	return PS_OK;
}

static int take_lines(struct allow *a, FILE *f, const char *path, struct err *e)
{
	char line[LINE_BYTES];
	const char *why = "";

	for (int number = 1; fgets(line, sizeof line, f); number++) {
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
	qsort(a->entry, a->n, sizeof *a->entry, by_key);
	for (size_t i = 1; i < a->n; i++)
		if (!by_key(&a->entry[i - 1], &a->entry[i]))
			return err_set(e, PS_EUSAGE, "%s: the key %.*s... is there twice", path,
				KEY_SHORT, a->entry[i].key);
	return PS_OK;
}

int allow_read(struct allow **out, const char *path, struct err *e)
{
	int fd = key_open(path, KEY_NOT_WRITTEN, e), rc;
	struct allow *a = fd < 0 ? NULL : mem_try(1, sizeof *a);
	FILE *f = a ? fdopen(fd, "r") : NULL;

	*out = NULL;
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

int allow_copy(struct allow **out, const struct allow *from)
{
	*out = mem_try(1, sizeof **out);
	if (!*out)
		return PS_ENOMEM;
	memcpy(*out, from, sizeof **out);
	return PS_OK;
}

void allow_free(struct allow **a)
{
	free(*a);
	*a = NULL;
}

/* ---- writing ------------------------------------------------------------------------------- */

static int append_line(
	const char *path, enum key_role role, const char *key, const char *name, struct err *e)
{
	char line[LINE_BYTES];
	int n = snprintf(line, sizeof line, "%s %s %s\n", role_name[role], key, name);
	int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
	int bad = fd < 0 || n < 0 || (size_t)n >= sizeof line || write(fd, line, (size_t)n) != n ||
		  fsync(fd) != 0;

	if (bad)
		err_set(e, PS_EIO, "%s: %s", path, strerror(errno));
	if (fd >= 0)
		close(fd);
	return bad ? PS_EIO : PS_OK;
}

int allow_add(
	const char *path, enum key_role role, const char *key, const char *name, struct err *e)
{
	struct allow *a;
	int rc, there;

	if (access(path, F_OK) != 0 && errno == ENOENT)
		return append_line(path, role, key, name, e);
	if ((rc = allow_read(&a, path, e)))
		return rc;
	there = allow_role(a, key) != KEY_STRANGER;
	allow_free(&a);
	return there ? PS_OK : append_line(path, role, key, name, e);
}
