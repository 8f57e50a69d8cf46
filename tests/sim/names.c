/* names.c - the directory entries of the simulated disk (names.h). */
#include "tests/sim/names.h"
#include <stdlib.h>
#include <string.h>

struct disk_name *names_find(struct disk_names *names, const char *text)
{
	for (struct disk_name *n = names->entry; n < names->entry + names->end; n++)
		if (n->file >= 0 && strcmp(n->text, text) == 0)
			return n;
	return NULL;
}

void names_copy(char to[DISK_NAME], const char *text)
{
	size_t n = strnlen(text, DISK_NAME - 1);

	memcpy(to, text, n);
	to[n] = '\0';
}

/* Returns the first entry without a name. */
static struct disk_name *free_entry(struct disk_names *names)
{
	for (size_t i = 0; i < names->end; i++)
		if (names->entry[i].file < 0)
			return &names->entry[i];
	if (names->end == DISK_FILES)
		/* this cannot happen, because bounds.c checks the number of files after every
		 * event */
		abort();
	return &names->entry[names->end++];
}

static void put_name(struct disk_names *names, const char *text, int file)
{
	struct disk_name *n = names_find(names, text);

	n = n ? n : free_entry(names);
	names_copy(n->text, text);
	n->file = file;
}

static void take_name(struct disk_names *names, const char *text)
{
	struct disk_name *n = names_find(names, text);

	if (n)
		n->file = -1;
}

void names_apply(struct disk_names *names, const struct disk_change *c)
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

	for (size_t i = 0; i < d->now.end; i++)
		n += d->now.entry[i].file >= 0 &&
		     (length == 0 || strncmp(d->now.entry[i].text, prefix, length) == 0);
	return n;
}

static void copy_names(struct disk_names *to, const struct disk_names *from)
{
	memcpy(to->entry, from->entry, from->end * sizeof(from->entry[0]));
	to->end = from->end;
}

void names_survive(struct disk *d)
{
	int in_order = rng_below(&d->rng, 2) == 0;
	size_t keep = rng_below(&d->rng, d->n_changes + 1);

	for (size_t i = 0; i < d->n_changes; i++)
		if (in_order ? i < keep : rng_below(&d->rng, 2) == 0)
			names_apply(&d->safe, &d->change[i]);
	copy_names(&d->now, &d->safe);
	d->n_changes = 0;
}

void names_commit(struct disk *d)
{
	copy_names(&d->safe, &d->now);
	d->n_changes = 0;
}

void names_forget(struct disk *d)
{
	d->now.end = d->safe.end = 0;
	d->n_changes = 0;
}
