/* journal.c - see journal.h: writing, and the directory. */
#include "common/journal.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "common/file.h"
#include "common/generation.h"
#include "common/journal_format.h"
#include "common/log.h"
#include "common/mem.h"

#define BUFFER_BYTES 65536u /* small records are written together */

struct journal {
	int fd;
	struct journal_head head;
	XXH3_state_t *hash;
	char path[4160];
	uint64_t seq, group;       /* of the next record */
	uint64_t bytes, old_bytes; /* of what was appended; of the file that is written over */
	size_t fill;               /* of buffer: not written yet */
	unsigned char buffer[BUFFER_BYTES];
};

static int failed(const struct journal *j, const char *step, struct err *e)
{
	return err_set(e, PS_EIO, "%.300s: %s: %s", j->path, step, strerror(errno));
}

static int write_bytes(struct journal *j, const void *bytes, size_t n, struct err *e)
{
	return file_write_all(j->fd, bytes, n) ? failed(j, "write", e) : PS_OK;
}

static int flush(struct journal *j, struct err *e)
{
	size_t n = j->fill;

	j->fill = 0;
	return write_bytes(j, j->buffer, n, e);
}

static int add(struct journal *j, const void *bytes, size_t n, struct err *e)
{
	int rc = PS_OK;

	j->bytes += n;
	if (n > BUFFER_BYTES - j->fill)
		rc = flush(j, e);
	if (rc || n == 0)
		return rc;
	if (n > BUFFER_BYTES)
		return write_bytes(j, bytes, n, e);
	memcpy(j->buffer + j->fill, bytes, n);
	j->fill += n;
	return PS_OK;
}

static void remove_file(DIR *d, uint64_t generation)
{
	char name[GENERATION_NAME];

	generation_name(JOURNAL_PREFIX, generation, name);
	if (unlinkat(dirfd(d), name, 0) != 0)
		log_warn("journal", "remove_failed", "file=%s error=\"%s\"", name, strerror(errno));
}

/* The highest generation in [first, last]; 0: none. */
static uint64_t highest(DIR *d, uint64_t first, uint64_t last)
{
	uint64_t g = first <= last ? generation_highest(d, JOURNAL_PREFIX, last) : 0;

	return g >= first ? g : 0;
}

/* Of all journals before the newest one up to `oldest` one stays, whose name comes back; 0: there
 * is none. */
static uint64_t take_old(DIR *d, uint64_t oldest)
{
	uint64_t needed = highest(d, 1, oldest), kept = 0;

	if (needed)
		kept = highest(d, 1, needed - 1);
	for (uint64_t g = kept; g && (g = highest(d, 1, g - 1)) != 0;)
		remove_file(d, g);
	return kept;
}

/* Under its name, on disk, and open at its first byte: an old file, or a new one. */
static int open_file(struct journal *j, DIR *d, uint64_t oldest, struct err *e)
{
	char name[GENERATION_NAME], old[GENERATION_NAME];
	uint64_t kept = take_old(d, oldest);
	struct stat st;

	generation_name(JOURNAL_PREFIX, j->head.generation, name);
	generation_name(JOURNAL_PREFIX, kept, old);
	if (kept && renameat(dirfd(d), old, dirfd(d), name) != 0)
		return failed(j, "rename", e);
	j->fd = openat(dirfd(d), name, O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0644);
	if (j->fd < 0)
		return failed(j, "create", e);
	if (fstat(j->fd, &st) == 0)
		j->old_bytes = (uint64_t)st.st_size;
	if (fsync(dirfd(d)) != 0)
		return failed(j, "fsync of the directory", e);
	return PS_OK;
}

static struct journal *new_journal(const struct journal_head *head)
{
	struct journal *j = mem_try(1, sizeof(*j));

	if (!j)
		return NULL;
	j->fd = -1;
	j->head = *head;
	j->seq = j->group = head->first;
	j->hash = XXH3_createState();
	if (!j->hash)
		journal_close(&j);
	return j;
}

int journal_create(struct journal **out, const char *dir, const struct journal_head *head,
	uint64_t oldest, struct err *e)
{
	unsigned char bytes[JOURNAL_HEAD_BYTES];
	char name[GENERATION_NAME];
	DIR *d = opendir(dir);

	*out = NULL;
	if (!d)
		return err_set(e, PS_EIO, "%s: open directory: %s", dir, strerror(errno));
	struct journal *j = new_journal(head);
	if (!j) {
		closedir(d);
		return err_set(e, PS_ENOMEM, "no memory for a journal");
	}
	generation_name(JOURNAL_PREFIX, head->generation, name);
	snprintf(j->path, sizeof(j->path), "%.4096s/%s", dir, name);
	int rc = open_file(j, d, oldest, e);
	closedir(d);
	journal_put_head(head, bytes);
	if (!rc)
		rc = add(j, bytes, sizeof(bytes), e);
	if (rc)
		journal_close(&j);
	*out = j;
	return rc;
}

int journal_append(struct journal *j, const struct file_part *parts, size_t n_parts, struct err *e)
{
	static const unsigned char zeros[8];
	unsigned char bytes[JOURNAL_RECORD_BYTES];
	struct journal_record r = {
		.generation = j->head.generation, .seq = j->seq, .group = j->group};

	for (size_t i = 0; i < n_parts; i++)
		r.size += parts[i].size;
	journal_put_record(&r, bytes);
	(void)XXH3_64bits_reset(j->hash);
	(void)XXH3_64bits_update(j->hash, bytes, JOURNAL_RECORD_BYTES - 8);
	for (size_t i = 0; i < n_parts; i++)
		(void)XXH3_64bits_update(j->hash, parts[i].data, parts[i].size);
	le64_put(bytes + 40, XXH3_64bits_digest(j->hash));
	int rc = add(j, bytes, sizeof(bytes), e);
	for (size_t i = 0; i < n_parts && !rc; i++)
		rc = add(j, parts[i].data, parts[i].size, e);
	if (!rc)
		rc = add(j, zeros, journal_padded(r.size) - r.size, e);
	j->seq++;
	return rc;
}

int journal_sync(struct journal *j, struct err *e)
{
	int rc = flush(j, e);

	if (rc)
		return rc;
	if (fdatasync(j->fd) != 0)
		return failed(j, "fdatasync", e);
	j->group = j->seq;
	return PS_OK;
}

uint64_t journal_bytes(const struct journal *j)
{
	return j->bytes;
}

uint64_t journal_growth(const struct journal *j, uint64_t bytes)
{
	uint64_t end = j->bytes + bytes, taken = j->bytes > j->old_bytes ? j->bytes : j->old_bytes;

	return end > taken ? end - taken : 0;
}

void journal_close(struct journal **j)
{
	if (!*j)
		return;
	if ((*j)->fd >= 0)
		close((*j)->fd);
	(void)XXH3_freeState((*j)->hash);
	free(*j);
	*j = NULL;
}

/* ---- the directory ------------------------------------------------------------------------ */

uint64_t journal_newest(const char *dir, uint64_t most)
{
	DIR *d = opendir(dir);
	uint64_t newest = d ? generation_highest(d, JOURNAL_PREFIX, most) : 0;

	if (d)
		closedir(d);
	return newest;
}

void journal_remove(const char *dir, uint64_t first, uint64_t last)
{
	DIR *d = opendir(dir);

	if (!d)
		return;
	for (uint64_t g = last + 1; (g = highest(d, first, g - 1)) != 0;)
		remove_file(d, g);
	closedir(d);
}
