/*
 * npy.c - see convert.h: reads NumPy's arrays from train_images.npy, train_labels.npy,
 * test_images.npy and test_labels.npy, or Keras' names x_train.npy and so on. Images are unsigned
 * bytes of N x H x W, N x C x H x W, or N x H x W x C with 1 or 3 channels; labels are integers.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "common/assert.h"
#include "common/le.h"
#include "common/mem.h"
#include "worker/ctl/convert.h"
#include "worker/data/idx.h"

#define PATH     4200
#define MAX_HEAD 4096
#define MAX_DIMS 4

struct npy {
	char path[PATH];
	FILE *file;
	char kind;    /* 'u' for unsigned or 'i' for signed integers */
	int big;      /* 1: the values are big-endian */
	size_t width; /* number of bytes of a value */
	size_t n_dims, dim[MAX_DIMS];
};

/* ---- header ---------------------------------------------------------------------------------- */

static int npy_bad(const struct npy *a, const char *what, struct err *e)
{
	return err_set(e, PS_EDATA, "%s: %s", a->path, what);
}

/* Returns the text after `'key':` in the header of the file, which is a Python dictionary. */
static const char *header_value(const char *head, const char *key)
{
	const char *at = strstr(head, key);

	return at ? at + strlen(key) + strspn(at + strlen(key), "': ") : NULL;
}

static int read_type(struct npy *a, const char *text, struct err *e)
{
	if (!text || !strchr("<>|", text[0]) || !strchr("ui", text[1]) || !text[1] ||
		!strchr("1248", text[2]) || !text[2] || text[3] != '\'')
		return npy_bad(a, "must have integers, such as dtype uint8", e);
	a->big = text[0] == '>';
	a->kind = text[1];
	a->width = (size_t)(text[2] - '0');
	return PS_OK;
}

static int read_dims(struct npy *a, const char *text, struct err *e)
{
	unsigned long long n;
	char *end;

	if (!text || *text != '(')
		return npy_bad(a, "its header has no shape", e);
	for (text++; *text && *text != ')'; text += strspn(text, ", ")) {
		n = strtoull(text, &end, 10);
		if (end == text || n < 1 || n > IDX_MAX_COUNT || a->n_dims == MAX_DIMS)
			return npy_bad(a, "its shape is not that of images or labels", e);
		a->dim[a->n_dims++] = (size_t)n;
		text = end;
	}
	return PS_OK;
}

static int npy_read_header(struct npy *a, struct err *e)
{
	unsigned char magic[12] = {0};
	char head[MAX_HEAD + 1];
	size_t n, size;

	if (fread(magic, 1, 10, a->file) != 10 || memcmp(magic, "\x93NUMPY", 6) != 0)
		return npy_bad(a, "is no .npy file", e);
	/* the size of the header has 16 bits in version 1 of the format and 32 bits in version 2 */
	if (magic[6] > 1 && fread(magic + 10, 1, 2, a->file) != 2)
		return npy_bad(a, "is no .npy file", e);
	size = le32_get(magic + 8);
	if (size > MAX_HEAD)
		return npy_bad(a, "its header is too long", e);
	n = fread(head, 1, size, a->file);
	head[n] = '\0';
	if (n < size)
		return npy_bad(a, "its header is cut off", e);
	const char *order = header_value(head, "fortran_order");
	if (!order || strncmp(order, "False", 5) != 0)
		return npy_bad(a, "must be in C order", e);
	int rc = read_type(a, header_value(head, "descr"), e);
	return rc ? rc : read_dims(a, header_value(head, "shape"), e);
}

static int npy_open(struct npy *a, const char *dir, const char *name, struct err *e)
{
	*a = (struct npy){.kind = 0};
	snprintf(a->path, sizeof(a->path), "%s/%s", dir, name);
	a->file = fopen(a->path, "rb");
	if (!a->file)
		return npy_bad(a, strerror(errno), e);
	return npy_read_header(a, e);
}

static void npy_close(struct npy *a)
{
	if (a->file)
		fclose(a->file);
	a->file = NULL;
}

/* Checks that nothing follows the last value. */
static int npy_at_end(struct npy *a, struct err *e)
{
	return getc(a->file) == EOF ? PS_OK : npy_bad(a, "data follow its last value", e);
}

/* ---- labels ---------------------------------------------------------------------------------- */

static int64_t integer(const struct npy *a, const unsigned char *p)
{
	uint64_t v = 0;

	PS_ASSERT(a->width >= 1 && a->width <= 8);
	for (size_t i = 0; i < a->width; i++)
		v = v << 8 | p[a->big ? i : a->width - 1 - i];
	if (a->kind == 'i' && a->width < 8 && v >> (8 * a->width - 1))
		v |= UINT64_MAX << (8 * a->width);
	return (int64_t)v;
}

/* Reads all labels. Sets *max to the largest label if *max is smaller. */
static int read_labels(struct npy *a, uint16_t **out, uint32_t *max, struct err *e)
{
	unsigned char raw[8];
	uint16_t *labels;

	/* accept an array of one column, too, because labels often have this form */
	if (a->n_dims < 1 || a->n_dims > 2 || (a->n_dims == 2 && a->dim[1] != 1))
		return npy_bad(a, "labels have one dimension", e);
	labels = *out = mem_try(a->dim[0], sizeof(*labels));
	if (!labels)
		return err_set(e, PS_ENOMEM, "%s: no memory for its labels", a->path);
	for (size_t i = 0; i < a->dim[0]; i++) {
		if (fread(raw, 1, a->width, a->file) != a->width)
			return npy_bad(a, "is cut off", e);
		int64_t v = integer(a, raw);
		if (v < 0 || v > IDX_MAX_LABEL)
			return err_set(e, PS_EDATA, "%s: label %zu is %lld, must be 0..%u", a->path,
				i, (long long)v, IDX_MAX_LABEL);
		labels[i] = (uint16_t)v;
		*max = labels[i] > *max ? labels[i] : *max;
	}
	return npy_at_end(a, e);
}

/* ---- images ---------------------------------------------------------------------------------- */

/* Returns 1 if the channels are the last dimension. */
static int channels_last(const struct npy *a)
{
	size_t c = a->dim[1], last = a->dim[3];

	return a->n_dims == 4 && (last == 1 || last == 3) && c != 1 && c != 3;
}

static int shape_of(const struct npy *a, struct shape *s, struct err *e)
{
	const size_t *d = a->dim;

	if (a->n_dims != 3 && a->n_dims != 4)
		return npy_bad(a, "images have 3 or 4 dimensions", e);
	if (a->kind != 'u' || a->width != 1)
		return npy_bad(a, "images have dtype uint8", e);
	*s = a->n_dims == 3     ? (struct shape){1, d[1], d[2]}
	     : channels_last(a) ? (struct shape){d[3], d[1], d[2]}
				: (struct shape){d[1], d[2], d[3]};
	if (s->c > MODEL_MAX_SIDE || s->h > MODEL_MAX_SIDE || s->w > MODEL_MAX_SIDE ||
		shape_count(*s) > MODEL_MAX_PARAMS)
		return npy_bad(a, "its images are too large", e);
	return PS_OK;
}

static int copy_images(struct npy *a, const uint16_t *labels, struct writer *w, struct err *e)
{
	const struct shape *s = &w->shape;
	const size_t n = shape_count(*s), plane = s->h * s->w;
	uint8_t *raw = mem_try(2, n), *planes = raw ? raw + n : NULL;
	const int transposes = channels_last(a);
	int rc = raw ? PS_OK : err_set(e, PS_ENOMEM, "%s: no memory for an image", a->path);

	for (size_t i = 0; i < a->dim[0] && !rc; i++) {
		if (fread(raw, 1, n, a->file) != n)
			rc = npy_bad(a, "is cut off", e);
		for (size_t at = 0; transposes && at < n; at++)
			planes[at % s->c * plane + at / s->c] = raw[at];
		if (!rc)
			rc = writer_put(w, transposes ? planes : raw, labels[i], e);
	}
	free(raw);
	return rc ? rc : npy_at_end(a, e);
}

/* ---- both ------------------------------------------------------------------------------------ */

static const char *const names[][CONVERT_PARTS][2] = {
	{{"train_images.npy", "train_labels.npy"}, {"test_images.npy", "test_labels.npy"}},
	{{"x_train.npy", "y_train.npy"}, {"x_test.npy", "y_test.npy"}},
};

static int copy_part(struct convert *c, enum convert_part part, const char *name,
	const uint16_t *labels, size_t n_labels, struct err *e)
{
	struct shape shape = {0, 0, 0};
	struct npy a;
	int rc = npy_open(&a, c->from, name, e);

	if (!rc)
		rc = shape_of(&a, &shape, e);
	if (!rc && a.dim[0] != n_labels)
		rc = err_set(e, PS_EDATA, "%s: has %zu images and %zu labels", a.path, a.dim[0],
			n_labels);
	if (!rc)
		rc = writer_open(&c->writer[part], c->to, part, shape, c->classes, e);
	if (!rc)
		rc = copy_images(&a, labels, &c->writer[part], e);
	npy_close(&a);
	return rc ? rc : writer_close(&c->writer[part], e);
}

/* Checks that the test images have the shape of the training images. Later functions check the rest
 * of both files. */
static int check_shapes(
	const struct convert *c, const char *const name[CONVERT_PARTS][2], struct err *e)
{
	struct shape shape[CONVERT_PARTS] = {{0, 0, 0}, {0, 0, 0}};
	const struct shape *train = &shape[CONVERT_TRAIN], *test = &shape[CONVERT_TEST];
	struct npy a = {.kind = 0};
	int rc = PS_OK;

	for (int p = 0; p < CONVERT_PARTS && !rc; p++) {
		rc = npy_open(&a, c->from, name[p][0], e);
		if (!rc)
			rc = shape_of(&a, &shape[p], e);
		npy_close(&a);
	}
	if (!rc && (train->c != test->c || train->h != test->h || train->w != test->w))
		rc = err_set(e, PS_EDATA,
			"%s: has images of %zux%zux%zu, the training images are %zux%zux%zu",
			a.path, test->c, test->h, test->w, train->c, train->h, train->w);
	return rc;
}

static int convert_arrays(
	struct convert *c, const char *const name[CONVERT_PARTS][2], struct err *e)
{
	uint16_t *labels[CONVERT_PARTS] = {NULL, NULL};
	size_t n[CONVERT_PARTS] = {0, 0};
	uint32_t max = 1;
	int rc = PS_OK;

	for (int p = 0; p < CONVERT_PARTS && !rc; p++) {
		struct npy a;

		rc = npy_open(&a, c->from, name[p][1], e);
		if (!rc)
			rc = read_labels(&a, &labels[p], &max, e);
		n[p] = a.dim[0];
		npy_close(&a);
	}
	c->classes = max + 1;
	if (!rc)
		rc = check_shapes(c, name, e);
	for (int p = 0; p < CONVERT_PARTS && !rc; p++)
		rc = copy_part(c, (enum convert_part)p, name[p][0], labels[p], n[p], e);
	free(labels[CONVERT_TRAIN]);
	free(labels[CONVERT_TEST]);
	return rc;
}

int convert_npy(struct convert *c, int *found, struct err *e)
{
	char path[PATH];

	*found = 0;
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		snprintf(path, sizeof(path), "%s/%s", c->from, names[i][CONVERT_TRAIN][0]);
		if (access(path, F_OK))
			continue;
		*found = 1;
		return convert_arrays(c, names[i], e);
	}
	return PS_OK;
}
