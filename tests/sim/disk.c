/* disk.c - the simulated disk of disk.h. */
#include "tests/sim/disk.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include "tests/sim/names.h"

static int disk_chance(struct disk *d, uint32_t per_mille)
{
	return per_mille && rng_below(&d->rng, 1000) < per_mille;
}

static int disk_fail(int error)
{
	errno = error;
	return -1;
}

/* ---- entries --------------------------------------------------------------------------------- */

/* Records a change of the directory that is not synced yet. If the list of changes is full, the
 * oldest change becomes durable, as in a real file system, which writes its journal in order. */
static void change(struct disk *d, struct disk_change c)
{
	if (d->n_changes == DISK_CHANGES) {
		names_apply(&d->safe, &d->change[0]);
		memmove(d->change, d->change + 1, --d->n_changes * sizeof(c));
	}
	d->change[d->n_changes++] = c;
	names_apply(&d->now, &c);
	uint32_t n = disk_count(d, "");
	d->peak_names = n > d->peak_names ? n : d->peak_names;
}

static struct disk_change change_of(enum disk_change_kind kind, const char *name, int file)
{
	struct disk_change c = {.kind = kind, .file = file};

	names_copy(c.name, name);
	return c;
}

/* ---- files ----------------------------------------------------------------------------------- */

/* Finds the files in use. Sets used[file + 1] to 1 if file number `file` is in an entry of the
 * directory, in an unsynced change or in an open descriptor. The index is file + 1, because unused
 * entries have the file number -1; used[0] has no meaning. */
static void find_used(const struct disk *d, uint8_t used[DISK_FILES + 1])
{
	memset(used, 0, DISK_FILES + 1);
	for (size_t i = 0; i < d->now.end; i++)
		used[d->now.entry[i].file + 1] = 1;
	for (size_t i = 0; i < d->safe.end; i++)
		used[d->safe.entry[i].file + 1] = 1;
	for (size_t i = 0; i < d->n_changes; i++)
		used[d->change[i].file + 1] = 1;
	for (size_t i = 0; i < DISK_OPEN; i++)
		used[d->open[i].file + 1] = 1;
}

static void make_room(struct disk_file *f, size_t size)
{
	if (size <= f->room)
		return;
	f->room = size + size / 2;
	f->now = realloc(f->now, f->room);
	f->safe = realloc(f->safe, f->room);
	if (!f->now || !f->safe)
		abort();
}

/* Called before the bytes [from, to) change. Copies those of these bytes that the file had at its
 * last fsync to `safe`, so that a power cut can restore them. */
static void keep_safe(struct disk_file *f, size_t from, size_t to)
{
	to = to < f->safe_size ? to : f->safe_size;
	if (from < to)
		memcpy(f->safe + from, f->now + from, to - from);
}

/* Called before the bytes [from, to) change. */
static void mark_dirty(struct disk_file *f, size_t from, size_t to)
{
	f->dirty = 1;
	if (f->from >= f->to)
		f->from = f->to = from;
	if (from < f->from) {
		keep_safe(f, from, f->from);
		f->from = from;
	}
	if (to > f->to) {
		keep_safe(f, f->to, to);
		f->to = to;
	}
}

/* Returns byte `b`, which is on the disk, as it was at the last sync. */
static unsigned char safe_byte(const struct disk_file *f, size_t b)
{
	return b >= f->from && b < f->to ? f->safe[b] : f->now[b];
}

static int new_disk_file(struct disk *d)
{
	uint8_t used[DISK_FILES + 1];

	find_used(d, used);
	for (int i = 0; i < DISK_FILES; i++) {
		struct disk_file *f = &d->file[i];

		if (used[i + 1])
			continue;
		f->size = f->safe_size = f->from = f->to = 0;
		f->dirty = 0;
		return i;
	}
	if (d->n_changes == 0)
		/* this cannot happen, because the number of names is bounded, and each name has one
		 * file */
		abort();
	/* All changes become durable now, as in a real file system, which commits its metadata
	 * journal from time to time. */
	names_commit(d);
	return new_disk_file(d);
}

static int new_fd(struct disk *d, struct disk_open o)
{
	for (int i = 0; i < DISK_OPEN; i++) {
		if (d->open[i].file >= 0 || d->open[i].is_directory)
			continue;
		d->open[i] = o;
		return i;
	}
	abort(); /* all descriptors are in use, so the program leaks descriptors */
}

/* ---- faults at each change ------------------------------------------------------------------- */

/* Returns 1 and sets errno if a fault of the disk prevents the change that follows. */
static int is_prevented(struct disk *d)
{
	d->ops++;
	if (d->ops_left != DISK_NEVER && d->ops_left-- == 0)
		d->dead = 1;
	if (d->dead) {
		errno = EIO;
		return 1;
	}
	if (!disk_chance(d, d->fails))
		return 0;
	errno = disk_chance(d, 500) ? EIO : ENOSPC;
	return 1;
}

static struct disk_open *open_file_at(struct disk *d, int fd)
{
	if (fd < 0 || fd >= DISK_OPEN || (d->open[fd].file < 0 && !d->open[fd].is_directory))
		return NULL;
	return &d->open[fd];
}

static struct disk_file *file_at(struct disk *d, int fd)
{
	const struct disk_open *o = open_file_at(d, fd);

	return o && !o->is_directory ? &d->file[o->file] : NULL;
}

/* ---- calls ----------------------------------------------------------------------------------- */

int disk_open_directory(struct disk *d)
{
	return d->dead ? disk_fail(EIO)
		       : new_fd(d, (struct disk_open){.file = -1, .is_directory = 1});
}

int disk_open_file(struct disk *d, const char *name, int flags)
{
	const struct disk_name *n = names_find(&d->now, name);
	int file = n ? n->file : -1;

	if (d->dead)
		return disk_fail(EIO);
	if (file < 0 && !(flags & O_CREAT))
		return disk_fail(ENOENT);
	if ((flags & O_CREAT) && is_prevented(d))
		return -1;
	if (file < 0) {
		file = new_disk_file(d);
		change(d, change_of(CHANGE_LINK, name, file));
	} else if (flags & O_TRUNC) {
		d->file[file].size = 0;
		d->file[file].dirty = 1;
	}
	return new_fd(d,
		(struct disk_open){.file = file, .at = flags & O_APPEND ? d->file[file].size : 0});
}

int disk_close(struct disk *d, int fd)
{
	struct disk_open *o = open_file_at(d, fd);

	if (!o)
		return disk_fail(EBADF);
	*o = (struct disk_open){.file = -1};
	return 0;
}

long disk_read(struct disk *d, int fd, void *bytes, size_t n)
{
	const struct disk_file *f = file_at(d, fd);

	if (!f || d->dead)
		return disk_fail(EIO);
	size_t left = f->size - (d->open[fd].at < f->size ? d->open[fd].at : f->size);
	n = n < left ? n : left;
	if (n == 0) /* memcpy accepts no NULL, and an empty file has no bytes */
		return 0;
	memcpy(bytes, f->now + d->open[fd].at, n);
	d->open[fd].at += n;
	return (long)n;
}

static long take_bytes(struct disk *d, int fd, const void *bytes, size_t n)
{
	struct disk_file *f = file_at(d, fd);
	struct disk_open *o = open_file_at(d, fd);

	if (n == 0) /* memcpy accepts no NULL, and an empty file has no bytes */
		return 0;
	make_room(f, o->at + n);
	mark_dirty(f, o->at < f->size ? o->at : f->size, o->at + n);
	if (o->at > f->size)
		memset(f->now + f->size, 0, o->at - f->size);
	memcpy(f->now + o->at, bytes, n);
	o->at += n;
	f->size = o->at > f->size ? o->at : f->size;
	return (long)n;
}

/* Returns the free space of the disk. */
static uint64_t space(const struct disk *d)
{
	uint64_t used = 0;

	for (const struct disk_name *n = d->now.entry; n < d->now.entry + d->now.end; n++)
		used += n->file >= 0 ? d->file[n->file].size : 0;
	return used < d->capacity ? d->capacity - used : 0;
}

long disk_write(struct disk *d, int fd, const void *bytes, size_t n)
{
	int was_alive = !d->dead;

	if (!file_at(d, fd) || n == 0)
		return n ? disk_fail(EBADF) : 0;
	/* the write fails, but the disk may have stored a part of the bytes */
	if (is_prevented(d)) {
		if (was_alive)
			(void)take_bytes(d, fd, bytes, rng_below(&d->rng, n));
		return -1;
	}
	/* the write stores only as many bytes as the disk has space for */
	if (d->capacity && n > space(d)) {
		(void)take_bytes(d, fd, bytes, (size_t)space(d));
		d->full++;
		return disk_fail(ENOSPC);
	}
	if (n > DISK_SECTOR && disk_chance(d, d->shorts))
		n = 1 + rng_below(&d->rng, n);
	return take_bytes(d, fd, bytes, n);
}

int disk_truncate(struct disk *d, int fd, size_t size)
{
	struct disk_file *f = file_at(d, fd);

	if (!f)
		return disk_fail(EBADF);
	if (is_prevented(d))
		return -1;
	make_room(f, size);
	mark_dirty(f, f->size, size > f->size ? size : f->size);
	if (size > f->size)
		memset(f->now + f->size, 0, size - f->size);
	f->size = size;
	return 0;
}

int disk_seek(struct disk *d, int fd, size_t to)
{
	if (!file_at(d, fd))
		return disk_fail(EBADF);
	d->open[fd].at = to;
	return 0;
}

static void sync_file(struct disk_file *f)
{
	f->safe_size = f->size;
	f->dirty = 0;
	f->from = f->to = 0;
}

/* Discards the writes that a failed sync could not store. The next sync reports success although
 * these writes are lost. */
static void lose_writes(struct disk *d, struct disk_file *f);

int disk_sync(struct disk *d, int fd)
{
	struct disk_open *o = open_file_at(d, fd);
	int was_alive = !d->dead;

	if (!o)
		return disk_fail(EBADF);
	if (is_prevented(d)) {
		if (was_alive && !d->dead && !o->is_directory)
			lose_writes(d, &d->file[o->file]);
		return -1;
	}
	if (disk_chance(d, d->forgets))
		d->broken = d->lied = 1;
	else if (!o->is_directory)
		sync_file(&d->file[o->file]);
	else
		names_commit(d);
	return 0;
}

int disk_rename(struct disk *d, const char *name, const char *to)
{
	const struct disk_name *n = names_find(&d->now, name);

	if (is_prevented(d))
		return -1;
	if (!n)
		return disk_fail(ENOENT);
	struct disk_change c = change_of(CHANGE_RENAME, name, n->file);
	names_copy(c.to, to);
	change(d, c);
	return 0;
}

int disk_unlink(struct disk *d, const char *name)
{
	if (is_prevented(d))
		return -1;
	if (!names_find(&d->now, name))
		return disk_fail(ENOENT);
	change(d, change_of(CHANGE_UNLINK, name, -1));
	return 0;
}

int disk_lock(struct disk *d, int fd)
{
	for (int i = 0; i < DISK_OPEN; i++)
		if (i != fd && d->open[i].locked)
			return disk_fail(EWOULDBLOCK);
	if (!open_file_at(d, fd))
		return disk_fail(EBADF);
	d->open[fd].locked = 1;
	return 0;
}

long disk_size_of(struct disk *d, const char *name)
{
	const struct disk_name *n = names_find(&d->now, name);

	if (d->dead)
		return disk_fail(EIO);
	return n ? (long)d->file[n->file].size : disk_fail(ENOENT);
}

long disk_size(struct disk *d, int fd)
{
	const struct disk_file *f = file_at(d, fd);

	return f && !d->dead ? (long)f->size : disk_fail(EIO);
}

void disk_rewind(struct disk *d)
{
	d->listing = 0;
}

const char *disk_next(struct disk *d)
{
	while (d->listing < d->now.end && d->now.entry[d->listing].file < 0)
		d->listing++;
	return d->listing < d->now.end && !d->dead ? d->now.entry[d->listing++].text : NULL;
}

/* ---- ends ------------------------------------------------------------------------------------ */

void disk_killed(struct disk *d)
{
	for (size_t i = 0; i < DISK_OPEN; i++)
		d->open[i] = (struct disk_open){.file = -1};
	d->dead = 0;
	d->ops_left = DISK_NEVER;
}

enum survival { NONE, ALL, FIRST, ANY, WAYS };

/* Decides which of the sectors written since the last fsync survive a power cut. After the call,
 * `now` is the content that the file has on the disk. */
static void keep_sectors(struct disk *d, struct disk_file *f, enum survival way)
{
	size_t first = rng_below(&d->rng, f->size / DISK_SECTOR + 2);

	for (size_t i = 0; i * DISK_SECTOR < f->size; i++) {
		size_t from = i * DISK_SECTOR, to = from + DISK_SECTOR;

		if (way == ALL || (way == FIRST ? i < first : way == ANY && disk_chance(d, 500)))
			continue;
		to = to < f->size ? to : f->size;
		for (size_t b = from; b < to; b++)
			f->now[b] = b < f->safe_size ? safe_byte(f, b) : 0;
	}
}

static void lose_writes(struct disk *d, struct disk_file *f)
{
	enum survival way = (enum survival)rng_below(&d->rng, WAYS);

	if (!f->dirty)
		return;
	make_room(f, f->safe_size);
	if (way == NONE || disk_chance(d, 300)) { /* the power cut loses the new size of the file */
		for (size_t b = f->size; b < f->safe_size; b++)
			f->now[b] = safe_byte(f, b);
		f->size = f->safe_size;
	}
	keep_sectors(d, f, way);
	sync_file(f);
}

void disk_power_cut(struct disk *d)
{
	uint8_t used[DISK_FILES + 1];

	names_survive(d);
	find_used(d, used);
	for (int i = 0; i < DISK_FILES; i++)
		if (used[i + 1])
			lose_writes(d, &d->file[i]);
	d->cuts++;
}

void disk_rot(struct disk *d, const char *prefix)
{
	const struct disk_name *newest = NULL;

	for (const struct disk_name *n = d->now.entry; n < d->now.entry + d->now.end; n++)
		if (n->file >= 0 && strncmp(n->text, prefix, strlen(prefix)) == 0 &&
			(!newest || strcmp(n->text, newest->text) > 0))
			newest = n;
	if (!newest || d->file[newest->file].size == 0)
		return;
	struct disk_file *f = &d->file[newest->file];
	size_t byte = rng_below(&d->rng, f->size);
	f->now[byte] ^= (unsigned char)(1u << rng_below(&d->rng, 8));
	sync_file(f);
	d->broken = 1;
}

void disk_init(struct disk *d)
{
	memset(d, 0, sizeof(*d));
	names_forget(d);
	disk_killed(d);
}

void disk_reset(struct disk *d, struct rng rng)
{
	names_forget(d);
	disk_killed(d);
	d->rng = rng;
	d->fails = d->shorts = d->forgets = d->full = 0;
	d->capacity = 0;
	d->broken = d->lied = 0;
	d->peak_names = 0;
	d->ops = d->cuts = 0;
}

void disk_release(struct disk *d)
{
	for (size_t i = 0; i < DISK_FILES; i++) {
		free(d->file[i].now);
		free(d->file[i].safe);
	}
}
