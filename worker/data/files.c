/* files.c - see files.h. */
#include "worker/data/files.h"
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "common/log.h"

static const char *const names[DATA_FILES] = {"train-images-idx3-ubyte", "train-labels-idx1-ubyte",
	"t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"};
/* names of files of images with channels, which the module uses if no file has the name above */
static const char *const other_names[DATA_FILES] = {
	[TRAIN_IMAGES] = "train-images-idx4-ubyte", [TEST_IMAGES] = "t10k-images-idx4-ubyte"};
static const char *const emnist_names[DATA_FILES] = {"train-images-idx3-ubyte",
	"train-labels-idx1-ubyte", "test-images-idx3-ubyte", "test-labels-idx1-ubyte"};
static const char *const splits[] = {
	"balanced", "byclass", "bymerge", "digits", "letters", "mnist"};
static const char *const usual_dirs[] = {"data/mnist", "/usr/share/datasets/fashion-mnist"};

#define N_SPLITS (sizeof(splits) / sizeof(splits[0]))

/* ---- one file -------------------------------------------------------------------------------- */

static int path_of(const struct data_files *f, const char *name, const char *ending, char *path)
{
	if (f->split[0])
		snprintf(path, FILES_MAX_PATH + 64, "%s/emnist-%s-%s%s", f->dir, f->split, name,
			ending);
	else
		snprintf(path, FILES_MAX_PATH + 64, "%s/%s%s", f->dir, name, ending);
	return !access(path, F_OK);
}

const char *files_name(const struct data_files *f, enum data_file file, char name[64])
{
	if (f->split[0])
		snprintf(name, 64, "emnist-%s-%s", f->split, emnist_names[file]);
	else
		snprintf(name, 64, "%s", names[file]);
	return name;
}

int files_path(const struct data_files *f, enum data_file file, char path[FILES_MAX_PATH + 64],
	struct err *e)
{
	const char *const name[] = {
		f->split[0] ? emnist_names[file] : names[file], other_names[file]};
	char usual[64];

	for (size_t i = 0; i < 2 && name[i]; i++)
		if (path_of(f, name[i], "", path) || path_of(f, name[i], ".gz", path))
			return PS_OK;
	files_name(f, file, usual);
	return err_set(e, PS_EDATA, "%s: holds neither %s nor %s.gz", f->dir, usual, usual);
}

static int count_files(const struct data_files *f)
{
	char path[FILES_MAX_PATH + 64];
	int n = 0;

	for (int i = 0; i < DATA_FILES; i++)
		n += !files_path(f, (enum data_file)i, path, NULL);
	return n;
}

/* ---- the data set ---------------------------------------------------------------------------- */

static int use_dir(struct data_files *f, const char *dir, size_t n, struct err *e)
{
	*f = (struct data_files){.split = ""};
	if (n >= sizeof(f->dir))
		return err_set(e, PS_EDATA, "data directory: path is too long");
	memcpy(f->dir, dir, n);
	return PS_OK;
}

/* Chooses, without --data, the first usual directory that has training images. */
static int find_usual(struct data_files *f, struct err *e)
{
	char path[FILES_MAX_PATH + 64];

	for (size_t i = 0; i < sizeof(usual_dirs) / sizeof(*usual_dirs); i++) {
		(void)use_dir(f, usual_dirs[i], strlen(usual_dirs[i]), e);
		if (!files_path(f, TRAIN_IMAGES, path, NULL))
			return PS_OK;
		if (count_files(f))
			log_warn("worker", "data_incomplete",
				"reason=\"%s is ignored: it has %d of the %d files, perhaps after "
				"an interrupted download; run `make data`\"",
				f->dir, count_files(f), DATA_FILES);
	}
	return err_set(e, PS_EDATA, "no data set in %s or %s: run `make data`, or give --data DIR",
		usual_dirs[0], usual_dirs[1]);
}

/* Chooses the split of EMNIST in f->dir. Fails if the directory has several splits. */
static int find_split(struct data_files *f, struct err *e)
{
	const char *found = NULL;

	for (size_t i = 0; i < N_SPLITS; i++) {
		snprintf(f->split, sizeof(f->split), "%s", splits[i]);
		if (!count_files(f))
			continue;
		if (found)
			return err_set(e, PS_EDATA,
				"--data: %.200s holds several splits of EMNIST: name one, as "
				"--data %.200s/emnist-%s",
				f->dir, f->dir, found);
		found = splits[i];
	}
	snprintf(f->split, sizeof(f->split), "%s", found ? found : "");
	return found ? PS_OK
		     : err_set(e, PS_EDATA,
			       "--data: %.200s holds no data set (%s, plain or .gz, and three "
			       "more): name another directory, run `make data` (MNIST into "
			       "data/mnist), or leave --data out (data/mnist, else %s)",
			       f->dir, names[TRAIN_IMAGES], usual_dirs[1]);
}

/* Returns 1 if the last part of `place` is the name of a split, emnist-SPLIT. */
static int names_split(struct data_files *f, const char *place)
{
	const char *slash = strrchr(place, '/'), *name = slash ? slash + 1 : place;
	struct err e;

	for (size_t i = 0; i < N_SPLITS; i++) {
		if (strncmp(name, "emnist-", 7) != 0 || strcmp(name + 7, splits[i]) != 0)
			continue;
		if (slash ? use_dir(f, place, (size_t)(slash - place), &e) : use_dir(f, ".", 1, &e))
			return 0;
		snprintf(f->split, sizeof(f->split), "%s", splits[i]);
		return count_files(f) > 0;
	}
	return 0;
}

int files_find(struct data_files *f, const char *place, struct err *e)
{
	struct stat st;
	int rc;

	if (!place)
		return find_usual(f, e);
	if (stat(place, &st) != 0 && names_split(f, place))
		return PS_OK;
	if ((rc = use_dir(f, place, strlen(place), e)))
		return rc;
	return count_files(f) ? PS_OK : find_split(f, e);
}
