/*
 * checkpoint.c - see checkpoint.h. The bytes of a file, by offset:
 *
 *   0  magic "CNNPSCK1"                      | 24 + 40 i  section i: name[16], offset, size, XXH3
 *   8  format version, 4 bytes               | 24 + 40 n  XXH3 of all bytes before it
 *  12  number of sections n, 4 bytes         | 32 + 40 n  the sections, in order, without gaps
 *  16  generation, 8 bytes                   |            end of file
 *
 * The file has no gaps and no bytes after the last section, so a checksum covers every byte.
 */
#include "common/checkpoint.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include "common/assert.h"
#include "common/file.h"
#include "common/generation.h"
#include "common/le.h"
#include "common/log.h"
#include "common/xxh3.h"

#define MAGIC          "CNNPSCK1"
#define FORMAT         1u
#define FIXED_BYTES    24u
#define ROW_BYTES      40u
#define CHECKSUM_BYTES 8u
#define HEAD_BYTES(n)  (FIXED_BYTES + ROW_BYTES * (n) + CHECKSUM_BYTES)
#define NAME_BYTES     sizeof(((struct checkpoint_section *)0)->name)

/* ---- file names in the directory ---------------------------------------------------------- */

#define PREFIX "ckpt"

static void remove_file(DIR *d, const char *name)
{
	if (unlinkat(dirfd(d), name, 0) != 0)
		log_warn("checkpoint", "remove_failed", "file=%s error=\"%s\"", name,
			strerror(errno));
}

static void remove_temporaries(DIR *d)
{
	rewinddir(d);
	for (const struct dirent *entry; (entry = readdir(d));)
		if (generation_parse(entry->d_name, PREFIX, ".tmp"))
			remove_file(d, entry->d_name);
}

/* The result of one pass over the file names of a directory. */
struct found {
	/* the highest generations up to a limit, in descending order; entries that remain are 0 */
	uint64_t highest[CHECKPOINT_KEEP + 1];
	int temporaries; /* 1 if the directory has temporary files */
};

static void find_generations(DIR *d, uint64_t max, struct found *f)
{
	*f = (struct found){.temporaries = 0};
	rewinddir(d);
	for (const struct dirent *entry; (entry = readdir(d));) {
		uint64_t g = generation_parse(entry->d_name, PREFIX, "");

		f->temporaries |= !g && generation_parse(entry->d_name, PREFIX, ".tmp");
		for (int i = 0; i <= CHECKPOINT_KEEP && g && g <= max; i++) {
			uint64_t lower = f->highest[i] < g ? f->highest[i] : g;

			f->highest[i] = f->highest[i] < g ? g : f->highest[i];
			g = lower;
		}
	}
}

/* Keeps the CHECKPOINT_KEEP highest generations up to `newest` and removes the older ones. If a
 * file cannot be removed, the function logs a warning, and the next write tries again. Until then,
 * the file takes up space, but does no other harm. */
static void remove_old(const char *dir, uint64_t newest)
{
	DIR *d = opendir(dir);

	if (!d) {
		log_warn("checkpoint", "remove_failed", "dir=\"%s\" error=\"%s\"", dir,
			strerror(errno));
		return;
	}
	struct found f;
	/* leave out generation `newest`, which must not be removed */
	find_generations(d, newest - 1, &f);
	uint64_t generation = f.highest[CHECKPOINT_KEEP - 1], next = f.highest[CHECKPOINT_KEEP];
	while (generation) {
		char name[GENERATION_NAME];

		generation_name(PREFIX, generation, name);
		remove_file(d, name);
		generation = next;
		next = next ? generation_highest(d, PREFIX, next - 1) : 0;
	}
	if (f.temporaries)
		remove_temporaries(d);
	closedir(d);
}

/* Removes the files of a failed write: the file `name`, which may not be durable, and temporary
 * files. */
static void remove_failed(const char *dir, const char *name)
{
	struct stat st;
	DIR *d = opendir(dir);

	if (!d)
		return;
	if (fstatat(dirfd(d), name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode))
		remove_file(d, name);
	remove_temporaries(d);
	closedir(d);
}

/* ---- writing ------------------------------------------------------------------------------ */

/* Writes the header, the table and the checksum of both to `head`. Returns the size of the whole
 * file, or 0 if this size exceeds CHECKPOINT_MAX_BYTES. */
static size_t fill_head(const struct checkpoint *c, unsigned char *head)
{
	size_t offset = HEAD_BYTES(c->n_sections);

	memcpy(head, MAGIC, 8);
	le32_put(head + 8, FORMAT);
	le32_put(head + 12, (uint32_t)c->n_sections);
	le64_put(head + 16, c->generation);
	for (size_t i = 0; i < c->n_sections; i++) {
		const struct checkpoint_section *s = &c->section[i];
		unsigned char *row = head + FIXED_BYTES + ROW_BYTES * i;

		/* invariant 1 */
		PS_ASSERT(s->name[0] && s->name[NAME_BYTES - 1] == '\0' &&
			  checkpoint_find(c, s->name) == s);
		if (s->size > CHECKPOINT_MAX_BYTES - offset)
			return 0;
		memset(row, 0, NAME_BYTES);
		memcpy(row, s->name, strlen(s->name));
		le64_put(row + 16, offset);
		le64_put(row + 24, s->size);
		le64_put(row + 32, XXH3_64bits(s->data, s->size));
		offset += s->size;
	}
	size_t table_end = HEAD_BYTES(c->n_sections) - CHECKSUM_BYTES;
	le64_put(head + table_end, XXH3_64bits(head, table_end));
	return offset;
}

uint64_t checkpoint_make_space(const char *dir, uint64_t sound, uint64_t next)
{
	DIR *d = opendir(dir);

	if (!d)
		return 0;
	uint64_t oldest = generation_lowest(d, PREFIX, 1);
	if (oldest && oldest == sound)
		oldest = generation_lowest(d, PREFIX, sound + 1);
	int found = oldest && oldest < next;
	if (found) {
		char name[GENERATION_NAME];

		generation_name(PREFIX, oldest, name);
		found = unlinkat(dirfd(d), name, 0) == 0;
		if (!found)
			log_warn("checkpoint", "remove_failed", "generation=%" PRIu64, oldest);
	}
	closedir(d);
	return found ? oldest : 0;
}

void checkpoint_clean(const char *dir)
{
	DIR *d = opendir(dir);

	if (!d)
		return;
	remove_temporaries(d);
	closedir(d);
}

int checkpoint_write(const char *dir, const struct checkpoint *c, struct err *e)
{
	DIR *d = opendir(dir);

	uint64_t sound =
		d && c->generation > 1 ? generation_highest(d, PREFIX, c->generation - 1) : 0;
	if (d)
		closedir(d);
	return checkpoint_write_beside(dir, c, sound, NULL, e);
}

int checkpoint_write_beside(const char *dir, const struct checkpoint *c, uint64_t sound,
	uint64_t *dropped, struct err *e)
{
	unsigned char head[HEAD_BYTES(CHECKPOINT_MAX_SECTIONS)];
	struct file_part part[CHECKPOINT_MAX_SECTIONS + 1];
	char name[GENERATION_NAME];

	/* invariant 1 */
	PS_ASSERT(c->n_sections <= CHECKPOINT_MAX_SECTIONS && c->generation >= 1);
	if (fill_head(c, head) == 0)
		return err_set(e, PS_EIO, "%s: a checkpoint over %zu bytes is not written", dir,
			CHECKPOINT_MAX_BYTES);
	part[0] = (struct file_part){head, HEAD_BYTES(c->n_sections)};
	for (size_t i = 0; i < c->n_sections; i++)
		part[i + 1] = (struct file_part){c->section[i].data, c->section[i].size};
	generation_name(PREFIX, c->generation, name);
	for (;;) {
		int rc = file_replace_private(dir, name, part, c->n_sections + 1, e);
		int full = rc && file_no_space(errno);

		if (rc)
			remove_failed(dir, name);
		else
			remove_old(dir, c->generation);
		uint64_t gone = full ? checkpoint_make_space(dir, sound, c->generation) : 0;
		if (!gone)
			return rc;
		if (dropped)
			*dropped = gone;
	}
}

/* ---- reading ------------------------------------------------------------------------------ */

/* Checks one row of the table, whose checksum was verified before. The section of this row must
 * begin at `*offset`. Returns an error text or NULL. */
static const char *read_row(const unsigned char *file, size_t size, const unsigned char *row,
	size_t *offset, struct checkpoint *c)
{
	struct checkpoint_section *s = &c->section[c->n_sections];
	uint64_t length = le64_get(row + 24);

	memcpy(s->name, row, NAME_BYTES);
	if (s->name[0] == '\0' || s->name[NAME_BYTES - 1] != '\0' || checkpoint_find(c, s->name))
		return "a section's name is empty, too long or occurs twice";
	if (le64_get(row + 16) != *offset || length > size - *offset)
		return "a section does not lie directly after the part before it";
	if (XXH3_64bits(file + *offset, (size_t)length) != le64_get(row + 32))
		return "a section differs from its checksum";
	s->data = file + *offset;
	s->size = (size_t)length;
	*offset += s->size;
	c->n_sections++;
	return NULL;
}

/* Makes the sections of `c` point into `file`, which has `size` bytes. Returns an error text or
 * NULL. */
static const char *read_sections(const unsigned char *file, size_t size, struct checkpoint *c)
{
	if (size < HEAD_BYTES(0) || memcmp(file, MAGIC, 8) != 0)
		return "not a checkpoint: it has no header of a checkpoint";
	size_t n = le32_get(file + 12);
	if (n > CHECKPOINT_MAX_SECTIONS || size < HEAD_BYTES(n))
		return "the header has an impossible number of sections";
	size_t offset = HEAD_BYTES(n);
	if (XXH3_64bits(file, offset - CHECKSUM_BYTES) != le64_get(file + offset - CHECKSUM_BYTES))
		return "the header differs from its checksum";
	if (le32_get(file + 8) != FORMAT)
		return "another version of this program wrote it, in another format";
	c->generation = le64_get(file + 16);
	if (c->generation == 0)
		return "the header's generation is 0";
	for (size_t i = 0; i < n; i++) {
		const char *why =
			read_row(file, size, file + FIXED_BYTES + ROW_BYTES * i, &offset, c);
		if (why)
			return why;
	}
	return offset == size ? NULL : "there are bytes after the last section";
}

int checkpoint_read(const char *path, struct checkpoint *c, struct err *e)
{
	size_t size;
	*c = (struct checkpoint){0};
	int rc = file_read(path, CHECKPOINT_MAX_BYTES, &c->memory, &size, e);

	if (rc == PS_ETOOBIG)
		return err_set(e, PS_ECHECKPOINT, "%s: too large for a checkpoint", path);
	if (rc)
		return rc;
	const char *why = read_sections(c->memory, size, c);
	if (!why)
		return PS_OK;
	checkpoint_release(c);
	return err_set(e, PS_ECHECKPOINT, "%s: %s", path, why);
}

static int read_generation(
	const char *dir, uint64_t generation, struct checkpoint *c, struct err *e)
{
	char name[GENERATION_NAME], path[4096];

	generation_name(PREFIX, generation, name);
	*c = (struct checkpoint){0};
	int n = snprintf(path, sizeof(path), "%s/%s", dir, name);
	if (n < 0 || (size_t)n >= sizeof(path))
		return err_set(e, PS_EIO, "%s: path too long", dir);
	int rc = checkpoint_read(path, c, e);
	if (rc || c->generation == generation)
		return rc;
	rc = err_set(e, PS_ECHECKPOINT,
		"%s: contains generation %016" PRIx64 ", but its name has another", path,
		c->generation);
	checkpoint_release(c);
	return rc;
}

/* Reads the highest generation up to `newest` whose file is good. */
static int read_highest_good(
	const char *dir, DIR *d, uint64_t newest, struct checkpoint *c, struct err *e)
{
	struct err why;
	size_t bad = 0;

	for (uint64_t g = newest; g; g = generation_highest(d, PREFIX, g - 1)) {
		if (read_generation(dir, g, c, &why) == PS_OK) {
			if (bad)
				log_warn("checkpoint", "fallback",
					"generation=%" PRIu64 " refused=%zu", g, bad);
			return PS_OK;
		}
		bad++;
		log_warn("checkpoint", "refused", "generation=%" PRIu64 " reason=\"%s\"", g,
			why.text);
	}
	if (bad)
		return err_set(e, PS_ECHECKPOINT,
			"%s: none of its %zu checkpoints is good; the last refusal: %s", dir, bad,
			why.text);
	return PS_OK; /* the directory has no checkpoint: c->generation is 0 */
}

int checkpoint_read_newest(
	const char *dir, int clean, struct checkpoint *c, uint64_t *newest_seen, struct err *e)
{
	*c = (struct checkpoint){0};
	if (newest_seen)
		*newest_seen = 0;
	DIR *d = opendir(dir);
	if (!d)
		return err_set(e, PS_EIO, "%s: open directory: %s", dir, strerror(errno));
	if (clean)
		remove_temporaries(d);
	uint64_t newest = generation_highest(d, PREFIX, UINT64_MAX);
	if (newest_seen)
		*newest_seen = newest;
	int rc = read_highest_good(dir, d, newest, c, e);
	closedir(d);
	return rc;
}

int checkpoint_read_older(const char *dir, uint64_t before, struct checkpoint *c, struct err *e)
{
	*c = (struct checkpoint){0};
	DIR *d = opendir(dir);

	if (!d)
		return err_set(e, PS_EIO, "%s: open directory: %s", dir, strerror(errno));
	uint64_t highest = before > 1 ? generation_highest(d, PREFIX, before - 1) : 0;
	int rc = read_highest_good(dir, d, highest, c, e);
	closedir(d);
	return rc;
}

uint64_t checkpoint_oldest(const char *dir)
{
	DIR *d = opendir(dir);
	uint64_t generation = d ? generation_lowest(d, PREFIX, 1) : 0;

	if (d)
		closedir(d);
	return generation;
}

/* Returns the number of free bytes in the file system of `dir`, or UINT64_MAX if it is unknown. */
static uint64_t free_bytes(const char *dir)
{
	struct statvfs fs;

	if (statvfs(dir, &fs) != 0 || fs.f_blocks == 0)
		return UINT64_MAX;
	return (uint64_t)fs.f_bavail * fs.f_frsize;
}

/* Returns the number of bytes of all generations except `sound`, and of temporary files. */
static uint64_t droppable_bytes(const char *dir, uint64_t sound)
{
	struct stat st;
	uint64_t bytes = 0;
	DIR *d = opendir(dir);

	if (!d)
		return 0;
	for (const struct dirent *entry; (entry = readdir(d));) {
		uint64_t g = generation_parse(entry->d_name, PREFIX, "");
		int counts = g ? g != sound : generation_parse(entry->d_name, PREFIX, ".tmp") != 0;

		if (counts && fstatat(dirfd(d), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0)
			bytes += (uint64_t)st.st_size;
	}
	closedir(d);
	return bytes;
}

/* Another thread may write or remove a checkpoint while this function counts the bytes. The bytes
 * of a checkpoint that is removed in the meantime could count twice, as its size and as free space.
 * The function therefore reads the free space before and after the count, and uses the smaller
 * value. */
int checkpoint_has_room(const char *dir, uint64_t sound, uint64_t bytes)
{
	uint64_t before = free_bytes(dir);

	if (before >= bytes)
		return 1;
	uint64_t dropped = droppable_bytes(dir, sound), after = free_bytes(dir);
	return (after < before ? after : before) + dropped >= bytes;
}

const struct checkpoint_section *checkpoint_find(const struct checkpoint *c, const char *name)
{
	for (size_t i = 0; i < c->n_sections; i++)
		/* strcmp is seldom needed, because most names differ in their first character */
		if (c->section[i].name[0] == name[0] && strcmp(c->section[i].name, name) == 0)
			return &c->section[i];
	return NULL;
}

void checkpoint_release(struct checkpoint *c)
{
	/* NOLINTNEXTLINE(clang-analyzer-unix.Malloc): err_set never returns 0 */
	free(c->memory);
	*c = (struct checkpoint){0};
}
