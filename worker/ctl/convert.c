/* convert.c - see convert.h: the command, and CIFAR's binaries. */
#include "worker/ctl/convert.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "common/file.h"
#include "common/mem.h"
#include "worker/ctl/ctl.h"

#define PATH 4200

/* ---- CIFAR ----------------------------------------------------------------------------------- */

#define CIFAR_PIXELS 3072

struct cifar_kind {
	const char *train[5], *test;
	/* label: offset of the label in a record; record: bytes of a record */
	size_t files, classes, label, record;
};

static const struct cifar_kind cifar_kinds[] = {
	{{"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin",
		 "data_batch_5.bin"},
		"test_batch.bin", 5, 10, 0, 1 + CIFAR_PIXELS},
	/* a record of CIFAR-100 has a coarse label (of 20) and then a fine one (of 100); the fine
	 * one is used */
	{{"train.bin"}, "test.bin", 1, 100, 1, 2 + CIFAR_PIXELS},
};

static int copy_records(
	struct writer *w, const struct cifar_kind *k, const char *path, FILE *f, struct err *e)
{
	unsigned char record[2 + CIFAR_PIXELS];
	size_t got;
	int rc = PS_OK;

	while (!rc && (got = fread(record, 1, k->record, f)) > 0) {
		if (got < k->record)
			return err_set(e, PS_EDATA, "%s: its size is no multiple of %zu bytes",
				path, k->record);
		if (record[k->label] >= k->classes)
			return err_set(e, PS_EDATA, "%s: label %u of image %u, must be 0..%zu",
				path, record[k->label], w->n, k->classes - 1);
		rc = writer_put(w, record + k->record - CIFAR_PIXELS, record[k->label], e);
	}
	if (!rc && ferror(f))
		rc = err_set(e, PS_EDATA, "%s: %s", path, strerror(errno));
	return rc;
}

static int copy_cifar(struct writer *w, const struct cifar_kind *k, const char *dir,
	const char *name, struct err *e)
{
	char path[PATH];
	FILE *f;
	int rc;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	f = fopen(path, "rb");
	if (!f)
		return err_set(e, PS_EDATA, "%s: %s", path, strerror(errno));
	rc = copy_records(w, k, path, f, e);
	fclose(f);
	return rc;
}

int convert_cifar(struct convert *c, int *found, struct err *e)
{
	const struct shape shape = {3, 32, 32};
	const struct cifar_kind *k = NULL;
	char path[PATH];
	int rc = PS_OK;

	for (size_t i = 0; i < sizeof(cifar_kinds) / sizeof(cifar_kinds[0]); i++) {
		snprintf(path, sizeof(path), "%s/%s", c->from, cifar_kinds[i].test);
		if (!access(path, F_OK))
			k = &cifar_kinds[i];
	}
	*found = k != NULL;
	if (!k)
		return PS_OK;
	c->classes = k->classes;
	for (enum convert_part p = CONVERT_TRAIN; p < CONVERT_PARTS && !rc; p++) {
		struct writer *w = &c->writer[p];

		rc = writer_open(w, c->to, p, shape, k->classes, e);
		for (size_t i = 0; i < (p == CONVERT_TRAIN ? k->files : 1) && !rc; i++)
			rc = copy_cifar(
				w, k, c->from, p == CONVERT_TRAIN ? k->train[i] : k->test, e);
		if (!rc)
			rc = writer_close(w, e);
	}
	return rc;
}

/* ---- the command ----------------------------------------------------------------------------- */

static int convert_any(struct convert *c, struct err *e)
{
	static int (*const readers[])(struct convert * c, int *found, struct err *e) = {
		convert_cifar, convert_npy, convert_folders};
	int found = 0, rc = PS_OK;

	for (size_t i = 0; i < sizeof(readers) / sizeof(readers[0]) && !found && !rc; i++)
		rc = readers[i](c, &found, e);
	if (rc || found)
		return rc;
	return err_set(e, PS_EDATA,
		"convert: %.200s has neither CIFAR's binaries (data_batch_1.bin or train.bin) nor "
		"train_images.npy nor a folder of pictures for each class",
		c->from);
}

int ctl_convert(const struct ctl *ctl, struct err *e)
{
	struct convert c = {.from = ctl->args[0], .to = ctl->args[1]};
	struct stat st;
	int rc;

	if (strlen(c.from) > 4000 || strlen(c.to) > 4000)
		return err_set(e, PS_EUSAGE, "convert: a path is too long");
	if (stat(c.from, &st) || !S_ISDIR(st.st_mode))
		return err_set(e, PS_EDATA, "convert: %.200s is no directory", c.from);
	int is_new = access(c.to, F_OK) != 0;
	rc = file_make_dir(c.to, e);
	if (!rc)
		rc = convert_any(&c, e);
	for (int p = 0; p < CONVERT_PARTS; p++) {
		int settled = writer_settle(&c.writer[p], !rc, e);

		rc = rc ? rc : settled;
	}
	if (rc && is_new)
		(void)rmdir(c.to);
	if (!rc)
		printf("%s: %u training and %u test images of %zux%zux%zu, %zu classes\n", c.to,
			c.writer[CONVERT_TRAIN].n, c.writer[CONVERT_TEST].n, c.writer[0].shape.c,
			c.writer[0].shape.h, c.writer[0].shape.w, c.classes);
	return rc;
}
