/* names.c - the directory entries of the simulated disk (names.h). */
#include "tests/sim/names.h"
#include <stdlib.h>
#include <string.h>

struct disk_name *names_find(struct disk_name *names, const char *text)
{
	for (size_t i = 0; i < DISK_FILES; i++)
		if (names[i].file >= 0 && strcmp(names[i].text, text) == 0)
			return &names[i];
	return NULL;
}

void names_copy(char to[DISK_NAME], const char *text)
{
	size_t n = strnlen(text, DISK_NAME - 1);

	memcpy(to, text, n);
	to[n] = '\0';
}

static void put_name(struct disk_name *names, const char *text, int file)
{
	struct disk_name *n = names_find(names, text);

	for (size_t i = 0; !n && i < DISK_FILES; i++)
		if (names[i].file < 0)
			n = &names[i];
	if (!n)
		/* this cannot happen, because bounds.c checks the number of files after every
		 * event */
		abort();
	names_copy(n->text, text);
	n->file = file;
}

static void take_name(struct disk_name *names, const char *text)
{
	struct disk_name *n = names_find(names, text);

	if (n)
		n->file = -1;
}

void names_apply(struct disk_name *names, const struct disk_change *c)
{
	if (c->kind != CHANGE_LINK)
		take_name(names, c->name);
	if (c->kind != CHANGE_UNLINK)
		put_name(names, c->kind == CHANGE_LINK ? c->name : c->to, c->file);
}

uint32_t disk_count(const struct disk *d, const char *prefix)
{
	size_t length = strlen(prefix);
	uint32_t n = 0;

	for (size_t i = 0; i < DISK_FILES; i++)
		n += d->now[i].file >= 0 &&
		     (length == 0 || strncmp(d->now[i].text, prefix, length) == 0);
	return n;
}

void names_survive(struct disk *d)
{
	int in_order = rng_below(&d->rng, 2) == 0;
	size_t keep = rng_below(&d->rng, d->n_changes + 1);

	for (size_t i = 0; i < d->n_changes; i++)
		if (in_order ? i < keep : rng_below(&d->rng, 2) == 0)
			names_apply(d->safe, &d->change[i]);
	memcpy(d->now, d->safe, sizeof(d->now));
	d->n_changes = 0;
}

void names_commit(struct disk *d)
{
	memcpy(d->safe, d->now, sizeof(d->safe));
	d->n_changes = 0;
}

void names_forget(struct disk *d)
{
	for (size_t i = 0; i < DISK_FILES; i++)
		d->now[i].file = d->safe[i].file = -1;
	d->n_changes = 0;
}
