/* writer.c - see writer.h. */
#include "worker/ctl/writer.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "worker/data/idx.h"

#define PATH 4200

static const char *images_name(const struct writer *w)
{
	static const char *const names[CONVERT_PARTS][2] = {
		{"train-images-idx3-ubyte", "train-images-idx4-ubyte"},
		{"t10k-images-idx3-ubyte", "t10k-images-idx4-ubyte"}};

	return names[w->part][w->shape.c > 1];
}

static const char *labels_name(const struct writer *w)
{
	return w->part == CONVERT_TRAIN ? "train-labels-idx1-ubyte" : "t10k-labels-idx1-ubyte";
}

static int write_failed(const struct writer *w, const char *name, struct err *e)
{
	return err_set(e, PS_EIO, "%s/%s: %s", w->dir, name, strerror(errno));
}

static FILE *open_part(const struct writer *w, const char *name, struct err *e)
{
	char path[PATH];
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s", w->dir, name);
	if (!access(path, F_OK)) {
		err_set(e, PS_EUSAGE, "%s: exists already: name another directory", path);
		return NULL;
	}
	snprintf(path, sizeof(path), "%s/%s.part", w->dir, name);
	f = fopen(path, "wb");
	if (!f)
		write_failed(w, name, e);
	return f;
}

static int put_be32(FILE *f, uint32_t v)
{
	const unsigned char b[4] = {(unsigned char)(v >> 24), (unsigned char)(v >> 16),
		(unsigned char)(v >> 8), (unsigned char)v};

	return fwrite(b, 1, 4, f) == 4;
}

/* Writes the headers of both files. The headers have 0 as the number of images until writer_close,
 * because this number is not known before. */
static int put_headers(struct writer *w)
{
	const struct shape *s = &w->shape;
	int ok = put_be32(w->images, s->c > 1 ? 0x0804 : 0x0803) && put_be32(w->images, 0);

	if (ok && s->c > 1)
		ok = put_be32(w->images, (uint32_t)s->c);
	return ok && put_be32(w->images, (uint32_t)s->h) && put_be32(w->images, (uint32_t)s->w) &&
	       put_be32(w->labels, w->wide ? 0x0c01 : 0x0801) && put_be32(w->labels, 0);
}

int writer_open(struct writer *w, const char *dir, enum convert_part part, struct shape shape,
	size_t classes, struct err *e)
{
	*w = (struct writer){.dir = dir, .part = part, .shape = shape, .wide = classes > 256};
	w->images = open_part(w, images_name(w), e);
	if (w->images)
		w->labels = open_part(w, labels_name(w), e);
	if (!w->labels)
		return e->status;
	return put_headers(w) ? PS_OK : write_failed(w, images_name(w), e);
}

int writer_put(struct writer *w, const uint8_t *pixels, uint32_t label, struct err *e)
{
	size_t n = shape_count(w->shape);

	if (w->n == IDX_MAX_COUNT)
		return err_set(e, PS_EDATA, "%s: more than %u images", w->dir, IDX_MAX_COUNT);
	w->n++;
	if (fwrite(pixels, 1, n, w->images) != n)
		return write_failed(w, images_name(w), e);
	if (w->wide ? !put_be32(w->labels, label) : putc((int)label, w->labels) == EOF)
		return write_failed(w, labels_name(w), e);
	return PS_OK;
}

static int close_file(struct writer *w, FILE **f, const char *name, struct err *e)
{
	int ok = !fseek(*f, 4, SEEK_SET) && put_be32(*f, w->n) && !fflush(*f) && !fsync(fileno(*f));

	if (fclose(*f))
		ok = 0;
	*f = NULL;
	return ok ? PS_OK : write_failed(w, name, e);
}

int writer_close(struct writer *w, struct err *e)
{
	int rc = w->n ? PS_OK
		      : err_set(e, PS_EDATA, "no %s images",
				w->part == CONVERT_TRAIN ? "training" : "test");

	if (!rc)
		rc = close_file(w, &w->images, images_name(w), e);
	return rc ? rc : close_file(w, &w->labels, labels_name(w), e);
}

int writer_settle(struct writer *w, int keep, struct err *e)
{
	const char *const name[] = {images_name(w), labels_name(w)};
	char path[PATH], part[PATH + 8];
	int rc = PS_OK;

	if (!w->dir)
		return PS_OK;
	if (w->images)
		fclose(w->images);
	if (w->labels)
		fclose(w->labels);
	w->images = w->labels = NULL;
	for (size_t i = 0; i < 2; i++) {
		snprintf(path, sizeof(path), "%s/%s", w->dir, name[i]);
		snprintf(part, sizeof(part), "%s.part", path);
		if (!keep)
			(void)unlink(part);
		else if (!rc && rename(part, path))
			rc = write_failed(w, name[i], e);
	}
	return rc;
}
