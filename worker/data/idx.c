/* idx.c - see idx.h. A source returns the bytes of a file and inflates a gzipped one. */
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
	GZIP_WINDOW = 31, /* zlib: 15 bits of window, gzip wrapper required */
	MAX_RATIO = 1040  /* no deflate stream expands more than 1032 times */
};

struct source {
	const char *path;
	FILE *file;
	uint64_t file_size;
	int is_gzip, ended; /* ended: the gzip member is complete and its checksum is correct */
	uint64_t offset;    /* of the next inflated byte */
	z_stream z;
	unsigned char in[64 << 10];
};

static int source_open(struct source *s, const char *path, struct err *e)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO must not block */
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

/* Inflate at most `n` bytes. */
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

/* Read the next `n` bytes; *got < n only at the end of the data. */
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

/* Check that no data follow the size in the header, and that no bytes follow the data in the
 * file. */
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

/* Read the dimensions. Each is within its limit, so their product fits 64 bits. */
static int check_dims(
	struct idx *x, const unsigned char *head, unsigned ndim, const char *path, struct err *e)
{
	static const char *const names[] = {"count", "rows", "columns"};

	for (unsigned i = 0; i < 3; i++) {
		uint32_t max = i ? IDX_MAX_SIDE : IDX_MAX_COUNT;

		x->dim[i] = i < ndim ? get_be32(head + 4 + 4 * i) : 1;
		if (x->dim[i] < 1 || x->dim[i] > max)
			return err_set(e, PS_EDATA, "%s: %s at offset %u is %lu, must be 1..%lu",
				path, names[i], 4 + 4 * i, (unsigned long)x->dim[i],
				(unsigned long)max);
	}
	return PS_OK;
}

/* Check invariant (1): can this file contain `total` bytes? */
static int check_total(const struct source *s, uint64_t total, struct err *e)
{
	if (total > IDX_MAX_BYTES)
		return err_set(e, PS_EDATA,
			"%s: dimensions at offset 4 promise %llu bytes, limit is %llu", s->path,
			(unsigned long long)total, (unsigned long long)IDX_MAX_BYTES);
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

static int read_idx_header(struct source *s, struct idx *x, unsigned ndim, unsigned char *head,
	uint64_t *total, struct err *e)
{
	size_t size = 4 + 4 * (size_t)ndim, got;
	uint32_t expected = 0x0800 | ndim;
	int rc = source_read(s, head, size, &got, e);

	if (rc)
		return rc;
	if (got < size)
		return err_set(e, PS_EDATA, "%s: header ends at offset %zu, must have %zu bytes",
			s->path, got, size);
	if (get_be32(head) != expected)
		return err_set(e, PS_EDATA,
			"%s: magic at offset 0 is 0x%08lx, must be 0x%08lx (bytes, %u dimension%s)",
			s->path, (unsigned long)get_be32(head), (unsigned long)expected, ndim,
			ndim > 1 ? "s" : "");
	if ((rc = check_dims(x, head, ndim, s->path, e)))
		return rc;
	*total = size + (uint64_t)x->dim[0] * x->dim[1] * x->dim[2];
	return check_total(s, *total, e);
}

static int read_all(struct source *s, struct idx *x, unsigned ndim, struct err *e)
{
	unsigned char head[16] = {0};
	size_t head_size = 4 + 4 * (size_t)ndim, got;
	uint64_t total = 0;
	int rc = read_idx_header(s, x, ndim, head, &total, e);

	if (rc)
		return rc;
	x->bytes = mem_try(total, 1);
	if (!x->bytes)
		return err_set(e, PS_ENOMEM, "%s: no memory for its %llu bytes", s->path,
			(unsigned long long)total);
	memcpy(x->bytes, head, head_size);
	x->size = total;
	x->values = x->bytes + head_size;
	if ((rc = source_read(s, x->bytes + head_size, total - head_size, &got, e)))
		return rc;
	if (got < total - head_size)
		return err_set(e, PS_EDATA,
			"%s: ends at offset %zu, its header promises %llu bytes", s->path,
			head_size + got, (unsigned long long)total);
	return source_at_end(s, e);
}

int idx_read(struct idx *x, const char *path, unsigned ndim, struct err *e)
{
	struct source *s = mem_try(1, sizeof(*s)); /* too large for a stack frame */
	int rc;

	memset(x, 0, sizeof(*x));
	if (!s)
		return err_set(e, PS_ENOMEM, "%s: no memory to read it", path);
	rc = source_open(s, path, e);
	if (!rc)
		rc = read_all(s, x, ndim, e);
	source_close(s);
	free(s);
	if (rc)
		idx_release(x);
	return rc;
}

void idx_release(struct idx *x)
{
	free(x->bytes);
	memset(x, 0, sizeof(*x));
}
