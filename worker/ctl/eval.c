/*
 * eval.c - see ctl.h: evaluates weights on the test images. The command prints the accuracy, the
 * loss, the pairs of classes that the network confuses, and the images that it classifies wrongly
 * with the greatest loss.
 */
#include <errno.h>
#include <locale.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/file.h"
#include "common/mem.h"
#include "common/number_text.h"
#include "kernels/backend.h"
#include "worker/ctl/ctl.h"
#include "worker/ctl/draw.h"
#include "worker/ctl/sheet.h"
#include "worker/data/dataset.h"

#define CHUNK 256 /* maximum number of images that are evaluated at a time */
/* with at most this number of classes, a table shows the confusions, with more a list */
#define TABLE_SIDE       20
#define MAX_COUNTED      4096 /* maximum number of classes whose confusions are counted */
#define LISTED           20   /* maximum number of confusions in the list */
#define WORST            48   /* maximum number of mistakes on a contact sheet */
#define DRAWN            3    /* maximum number of mistakes that are drawn on the terminal */
#define SHEET_NAME       18   /* maximum number of characters of a name on a contact sheet */
#define MAX_EVAL_THREADS 64
#define NAME             48

struct mistake {
	uint32_t image;
	uint16_t label;
	size_t class;
	float sure;  /* the probability of `class` */
	float right; /* the probability of `label`: the loss is its negative logarithm */
};

struct evaluation {
	const struct ctl_weights *weights;
	struct data data;
	struct backend *backend;
	struct kx_images chunk; /* points to `pixels` and `labels` */
	uint8_t *pixels;        /* pixels of CHUNK images */
	uint16_t *labels;
	float *probability; /* probabilities of the classes for CHUNK images */
	size_t classes;
	size_t correct;
	double loss_sum;
	uint32_t *count; /* count[label * classes + class]; NULL: there are too many classes */
	struct mistake worst[WORST];
	size_t n_worst;
	FILE *predictions; /* file of --predictions; NULL: the option is not set */
	int writes_files;  /* 1 if --predictions or --mistakes is set */
	struct class_names names;
};

/* ---- counting -------------------------------------------------------------------------------- */

/* Adds `m` to the list of the WORST mistakes with the greatest loss if it belongs there. Mistakes
 * are compared by the probability of the right label, because the probability of the wrong class
 * often rounds to 1. */
static void keep_mistake(struct evaluation *v, struct mistake m)
{
	size_t at = v->n_worst;

	while (at > 0 && m.right < v->worst[at - 1].right)
		at--;
	if (at == WORST)
		return;
	v->n_worst += v->n_worst < WORST;
	memmove(v->worst + at + 1, v->worst + at, (v->n_worst - at - 1) * sizeof(m));
	v->worst[at] = m;
}

static void count_image(struct evaluation *v, uint32_t image, uint16_t label, const float *p)
{
	const size_t class = draw_best(p, v->classes);

	if (v->count)
		v->count[label * v->classes + class]++;
	if (class != label)
		keep_mistake(v, (struct mistake){image, label, class, p[class], p[label]});
	if (v->predictions)
		fprintf(v->predictions, "%u,%u,%zu,%.9g\n", image, label, class, (double)p[class]);
}

static int evaluate_chunk(struct evaluation *v, uint32_t first, size_t n, struct err *e)
{
	const size_t size = shape_count(v->data.shape);
	size_t correct = 0;
	double loss = 0;
	int rc = PS_OK;

	for (size_t i = 0; i < n && !rc; i++)
		rc = data_image(&v->data, TEST_PART, first + (uint32_t)i, v->pixels + i * size, e);
	if (rc)
		return rc;
	memcpy(v->labels, v->data.labels[TEST_PART] + first, n * sizeof(*v->labels));
	v->chunk = (struct kx_images){.pixels = v->pixels, .labels = v->labels, .n = n};
	rc = backend_use(v->backend, &v->chunk, e);
	if (rc)
		return rc;
	/* Compute the loss from the logits, as workers do. Computed from the probability of the
	 * label, the loss would be infinite if the probability rounds to 0. */
	rc = backend_evaluate(v->backend, v->weights->w, 0, n, &correct, &loss);
	if (!rc)
		rc = backend_predict(v->backend, v->weights->w, 0, n, v->probability);
	if (rc)
		return err_set(e, rc, "eval: %s", err_text(rc));
	v->correct += correct;
	v->loss_sum += loss;
	for (size_t i = 0; i < n; i++)
		count_image(v, first + (uint32_t)i, v->labels[i], v->probability + i * v->classes);
	return PS_OK;
}

static int evaluate_all(struct evaluation *v, struct err *e)
{
	const uint32_t n = v->data.id.n_test;
	int rc = PS_OK;

	for (uint32_t first = 0; first < n && !rc; first += CHUNK) {
		if (!v->writes_files)
			ctl_end_if_unread();
		rc = evaluate_chunk(v, first, n - first < CHUNK ? n - first : CHUNK, e);
	}
	return rc;
}

/* ---- printing -------------------------------------------------------------------------------- */

static void print_table(const struct evaluation *v)
{
	printf("\nlabel   class that the network assigns\n      ");
	for (size_t c = 0; c < v->classes; c++)
		printf(" %5zu", c);
	putchar('\n');
	for (size_t label = 0; label < v->classes; label++) {
		printf("%5zu ", label);
		for (size_t c = 0; c < v->classes; c++)
			if (v->count[label * v->classes + c])
				printf(" %5u", v->count[label * v->classes + c]);
			else
				printf("     .");
		if (v->names.n)
			printf("  %s", class_names_get(&v->names, label));
		putchar('\n');
	}
}

/* Prints the most frequent confusions. Each pass of the loop searches for the largest count that
 * was not printed yet. */
static void print_confusions(const struct evaluation *v)
{
	const size_t n = v->classes * v->classes;

	if (v->correct == v->data.id.n_test)
		return;
	printf("\nlabel  class  images\n");
	for (size_t line = 0; line < LISTED; line++) {
		size_t best = n;

		for (size_t i = 0; i < n; i++)
			if (i / v->classes != i % v->classes && v->count[i] &&
				(best == n || v->count[i] > v->count[best]))
				best = i;
		if (best == n)
			return;
		const size_t label = best / v->classes, class = best % v->classes;

		printf("%5zu  %5zu  %6u", label, class, v->count[best]);
		if (v->names.n)
			printf("  %s as %s", class_names_get(&v->names, label),
				class_names_get(&v->names, class));
		putchar('\n');
		v->count[best] = 0;
	}
}

static void print_results(const struct evaluation *v)
{
	const size_t n = v->data.id.n_test;
	char text[NUMBER_TEXT];

	printf("%s: %zu test images, accuracy %.4f (%zu wrong), loss %s\n", v->data.files.dir, n,
		(double)v->correct / (double)n, n - v->correct,
		number_text_loss(v->loss_sum / (double)n, text));
	if (v->count && v->classes <= TABLE_SIDE)
		print_table(v);
	else if (v->count)
		print_confusions(v);
}

/* Loads the pixels of the worst mistakes into v->pixels, which has room for them because CHUNK is
 * at least WORST. */
static int load_worst(struct evaluation *v, struct err *e)
{
	const size_t size = shape_count(v->data.shape);
	int rc = PS_OK;

	for (size_t i = 0; i < v->n_worst && !rc; i++)
		rc = data_image(&v->data, TEST_PART, v->worst[i].image, v->pixels + i * size, e);
	v->chunk = (struct kx_images){.pixels = v->pixels, .labels = v->labels, .n = v->n_worst};
	if (!rc)
		rc = backend_use(v->backend, &v->chunk, e);
	if (!rc && (rc = backend_predict(v->backend, v->weights->w, 0, v->n_worst, v->probability)))
		err_set(e, rc, "eval: %s", err_text(rc));
	return rc;
}

static void draw_worst(const struct evaluation *v)
{
	printf("\nworst mistakes:\n");
	for (size_t i = 0; i < v->n_worst && i < DRAWN; i++) {
		char name[NAME];

		snprintf(name, sizeof(name), "image %u", v->worst[i].image);
		draw_prediction(name, &(struct drawing){.shape = v->data.shape,
					      .pixels = v->pixels + i * shape_count(v->data.shape),
					      .probability = v->probability + i * v->classes,
					      .classes = v->classes,
					      .names = &v->names,
					      .label = v->worst[i].label});
	}
}

/* Returns 1 if the contact sheet can show the name of a class. */
static int can_write_name(const struct evaluation *v, size_t class)
{
	const char *name = class_names_get(&v->names, class);

	return *name && sheet_can_write(name);
}

/* Writes the name of a class or, if the sheet cannot show it, "class" and its number. */
static void write_tile_class(
	const struct evaluation *v, size_t class, const char *before, char line[SHEET_TEXT])
{
	if (can_write_name(v, class))
		snprintf(line, SHEET_TEXT, "%s%.*s", before, SHEET_NAME,
			class_names_get(&v->names, class));
	else
		snprintf(line, SHEET_TEXT, "%sclass %zu", before, class);
}

/* Writes the names of label and class, if the classes have names, and a line with their numbers,
 * the probability and the number of the image. */
static void write_tile_text(
	const struct evaluation *v, const struct mistake *m, struct sheet_tile *tile)
{
	const double sure = 100 * (double)m->sure;

	memset(tile->line, 0, sizeof(tile->line));
	if (v->names.n) {
		write_tile_class(v, m->label, "", tile->line[0]);
		write_tile_class(v, m->class, "->", tile->line[1]);
		snprintf(tile->line[2], SHEET_TEXT, "%u->%zu %.0f%% #%u", m->label, m->class, sure,
			m->image);
	} else {
		snprintf(tile->line[0], SHEET_TEXT, "%u->%zu %.0f%%", m->label, m->class, sure);
		snprintf(tile->line[1], SHEET_TEXT, "#%u", m->image);
	}
}

/* Prints number and name of each class that the contact sheet shows without its name. */
static void print_unwritten_names(const struct evaluation *v)
{
	int n = 0;

	for (size_t class = 0; class < v->names.n; class ++) {
		int is_shown = 0;

		for (size_t i = 0; i < v->n_worst; i++)
			is_shown |= v->worst[i].label == class || v->worst[i].class == class;
		if (!is_shown || can_write_name(v, class) || !*class_names_get(&v->names, class))
			continue;
		if (!n++)
			printf("classes that the picture shows without their names:\n");
		printf("%5zu  %s\n", class, class_names_get(&v->names, class));
	}
}

static int write_worst(const struct evaluation *v, const char *path, struct err *e)
{
	struct sheet_tile tiles[WORST];
	int rc;

	for (size_t i = 0; i < v->n_worst; i++) {
		const struct mistake *m = &v->worst[i];

		tiles[i].pixels = v->pixels + i * shape_count(v->data.shape);
		write_tile_text(v, m, &tiles[i]);
	}
	rc = sheet_write(path, v->data.shape, tiles, v->n_worst, e);
	if (!rc) {
		printf("\n%s: the %zu mistakes with the greatest loss\n", path, v->n_worst);
		print_unwritten_names(v);
	}
	return rc;
}

static int show_worst(struct evaluation *v, const char *path, struct err *e)
{
	int rc = v->n_worst ? load_worst(v, e) : PS_OK;

	if (!rc && v->n_worst)
		draw_worst(v);
	if (!rc && v->n_worst && path)
		rc = write_worst(v, path, e);
	if (!v->n_worst && path)
		printf("\nno mistakes: %s was not written\n", path);
	return rc;
}

/* ---- the command ----------------------------------------------------------------------------- */

static int check_test_images(const struct evaluation *v, struct err *e)
{
	const struct model *m = &v->weights->model;
	const struct shape is = v->data.shape, need = m->input;

	if (is.c != need.c || is.h != need.h || is.w != need.w)
		return err_set(e, PS_EDATA,
			"%s: images are %zux%zux%zu, the model needs %zux%zux%zu",
			v->data.files.dir, is.c, is.h, is.w, need.c, need.h, need.w);
	if (v->data.max_label >= m->classes)
		return err_set(e, PS_EDATA, "%s: labels are 0 to %u, the model has %zu classes",
			v->data.files.dir, v->data.max_label, m->classes);
	return PS_OK;
}

static int open_eval_backend(struct evaluation *v, struct err *e)
{
	struct backend_options o = {.device = "cpu", .max_batch = 1, .forward_only = 1};
	cpu_set_t set;

	o.threads = sched_getaffinity(0, sizeof(set), &set) ? 1 : CPU_COUNT(&set);
	if (o.threads > MAX_EVAL_THREADS)
		o.threads = MAX_EVAL_THREADS;
	return backend_new(&v->backend, &v->weights->model, &o, e);
}

static int open_evaluation(const struct ctl *ctl, struct evaluation *v, struct err *e)
{
	int rc = data_load(&v->data, ctl->data, e);

	if (!rc)
		rc = check_test_images(v, e);
	if (!rc)
		rc = open_eval_backend(v, e);
	if (rc)
		return rc;
	if (!ctl_weights_differ("eval", v->weights, &v->data))
		class_names_read(&v->names, v->data.files.dir, v->weights->model.classes);
	v->classes = v->weights->model.classes;
	v->pixels = mem_must(CHUNK, shape_count(v->data.shape), "images");
	v->labels = mem_must(CHUNK, sizeof(*v->labels), "labels");
	v->probability = mem_must(CHUNK * v->classes, sizeof(*v->probability), "probabilities");
	if (v->classes <= MAX_COUNTED)
		v->count = mem_must(v->classes * v->classes, sizeof(*v->count), "confusions");
	return PS_OK;
}

static int open_predictions(struct evaluation *v, const char *path, struct err *e)
{
	if (!path)
		return PS_OK;
	v->predictions = fopen(path, "w");
	if (!v->predictions)
		return err_set(e, errno == EIO || file_no_space(errno) ? PS_EIO : PS_EUSAGE,
			"--predictions: %.200s: cannot be written: %s", path, strerror(errno));
	fputs("image,label,class,probability\n", v->predictions);
	return PS_OK;
}

static int close_predictions(struct evaluation *v, const char *path, struct err *e)
{
	if (!v->predictions)
		return PS_OK;
	const int failed = ferror(v->predictions);

	return fclose(v->predictions) || failed ? err_set(e, PS_EIO, "%s: cannot be written", path)
						: PS_OK;
}

static int eval(const struct ctl *ctl, const struct ctl_weights *w, struct err *e)
{
	struct evaluation *v = mem_must(1, sizeof(*v), "eval");
	struct err other = {0};
	int rc;

	v->weights = w;
	v->writes_files = ctl->predictions || ctl->mistakes;
	rc = ctl->mistakes ? file_check_target(ctl->mistakes, e) : PS_OK;
	if (!rc)
		rc = open_evaluation(ctl, v, e);
	if (!rc)
		rc = open_predictions(v, ctl->predictions, e);
	if (!rc)
		rc = evaluate_all(v, e);
	if (close_predictions(v, ctl->predictions, rc ? &other : e) && !rc)
		rc = e->status;
	if (!rc) {
		print_results(v);
		rc = show_worst(v, ctl->mistakes, e);
	}
	backend_free(&v->backend);
	data_release(&v->data);
	free(v->pixels);
	free(v->labels);
	free(v->probability);
	free(v->count);
	class_names_release(&v->names);
	free(v);
	return rc;
}

int ctl_eval(const struct ctl *ctl, struct err *e)
{
	struct ctl_weights *w = mem_must(1, sizeof(*w), "eval");

	setlocale(LC_CTYPE, ""); /* the width of a name depends on the locale */
	int rc = ctl_weights_load(ctl, 1, w, e);

	if (!rc && w->model.classes == 0)
		rc = err_set(e, PS_EUSAGE,
			"eval: model \"%s\" has no classes; it needs a model of images",
			w->model.text);
	if (!rc)
		rc = eval(ctl, w, e);
	ctl_weights_release(w);
	free(w);
	return rc;
}
