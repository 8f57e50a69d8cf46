/* dataset.c - see dataset.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>
#include "common/log.h"
#include "common/mem.h"
#include "worker/data/dataset.h"

static const char *const names[DATA_FILES] = {"train-images-idx3-ubyte", "train-labels-idx1-ubyte",
	"t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"};

static const char *const usual_dirs[] = {"data/mnist", "/usr/share/datasets/fashion-mnist"};

static int is_images(enum data_file f)
{
	return f == TRAIN_IMAGES || f == TEST_IMAGES;
}

/* Write the path dir/name, or dir/name.gz if only that exists. PS_EDATA: neither exists. */
static int find_file(char *path, size_t size, const char *dir, enum data_file f, struct err *e)
{
	static const char *const endings[] = {"", ".gz"};

	for (size_t i = 0; i < 2; i++) {
		int n = snprintf(path, size, "%s/%s%s", dir, names[f], endings[i]);

		if (n < 0 || (size_t)n >= size)
			return err_set(e, PS_EDATA, "data directory: path is too long");
		if (!access(path, F_OK))
			return PS_OK;
	}
	return err_set(e, PS_EDATA, "%s: holds neither %s nor %s.gz", dir, names[f], names[f]);
}

static int count_files(const char *dir)
{
	char path[sizeof((struct data *)0)->dir + 64];
	int n = 0;

	for (int f = 0; f < DATA_FILES; f++)
		n += !find_file(path, sizeof(path), dir, (enum data_file)f, NULL);
	return n;
}

/* Without --data: the first usual directory that has training images. */
static int find_dir(const char **dir, struct err *e)
{
	char path[sizeof((struct data *)0)->dir + 64];

	for (size_t i = 0; i < sizeof(usual_dirs) / sizeof(*usual_dirs); i++) {
		*dir = usual_dirs[i];
		if (!find_file(path, sizeof(path), *dir, TRAIN_IMAGES, NULL))
			return PS_OK;
		if (count_files(*dir))
			log_warn("worker", "data_incomplete",
				"reason=\"%s is ignored: it has %d of the %d files, perhaps after "
				"an interrupted download; run `make data`\"",
				*dir, count_files(*dir), DATA_FILES);
	}
	return err_set(e, PS_EDATA, "no data set in %s or %s: run `make data`, or give --data DIR",
		usual_dirs[0], usual_dirs[1]);
}

/* Refuse a `dir` of --data that has none of the four files; the user may want to fill it first. */
static int check_dir(const char *dir, struct err *e)
{
	if (count_files(dir))
		return PS_OK;
	return err_set(e, PS_EDATA,
		"--data: %.200s holds no data set (%s, plain or .gz, and three more): name "
		"another directory, run `make data` (MNIST into data/mnist), or leave --data out "
		"(data/mnist, else %s)",
		dir, names[TRAIN_IMAGES], usual_dirs[1]);
}

/* Check the labels of a file and convert them to *labels. */
static int take_labels(uint16_t **labels, const struct idx *x, const char *path, struct err *e)
{
	*labels = mem_try(x->dim[0], sizeof(**labels));
	if (!*labels)
		return err_set(e, PS_ENOMEM, "%s: no memory for its labels", path);
	for (size_t i = 0; i < x->dim[0]; i++) {
		if (x->values[i] >= DATA_CLASSES)
			return err_set(e, PS_EDATA,
				"%s: label %zu at offset %zu is %d, must be 0..%d", path, i,
				(size_t)(x->values - x->bytes) + i, x->values[i], DATA_CLASSES - 1);
		(*labels)[i] = x->values[i];
	}
	return PS_OK;
}

static int load_file(struct data *d, enum data_file f, struct err *e)
{
	char path[sizeof(d->dir) + 64];
	int rc = find_file(path, sizeof(path), d->dir, f, e);

	if (!rc)
		rc = idx_read(&d->file[f], path, is_images(f) ? 3 : 1, e);
	if (!rc && !is_images(f))
		rc = take_labels(&d->labels[f / 2], &d->file[f], path, e);
	return rc;
}

/* The four files must describe the same images. */
static int check_consistent(const struct data *d, struct err *e)
{
	const struct idx *train = &d->file[TRAIN_IMAGES], *test = &d->file[TEST_IMAGES];

	for (int f = 0; f < DATA_FILES; f += 2)
		if (d->file[f].dim[0] != d->file[f + 1].dim[0])
			return err_set(e, PS_EDATA,
				"%s: %s has %lu images (count at offset 4), %s has %lu labels",
				d->dir, names[f], (unsigned long)d->file[f].dim[0], names[f + 1],
				(unsigned long)d->file[f + 1].dim[0]);
	if (train->dim[1] != test->dim[1] || train->dim[2] != test->dim[2])
		return err_set(e, PS_EDATA,
			"%s: training images are %lux%lu, test images %lux%lu (rows at offset 8)",
			d->dir, (unsigned long)train->dim[1], (unsigned long)train->dim[2],
			(unsigned long)test->dim[1], (unsigned long)test->dim[2]);
	return PS_OK;
}

static int identify_data(struct data *d, struct err *e)
{
	XXH3_state_t *hash = XXH3_createState();

	if (!hash)
		return err_set(e, PS_ENOMEM, "%s: no memory for its fingerprint", d->dir);
	XXH3_64bits_reset(hash);
	for (int f = 0; f < DATA_FILES; f++)
		XXH3_64bits_update(hash, d->file[f].bytes, d->file[f].size);
	d->id = (struct data_id){
		.n_train = d->file[TRAIN_IMAGES].dim[0],
		.n_test = d->file[TEST_IMAGES].dim[0],
		.rows = d->file[TRAIN_IMAGES].dim[1],
		.cols = d->file[TRAIN_IMAGES].dim[2],
		.classes = DATA_CLASSES,
		.xxh3 = XXH3_64bits_digest(hash),
	};
	XXH3_freeState(hash);
	return PS_OK;
}

int data_load(struct data *d, const char *dir, struct err *e)
{
	int rc = PS_OK;

	memset(d, 0, sizeof(*d));
	rc = dir ? check_dir(dir, e) : find_dir(&dir, e);
	if (rc)
		return rc;
	if ((size_t)snprintf(d->dir, sizeof(d->dir), "%s", dir) >= sizeof(d->dir))
		rc = err_set(e, PS_EDATA, "data directory: path is too long");
	for (int f = 0; f < DATA_FILES && !rc; f++)
		rc = load_file(d, (enum data_file)f, e);
	if (!rc)
		rc = check_consistent(d, e);
	if (!rc)
		rc = identify_data(d, e);
	if (rc)
		data_release(d);
	return rc;
}

void data_release(struct data *d)
{
	for (int f = 0; f < DATA_FILES; f++)
		idx_release(&d->file[f]);
	for (int part = 0; part < DATA_PARTS; part++)
		free(d->labels[part]);
	memset(d, 0, sizeof(*d));
}

static struct kx_images images_of(const struct data *d, enum data_file images, enum data_part part)
{
	return (struct kx_images){.pixels = d->file[images].values,
		.labels = d->labels[part],
		.n = d->file[images].dim[0]};
}

struct kx_images data_train(const struct data *d)
{
	return images_of(d, TRAIN_IMAGES, TRAIN_PART);
}

struct kx_images data_test(const struct data *d)
{
	return images_of(d, TEST_IMAGES, TEST_PART);
}
