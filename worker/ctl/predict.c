/* predict.c - see ctl.h: draws pictures in the terminal with the network's predictions. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "common/assert.h"
#include "common/mem.h"
#include "kernels/backend.h"
#include "worker/ctl/ctl.h"
#include "worker/data/dataset.h"
#include "worker/ctl/picture.h"

#define BAR_CELLS   30
#define CLASS_LINES 12 /* lines for classes beside a picture */
#define FIRST_CLASS 2  /* the line of the screen on which the first class stands */
#define MAX_DRAWN   56 /* pixels of a side; larger pictures are drawn smaller */

struct gallery {
	struct kx_images images; /* points to `pixels` and `no_labels` */
	uint8_t *pixels;
	uint16_t *labels;
	uint16_t *no_labels; /* zeros for the backend: the test set may have more classes than
				the model */
	int *known;          /* 1: the picture has a label of the test set */
	float *probability;
	size_t n, classes;
	struct shape shape; /* of a picture */
	size_t size;        /* its pixels */
};

/* ---- pictures -------------------------------------------------------------------------------- */

/* 1 if `text` is the number of a test image. To name a file "7", write "./7". */
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
		return err_set(e, PS_EUSAGE, "predict: test image %.20s: there are 0 to %zu", text,
			(size_t)d->id.n_test - 1);
	if (d->shape.c != g->shape.c || d->shape.h != g->shape.h || d->shape.w != g->shape.w)
		return err_set(e, PS_EDATA,
			"%s: images are %zux%zux%zu, the model needs %zux%zux%zu", d->files.dir,
			d->shape.c, d->shape.h, d->shape.w, g->shape.c, g->shape.h, g->shape.w);
	g->labels[i] = d->labels[TEST_PART][number];
	g->known[i] = 1;
	return data_image(d, TEST_PART, (uint32_t)number, g->pixels + i * g->size, e);
}

static int take_all(struct gallery *g, const struct ctl *ctl, struct err *e)
{
	struct data *d = mem_must(1, sizeof(*d), "test images");
	int rc = needs_test_images(ctl) ? data_load(d, ctl->data, e) : PS_OK;

	for (size_t i = 0; i < g->n && !rc; i++)
		rc = is_image_number(ctl->args[i])
			     ? take_test_image(g, i, ctl->args[i], d, e)
			     : picture_read(ctl->args[i], g->shape, g->pixels + i * g->size, e);
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
}

/* ---- drawing --------------------------------------------------------------------------------- */

static size_t best_of(const float *p, size_t n)
{
	size_t best = 0;

	for (size_t i = 1; i < n; i++)
		if (p[i] > p[best])
			best = i;
	return best;
}

/* Draw two pixels as one character: two greys on a terminal, else lit or dark. */
static void draw_cell(int top, int bottom, int terminal)
{
	static const char *const halves[] = {" ", "\u2580", "\u2584", "\u2588"};

	if (terminal)
		printf("\033[38;5;%dm\033[48;5;%dm\u2580", 232 + top * 23 / 255,
			232 + bottom * 23 / 255);
	else
		fputs(halves[(top > 127) + 2 * (bottom > 127)], stdout);
}

static void draw_bar(float p)
{
	int eighths = (int)(p * BAR_CELLS * 8 + 0.5f);

	for (int i = 0; i < eighths / 8; i++)
		fputs("\u2588", stdout);
	if (eighths % 8 >= 4)
		fputs("\u258c", stdout);
}

/* Select the classes to show beside a picture: all of them in order, or, if there are more than
 * CLASS_LINES, the most probable ones, best first. Returns their number. */
static size_t classes_shown(const float *p, size_t n, size_t shown[CLASS_LINES])
{
	size_t used = 0;

	for (size_t class = 0; class < n; class ++) {
		size_t at = used;

		if (n > CLASS_LINES)
			while (at > 0 && p[class] > p[shown[at - 1]])
				at--;
		if (at == CLASS_LINES)
			continue;
		used += used < CLASS_LINES;
		memmove(shown + at + 1, shown + at, (used - at - 1) * sizeof(*shown));
		shown[at] = class;
	}
	return used;
}

static int digits(size_t classes)
{
	int n = 1;

	for (; classes > 10; classes = (classes + 9) / 10)
		n++;
	return n;
}

/* The grey of a pixel of the drawing, which is a pixel of the picture: the mean of its channels. */
static int grey_at(const struct gallery *g, size_t picture, size_t step, size_t y, size_t x)
{
	const struct shape *s = &g->shape;
	const uint8_t *pixels = g->pixels + picture * g->size;
	size_t sum = 0;

	PS_ASSERT(s->c > 0);
	if (y * step >= s->h)
		return 0;
	for (size_t c = 0; c < s->c; c++)
		sum += pixels[(c * s->h + y * step) * s->w + x * step];
	return (int)(sum / s->c);
}

/* Draw a line of the picture, two rows of pixels, and the probability of a class if there is
 * one. */
static void draw_line(
	const struct gallery *g, size_t picture, size_t line, const size_t *class, int terminal)
{
	const float *p = g->probability + picture * g->classes;
	const size_t side = g->shape.h > g->shape.w ? g->shape.h : g->shape.w;
	const size_t step = (side + MAX_DRAWN - 1) / MAX_DRAWN;
	const int beside = 2 * line * step >= g->shape.h; /* below the picture */

	for (size_t x = 0; x * step < g->shape.w; x++)
		if (beside)
			putchar(' ');
		else
			draw_cell(grey_at(g, picture, step, 2 * line, x),
				grey_at(g, picture, step, 2 * line + 1, x), terminal);
	if (terminal && !beside)
		fputs("\033[0m", stdout);
	if (class) {
		printf("  %*zu %5.1f %% ", digits(g->classes), *class, 100 * (double)p[*class]);
		draw_bar(p[*class]);
	}
	putchar('\n');
}

static size_t lines_of(const struct gallery *g, size_t classes)
{
	const size_t side = g->shape.h > g->shape.w ? g->shape.h : g->shape.w;
	const size_t step = (side + MAX_DRAWN - 1) / MAX_DRAWN;
	const size_t rows = (g->shape.h + step - 1) / step, lines = (rows + 1) / 2;

	return lines > classes + FIRST_CLASS ? lines : classes + FIRST_CLASS;
}

static void draw(const struct gallery *g, size_t i, const char *name, int terminal)
{
	const float *p = g->probability + i * g->classes;
	size_t best = best_of(p, g->classes), shown[CLASS_LINES];
	size_t n = classes_shown(p, g->classes, shown);

	printf("%s: %zu (%.2f %%)", name, best, 100 * (double)p[best]);
	if (g->known[i])
		printf(", label %d%s", g->labels[i], g->labels[i] == best ? "" : ", wrong");
	putchar('\n');
	for (size_t line = 0; line < lines_of(g, n); line++) {
		size_t row = line - FIRST_CLASS; /* wraps for the first lines: no class there */

		draw_line(g, i, line, row < n ? &shown[row] : NULL, terminal);
	}
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

static int predict(const struct ctl *ctl, const struct ctl_weights *w, struct err *e)
{
	int terminal = isatty(STDOUT_FILENO), rc;
	struct gallery g = {0};

	open_gallery(&g, (size_t)ctl->n_args, &w->model);
	rc = take_all(&g, ctl, e);
	if (!rc)
		rc = classify(w, &g, e);
	for (size_t i = 0; i < g.n && !rc; i++)
		draw(&g, i, ctl->args[i], terminal);
	close_gallery(&g);
	return rc;
}

int ctl_predict(const struct ctl *ctl, struct err *e)
{
	struct ctl_weights *w = mem_must(1, sizeof(*w), "predict");
	int rc = ctl_weights_load(ctl, w, e);

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
