/* journal_read.c - see journal.h: reading, which believes nothing. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "common/generation.h"
#include "common/journal.h"
#include "common/journal_format.h"
#include "common/mem.h"

#define SEARCH_BYTES ((size_t)1 << 20) /* looked at in one piece */
#define MOST_REFUSED 64 /* places that look like a record and are none, in a search */

/* Bytes read at `at`: `n`, fewer at the end of the file, or PS_EIO. */
static ssize_t read_at(
	const struct journal_reader *r, uint64_t at, void *out, size_t n, struct err *e)
{
	size_t have = 0;

	while (have < n) {
		ssize_t got = pread(r->fd, (char *)out + have, n - have, (off_t)(at + have));
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return err_set(e, PS_EIO, "%.300s: read: %s", r->path, strerror(errno));
		if (got == 0)
			break;
		have += (size_t)got;
	}
	return (ssize_t)have;
}

static void close_reader(struct journal_reader *r)
{
	if (r->fd >= 0)
		close(r->fd);
	r->fd = -1;
}

int journal_open(
	struct journal_reader *r, const char *dir, uint64_t generation, size_t most, struct err *e)
{
	unsigned char bytes[JOURNAL_HEAD_BYTES];
	char name[GENERATION_NAME];
	struct stat st;

	*r = (struct journal_reader){.fd = -1, .at = JOURNAL_HEAD_BYTES, .most = most};
	r->hash = XXH3_createState();
	if (!r->hash)
		return err_set(e, PS_ENOMEM, "no memory to read a journal");
	generation_name(JOURNAL_PREFIX, generation, name);
	snprintf(r->path, sizeof(r->path), "%.4096s/%s", dir, name);
	r->fd = open(r->path, O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC);
	if (r->fd < 0 && errno == ENOENT)
		return PS_OK;
	if (r->fd < 0 || fstat(r->fd, &st) != 0 || !S_ISREG(st.st_mode)) {
		close_reader(r);
		return err_set(e, PS_EIO, "%.300s: not a file that can be read", r->path);
	}
	r->end = (uint64_t)st.st_size;
	ssize_t got = read_at(r, 0, bytes, sizeof(bytes), e);
	if (got < 0) {
		close_reader(r);
		return (int)got;
	}
	if (got == (ssize_t)sizeof(bytes) && journal_get_head(bytes, &r->head)) {
		r->next = r->head.first;
		if (r->head.generation != generation) /* an old file that was not begun anew yet */
			close_reader(r);
	} else {
		r->head = (struct journal_head){.generation = generation};
	}
	return PS_OK;
}

static int make_room(struct journal_reader *r, size_t size, struct err *e)
{
	if (size <= r->room)
		return PS_OK;
	free(r->data);
	r->data = mem_try(size + size / 4, 1);
	r->room = r->data ? size + size / 4 : 0;
	return r->data ? PS_OK : err_set(e, PS_ENOMEM, "no memory for a record of %zu bytes", size);
}

/* The record at `at`, checked, its payload in r->data: 1, 0 there is none, or PS_E*. */
static int read_whole(
	struct journal_reader *r, uint64_t at, struct journal_record *rec, struct err *e)
{
	unsigned char bytes[JOURNAL_RECORD_BYTES];
	ssize_t got = read_at(r, at, bytes, sizeof(bytes), e);

	if (got < (ssize_t)sizeof(bytes))
		return got < 0 ? (int)got : 0;
	if (!journal_get_record(bytes, rec) || rec->generation != r->head.generation ||
		rec->size > r->most || rec->size > r->end - at - sizeof(bytes))
		return 0;
	int rc = make_room(r, (size_t)rec->size, e);
	if (rc)
		return rc;
	got = read_at(r, at + sizeof(bytes), r->data, (size_t)rec->size, e);
	if (got < (ssize_t)rec->size)
		return got < 0 ? (int)got : 0;
	(void)XXH3_64bits_reset(r->hash);
	(void)XXH3_64bits_update(r->hash, bytes, JOURNAL_RECORD_BYTES - 8);
	(void)XXH3_64bits_update(r->hash, r->data, (size_t)rec->size);
	return XXH3_64bits_digest(r->hash) == rec->xxh3;
}

int journal_next(struct journal_reader *r, const unsigned char **data, size_t *size, struct err *e)
{
	struct journal_record rec;

	if (r->fd < 0 || r->at > r->end || r->next == 0)
		return 0;
	int rc = read_whole(r, r->at, &rec, e);
	if (rc != 1)
		return rc;
	if (rec.seq != r->next || rec.group > rec.seq)
		return 0;
	r->at += JOURNAL_RECORD_BYTES + journal_padded(rec.size);
	r->next++;
	*data = r->data;
	*size = (size_t)rec.size;
	return 1;
}

/* Of a later group than the record that is missing: that one was on disk when this group began.
 * Where the head is lost with the first sequence number, the first record that is found shows it.
 */
static int is_later(const struct journal_reader *r, const struct journal_record *rec)
{
	return !r->next || (rec->seq > r->next && rec->group > r->next && rec->group <= rec->seq);
}

/* Look at every place of `n` bytes that were read at `at`. `*refused` counts what only looked like
 * a record. */
static int find_later(struct journal_reader *r, uint64_t at, const unsigned char *bytes, size_t n,
	int *refused, struct err *e)
{
	struct journal_record rec;

	for (size_t i = 0; i + JOURNAL_RECORD_BYTES <= n; i += 8) {
		if (!journal_get_record(bytes + i, &rec) || rec.generation != r->head.generation ||
			!is_later(r, &rec))
			continue;
		int rc = read_whole(r, at + i, &rec, e);
		if (rc == 1 && !r->next)
			r->next = rec.group;
		else if (rc)
			return rc;
		else if (++*refused == MOST_REFUSED)
			break;
	}
	return 0;
}

/* The whole rest of the file, in pieces that overlap by a record's head. */
static int search(struct journal_reader *r, unsigned char *bytes, struct err *e)
{
	int refused = 0;

	for (uint64_t at = r->at; at < r->end && refused < MOST_REFUSED;) {
		ssize_t got = read_at(r, at, bytes, SEARCH_BYTES, e);
		if (got < (ssize_t)JOURNAL_RECORD_BYTES)
			return got < 0 ? (int)got : 0;
		int rc = find_later(r, at, bytes, (size_t)got, &refused, e);
		if (rc)
			return rc;
		at += SEARCH_BYTES - JOURNAL_RECORD_BYTES;
	}
	return 0;
}

int journal_is_broken(struct journal_reader *r, struct err *e)
{
	if (r->fd < 0)
		return 0;
	unsigned char *bytes = mem_try(SEARCH_BYTES, 1);
	if (!bytes)
		return err_set(e, PS_ENOMEM, "no memory to search a journal");
	int rc = search(r, bytes, e);
	free(bytes);
	return rc;
}

void journal_reader_release(struct journal_reader *r)
{
	close_reader(r);
	free(r->data);
	(void)XXH3_freeState(r->hash);
	r->data = NULL;
	r->hash = NULL;
	r->room = 0;
}
