/* idx.c - see idx.h. A source gives a file's bytes, decompressed or not; idx_read judges them. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include "common/mem.h"
#include "worker/data/idx.h"

enum {
	STEP = 64 << 10,    /* most bytes per read and per inflate */
	GZIP_WINDOW = 31,   /* zlib: 15 bits of window, gzip wrapper demanded */
	DEFLATE_BEST = 1040 /* no deflate stream expands more than 1032 times */
};

struct source {
	const char *path;
	int fd;
	uint64_t file_size;
	int zipped, ended; /* ended: the gzip member is complete and its checksum was right */
	uint64_t offset;   /* of the next byte given out, after decompression */
	z_stream z;        /* next_in/avail_in also serve a plain file */
	unsigned char in[STEP];
};

/* Fetch the next piece of the file into s->in; 0 bytes at its end. */
static int source_fill(struct source *s, struct err *e)
{
	ssize_t n;

	do
		n = read(s->fd, s->in, sizeof(s->in));
	while (n < 0 && errno == EINTR);
	if (n < 0)
		return err_set(e, PS_EDATA, "%s: cannot be read: %s", s->path, strerror(errno));
	s->z.next_in = s->in;
	s->z.avail_in = (uInt)n;
	return PS_OK;
}

static int source_check_file(struct source *s, struct err *e)
{
	struct stat st;

	if (fstat(s->fd, &st) < 0)
		return err_set(e, PS_EDATA, "%s: %s", s->path, strerror(errno));
	if (!S_ISREG(st.st_mode))
		return err_set(e, PS_EDATA, "%s: not a regular file", s->path);
	s->file_size = (uint64_t)st.st_size;
	return PS_OK;
}

/* Open `path` and find out by its first bytes whether it is gzipped. */
static int source_open(struct source *s, const char *path, struct err *e)
{
	int rc;

	memset(s, 0, sizeof(*s));
	s->path = path;
	s->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO must not hold us up */
	if (s->fd < 0)
		return err_set(e, PS_EDATA, "%s: %s", path, strerror(errno));
	if ((rc = source_check_file(s, e)) || (rc = source_fill(s, e)))
		goto fail;
	s->zipped = s->z.avail_in >= 2 && s->in[0] == 0x1f && s->in[1] == 0x8b;
	if (s->zipped && inflateInit2(&s->z, GZIP_WINDOW) != Z_OK) {
		rc = err_set(e, PS_ENOMEM, "%s: no memory to decompress", path);
		goto fail;
	}
	return PS_OK;
fail:
	close(s->fd);
	return rc;
}

static void source_close(struct source *s)
{
	if (s->zipped)
		inflateEnd(&s->z);
	close(s->fd);
}

/* Inflate at most `n` <= STEP bytes; *got < n only when input has run out or the member ended. */
static int inflate_some(struct source *s, unsigned char *out, size_t n, size_t *got, struct err *e)
{
	int z;

	s->z.next_out = out;
	s->z.avail_out = (uInt)n;
	z = inflate(&s->z, Z_NO_FLUSH);
	*got = n - s->z.avail_out;
	if (z == Z_STREAM_END)
		s->ended = 1;
	else if (z != Z_OK && z != Z_BUF_ERROR)
		return err_set(e, PS_EDATA,
			"%s: gzip data is corrupt near decompressed offset %llu (%s)", s->path,
			(unsigned long long)(s->offset + *got),
			s->z.msg ? s->z.msg : "stream error");
	return PS_OK;
}

static int copy_some(struct source *s, unsigned char *out, size_t n, size_t *got)
{
	*got = n < s->z.avail_in ? n : s->z.avail_in;
	memcpy(out, s->z.next_in, *got);
	s->z.next_in += *got;
	s->z.avail_in -= (uInt)*got;
	return PS_OK;
}

/* The next `n` bytes; *got < n only at the end of the data. */
static int source_read(struct source *s, unsigned char *out, size_t n, size_t *got, struct err *e)
{
	int rc;

	*got = 0;
	while (*got < n && !s->ended) {
		size_t left = n - *got, part = left < STEP ? left : STEP, some;

		if (!s->z.avail_in && (rc = source_fill(s, e)))
			return rc;
		if (!s->z.avail_in)
			break;
		rc = s->zipped ? inflate_some(s, out + *got, part, &some, e)
			       : copy_some(s, out + *got, part, &some);
		if (rc)
			return rc;
		*got += some;
		s->offset += some;
	}
	return PS_OK;
}

/* Nothing may follow what the header promised, neither in the data nor behind it in the file. */
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
	if (!s->zipped)
		return PS_OK;
	if (!s->ended)
		return err_set(e, PS_EDATA, "%s: gzip trailer is cut off at file offset %llu",
			s->path, (unsigned long long)s->file_size);
	if (!s->z.avail_in && (rc = source_fill(s, e)))
		return rc;
	if (s->z.avail_in)
		return err_set(e, PS_EDATA, "%s: bytes follow the gzip member (file offset %llu)",
			s->path, (unsigned long long)s->z.total_in);
	return PS_OK;
}

static uint32_t get_be32(const unsigned char *p)
{
	return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

/* The dimensions, each inside its limit, so that their product fits 64 bits by far. */
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

/* Invariant (1): may `total` bytes come out of this file? */
static int check_total(const struct source *s, uint64_t total, struct err *e)
{
	if (total > IDX_MAX_BYTES)
		return err_set(e, PS_EDATA,
			"%s: dimensions at offset 4 promise %llu bytes, limit is %llu", s->path,
			(unsigned long long)total, (unsigned long long)IDX_MAX_BYTES);
	if (!s->zipped && total != s->file_size)
		return err_set(e, PS_EDATA,
			"%s: dimensions at offset 4 promise %llu bytes, the file has %llu", s->path,
			(unsigned long long)total, (unsigned long long)s->file_size);
	if (s->zipped && total / DEFLATE_BEST > s->file_size)
		return err_set(e, PS_EDATA,
			"%s: dimensions at offset 4 promise %llu bytes, more than %llu gzipped "
			"bytes can "
			"hold",
			s->path, (unsigned long long)total, (unsigned long long)s->file_size);
	return PS_OK;
}

static int read_head(struct source *s, struct idx *x, unsigned ndim, unsigned char *head,
	uint64_t *total, struct err *e)
{
	size_t size = 4 + 4 * (size_t)ndim, got;
	uint32_t want = 0x0800 | ndim;
	int rc = source_read(s, head, size, &got, e);

	if (rc)
		return rc;
	if (got < size)
		return err_set(e, PS_EDATA, "%s: header ends at offset %zu, must have %zu bytes",
			s->path, got, size);
	if (get_be32(head) != want)
		return err_set(e, PS_EDATA,
			"%s: magic at offset 0 is 0x%08lx, must be 0x%08lx (bytes, %u dimension%s)",
			s->path, (unsigned long)get_be32(head), (unsigned long)want, ndim,
			ndim > 1 ? "s" : "");
	if ((rc = check_dims(x, head, ndim, s->path, e)))
		return rc;
	*total = size + (uint64_t)x->dim[0] * x->dim[1] * x->dim[2];
	return check_total(s, *total, e);
}

static int read_all(struct source *s, struct idx *x, unsigned ndim, struct err *e)
{
	unsigned char head[16];
	size_t head_size = 4 + 4 * (size_t)ndim, got;
	uint64_t total = 0;
	int rc = read_head(s, x, ndim, head, &total, e);

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
	struct source *s = mem_try(1, sizeof(*s)); /* too big for a stack frame */
	int rc;

	memset(x, 0, sizeof(*x));
	if (!s)
		return err_set(e, PS_ENOMEM, "%s: no memory to read it", path);
	rc = source_open(s, path, e);
	if (!rc) {
		rc = read_all(s, x, ndim, e);
		source_close(s);
	}
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
