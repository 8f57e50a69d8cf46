/* dataset.c - see dataset.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>
#include "common/mem.h"
#include "common/rng.h"
#include "worker/data/dataset.h"

#define PIECE ((size_t)1 << 20) /* number of bytes of a file that are read at a time */

static int is_images(enum data_file f)
{
	return f == TRAIN_IMAGES || f == TEST_IMAGES;
}

static int is_emnist(const struct data *d)
{
	return d->files.split[0] != '\0';
}

/* ---- labels and images ----------------------------------------------------------------------- */

/* Renumbers the labels of EMNIST's letters from 0, because the file has labels from 1 to 26. */
static int number_letters(uint16_t *labels, size_t n, const char *path, struct err *e)
{
	for (size_t i = 0; i < n; i++)
		if (labels[i]-- == 0)
			return err_set(e, PS_EDATA,
				"%s: label %zu is 0; letters have labels of 1 to 26", path, i);
	return PS_OK;
}

/* Reads the labels of file `x` into d->labels[part]. */
static int take_labels(
	struct data *d, enum data_part part, const struct idx *x, const char *path, struct err *e)
{
	uint16_t *labels = mem_try(x->n, sizeof(*labels));
	int rc;

	d->labels[part] = labels;
	if (!labels)
		return err_set(e, PS_ENOMEM, "%s: no memory for its labels", path);
	rc = idx_labels(x, path, labels, e);
	if (!rc && strcmp(d->files.split, "letters") == 0)
		rc = number_letters(labels, x->n, path, e);
	for (size_t i = 0; i < x->n && !rc; i++)
		d->max_label = labels[i] > d->max_label ? labels[i] : d->max_label;
	return rc;
}

static int refuse_counts(
	const struct data *d, enum data_file f, uint32_t n_images, uint32_t n_labels, struct err *e)
{
	char images[64], labels[64];

	return err_set(e, PS_EDATA, "%s: %s has %lu images (count at offset 4), %s has %lu labels",
		d->files.dir, files_name(&d->files, f, images), (unsigned long)n_images,
		files_name(&d->files, (enum data_file)(f + 1), labels), (unsigned long)n_labels);
}

/* Compares the number of images with the number of labels. This happens before memory is reserved
 * for the images, because a small gzipped file may claim more images than fit in memory. */
static int check_count(struct data *d, enum data_file f, const char *path, struct err *e)
{
	uint32_t n, n_labels = d->file[f + 1].n;
	int rc = idx_count(&n, path, IDX_IMAGES, e);

	return rc || n == n_labels ? rc : refuse_counts(d, f, n, n_labels, e);
}

/* Refuses images of EMNIST that do not fit in memory, because they must be transposed in memory. */
static int refuse_disk(const struct idx *x, uint64_t memory, struct err *e)
{
	if (memory >= x->size)
		return err_set(e, PS_EDATA, "%s: has %llu bytes; images of EMNIST may have %llu",
			x->path, (unsigned long long)x->size, (unsigned long long)IDX_MAX_BYTES);
	return err_set(e, PS_EDATA,
		"%s: has %llu bytes, and the limit of memory (--data-memory-mb) leaves %llu; "
		"images of EMNIST must fit it",
		x->path, (unsigned long long)x->size, (unsigned long long)memory);
}

/* Loads one file. *memory is the number of bytes that are left for images; the function subtracts
 * the bytes of the images that it loads. The labels are loaded before the images. */
static int load_file(struct data *d, enum data_file f, uint64_t *memory, struct err *e)
{
	char path[FILES_MAX_PATH + 64];
	int rc = files_path(&d->files, f, path, e);

	if (!rc && is_images(f))
		rc = check_count(d, f, path, e);
	if (!rc)
		rc = is_images(f) ? idx_open(&d->file[f], path, IDX_IMAGES, *memory, e)
				  : idx_read(&d->file[f], path, IDX_LABELS, e);
	if (!rc && is_images(f) && is_emnist(d) && !d->file[f].bytes)
		rc = refuse_disk(&d->file[f], *memory, e);
	if (!rc && is_images(f) && d->file[f].bytes)
		*memory -= d->file[f].size < *memory ? d->file[f].size : *memory;
	if (!rc && !is_images(f))
		rc = take_labels(
			d, f == TRAIN_LABELS ? TRAIN_PART : TEST_PART, &d->file[f], path, e);
	return rc;
}

/* Checks that the four files describe the same images. */
static int check_consistent(const struct data *d, struct err *e)
{
	const struct idx *train = &d->file[TRAIN_IMAGES], *test = &d->file[TEST_IMAGES];

	/* check again, because a file may have changed since check_count */
	for (int f = 0; f < DATA_FILES; f += 2)
		if (d->file[f].n != d->file[f + 1].n)
			return refuse_counts(
				d, (enum data_file)f, d->file[f].n, d->file[f + 1].n, e);
	if (train->channels != test->channels || train->rows != test->rows ||
		train->columns != test->columns)
		return err_set(e, PS_EDATA,
			"%s: training images are %lux%lux%lu, test images %lux%lux%lu (sides at "
			"offset 8)",
			d->files.dir, (unsigned long)train->channels, (unsigned long)train->rows,
			(unsigned long)train->columns, (unsigned long)test->channels,
			(unsigned long)test->rows, (unsigned long)test->columns);
	return PS_OK;
}

/* Returns the number of classes of the data set. The number depends only on the files, so that
 * workers with equal files agree. A model may have more classes than the data set. */
static uint32_t count_classes(const struct data *d)
{
	const int is_mnist = d->shape.c == 1 && d->shape.h == 28 && d->shape.w == 28;

	return is_mnist && d->max_label < MODEL_CLASSES ? MODEL_CLASSES : d->max_label + 1u;
}

/* Transposes an image, because EMNIST stores the columns of an image one after the other. */
static void transpose_image(const struct shape *s, uint8_t *pixels, uint8_t *spare)
{
	memcpy(spare, pixels, s->h * s->w);
	for (size_t y = 0; y < s->h; y++)
		for (size_t x = 0; x < s->w; x++)
			pixels[y * s->w + x] = spare[x * s->h + y];
}

static int transpose_all(struct data *d, struct err *e)
{
	const struct shape *s = &d->shape;
	uint8_t *spare;

	if (s->c != 1 || s->h != s->w)
		return err_set(e, PS_EDATA, "%s: images of EMNIST are squares, not %zux%zux%zu",
			d->files.dir, s->c, s->h, s->w);
	if (!(spare = mem_try(s->h, s->w)))
		return err_set(e, PS_ENOMEM, "%s: no memory to transpose its images", d->files.dir);
	for (int f = 0; f < DATA_FILES; f += 2)
		for (size_t i = 0; i < d->file[f].n; i++)
			transpose_image(
				s, d->file[f].bytes + d->file[f].head + i * s->h * s->w, spare);
	free(spare);
	return PS_OK;
}

static int hash_file(XXH3_state_t *hash, const struct idx *x, struct err *e)
{
	uint8_t *piece;
	int rc = PS_OK;

	if (x->bytes) {
		XXH3_64bits_update(hash, x->bytes, x->size);
		return PS_OK;
	}
	if (!(piece = mem_try(PIECE, 1)))
		return err_set(e, PS_ENOMEM, "%s: no memory to read it", x->path);
	for (uint64_t at = 0; at < x->size && !rc; at += PIECE) {
		size_t n = x->size - at < PIECE ? (size_t)(x->size - at) : PIECE;

		rc = idx_copy(x, at, n, piece, e);
		if (!rc)
			XXH3_64bits_update(hash, piece, n);
	}
	free(piece);
	return rc;
}

static int identify_data(struct data *d, struct err *e)
{
	XXH3_state_t *hash = XXH3_createState();
	int rc = PS_OK;
	const struct idx *train = &d->file[TRAIN_IMAGES];

	if (!hash)
		return err_set(e, PS_ENOMEM, "%s: no memory for its fingerprint", d->files.dir);
	XXH3_64bits_reset(hash);
	for (int f = 0; f < DATA_FILES && !rc; f++)
		rc = hash_file(hash, &d->file[f], e);
	/* include the split, because the same bytes under MNIST's names would be read as different
	 * images */
	XXH3_64bits_update(hash, d->files.split, strlen(d->files.split));
	d->shape = (struct shape){train->channels, train->rows, train->columns};
	d->id = (struct data_id){
		.n_train = train->n,
		.n_test = d->file[TEST_IMAGES].n,
		.channels = train->channels > 1 ? train->channels : 0,
		.rows = train->rows,
		.cols = train->columns,
		.classes = count_classes(d),
		.xxh3 = XXH3_64bits_digest(hash),
	};
	XXH3_freeState(hash);
	return rc;
}

int data_load_within(struct data *d, const char *place, uint64_t memory, struct err *e)
{
	int rc;

	memset(d, 0, sizeof(*d));
	rc = files_find(&d->files, place, e);
	for (int f = 0; f < DATA_FILES && !rc; f++)
		rc = load_file(d, (enum data_file)(f ^ 1), &memory, e);
	if (!rc)
		rc = check_consistent(d, e);
	if (!rc)
		rc = identify_data(d, e);
	if (!rc && is_emnist(d))
		rc = transpose_all(d, e);
	if (rc)
		data_release(d);
	return rc;
}

int data_load(struct data *d, const char *place, struct err *e)
{
	return data_load_within(d, place, mem_of_machine() / 2, e);
}

/* ---- images of validation -------------------------------------------------------------------- */

/* The memory and the selection that data_hold_back prepares before it changes the data set. */
struct partition {
	uint32_t n, n_held_back;
	uint32_t *order;  /* at first a shuffle of all images, later the order for d->order */
	uint8_t *is_held; /* for each image of the file: 1 if it is held back */
	uint16_t *label[DATA_PARTS];
	uint8_t *pixels; /* the pixels of the held-back images, if they are in memory */
};

static void choose_held(struct partition *p)
{
	uint32_t next[2] = {0, p->n - p->n_held_back};

	rng_hold_back(p->order, p->n);
	for (uint32_t i = 0; i < p->n_held_back; i++)
		p->is_held[p->order[i]] = 1;
	for (uint32_t i = 0; i < p->n; i++)
		p->order[next[p->is_held[i]]++] = i;
}

static void part_labels(struct data *d, struct partition *p)
{
	const uint32_t rest = p->n - p->n_held_back;

	for (uint32_t i = 0; i < p->n; i++)
		p->label[i >= rest][i >= rest ? i - rest : i] = d->labels[TRAIN_PART][p->order[i]];
	for (int part = 0; part < DATA_PARTS; part++) {
		free(d->labels[part]);
		d->labels[part] = p->label[part];
		p->label[part] = NULL;
	}
}

/* Moves the held-back images behind all other images. */
static void part_pixels(struct data *d, struct partition *p)
{
	const size_t size = shape_count(d->shape);
	uint8_t *rest = d->file[TRAIN_IMAGES].bytes + d->file[TRAIN_IMAGES].head;
	uint8_t *held = p->pixels;

	for (uint32_t i = 0; i < p->n; i++) {
		const uint8_t *from = d->file[TRAIN_IMAGES].values + i * size;
		uint8_t **to = p->is_held[i] ? &held : &rest;

		memmove(*to, from, size);
		*to += size;
	}
	memcpy(rest, p->pixels, p->n_held_back * size);
}

static int hold_back(struct data *d, struct partition *p, struct err *e)
{
	const int in_memory = data_in_memory(d, TRAIN_PART);

	p->order = mem_try(p->n, sizeof(*p->order));
	p->is_held = mem_try(p->n, 1);
	p->label[TRAIN_PART] = mem_try(p->n - p->n_held_back, sizeof(**p->label));
	p->label[TEST_PART] = mem_try(p->n_held_back, sizeof(**p->label));
	p->pixels = mem_try(in_memory ? p->n_held_back : 0, shape_count(d->shape));
	if (!p->order || !p->is_held || !p->label[TRAIN_PART] || !p->label[TEST_PART] || !p->pixels)
		return err_set(e, PS_ENOMEM, "%s: no memory to hold back %u images", d->files.dir,
			p->n_held_back);
	choose_held(p);
	part_labels(d, p);
	if (in_memory) {
		part_pixels(d, p);
	} else {
		d->order = p->order;
		p->order = NULL;
	}
	d->n_held_back = p->n_held_back;
	return PS_OK;
}

int data_hold_back(struct data *d, uint32_t n, struct err *e)
{
	struct partition p = {.n = d->id.n_train, .n_held_back = n};
	int rc;

	if (n == d->n_held_back)
		return PS_OK;
	if (n >= p.n || d->n_held_back)
		return err_set(e, PS_EWRONGDATA,
			"%s: the run holds back %u training images; there are %u, and %u are held "
			"back",
			d->files.dir, n, p.n, d->n_held_back);
	rc = hold_back(d, &p, e);
	free(p.order);
	free(p.is_held);
	free(p.label[TRAIN_PART]);
	free(p.label[TEST_PART]);
	free(p.pixels);
	return rc;
}

void data_release(struct data *d)
{
	for (int f = 0; f < DATA_FILES; f++)
		idx_release(&d->file[f]);
	for (int part = 0; part < DATA_PARTS; part++)
		free(d->labels[part]);
	free(d->order);
	memset(d, 0, sizeof(*d));
}

static const struct idx *images_file(const struct data *d, enum data_part part)
{
	return &d->file[part == TRAIN_PART || d->n_held_back ? TRAIN_IMAGES : TEST_IMAGES];
}

/* Returns the position of the first image of the part among all training images. */
static uint32_t first_of(const struct data *d, enum data_part part)
{
	return part == TEST_PART && d->n_held_back ? d->id.n_train - d->n_held_back : 0;
}

int data_in_memory(const struct data *d, enum data_part part)
{
	return images_file(d, part)->values != NULL;
}

int data_image(
	const struct data *d, enum data_part part, uint32_t image, uint8_t *to, struct err *e)
{
	const struct idx *x = images_file(d, part);
	size_t n = shape_count(d->shape);

	image += first_of(d, part);
	if (d->order)
		image = d->order[image];
	return idx_copy(x, x->head + (uint64_t)image * n, n, to, e);
}

static struct kx_images images_of(const struct data *d, enum data_part part)
{
	const struct idx *x = images_file(d, part);
	const size_t first = first_of(d, part);
	const uint32_t rest = part == TRAIN_PART ? d->n_held_back : 0;

	return (struct kx_images){
		.pixels = x->values ? x->values + first * shape_count(d->shape) : NULL,
		.labels = d->labels[part],
		.n = x->n - first - rest};
}

struct kx_images data_train(const struct data *d)
{
	return images_of(d, TRAIN_PART);
}

struct kx_images data_test(const struct data *d)
{
	return images_of(d, TEST_PART);
}
