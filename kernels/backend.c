/*
 * backend.c - the table of devices, the checks of arguments, evaluation and prediction from the
 * logits of a device, and local training for devices that lack local_start.
 */
#include "kernels/backend.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/log.h"
#include "common/mem.h"
#include "common/rng.h"
#include "kernels/cpu/cpu.h"
#ifdef KX_CUDA
#include "kernels/cuda/cuda.h"
#endif

/* The devices in the order of preference of "auto", which chooses the first one that opens. */
static const struct device *const devices[] = {
#ifdef KX_CUDA
	&device_cuda,
#endif
	&device_cpu,
	&device_cpu_ref,
};
#define N_DEVICES (sizeof(devices) / sizeof(devices[0]))
#ifdef KX_CUDA
#define DEVICE_NAMES "auto, cuda, cuda:N, cpu, cpu-ref"
#else
#define DEVICE_NAMES "auto, cpu, cpu-ref (it was built without cuda)"
#endif
/* With forward_only, a call of `forward` may have this number of images, even if max_batch is
 * smaller. */
#define FORWARD_CHUNK ((size_t)256)

/* Rounds of local training, numbered from 0; number i is in slot i % rounds. */
struct local {
	unsigned started, waited;
	unsigned rounds; /* maximum number of rounds in flight */
	int open;        /* 1: backend_local_finish has not ended the newest round yet */
	struct {
		size_t images;
		/* sum of the losses of the images, if backend.c runs the round (see
		 * runs_on_device) */
		double loss;
		int is_gradient; /* 1: backend_gradient_start began the round */
	} round[LOCAL_ROUNDS];
	/* only if backend.c runs the rounds: weights, sum and gradient of the open round, n_params
	 * floats each */
	float *params, *sum, *grad;
};

struct backend {
	const struct device *device;
	void *self; /* the device's own state */
	const struct model *model;
	size_t max_batch, max_forward;
	int precision, forward_only;
	struct kx_images set; /* the data set of backend_use; n is 0 before the first call */
	float *logits;        /* memory for the logits of max_forward images */
	double *logit;        /* logits of one image */
	struct local local;   /* the first backend_local_start allocates its vectors */
};

/* ---- life cycle ------------------------------------------------------------------------------ */

/* Returns the device with this name; for "auto" the first device of the table. */
static const struct device *device_find(const char *name)
{
	const size_t n = strcspn(name, ":");

	if (strcmp(name, "auto") == 0)
		return devices[0];
	for (size_t i = 0; i < N_DEVICES; i++)
		if (strlen(devices[i]->name) == n && strncmp(devices[i]->name, name, n) == 0)
			return devices[i];
	return NULL;
}

static int check_options(const struct model *m, const struct backend_options *o, struct err *e)
{
	if (m->n_layers == 0 || m->classes == 0)
		return err_set(e, PS_EUSAGE,
			"model \"%s\" has no layers to compute a gradient with; only a program of "
			"your own can train it",
			m->text);
	if (o->threads < 1 || o->threads > DEVICE_MAX_THREADS)
		return err_set(e, PS_EUSAGE, "threads %d: expected 1 to %d", o->threads,
			DEVICE_MAX_THREADS);
	if (o->precision < KX_FP32 || o->precision > KX_TF32X3)
		return err_set(e, PS_EUSAGE, "precision %d: expected one of " KX_PRECISION_NAMES,
			o->precision);
	if (o->max_batch == 0)
		return err_set(e, PS_EUSAGE, "batch 0: expected at least one image");
	if (o->kernels < KX_KERNELS_AUTO || o->kernels > KX_KERNELS_GENERAL)
		return err_set(
			e, PS_EUSAGE, "kernels %d: expected one of " KX_KERNELS_NAMES, o->kernels);
	if (o->rounds < 0 || o->rounds > LOCAL_ROUNDS)
		return err_set(
			e, PS_EUSAGE, "rounds %d: expected 0 to %d", o->rounds, LOCAL_ROUNDS);
	return PS_OK;
}

/* Opens the device `name`. With "auto", if no GPU works, opens the next device of the table. */
static int open_device(
	struct backend *b, const char *name, const struct backend_options *o, struct err *e)
{
	struct backend_options own = *o;
	const int any = strcmp(name, "auto") == 0;
	int rc;

	b->device = device_find(name);
	if (!b->device)
		return err_set(
			e, PS_EUSAGE, "device \"%s\": this program has %s", name, DEVICE_NAMES);
	if (b->device->precise && o->precision != KX_FP32 && !any)
		return err_set(e, PS_EUSAGE, "device %s computes in fp32 only", b->device->name);
	own.device = any ? b->device->name : name;
	own.max_batch = b->max_forward;
	own.rounds = (int)b->local.rounds;
#ifndef KX_CUDA
	if (any)
		log_info("backend", "auto", "without=cuda reason=\"%s\"",
			"this program was built without cuda");
#endif
	rc = b->device->open(&b->self, b->model, &own, e);
	if (any && rc && b->device == devices[0] && b->device != &device_cpu) {
		log_info("backend", "auto", "without=%s reason=\"%s\"", b->device->name, e->text);
		b->device = &device_cpu;
		e->text[0] = '\0';
		rc = b->device->open(&b->self, b->model, &own, e);
	}
	return rc;
}

/* Opens o->device, or else o->otherwise. Whoever chooses a GPU logs why it takes another device, so
 * this function does not. */
static int open_any(struct backend *b, const struct backend_options *o, struct err *e)
{
	int rc = open_device(b, o->device, o, e);

	if (!o->otherwise || (rc != PS_ENOMEM && rc != PS_EDEVICE))
		return rc;
	e->text[0] = '\0';
	return open_device(b, o->otherwise, o, e);
}

int backend_new(
	struct backend **out, const struct model *m, const struct backend_options *o, struct err *e)
{
	*out = NULL;
	int rc = check_options(m, o, e);

	if (rc)
		return rc;
	size_t max_forward = o->max_batch;
	if (o->forward_only && max_forward < FORWARD_CHUNK)
		max_forward = FORWARD_CHUNK;
	struct backend *b = mem_try(1, sizeof(*b));
	float *logits = mem_try(max_forward, m->classes * sizeof(float));
	double *logit = mem_try(m->classes, sizeof(*logit));
	if (!b || !logits || !logit) {
		free(b);
		free(logits);
		free(logit);
		return err_set(e, PS_ENOMEM, "no memory for batches of %zu images", o->max_batch);
	}
	*b = (struct backend){.model = m,
		.max_batch = o->max_batch,
		.max_forward = max_forward,
		.precision = o->precision,
		.forward_only = o->forward_only,
		.local.rounds = (unsigned)(o->rounds ? o->rounds : LOCAL_ROUNDS),
		.logits = logits,
		.logit = logit};
	if ((rc = open_any(b, o, e))) {
		backend_free(&b);
		return rc;
	}
	*out = b;
	return PS_OK;
}

void backend_free(struct backend **b)
{
	if (!*b)
		return;
	if ((*b)->self)
		(*b)->device->close((*b)->self);
	free((*b)->local.params);
	free((*b)->local.sum);
	free((*b)->local.grad);
	free((*b)->logits);
	free((*b)->logit);
	free(*b);
	*b = NULL;
}

const char *backend_name(const struct backend *b)
{
	return b->device->describe(b->self);
}

const char *backend_device(const struct backend *b)
{
	return b->device->option ? b->device->option(b->self) : b->device->name;
}

int backend_precision(const struct backend *b)
{
	return b->device->precise ? KX_FP32 : b->precision;
}

void backend_kernels(const struct backend *b, size_t batch, char *text, size_t size)
{
	const struct model *m = b->model;
	size_t used = 0;

	text[0] = '\0';
	for (size_t l = 0; l < m->n_layers && used < size; l++) {
		if (m->layer[l].kind != LAYER_CONV && m->layer[l].kind != LAYER_FC)
			continue;
		const char *name = m->tensor[m->layer[l].weight].name; /* "conv1.weight" */
		char kernel[64];
		b->device->kernel(b->self, l, batch, kernel, sizeof(kernel));
		used += (size_t)snprintf(text + used, size - used, "%s%.*s=%s", used ? " " : "",
			(int)strcspn(name, "."), name, kernel);
	}
}

int backend_use(struct backend *b, const struct kx_images *set, struct err *e)
{
	b->set = (struct kx_images){0};
	if (set->n > UINT32_MAX)
		return err_set(e, PS_EUSAGE, "%zu images: indices have 32 bits", set->n);
	for (size_t i = 0; i < set->n; i++)
		if (set->labels[i] >= b->model->classes)
			return err_set(e, PS_EUSAGE,
				"image %zu has label %u; the model has %zu classes", i,
				set->labels[i], b->model->classes);
	int rc = b->device->use(b->self, set, e);
	if (!rc)
		b->set = *set;
	return rc;
}

/* ---- gradient, evaluation, prediction -------------------------------------------------------- */

/* Returns PS_EUSAGE if the backend was created with `forward_only`, if `batch` or `steps` is out of
 * range, or if one of the batch * steps indices is not below the data set's n. */
static int check_batch(const struct backend *b, const uint32_t *index, size_t batch, size_t steps)
{
	size_t n;

	if (b->forward_only || batch == 0 || batch > b->max_batch || steps == 0 ||
		__builtin_mul_overflow(batch, steps, &n))
		return PS_EUSAGE;
	for (size_t i = 0; i < n; i++)
		if (index[i] >= b->set.n)
			return PS_EUSAGE;
	return PS_OK;
}

int backend_gradient(struct backend *b, const float *params, const uint32_t *index, size_t batch,
	uint64_t dropout_seed, float *grad, double *loss)
{
	int rc = check_batch(b, index, batch, 1);

	if (rc)
		return rc;
	return b->device->gradient(b->self, params, index, batch, dropout_seed, grad, loss);
}

static size_t minimum(size_t a, size_t b)
{
	return a < b ? a : b;
}

static int range_ok(const struct backend *b, size_t first, size_t n)
{
	return first <= b->set.n && n <= b->set.n - first;
}

/* Returns 1 if the first maximum of the logits, which is the predicted class, is at `label`. A NaN
 * among the logits makes the prediction wrong. */
static int is_right(const double *logit, size_t n, size_t label)
{
	for (size_t i = 0; i < n; i++)
		if (i < label ? !(logit[i] < logit[label]) : !(logit[i] <= logit[label]))
			return 0;
	return 1;
}

int backend_evaluate(struct backend *b, const float *params, size_t first, size_t n,
	size_t *correct, double *loss_sum)
{
	const size_t classes = b->model->classes;
	double *logit = b->logit;

	*correct = 0;
	*loss_sum = 0;
	if (!range_ok(b, first, n))
		return PS_EUSAGE;
	for (size_t end = first + n; first < end;) {
		size_t chunk = minimum(end - first, b->max_forward);
		int rc = b->device->forward(b->self, params, first, chunk, b->logits);

		if (rc)
			return rc;
		for (size_t i = 0; i < chunk; i++) {
			size_t label = b->set.labels[first + i];

			widen(logit, b->logits + i * classes, classes);
			*correct += (size_t)is_right(logit, classes, label);
			*loss_sum += softmax_loss(logit, classes, label, NULL);
		}
		first += chunk;
	}
	return PS_OK;
}

int backend_predict(
	struct backend *b, const float *params, size_t first, size_t n, float *probability)
{
	const size_t classes = b->model->classes;
	double *logit = b->logit;

	if (!range_ok(b, first, n))
		return PS_EUSAGE;
	for (size_t done = 0; done < n;) {
		size_t chunk = minimum(n - done, b->max_forward);
		float *p = probability + done * classes;
		int rc = b->device->forward(b->self, params, first + done, chunk, p);

		if (rc)
			return rc;
		for (size_t i = 0; i < chunk; i++, p += classes) {
			widen(logit, p, classes);
			softmax_loss(logit, classes, 0, logit);
			for (size_t c = 0; c < classes; c++)
				p[c] = (float)logit[c];
		}
		done += chunk;
	}
	return PS_OK;
}

/* ---- local training -------------------------------------------------------------------------- */

static int local_allocate(struct local *l, size_t n)
{
	if (!l->params)
		l->params = mem_try(n, sizeof(float));
	if (!l->sum)
		l->sum = mem_try(n, sizeof(float));
	if (!l->grad)
		l->grad = mem_try(n, sizeof(float));
	return l->params && l->sum && l->grad ? PS_OK : PS_ENOMEM;
}

static int step_start(struct backend *b, const float *params)
{
	size_t n = b->model->n_params;
	int rc = local_allocate(&b->local, n);

	if (rc)
		return rc;
	memcpy(b->local.params, params, n * sizeof(float));
	memset(b->local.sum, 0, n * sizeof(float));
	return PS_OK;
}

static int step_once(struct backend *b, int slot, const uint32_t *index, size_t batch, float rate,
	uint64_t dropout_seed)
{
	struct local *l = &b->local;
	double loss = 0;

	int rc =
		b->device->gradient(b->self, l->params, index, batch, dropout_seed, l->grad, &loss);
	for (size_t i = 0; !rc && i < b->model->n_params; i++)
		l->sum[i] += l->grad[i];
	for (size_t i = 0; !rc && i < b->model->n_trained; i++)
		l->params[i] -= rate * l->grad[i];
	l->round[slot].loss += loss * (double)batch;
	return rc;
}

static void step_finish(const struct backend *b, float *params, float *sum)
{
	size_t bytes = b->model->n_params * sizeof(float);

	if (params)
		memcpy(params, b->local.params, bytes);
	if (sum)
		memcpy(sum, b->local.sum, bytes);
}

/* Clears the entry of the round that begins in `slot`, and counts the round. */
static void note_round(struct local *l, int slot, int is_gradient)
{
	l->round[slot].images = 0;
	l->round[slot].loss = 0;
	l->round[slot].is_gradient = is_gradient;
	l->started++;
	l->open = 1;
}

int backend_local_start(struct backend *b, const float *params)
{
	struct local *l = &b->local;
	int slot = (int)(l->started % l->rounds);

	if (b->forward_only || l->open || l->started - l->waited == l->rounds)
		return PS_EUSAGE;
	int rc = b->device->local_start ? b->device->local_start(b->self, slot, params)
					: step_start(b, params);
	if (rc)
		return rc;
	note_round(l, slot, 0);
	return PS_OK;
}

int backend_gradient_start(struct backend *b, const float *params, const uint32_t *index,
	size_t batch, uint64_t dropout_seed)
{
	struct local *l = &b->local;
	int slot = (int)(l->started % l->rounds), rc = check_batch(b, index, batch, 1);
	double loss = 0;

	if (rc || l->open || l->started - l->waited == l->rounds)
		return PS_EUSAGE;
	if (b->device->gradient_start)
		rc = b->device->gradient_start(b->self, slot, params, index, batch, dropout_seed);
	else if (!(rc = local_allocate(l, b->model->n_params)))
		rc = b->device->gradient(
			b->self, params, index, batch, dropout_seed, l->sum, &loss);
	if (rc)
		return rc;
	note_round(l, slot, 1);
	l->round[slot].images = batch;
	l->round[slot].loss = loss * (double)batch;
	return PS_OK;
}

int backend_hashes(const struct backend *b)
{
	return b->device->hashes && b->device->hashes(b->self);
}

int backend_start_hash(struct backend *b, uint64_t *xxh3)
{
	*xxh3 = 0;
	return b->device->start_hash ? b->device->start_hash(b->self, xxh3) : PS_OK;
}

uint64_t backend_sum_hash(const struct backend *b)
{
	uint64_t xxh3 = 0;

	if (b->device->sum_hash)
		b->device->sum_hash(b->self, &xxh3);
	return xxh3;
}

int backend_overlaps(const struct backend *b)
{
	return b->device->gradient_start != NULL;
}

int backend_local_steps(struct backend *b, const uint32_t *index, size_t batch, size_t steps,
	float rate, uint64_t dropout_seed)
{
	int slot = (int)((b->local.started - 1) % b->local.rounds);
	int rc = b->local.open ? check_batch(b, index, batch, steps) : PS_EUSAGE;

	if (!rc && b->local.round[slot].is_gradient)
		rc = PS_EUSAGE;
	if (rc)
		return rc;
	b->local.round[slot].images += batch * steps;
	if (b->device->local_steps)
		return b->device->local_steps(
			b->self, slot, index, batch, steps, rate, dropout_seed);
	for (size_t j = 0; !rc && j < steps; j++)
		rc = step_once(b, slot, index + j * batch, batch, rate, dropout_seed + j);
	return rc;
}

/* Returns 1 if the device itself runs the round in `slot`. */
static int runs_on_device(const struct backend *b, int slot)
{
	return b->local.round[slot].is_gradient ? b->device->gradient_start != NULL
						: b->device->local_start != NULL;
}

int backend_local_finish(struct backend *b, float *params, float *sum)
{
	int slot = (int)((b->local.started - 1) % b->local.rounds);

	if (!b->local.open || (params && b->local.round[slot].is_gradient))
		return PS_EUSAGE;
	b->local.open = 0;
	if (runs_on_device(b, slot))
		return b->device->local_finish(b->self, slot, params, sum);
	step_finish(b, params, sum);
	return PS_OK;
}

int backend_local_wait(struct backend *b, double *loss)
{
	struct local *l = &b->local;
	int slot = (int)(l->waited % l->rounds), rc = PS_OK;
	double sum = l->round[slot].loss;

	if (l->started == l->waited)
		return PS_EUSAGE;
	if (runs_on_device(b, slot)) {
		rc = b->device->local_wait(b->self, slot, &sum);
		/* because for a gradient the device returns the mean loss */
		if (l->round[slot].is_gradient)
			sum *= (double)l->round[slot].images;
	}
	if (!rc && loss)
		*loss = l->round[slot].images ? sum / (double)l->round[slot].images : 0;
	if (!l->open || l->started - l->waited > 1)
		l->waited++;
	return rc;
}

/* ---- memory and errors ----------------------------------------------------------------------- */

static void *ordinary_allocate(size_t bytes)
{
	return mem_try(bytes, 1);
}

const struct backend_memory *backend_memory(const struct backend *b)
{
	static const struct backend_memory ordinary = {
		.allocate = ordinary_allocate, .release = free};

	return b->device->memory ? b->device->memory : &ordinary;
}

const char *backend_why(const struct backend *b)
{
	return b->device->why ? b->device->why(b->self) : "";
}
