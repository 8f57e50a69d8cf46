/* trainer.c - see trainer.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/clock.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/model.h"
#include "kernels/backend.h"
#include "worker/bar.h"
#include "worker/client/device.h"
#include "worker/client/show.h"
#include "worker/data/class_names.h"
#include "worker/show.h"
#include "worker/steps.h"
#include "worker/trainer.h"
#include "worker/watchdog.h"

#define TEST_BATCH 1000 /* number of test images per call of the device */
/* number of vectors of n_params values that the worker itself allocates, besides those of the
 * backends: weights of the training and of the evaluation, a gradient, and the worker's own weights
 * (steps.h) */
#define HOST_VECTORS 4u

struct trainer {
	struct cnnps *c;
	const struct trainer_config *cfg;
	const struct cnnps_info *info;
	struct trainer_work *work;
	struct err *e;
	struct model model;
	struct backend *backend; /* uses the training images */
	/* uses the test images; a single backend would copy a set of images to the GPU at each
	 * change between training and test */
	struct backend *tester;
	struct loader *loader, *test_loader; /* NULL if the backend has all images of the part */
	struct steps steps;
	struct kx_images train, test;
	/* class names of the data set, for the server's page */
	struct class_names names;
	float *weights; /* model.n_params weights for the evaluation */
	/* the functions for the kind of memory in which `weights` is */
	const struct backend_memory *memory;
	/* the EVAL lease for which `weights` were pulled; its kind is 0 before the first pull */
	struct cnnps_lease held;
	struct bar bar;
	struct bar_view view;
};

/* ---- evaluation ----------------------------------------------------------------------------- */

static int pull_eval_weights(struct trainer *t, const struct cnnps_lease *lease)
{
	struct cnnps_pull p = {.size = sizeof(p), .flags = CNNPS_PULL_EVAL, .into = t->weights};
	int rc = cnnps_pull(t->c, &p);

	t->held = *lease;
	if (rc)
		t->held.kind = 0;
	return rc;
}

static int holds_eval(const struct trainer *t, const struct cnnps_lease *lease)
{
	return t->held.kind == CNNPS_EVAL && t->held.eval_id == lease->eval_id &&
	       t->held.term == lease->term;
}

/* Requests the test images from *next to `end` from the loader, as long as the loader has room, and
 * advances *next. */
static void ask_test_images(struct trainer *t, uint32_t *next, uint32_t end)
{
	uint32_t index[TEST_BATCH];

	while (*next < end && loader_has_room(t->test_loader)) {
		struct loader_batch b = {.index = index};

		for (; b.n < TEST_BATCH && *next < end; b.n++)
			index[b.n] = (*next)++;
		loader_ask(t->test_loader, &b);
	}
}

/* Evaluates like backend_evaluate, for images that are not in memory. */
static int evaluate_loaded(
	struct trainer *t, uint32_t first, uint32_t n, size_t *correct, double *loss_sum)
{
	uint32_t next = first, end = first + n;
	struct kx_images images;
	int rc = PS_OK;

	if (n > t->test.n || first > t->test.n - n)
		return PS_EUSAGE;
	*correct = 0;
	*loss_sum = 0;
	loader_reset(t->test_loader);
	for (uint32_t done = 0; done < n && !rc; done += (uint32_t)images.n) {
		size_t right = 0;
		double loss = 0;

		ask_test_images(t, &next, end);
		rc = loader_take(t->test_loader, &images, t->e);
		if (!rc)
			rc = WATCHED(backend_use(t->tester, &images, t->e));
		if (!rc)
			rc = WATCHED(backend_evaluate(
				t->tester, t->weights, 0, images.n, &right, &loss));
		*correct += right;
		*loss_sum += loss;
	}
	return rc;
}

static int evaluate(struct trainer *t, const struct cnnps_lease *lease)
{
	size_t correct;
	double loss_sum, start;
	int rc = holds_eval(t, lease) ? PS_OK : pull_eval_weights(t, lease);

	if (rc == PS_EAGAIN)
		return PS_OK; /* other workers have completed this evaluation */
	if (rc)
		return rc;
	start = clock_seconds();
	rc = t->test_loader ? evaluate_loaded(t, lease->first, lease->count, &correct, &loss_sum)
			    : WATCHED(backend_evaluate(t->tester, t->weights, lease->first,
				      lease->count, &correct, &loss_sum));
	if (rc)
		return rc;
	t->work->seconds += clock_seconds() - start;
	t->work->evaluated += lease->count;
	const struct cnnps_evaluation result = {
		.size = sizeof(result), .correct = (uint32_t)correct, .loss_sum = loss_sum};

	return cnnps_result(t->c, lease, &result);
}

/* Sends the network's predictions at `weights` to the server, for its page. */
static void show(void *arg, const float *weights)
{
	struct trainer *t = arg;
	char *text = show_json(t->cfg->data, &t->names, &t->model, t->tester, weights);

	if (text)
		/* ignore a failure: the next call on the connection fails, too */
		(void)cnnps_show(t->c, text);
	free(text);
}

/* Draws the progress before batch i of the lease. */
static void show_progress(struct trainer *t, const struct cnnps_lease *lease, uint32_t i)
{
	struct cnnps_stats s = {.size = sizeof(s)};
	double now = clock_seconds();

	if (!bar_is_due(&t->bar, now))
		return;
	if (lease->kind != CNNPS_EVAL) {
		t->view.epoch = lease->epoch;
		t->view.batch = lease->first + i;
	}
	(void)cnnps_stats(t->c, &s);
	t->view.evaluates = lease->kind == CNNPS_EVAL;
	t->view.images = t->work->images;
	t->view.pushes = s.acked;
	bar_draw(&t->bar, &t->view, now);
}

/* ---- the loop: lease, pull, batch, gradient, push -------------------------------------------- */

/* Carries out one training lease in mode downpour or ssp. */
static int train_lease(struct trainer *t, const struct cnnps_lease *lease)
{
	struct steps *s = &t->steps;
	struct batch b;
	int rc = PS_OK;

	steps_begin(s, lease);
	for (uint32_t i = 0; i < lease->count && !rc; i++) {
		show_progress(t, lease, i);
		rc = steps_pull(s, i);
		if (!rc)
			rc = steps_batch(s, i, &b);
		if (!rc)
			rc = steps_gradient(s, &b);
		if (!rc)
			rc = steps_push(s, i);
	}
	if (rc == PS_ESHUTDOWN && (rc = steps_push_rest(s)) == PS_OK)
		rc = PS_ESHUTDOWN;
	return rc;
}

static int run_lease(struct trainer *t, const struct cnnps_lease *lease)
{
	if (lease->kind == CNNPS_EVAL)
		return evaluate(t, lease);
	if (lease->exact)
		return steps_run_exact(&t->steps, lease);
	if (t->info->mode == CNNPS_EASGD)
		return steps_run_easgd(&t->steps, lease);
	if (steps_are_pipelined(&t->steps))
		return steps_run_pipelined(&t->steps, lease);
	return train_lease(t, lease);
}

static int run_leases(struct trainer *t)
{
	struct cnnps_lease lease = {.size = sizeof(lease)};
	int rc;

	while (!(rc = cnnps_lease(t->c, &lease))) {
		log_debug("trainer", "lease", "kind=%s epoch=%u first=%u count=%u",
			lease.kind == CNNPS_EVAL ? "eval" : "train", lease.epoch, lease.first,
			lease.count);
		show_progress(t, &lease, 0);
		if ((rc = run_lease(t, &lease)))
			break;
	}
	return rc;
}

/* ---- life cycle ------------------------------------------------------------------------------ */

/* Checks that the images of the data set have the shape that the run's model expects. */
static int check_shape(const struct trainer *t)
{
	const struct shape *run = &t->model.input, *own = &t->cfg->data->shape;
	unsigned labels = t->cfg->data->max_label + 1u;

	if (run->c == own->c && run->h == own->h && run->w == own->w && labels <= t->model.classes)
		return PS_OK;
	return err_set(t->e, PS_EWRONGDATA,
		"the run's model is for images of %zux%zux%zu, %zu classes; the images of --data "
		"are %zux%zux%zu, %u classes: give --data the run's files, or begin a new run with "
		"--input %zux%zux%zu --classes %u",
		run->c, run->h, run->w, t->model.classes, own->c, own->h, own->w, labels, own->c,
		own->h, own->w, labels);
}

static int parse_run_model(struct trainer *t)
{
	struct err e;

	if (model_parse(&t->model, t->info->model, MODEL_MNIST, &e))
		return err_set(t->e, PS_EWRONGDATA, "the run's model cannot be used: %s", e.text);
	if (t->model.n_params != t->info->n_params)
		return err_set(t->e, PS_EWRONGDATA,
			"the run's model \"%.200s\" has %zu parameters here, %llu on the server: "
			"update the program that is older",
			t->info->model, t->model.n_params, (unsigned long long)t->info->n_params);
	return t->model.n_layers ? check_shape(t) : PS_OK;
}

/* Opens a loader if the device cannot keep one fixed copy of the images of `part`. */
static int open_loader(
	struct trainer *t, struct loader **l, enum data_part part, uint32_t max_batch)
{
	const struct data *d = t->cfg->data;
	const struct preprocess *p = part == TRAIN_PART ? &t->model.preprocess : NULL;

	return loader_is_needed(d, part, p)
		       ? loader_new(l, d, part, p, t->info->seed, max_batch, t->e)
		       : PS_OK;
}

static struct backend_options options_of(const struct trainer_config *cfg, size_t max_batch)
{
	return (struct backend_options){.device = cfg->device,
		.otherwise = cfg->otherwise,
		.threads = cfg->threads,
		.max_batch = max_batch,
		.precision = cfg->precision,
		.kernels = cfg->kernels};
}

/* Opens t->backend or t->tester for the images of `set`. `set` is NULL if a loader provides the
 * images. */
static int open_backend(
	struct trainer *t, struct backend **b, size_t max_batch, const struct kx_images *set)
{
	struct backend_options o = options_of(t->cfg, max_batch);

	o.forward_only = b == &t->tester;
	if (o.forward_only) { /* the same device, which may be another one than cfg->device */
		o.device = backend_device(t->backend);
		o.precision = backend_precision(t->backend);
	}
	/* only run_overlapped, which needs prefetch, has two rounds */
	o.rounds = t->info->prefetch ? LOCAL_ROUNDS : 1;
	int rc = WATCHED(backend_new(b, &t->model, &o, t->e));

	return rc || !set ? rc : WATCHED(backend_use(*b, set, t->e));
}

/* Returns the number of images of the largest batch that the worker can get. */
static uint32_t max_batch(const struct trainer *t)
{
	return t->info->batch < t->train.n ? t->info->batch : (uint32_t)t->train.n;
}

/* Opens both backends. The backends and the HOST_VECTORS vectors may take at most cfg->memory bytes
 * together. The limit is needed because the server chooses the model, and even a short text can
 * describe a model that needs any amount of memory. */
static int open_backends(struct trainer *t)
{
	const uint64_t memory = t->cfg->memory ? t->cfg->memory : UINT64_MAX,
		       vectors = HOST_VECTORS * t->model.n_params * sizeof(float);

	mem_limit(vectors < memory ? memory - vectors : 0);
	int rc = open_backend(t, &t->backend, max_batch(t), t->loader ? NULL : &t->train);
	if (!rc)
		rc = open_backend(t, &t->tester, TEST_BATCH, t->test_loader ? NULL : &t->test);
	if (mem_unlimit() && rc == PS_ENOMEM)
		rc = err_set(t->e, rc,
			"the run's model needs more than %llu MiB of memory for batches of %u "
			"images (--memory-mb)",
			(unsigned long long)(memory >> 20), max_batch(t));
	return rc;
}

static int open_trainer(struct trainer *t)
{
	char kernels[BACKEND_KERNELS_TEXT];
	const struct cnnps_info *i = t->info;
	int rc = parse_run_model(t);

	t->train = data_train(t->cfg->data);
	t->test = data_test(t->cfg->data);
	class_names_read(&t->names, t->cfg->data->files.dir, t->model.classes);
	if (!rc)
		rc = open_loader(t, &t->loader, TRAIN_PART, max_batch(t));
	if (!rc)
		rc = open_loader(t, &t->test_loader, TEST_PART, TEST_BATCH);
	if (!rc)
		rc = open_backends(t);
	if (rc)
		return rc;
	t->steps = (struct steps){.c = t->c,
		.info = i,
		.backend = t->backend,
		.loader = t->loader,
		.e = t->e,
		.cfg = t->cfg,
		.show = show,
		.show_arg = t,
		.work = t->work,
		.n_trained = t->model.n_trained};
	if ((rc = steps_init(&t->steps, (uint32_t)t->train.n)))
		return err_set(t->e, rc, "no memory for batches of %u images", i->batch);
	t->view = (struct bar_view){.worker = i->worker,
		.epochs = i->epochs,
		.batches = batches_count(&t->steps.batches)};
	t->memory = backend_memory(t->tester);
	if (t->memory->pin) {
		const struct lane_device device = {t->memory->pin, t->memory->unpin,
			t->memory->share, t->memory->unshare, t->memory->is_shared,
			t->memory->fetch};

		cnnps_use_device(t->c, &device);
	}
	t->weights = t->memory->allocate(t->model.n_params * sizeof(*t->weights));
	if (!t->weights)
		return err_set(t->e, PS_ENOMEM, "no memory for %zu parameters", t->model.n_params);
	backend_kernels(t->backend, i->batch, kernels, sizeof(kernels));
	log_info("trainer", "start", "model=\"%s\" params=%zu batch=%u device=\"%s\"",
		t->model.text, t->model.n_params, i->batch, backend_name(t->backend));
	log_info("worker", "kernels", "layers=\"%s\" device=\"%s\" batch=%u", kernels,
		backend_name(t->backend), i->batch);
	return PS_OK;
}

static void close_trainer(struct trainer *t)
{
	if (t->weights)
		t->memory->release(t->weights);
	steps_release(&t->steps);
	backend_free(&t->tester);
	backend_free(&t->backend);
	loader_free(&t->test_loader);
	loader_free(&t->loader);
	class_names_release(&t->names);
}

/* Sets the error to the reason of the backend that failed. */
static void set_device_reason(struct trainer *t)
{
	const char *why = backend_why(t->backend);

	if (!why[0] && t->tester)
		why = backend_why(t->tester);
	if (why[0])
		err_set(t->e, PS_EDEVICE, "%s", why);
}

int trainer_run(
	struct cnnps *c, const struct trainer_config *cfg, struct trainer_work *work, struct err *e)
{
	struct trainer *t = mem_must(1, sizeof(*t), "trainer");
	int rc;

	t->c = c;
	t->cfg = cfg;
	t->info = cnnps_info(c);
	t->work = work;
	t->e = e;
	e->text[0] = '\0';
	rc = open_trainer(t);
	if (!rc)
		rc = run_leases(t);
	if (rc == PS_EDEVICE && !e->text[0])
		set_device_reason(t);
	if (rc && !e->text[0])
		err_set(e, rc, "%s", cnnps_error(c)[0] ? cnnps_error(c) : err_text(rc));
	log_progress(NULL);
	close_trainer(t);
	free(t);
	return rc;
}

int trainer_probe(const struct trainer_config *cfg, struct trainer_device *d, struct err *e)
{
	struct backend_options o = options_of(cfg, 1);
	struct model *m = mem_must(1, sizeof(*m), "device probe");
	struct backend *b;
	int rc = model_parse(m, "fc:10", MODEL_MNIST, e);

	if (!rc)
		rc = WATCHED(backend_new(&b, m, &o, e));
	if (!rc) {
		snprintf(d->name, sizeof(d->name), "%s", backend_name(b));
		snprintf(d->option, sizeof(d->option), "%s", backend_device(b));
		d->precision = backend_precision(b);
		d->memory = backend_memory(b);
		backend_free(&b);
	}
	free(m);
	return rc;
}
