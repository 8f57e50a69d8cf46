/* wal_file.c - see wal_file.h. */
#include "common/wal_file.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>
#include "common/assert.h"
#include "common/file.h"
#include "common/io.h"
#include "common/generation.h"
#include "common/le.h"
#include "common/log.h"
#include "common/mem.h"

#define WAL_PREFIX       "journal"
#define WAL_FORMAT       1u
#define WAL_HEAD_BYTES   64u
#define WAL_RECORD_BYTES 48u
#define WAL_HEAD_MAGIC   "CNNPSJNL"
#define WAL_RECORD_MAGIC "CNNPSREC"
/* bytes of the buffer that collects small records for one write */
#define BUFFER_BYTES 65536u
#define SEARCH_BYTES ((size_t)1 << 20) /* number of bytes that wal_reader_has_gap reads at a time */
/* wal_reader_has_gap stops after this number of invalid records */
#define MAX_REFUSED 64

/* ---- the format ---------------------------------------------------------------------------- */

static uint64_t padded(uint64_t size)
{
	return (size + 7) / 8 * 8;
}

static void encode_head(const struct wal_head *h, unsigned char out[WAL_HEAD_BYTES])
{
	memcpy(out, WAL_HEAD_MAGIC, 8);
	le64_put(out + 8, WAL_FORMAT);
	le64_put(out + 16, h->run_hi);
	le64_put(out + 24, h->run_lo);
	le64_put(out + 32, h->term);
	le64_put(out + 40, h->generation);
	le64_put(out + 48, h->first);
	le64_put(out + 56, XXH3_64bits(out, 56));
}

/* Returns 1 if `in` is a valid header of this format. */
static int decode_head(const unsigned char in[WAL_HEAD_BYTES], struct wal_head *h)
{
	*h = (struct wal_head){.run_hi = le64_get(in + 16),
		.run_lo = le64_get(in + 24),
		.term = le64_get(in + 32),
		.generation = le64_get(in + 40),
		.first = le64_get(in + 48)};
	return memcmp(in, WAL_HEAD_MAGIC, 8) == 0 && le64_get(in + 8) == WAL_FORMAT &&
	       le64_get(in + 56) == XXH3_64bits(in, 56);
}

struct wal_file_record {
	uint64_t generation, seq, group, size, xxh3;
};

static void encode_record(const struct wal_file_record *r, unsigned char out[WAL_RECORD_BYTES])
{
	memcpy(out, WAL_RECORD_MAGIC, 8);
	le64_put(out + 8, r->generation);
	le64_put(out + 16, r->seq);
	le64_put(out + 24, r->group);
	le64_put(out + 32, r->size);
	le64_put(out + 40, r->xxh3);
}

/* Reads a record header. Returns 0 if `in` does not begin with the magic of a record; the other
 * fields are not checked. */
static int decode_record(const unsigned char in[WAL_RECORD_BYTES], struct wal_file_record *r)
{
	if (memcmp(in, WAL_RECORD_MAGIC, 8) != 0)
		return 0;
	*r = (struct wal_file_record){le64_get(in + 8), le64_get(in + 16), le64_get(in + 24),
		le64_get(in + 32), le64_get(in + 40)};
	return 1;
}

/* ---- writing ------------------------------------------------------------------------------- */

struct wal_file {
	int fd, failed; /* failed: 1 after a write or sync has failed */
	struct wal_head head;
	XXH3_state_t *hash;
	char path[4160];
	/* seq: sequence number of the next record; group: first sequence number of its group */
	uint64_t seq, group;
	/* bytes: number of bytes appended so far; old_bytes: size of the reused file */
	uint64_t bytes, old_bytes;
	size_t fill;           /* number of bytes in the buffer */
	unsigned char *buffer; /* BUFFER_BYTES */
};

static int io_failed(struct wal_file *f, const char *step, struct err *e)
{
	f->failed = 1;
	return err_set(e, PS_EIO, "%.300s: %s: %s", f->path, step, strerror(errno));
}

static int write_bytes(struct wal_file *f, const void *bytes, size_t n, struct err *e)
{
	return io_write_all(f->fd, bytes, n) ? io_failed(f, "write", e) : PS_OK;
}

static int flush(struct wal_file *f, struct err *e)
{
	size_t n = f->fill;

	f->fill = 0;
	return write_bytes(f, f->buffer, n, e);
}

static int buffer_bytes(struct wal_file *f, const void *bytes, size_t n, struct err *e)
{
	int rc = PS_OK;

	PS_ASSERT(f->fill <= BUFFER_BYTES);
	f->bytes += n;
	if (n > BUFFER_BYTES - f->fill)
		rc = flush(f, e);
	if (rc || n == 0)
		return rc;
	if (n > BUFFER_BYTES)
		return write_bytes(f, bytes, n, e);
	memcpy(f->buffer + f->fill, bytes, n);
	f->fill += n;
	return PS_OK;
}

static void remove_wal_file(DIR *d, uint64_t generation)
{
	char name[GENERATION_NAME];

	generation_name(WAL_PREFIX, generation, name);
	if (unlinkat(dirfd(d), name, 0) != 0)
		log_warn("wal", "remove_failed", "file=%s error=\"%s\"", name, strerror(errno));
}

/* Returns the highest generation in [first, last] that has a file, or 0 if there is none. */
static uint64_t highest(DIR *d, uint64_t first, uint64_t last)
{
	uint64_t g = first <= last ? generation_highest(d, WAL_PREFIX, last) : 0;

	return g >= first ? g : 0;
}

/* Removes old files. Keeps two files: the newest one up to generation `oldest`, because the log may
 * still need it, and the newest one before this file, because that one can be reused. Returns the
 * generation of the file to reuse, or 0 if there is none. */
static uint64_t take_old(DIR *d, uint64_t oldest)
{
	uint64_t needed = highest(d, 1, oldest), kept = 0;

	if (needed)
		kept = highest(d, 1, needed - 1);
	for (uint64_t g = kept; g && (g = highest(d, 1, g - 1)) != 0;)
		remove_wal_file(d, g);
	return kept;
}

/* Returns 1 if only its owner can read the file. Release 0.2.0 made files that other users could
 * read. */
static int only_owner_can_read(DIR *d, const char *name)
{
	struct stat st;

	return fstatat(dirfd(d), name, &st, AT_SYMLINK_NOFOLLOW) == 0 && (st.st_mode & 077) == 0;
}

/* Opens an old file for reuse, or a new one, and makes its name durable. The file is private,
 * because its events contain codes of the run. */
static int open_file(struct wal_file *f, DIR *d, uint64_t oldest, struct err *e)
{
	char name[GENERATION_NAME], old[GENERATION_NAME];
	uint64_t kept = take_old(d, oldest);
	struct stat st;

	generation_name(WAL_PREFIX, f->head.generation, name);
	generation_name(WAL_PREFIX, kept, old);
	if (kept && !only_owner_can_read(d, old))
		remove_wal_file(d, kept);
	else if (kept && renameat(dirfd(d), old, dirfd(d), name) != 0)
		return io_failed(f, "rename", e);
	f->fd = openat(dirfd(d), name, O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (f->fd < 0)
		return io_failed(f, "create", e);
	if (fstat(f->fd, &st) == 0)
		f->old_bytes = (uint64_t)st.st_size;
	if (fsync(dirfd(d)) != 0)
		return io_failed(f, "fsync of the directory", e);
	return PS_OK;
}

static struct wal_file *new_file(const struct wal_head *head)
{
	struct wal_file *f = mem_try(1, sizeof(*f));

	if (!f)
		return NULL;
	f->fd = -1;
	f->head = *head;
	f->seq = f->group = head->first;
	f->hash = XXH3_createState();
	f->buffer = mem_try(BUFFER_BYTES, 1);
	if (!f->hash || !f->buffer)
		wal_file_close(&f);
	return f;
}

int wal_file_create(struct wal_file **out, const char *dir, const struct wal_head *head,
	uint64_t oldest, struct err *e)
{
	unsigned char bytes[WAL_HEAD_BYTES];
	char name[GENERATION_NAME];
	DIR *d = opendir(dir);

	*out = NULL;
	if (!d)
		return err_set(e, PS_EIO, "%s: open directory: %s", dir, strerror(errno));
	struct wal_file *f = new_file(head);
	if (!f) {
		closedir(d);
		return err_set(e, PS_ENOMEM, "no memory for a log file");
	}
	generation_name(WAL_PREFIX, head->generation, name);
	snprintf(f->path, sizeof(f->path), "%.4096s/%s", dir, name);
	int rc = open_file(f, d, oldest, e);
	closedir(d);
	encode_head(head, bytes);
	if (!rc)
		rc = buffer_bytes(f, bytes, sizeof(bytes), e);
	int first_errno = errno;
	if (rc)
		wal_file_close(&f);
	errno = first_errno;
	*out = f;
	return rc;
}

int wal_file_append(
	struct wal_file *f, const struct file_part *parts, size_t n_parts, struct err *e)
{
	static const unsigned char zeros[8];
	unsigned char bytes[WAL_RECORD_BYTES];
	struct wal_file_record r = {
		.generation = f->head.generation, .seq = f->seq, .group = f->group};

	PS_ASSERT(!f->failed); /* invariant 1 */
	for (size_t i = 0; i < n_parts; i++)
		r.size += parts[i].size;
	encode_record(&r, bytes);
	(void)XXH3_64bits_reset(f->hash);
	(void)XXH3_64bits_update(f->hash, bytes, WAL_RECORD_BYTES - 8);
	for (size_t i = 0; i < n_parts; i++)
		(void)XXH3_64bits_update(f->hash, parts[i].data, parts[i].size);
	le64_put(bytes + 40, XXH3_64bits_digest(f->hash));
	int rc = buffer_bytes(f, bytes, sizeof(bytes), e);
	for (size_t i = 0; i < n_parts && !rc; i++)
		rc = buffer_bytes(f, parts[i].data, parts[i].size, e);
	if (!rc)
		rc = buffer_bytes(f, zeros, padded(r.size) - r.size, e);
	f->seq++;
	return rc;
}

int wal_file_sync(struct wal_file *f, struct err *e)
{
	PS_ASSERT(!f->failed); /* invariant 1 */
	int rc = flush(f, e);

	if (rc)
		return rc;
	if (fdatasync(f->fd) != 0)
		return io_failed(f, "fdatasync", e);
	f->group = f->seq;
	return PS_OK;
}

uint64_t wal_file_bytes(const struct wal_file *f)
{
	return f->bytes;
}

uint64_t wal_file_growth(const struct wal_file *f, uint64_t bytes)
{
	uint64_t end = f->bytes + bytes, taken = f->bytes > f->old_bytes ? f->bytes : f->old_bytes;

	return end > taken ? end - taken : 0;
}

void wal_file_close(struct wal_file **f)
{
	if (!*f)
		return;
	if ((*f)->fd >= 0)
		close((*f)->fd);
	(void)XXH3_freeState((*f)->hash);
	free((*f)->buffer);
	free(*f);
	*f = NULL;
}

/* ---- reading ------------------------------------------------------------------------------- */

/* Reads `n` bytes at offset `at`. Returns the number of bytes read, or PS_EIO. The number is less
 * than `n` only at the end of the file. */
static ssize_t read_at(const struct wal_reader *r, uint64_t at, void *out, size_t n, struct err *e)
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

static void close_reader(struct wal_reader *r)
{
	if (r->fd >= 0)
		close(r->fd);
	r->fd = -1;
}

int wal_reader_open(struct wal_reader *r, const char *dir, uint64_t generation, size_t max_payload,
	struct err *e)
{
	unsigned char bytes[WAL_HEAD_BYTES];
	char name[GENERATION_NAME];
	struct stat st;

	*r = (struct wal_reader){.fd = -1, .at = WAL_HEAD_BYTES, .max_payload = max_payload};
	r->hash = XXH3_createState();
	if (!r->hash)
		return err_set(e, PS_ENOMEM, "no memory to read a log file");
	generation_name(WAL_PREFIX, generation, name);
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
	if (got == (ssize_t)sizeof(bytes) && decode_head(bytes, &r->head)) {
		r->next = r->head.first;
		/* the file was renamed for reuse, but its writer stopped before it wrote the new
		 * header */
		if (r->head.generation != generation)
			close_reader(r);
	} else {
		r->head = (struct wal_head){.generation = generation};
	}
	return PS_OK;
}

static int reserve_payload(struct wal_reader *r, size_t size, struct err *e)
{
	if (size <= r->room)
		return PS_OK;
	free(r->data);
	r->data = mem_try(size + size / 4, 1);
	r->room = r->data ? size + size / 4 : 0;
	return r->data ? PS_OK : err_set(e, PS_ENOMEM, "no memory for a record of %zu bytes", size);
}

/* Reads and verifies the record at offset `at`, and stores its payload in r->data. Returns 1 after
 * success, 0 if there is no valid record, or PS_E*. */
static int read_whole(struct wal_reader *r, uint64_t at, struct wal_file_record *rec, struct err *e)
{
	unsigned char bytes[WAL_RECORD_BYTES];
	ssize_t got = read_at(r, at, bytes, sizeof(bytes), e);

	if (got < (ssize_t)sizeof(bytes))
		return got < 0 ? (int)got : 0;
	if (!decode_record(bytes, rec) || rec->generation != r->head.generation ||
		rec->size > r->max_payload || rec->size > r->end - at - sizeof(bytes))
		return 0;
	int rc = reserve_payload(r, (size_t)rec->size, e);
	if (rc)
		return rc;
	got = read_at(r, at + sizeof(bytes), r->data, (size_t)rec->size, e);
	if (got < (ssize_t)rec->size)
		return got < 0 ? (int)got : 0;
	(void)XXH3_64bits_reset(r->hash);
	(void)XXH3_64bits_update(r->hash, bytes, WAL_RECORD_BYTES - 8);
	(void)XXH3_64bits_update(r->hash, r->data, (size_t)rec->size);
	return XXH3_64bits_digest(r->hash) == rec->xxh3;
}

int wal_reader_next(struct wal_reader *r, const unsigned char **data, size_t *size, struct err *e)
{
	struct wal_file_record rec;

	if (r->fd < 0 || r->at > r->end || r->next == 0)
		return 0;
	int rc = read_whole(r, r->at, &rec, e);
	if (rc != 1)
		return rc;
	if (rec.seq != r->next || rec.group > rec.seq)
		return 0;
	r->at += WAL_RECORD_BYTES + padded(rec.size);
	r->next++;
	*data = r->data;
	*size = (size_t)rec.size;
	return 1;
}

/* Returns 1 if `rec` belongs to a later group than the missing record r->next. A missing record
 * before a later group was durable, because a group begins only when the previous group is on disk.
 * If the file's header is lost, r->next is 0 (unknown), and the caller sets r->next from the first
 * valid record. */
static int is_later(const struct wal_reader *r, const struct wal_file_record *rec)
{
	return !r->next || (rec->seq > r->next && rec->group > r->next && rec->group <= rec->seq);
}

/* Searches the `n` bytes that were read at offset `at` for a record of a later group. The function
 * counts in *refused the records that fail verification. */
static int find_later(struct wal_reader *r, uint64_t at, const unsigned char *bytes, size_t n,
	int *refused, struct err *e)
{
	struct wal_file_record rec;

	for (size_t i = 0; i + WAL_RECORD_BYTES <= n; i += 8) {
		if (!decode_record(bytes + i, &rec) || rec.generation != r->head.generation ||
			!is_later(r, &rec))
			continue;
		int rc = read_whole(r, at + i, &rec, e);
		if (rc == 1 && !r->next)
			r->next = rec.group;
		else if (rc)
			return rc;
		else if (++*refused == MAX_REFUSED)
			break;
	}
	return 0;
}

/* Searches the rest of the file for a record of a later group. The function reads the file in
 * pieces that overlap by the size of a record header, so that it misses no header at the border of
 * two pieces. */
static int search_gap(struct wal_reader *r, unsigned char *bytes, struct err *e)
{
	int refused = 0;

	for (uint64_t at = r->at; at < r->end && refused < MAX_REFUSED;) {
		ssize_t got = read_at(r, at, bytes, SEARCH_BYTES, e);

		if (got < (ssize_t)WAL_RECORD_BYTES)
			return got < 0 ? (int)got : 0;
		int rc = find_later(r, at, bytes, (size_t)got, &refused, e);
		if (rc)
			return rc;
		at += SEARCH_BYTES - WAL_RECORD_BYTES;
	}
	return 0;
}

int wal_reader_has_gap(struct wal_reader *r, struct err *e)
{
	if (r->fd < 0)
		return 0;
	unsigned char *bytes = mem_try(SEARCH_BYTES, 1);
	if (!bytes)
		return err_set(e, PS_ENOMEM, "no memory to search a log file");
	int rc = search_gap(r, bytes, e);
	free(bytes);
	return rc;
}

void wal_reader_release(struct wal_reader *r)
{
	close_reader(r);
	free(r->data);
	(void)XXH3_freeState(r->hash);
	r->data = NULL;
	r->hash = NULL;
	r->room = 0;
}

/* ---- the directory ------------------------------------------------------------------------ */

uint64_t wal_file_newest(const char *dir, uint64_t max)
{
	DIR *d = opendir(dir);
	uint64_t newest = d ? generation_highest(d, WAL_PREFIX, max) : 0;

	if (d)
		closedir(d);
	return newest;
}

void wal_file_remove(const char *dir, uint64_t first, uint64_t last)
{
	DIR *d = opendir(dir);

	if (!d)
		return;
	for (uint64_t g = last + 1; (g = highest(d, first, g - 1)) != 0;)
		remove_wal_file(d, g);
	closedir(d);
}
