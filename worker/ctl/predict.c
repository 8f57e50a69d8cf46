/* predict.c - see ctl.h: shows the network's predictions for pictures and test images. */
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/mem.h"
#include "kernels/backend.h"
#include "worker/ctl/ctl.h"
#include "worker/ctl/draw.h"
#include "worker/ctl/picture.h"
#include "worker/data/dataset.h"

#define MAX_WARNING 400

struct gallery {
	struct kx_images images; /* points to `pixels` and `no_labels` */
	uint8_t *pixels;
	uint16_t *labels;
	/* labels of zero for the backend, because the test set may have more classes than the
	 * model */
	uint16_t *no_labels;
	int *known; /* for each picture, 1: the picture has a label of the test set */
	float *probability;
	size_t n, classes;
	struct class_names names;
	struct shape shape; /* shape of a picture */
	size_t size;        /* number of values of a picture */
};

/* ---- pictures -------------------------------------------------------------------------------- */

/* Returns 1 if `text` is the number of a test image. A user who means a file with the name "7" must
 * write "./7". */
static int is_image_number(const char *text)
{
	return text[0] && strspn(text, "0123456789") == strlen(text);
}

static int needs_test_images(const struct ctl *ctl)
{
	for (int i = 0; i < ctl->n_args; i++)
		if (is_image_number(ctl->args[i]))
			return 1;
	return 0;
}

static int take_test_image(
	struct gallery *g, size_t i, const char *text, const struct data *d, struct err *e)
{
	size_t number = strlen(text) < 10 ? strtoul(text, NULL, 10) : SIZE_MAX;

	if (number >= d->id.n_test)
		return err_set(e, PS_EUSAGE,
			"predict: no test image %.20s: their numbers are 0 to %zu", text,
			(size_t)d->id.n_test - 1);
	if (d->shape.c != g->shape.c || d->shape.h != g->shape.h || d->shape.w != g->shape.w)
		return err_set(e, PS_EDATA,
			"%s: images are %zux%zux%zu, the model needs %zux%zux%zu", d->files.dir,
			d->shape.c, d->shape.h, d->shape.w, g->shape.c, g->shape.h, g->shape.w);
	g->labels[i] = d->labels[TEST_PART][number];
	g->known[i] = 1;
	return data_image(d, TEST_PART, (uint32_t)number, g->pixels + i * g->size, e);
}

/* Warns if a picture is blank. Also warns if the picture, as the network gets it, is dark on light:
 * MNIST's digits are light on dark. */
static void warn_of_picture(
	const char *path, const uint8_t *pixels, const struct ctl *ctl, struct shape shape)
{
	char text[MAX_WARNING];

	if (picture_is_blank(pixels, shape)) {
		snprintf(text, sizeof(text),
			"%.200s: blank: no two pixels differ by %d of 255 or more; the prediction "
			"means nothing",
			path, PICTURE_CONTRAST);
		ctl_say("blank", PS_OK, text);
	} else if (picture_is_dark_on_light(pixels, shape)) {
		snprintf(text, sizeof(text),
			"%.200s: dark on light%s; if the images of the training are light on dark, "
			"as MNIST's, %s --invert",
			path, ctl->invert ? " after --invert" : "", ctl->invert ? "remove" : "add");
		ctl_say("inverted", PS_OK, text);
	}
}

static int take_file(struct gallery *g, size_t i, const struct ctl *ctl, struct err *e)
{
	uint8_t *pixels = g->pixels + i * g->size;
	int rc = picture_read(ctl->args[i], g->shape, pixels, e);

	if (rc)
		return rc;
	for (size_t k = 0; k < g->size && ctl->invert; k++)
		pixels[k] = (uint8_t)(255 - pixels[k]);
	warn_of_picture(ctl->args[i], pixels, ctl, g->shape);
	return PS_OK;
}

static int load_test_images(struct data *d, struct gallery *g, const struct ctl *ctl,
	const struct ctl_weights *w, struct err *e)
{
	int rc = data_load(d, ctl->data, e);

	if (rc)
		return rc;
	if (!ctl_weights_differ("predict", w, d))
		class_names_read(&g->names, d->files.dir, g->classes);
	return PS_OK;
}

/* Loads all pictures. If some of them are test images, prints the directory of the data set. */
static int take_all(
	struct gallery *g, const struct ctl *ctl, const struct ctl_weights *w, struct err *e)
{
	struct data *d = mem_must(1, sizeof(*d), "test images");
	int rc = needs_test_images(ctl) ? load_test_images(d, g, ctl, w, e) : PS_OK;

	if (!needs_test_images(ctl) && ctl->data && !files_find(&d->files, ctl->data, NULL))
		class_names_read(&g->names, d->files.dir, g->classes);
	for (size_t i = 0; i < g->n && !rc; i++)
		rc = is_image_number(ctl->args[i]) ? take_test_image(g, i, ctl->args[i], d, e)
						   : take_file(g, i, ctl, e);
	if (!rc && needs_test_images(ctl))
		printf("test images of %s:\n", d->files.dir);
	data_release(d);
	free(d);
	return rc;
}

static void open_gallery(struct gallery *g, size_t n, const struct model *m)
{
	const size_t classes = m->classes;

	g->n = n;
	g->classes = classes;
	g->shape = m->input;
	g->size = shape_count(m->input);
	g->pixels = mem_must(n, g->size, "pictures");
	g->labels = mem_must(n, sizeof(*g->labels), "pictures");
	g->no_labels = mem_must(n, sizeof(*g->no_labels), "pictures");
	g->known = mem_must(n, sizeof(*g->known), "pictures");
	g->probability = mem_must(n * classes, sizeof(*g->probability), "pictures");
	g->images = (struct kx_images){.pixels = g->pixels, .labels = g->no_labels, .n = n};
}

static void close_gallery(struct gallery *g)
{
	free(g->pixels);
	free(g->labels);
	free(g->no_labels);
	free(g->known);
	free(g->probability);
	class_names_release(&g->names);
}

/* ---- the command ----------------------------------------------------------------------------- */

static int classify(const struct ctl_weights *w, struct gallery *g, struct err *e)
{
	struct backend_options o = {
		.device = "cpu", .threads = 1, .max_batch = 1, .forward_only = 1};
	struct backend *b;
	int rc = backend_new(&b, &w->model, &o, e);

	if (rc)
		return rc;
	rc = backend_use(b, &g->images, e);
	if (!rc && (rc = backend_predict(b, w->w, 0, g->n, g->probability)))
		err_set(e, rc, "predict: %s", err_text(rc));
	backend_free(&b);
	return rc;
}

static void draw(const struct gallery *g, size_t i, const char *name)
{
	const struct drawing d = {.shape = g->shape,
		.pixels = g->pixels + i * g->size,
		.probability = g->probability + i * g->classes,
		.classes = g->classes,
		.names = &g->names,
		.label = g->known[i] ? g->labels[i] : -1};

	draw_prediction(name, &d);
}

static int predict(const struct ctl *ctl, const struct ctl_weights *w, struct err *e)
{
	struct gallery g = {0};
	int rc;

	open_gallery(&g, (size_t)ctl->n_args, &w->model);
	rc = take_all(&g, ctl, w, e);
	if (!rc)
		rc = classify(w, &g, e);
	for (size_t i = 0; i < g.n && !rc; i++)
		draw(&g, i, ctl->args[i]);
	close_gallery(&g);
	return rc;
}

int ctl_predict(const struct ctl *ctl, struct err *e)
{
	struct ctl_weights *w = mem_must(1, sizeof(*w), "predict");

	setlocale(LC_CTYPE, ""); /* the width of a name depends on the locale */
	int rc = ctl_weights_load(ctl, needs_test_images(ctl), w, e);

	if (!rc && w->model.classes == 0)
		rc = err_set(e, PS_EUSAGE,
			"predict: model \"%s\" has no classes; it needs a model of images",
			w->model.text);
	if (!rc)
		rc = predict(ctl, w, e);
	ctl_weights_release(w);
	free(w);
	return rc;
}
