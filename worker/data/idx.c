/* idx.c - see idx.h. A source reads the bytes of a file, and inflates the file if it is gzipped. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include "common/assert.h"
#include "common/mem.h"
#include "worker/data/idx.h"

enum {
	GZIP_WINDOW = 31, /* windowBits of zlib: a window of 15 bits, and only the gzip format */
	MAX_RATIO = 1040, /* a little more than 1032, the largest ratio that deflate can reach */
	IDX_MAX_HEAD = 20
};

struct source {
	const char *path;
	FILE *file;
	uint64_t file_size;
	int is_gzip, ended; /* ended: 1: the gzip member is complete, and its checksum is correct */
	uint64_t offset;    /* offset of the next inflated byte */
	z_stream z;
	unsigned char in[64 << 10];
};

static int source_open(struct source *s, const char *path, struct err *e)
{
	/* O_NONBLOCK, so that open does not wait if the file is a FIFO */
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	struct stat st;

	memset(s, 0, sizeof(*s));
	s->path = path;
	if (fd < 0 || fstat(fd, &st) || !(s->file = fdopen(fd, "rb"))) {
		err_set(e, PS_EDATA, "%s: %s", path, strerror(errno));
		if (fd >= 0)
			close(fd);
		return PS_EDATA;
	}
	if (!S_ISREG(st.st_mode))
		return err_set(e, PS_EDATA, "%s: not a regular file", path);
	s->file_size = (uint64_t)st.st_size;
	s->is_gzip = fgetc(s->file) == 0x1f && fgetc(s->file) == 0x8b;
	rewind(s->file);
	if (s->is_gzip && inflateInit2(&s->z, GZIP_WINDOW) != Z_OK)
		return err_set(e, PS_ENOMEM, "%s: no memory to inflate", path);
	return PS_OK;
}

static void source_close(struct source *s)
{
	if (s->is_gzip)
		inflateEnd(&s->z);
	if (s->file)
		fclose(s->file);
}

/* Inflates at most `n` bytes. */
static int source_inflate(
	struct source *s, unsigned char *out, size_t n, size_t *got, struct err *e)
{
	s->z.next_out = out;
	s->z.avail_out = (uInt)n;
	while (s->z.avail_out && !s->ended) {
		if (!s->z.avail_in) {
			s->z.next_in = s->in;
			s->z.avail_in = (uInt)fread(s->in, 1, sizeof(s->in), s->file);
		}
		if (!s->z.avail_in)
			break;
		int z = inflate(&s->z, Z_NO_FLUSH);
		if (z != Z_OK && z != Z_BUF_ERROR && z != Z_STREAM_END)
			return err_set(e, PS_EDATA,
				"%s: gzip data is corrupt near decompressed offset %llu (%s)",
				s->path, (unsigned long long)(s->offset + n - s->z.avail_out),
				s->z.msg ? s->z.msg : "stream error");
		s->ended = z == Z_STREAM_END;
	}
	*got = n - s->z.avail_out;
	return PS_OK;
}

/* Reads the next `n` bytes. *got is less than n only at the end of the data. */
static int source_read(struct source *s, unsigned char *out, size_t n, size_t *got, struct err *e)
{
	int rc = PS_OK;

	PS_ASSERT(n <= IDX_MAX_BYTES);
	*got = 0;
	if (s->is_gzip)
		rc = source_inflate(s, out, n, got, e);
	else
		*got = fread(out, 1, n, s->file);
	if (ferror(s->file))
		rc = err_set(e, PS_EDATA, "%s: cannot be read: %s", s->path, strerror(errno));
	if (!rc)
		s->offset += *got;
	return rc;
}

/* Checks that the data end where the header says, and that the file ends there, too. */
static int source_at_end(struct source *s, struct err *e)
{
	unsigned char extra;
	size_t got;
	int rc = source_read(s, &extra, 1, &got, e);

	if (rc)
		return rc;
	if (got)
		return err_set(e, PS_EDATA,
			"%s: has more data at offset %llu than its header promises", s->path,
			(unsigned long long)s->offset - 1);
	if (!s->is_gzip)
		return PS_OK;
	if (!s->ended)
		return err_set(e, PS_EDATA, "%s: gzip trailer is cut off at file offset %llu",
			s->path, (unsigned long long)s->file_size);
	if (s->z.avail_in || fgetc(s->file) != EOF)
		return err_set(e, PS_EDATA, "%s: bytes follow the gzip member (file offset %llu)",
			s->path, (unsigned long long)s->z.total_in);
	return PS_OK;
}

static uint32_t get_be32(const unsigned char *p)
{
	return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

/* Checks the first four bytes: two zeros, the type and the number of dimensions. Returns the number
 * of dimensions, or PS_EDATA. */
static int read_magic(
	struct idx *x, uint32_t magic, enum idx_kind kind, const char *path, struct err *e)
{
	const unsigned type = magic >> 8 & 0xff, ndim = magic & 0xff;
	const int zeros = magic >> 16 == 0;

	x->width = type == 0x0b ? 2 : type == 0x0c ? 4 : 1;
	if (kind == IDX_IMAGES && zeros && type == 0x08 && (ndim == 3 || ndim == 4))
		return (int)ndim;
	if (kind == IDX_LABELS && zeros && ndim == 1 &&
		(type == 0x08 || type == 0x0b || type == 0x0c))
		return (int)ndim;
	return err_set(e, PS_EDATA, "%s: magic at offset 0 is 0x%08lx, must be %s", path,
		(unsigned long)magic,
		kind == IDX_IMAGES ? "0x00000803 or 0x00000804 (bytes, 3 or 4 dimensions)"
				   : "0x00000801, 0x00000b01 or 0x00000c01 (labels)");
}

/* Reads the dimensions and checks that each is within its limit, so that their product fits 64
 * bits. */
static int check_dims(
	struct idx *x, const unsigned char *head, unsigned ndim, const char *path, struct err *e)
{
	const struct {
		const char *name;
		uint32_t *to;
		int absent;
	} dims[] = {{"count", &x->n, 0}, {"channels", &x->channels, ndim < 4},
		{"rows", &x->rows, ndim < 3}, {"columns", &x->columns, ndim < 3}};
	unsigned at = 4;

	for (size_t i = 0; i < sizeof(dims) / sizeof(dims[0]); i++) {
		uint32_t max = i ? IDX_MAX_SIDE : IDX_MAX_COUNT;

		*dims[i].to = 1;
		if (dims[i].absent)
			continue;
		*dims[i].to = get_be32(head + at);
		if (*dims[i].to < 1 || *dims[i].to > max)
			return err_set(e, PS_EDATA, "%s: %s at offset %u is %lu, must be 1..%lu",
				path, dims[i].name, at, (unsigned long)*dims[i].to,
				(unsigned long)max);
		at += 4;
	}
	return PS_OK;
}

static int refuse_memory(const struct source *s, uint64_t total, struct err *e)
{
	return err_set(e, PS_EDATA,
		"%s: dimensions at offset 4 promise %llu bytes, the limit in memory is %llu",
		s->path, (unsigned long long)total, (unsigned long long)IDX_MAX_BYTES);
}

/* Checks invariant (1), that is, whether this file can contain `total` bytes. */
static int check_total(const struct source *s, uint64_t total, uint64_t memory, struct err *e)
{
	if (s->is_gzip && total > IDX_MAX_BYTES)
		return refuse_memory(s, total, e);
	if (s->is_gzip && total > memory)
		return err_set(e, PS_EDATA,
			"%s: has %llu bytes when decompressed, and the limit of memory "
			"(--data-memory-mb) leaves %llu: decompress the file",
			s->path, (unsigned long long)total, (unsigned long long)memory);
	if (!s->is_gzip && total != s->file_size)
		return err_set(e, PS_EDATA,
			"%s: dimensions at offset 4 promise %llu bytes, the file has %llu", s->path,
			(unsigned long long)total, (unsigned long long)s->file_size);
	if (s->is_gzip && total / MAX_RATIO > s->file_size)
		return err_set(e, PS_EDATA,
			"%s: dimensions at offset 4 promise %llu bytes, more than %llu gzipped "
			"bytes can hold",
			s->path, (unsigned long long)total, (unsigned long long)s->file_size);
	return PS_OK;
}

/* Reads `n` more bytes of the header. */
static int read_idx_head(
	struct source *s, unsigned char *head, size_t at, size_t n, size_t all, struct err *e)
{
	size_t got;
	int rc = source_read(s, head + at, n, &got, e);

	if (rc || got == n)
		return rc;
	return err_set(e, PS_EDATA, "%s: header ends at offset %zu, must have %zu bytes", s->path,
		at + got, all);
}

static int read_idx_header(struct source *s, struct idx *x, enum idx_kind kind,
	unsigned char head[IDX_MAX_HEAD], uint64_t memory, struct err *e)
{
	int rc = read_idx_head(s, head, 0, 4, kind == IDX_IMAGES ? 16 : 8, e), ndim;

	if (rc)
		return rc;
	if ((ndim = read_magic(x, get_be32(head), kind, s->path, e)) < 0)
		return ndim;
	x->head = 4 + 4 * (size_t)ndim;
	if ((rc = read_idx_head(s, head, 4, x->head - 4, x->head, e)))
		return rc;
	if ((rc = check_dims(x, head, (unsigned)ndim, s->path, e)))
		return rc;
	x->size = x->head + (uint64_t)x->n * x->channels * x->rows * x->columns * x->width;
	return check_total(s, x->size, memory, e);
}

static int read_values(struct source *s, struct idx *x, const unsigned char *head, struct err *e)
{
	size_t values = (size_t)x->size - x->head, got;
	int rc;

	/* invariant (1): check_total has refused any other size */
	PS_ASSERT(x->size <= IDX_MAX_BYTES &&
		  (s->is_gzip ? x->size / MAX_RATIO <= s->file_size : x->size == s->file_size));
	x->bytes = mem_try(x->size, 1);
	if (!x->bytes)
		return err_set(e, PS_ENOMEM, "%s: no memory for its %llu bytes", s->path,
			(unsigned long long)x->size);
	memcpy(x->bytes, head, x->head);
	x->values = x->bytes + x->head;
	if ((rc = source_read(s, x->bytes + x->head, values, &got, e)))
		return rc;
	if (got < values)
		return err_set(e, PS_EDATA,
			"%s: ends at offset %zu, its header promises %llu bytes", s->path,
			x->head + got, (unsigned long long)x->size);
	return source_at_end(s, e);
}

/* Leaves the values in the file and keeps the file open. */
static int keep_on_disk(struct source *s, struct idx *x, struct err *e)
{
	int fd = fcntl(fileno(s->file), F_DUPFD_CLOEXEC, 0);

	if (fd < 0)
		return err_set(e, PS_EDATA, "%s: %s", s->path, strerror(errno));
	x->path = strdup(s->path);
	if (!x->path) {
		close(fd);
		return err_set(e, PS_ENOMEM, "%s: no memory to read it", s->path);
	}
	x->fd = fd;
	return PS_OK;
}

/* Reads the header and the values of a file, or leaves the values on the disk if they exceed
 * `memory`. If `whole` is 1, refuses a file whose values exceed `memory`. */
static int read_all(struct source *s, struct idx *x, enum idx_kind kind, uint64_t memory, int whole,
	struct err *e)
{
	const uint64_t max = memory < IDX_MAX_BYTES ? memory : IDX_MAX_BYTES;
	unsigned char head[IDX_MAX_HEAD] = {0};
	int rc = read_idx_header(s, x, kind, head, memory, e);

	if (rc)
		return rc;
	if (x->size <= max)
		return read_values(s, x, head, e);
	return whole ? refuse_memory(s, x->size, e) : keep_on_disk(s, x, e);
}

static int open_idx(struct idx *x, const char *path, enum idx_kind kind, uint64_t memory, int whole,
	struct err *e)
{
	/* on the heap, because it is too large for a stack frame */
	struct source *s = mem_try(1, sizeof(*s));
	int rc;

	memset(x, 0, sizeof(*x));
	if (!s)
		return err_set(e, PS_ENOMEM, "%s: no memory to read it", path);
	rc = source_open(s, path, e);
	if (!rc)
		rc = read_all(s, x, kind, memory, whole, e);
	source_close(s);
	free(s);
	if (rc)
		idx_release(x);
	return rc;
}

int idx_open(struct idx *x, const char *path, enum idx_kind kind, uint64_t memory, struct err *e)
{
	return open_idx(x, path, kind, memory, 0, e);
}

int idx_count(uint32_t *n, const char *path, enum idx_kind kind, struct err *e)
{
	struct source *s = mem_try(1, sizeof(*s));
	unsigned char head[IDX_MAX_HEAD] = {0};
	struct idx x = {0};
	int rc;

	*n = 0;
	if (!s)
		return err_set(e, PS_ENOMEM, "%s: no memory to read it", path);
	rc = source_open(s, path, e);
	if (!rc)
		rc = read_idx_header(s, &x, kind, head, UINT64_MAX, e);
	if (!rc)
		*n = x.n;
	source_close(s);
	free(s);
	return rc;
}

int idx_read(struct idx *x, const char *path, enum idx_kind kind, struct err *e)
{
	return open_idx(x, path, kind, UINT64_MAX, 1, e);
}

int idx_copy(const struct idx *x, uint64_t at, size_t n, uint8_t *to, struct err *e)
{
	PS_ASSERT(at <= x->size && n <= x->size - at); /* invariant (2) */
	if (x->bytes) {
		memcpy(to, x->bytes + at, n);
		return PS_OK;
	}
	while (n > 0) {
		ssize_t got = pread(x->fd, to, n, (off_t)at);

		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return err_set(e, PS_EDATA, "%s: cannot be read at offset %llu: %s",
				x->path, (unsigned long long)at, strerror(errno));
		if (got == 0)
			return err_set(e, PS_EDATA,
				"%s: has become shorter: nothing is at offset %llu, its header "
				"promises %llu bytes",
				x->path, (unsigned long long)at, (unsigned long long)x->size);
		to += got;
		at += (uint64_t)got;
		n -= (size_t)got;
	}
	return PS_OK;
}

/* Returns label `i`. Labels of 16 and 32 bits are signed. */
static int64_t label_at(const struct idx *x, size_t i)
{
	const uint8_t *p = x->values + i * x->width;

	switch (x->width) {
	case 2:
		return (int16_t)(p[0] << 8 | p[1]);
	case 4:
		return (int32_t)get_be32(p);
	default:
		return *p;
	}
}

int idx_labels(const struct idx *x, const char *path, uint16_t *label, struct err *e)
{
	for (size_t i = 0; i < x->n; i++) {
		int64_t v = label_at(x, i);

		if (v < 0 || v > IDX_MAX_LABEL)
			return err_set(e, PS_EDATA,
				"%s: label %zu at offset %zu is %lld, must be 0..%u", path, i,
				(size_t)(x->values - x->bytes) + i * x->width, (long long)v,
				IDX_MAX_LABEL);
		label[i] = (uint16_t)v;
	}
	return PS_OK;
}

void idx_release(struct idx *x)
{
	free(x->bytes);
	if (x->path)
		close(x->fd);
	free(x->path);
	memset(x, 0, sizeof(*x));
}
