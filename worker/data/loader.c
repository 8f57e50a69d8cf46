/* loader.c - see loader.h. */
#include "worker/data/loader.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include "common/assert.h"
#include "common/mem.h"

struct slot {
	/* batch.index points to the member `index`, which has room for `max` numbers */
	struct loader_batch batch;
	uint64_t number; /* number of the batch among all requested batches, from 0 */
	uint32_t *index;
	uint8_t *pixels;
	uint16_t *labels;
	int rc;
	struct err e;
};

struct loader {
	const struct data *data;
	enum data_part part;
	const struct preprocess *preprocess; /* shift and flip of the images, or NULL */
	uint64_t seed;
	size_t max, image; /* max: maximum number of images of a batch; image: bytes of an image */
	uint8_t *scratch;  /* one image, before shift and flip */
	struct slot slot[LOADER_BATCHES];
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	/* Numbers of batches since the start: taken <= loaded <= requested. Batch number i, from
	 * 0, is in slot i % LOADER_BATCHES. The caller uses the images of batch taken - 1. */
	uint64_t requested, loaded, taken;
	int holds; /* 1: the caller still uses the images of batch number taken - 1 */
	int ends;
};

int loader_is_needed(const struct data *d, enum data_part part, const struct preprocess *p)
{
	return (p && preprocess_is_random(p)) || !data_in_memory(d, part);
}

/* ---- the thread ------------------------------------------------------------------------------ */

static int loader_load_image(struct loader *l, struct slot *s, uint32_t i)
{
	const struct shape *shape = &l->data->shape;
	uint32_t image = s->batch.index[i];
	uint8_t *to = s->pixels + i * l->image;

	s->labels[i] = l->data->labels[l->part][image];
	if (!l->preprocess)
		return data_image(l->data, l->part, image, to, &s->e);
	int rc = data_image(l->data, l->part, image, l->scratch, &s->e);
	if (!rc)
		preprocess_image(l->preprocess, l->seed, s->batch.epoch, image, shape->c, shape->h,
			shape->w, l->scratch, to);
	return rc;
}

static void loader_load_batch(struct loader *l, struct slot *s)
{
	s->rc = PS_OK;
	for (uint32_t i = 0; i < s->batch.n && !s->rc; i++)
		s->rc = loader_load_image(l, s, i);
}

static void *run_loader(void *arg)
{
	struct loader *l = arg;

	pthread_mutex_lock(&l->lock);
	while (!l->ends) {
		if (l->loaded == l->requested) {
			pthread_cond_wait(&l->changed, &l->lock);
			continue;
		}
		struct slot *s = &l->slot[l->loaded % LOADER_BATCHES];

		pthread_mutex_unlock(&l->lock);
		loader_load_batch(l, s);
		pthread_mutex_lock(&l->lock);
		l->loaded++;
		pthread_cond_broadcast(&l->changed);
	}
	pthread_mutex_unlock(&l->lock);
	return NULL;
}

/* ---- life cycle ------------------------------------------------------------------------------ */

static int allocate(struct loader *l)
{
	int ok = 1;

	for (size_t i = 0; i < LOADER_BATCHES && ok; i++) {
		struct slot *s = &l->slot[i];

		s->pixels = mem_try(l->max, l->image);
		s->index = s->pixels ? mem_try(l->max, sizeof(*s->index)) : NULL;
		s->labels = s->index ? mem_try(l->max, sizeof(*s->labels)) : NULL;
		ok = s->labels != NULL;
	}
	l->scratch = ok ? mem_try(1, l->image) : NULL;
	return l->scratch != NULL;
}

static void release(struct loader *l)
{
	for (size_t i = 0; i < LOADER_BATCHES; i++) {
		free(l->slot[i].index);
		free(l->slot[i].pixels);
		free(l->slot[i].labels);
	}
	free(l->scratch);
	free(l);
}

int loader_new(struct loader **out, const struct data *d, enum data_part part,
	const struct preprocess *p, uint64_t seed, uint32_t max, struct err *e)
{
	struct loader *l = mem_try(1, sizeof(*l));

	*out = NULL;
	if (!l)
		return err_set(e, PS_ENOMEM, "no memory for batches of %u images", max);
	l->data = d;
	l->part = part;
	l->preprocess = p && preprocess_is_random(p) ? p : NULL;
	l->seed = seed;
	l->max = max;
	l->image = shape_count(d->shape);
	if (!allocate(l)) {
		release(l);
		return err_set(
			e, PS_ENOMEM, "no memory for %d batches of %u images", LOADER_BATCHES, max);
	}
	pthread_mutex_init(&l->lock, NULL);
	pthread_cond_init(&l->changed, NULL);
	if (pthread_create(&l->thread, NULL, run_loader, l)) {
		release(l);
		return err_set(e, PS_ENOMEM, "no thread for the images of batches");
	}
	*out = l;
	return PS_OK;
}

void loader_free(struct loader **l)
{
	if (!*l)
		return;
	pthread_mutex_lock(&(*l)->lock);
	(*l)->ends = 1;
	pthread_cond_broadcast(&(*l)->changed);
	pthread_mutex_unlock(&(*l)->lock);
	pthread_join((*l)->thread, NULL);
	pthread_cond_destroy(&(*l)->changed);
	pthread_mutex_destroy(&(*l)->lock);
	release(*l);
	*l = NULL;
}

/* ---- batches --------------------------------------------------------------------------------- */

int loader_has_room(const struct loader *l)
{
	return l->requested - l->taken + (unsigned)l->holds < LOADER_BATCHES;
}

void loader_ask(struct loader *l, const struct loader_batch *b)
{
	struct slot *s = &l->slot[l->requested % LOADER_BATCHES];

	PS_ASSERT(loader_has_room(l) && b->n <= l->max); /* invariant (2) */
	memcpy(s->index, b->index, b->n * sizeof(*s->index));
	s->batch = *b;
	s->number = l->requested;
	s->batch.index = s->index;
	pthread_mutex_lock(&l->lock);
	l->requested++;
	pthread_cond_broadcast(&l->changed);
	pthread_mutex_unlock(&l->lock);
}

/* Waits until the first `n` requested batches are loaded. */
static void await(struct loader *l, uint64_t n)
{
	pthread_mutex_lock(&l->lock);
	while (l->loaded < n)
		pthread_cond_wait(&l->changed, &l->lock);
	pthread_mutex_unlock(&l->lock);
}

void loader_reset(struct loader *l)
{
	await(l, l->requested);
	l->taken = l->requested;
	l->holds = 0;
}

int loader_take(struct loader *l, struct kx_images *images, struct err *e)
{
	const struct slot *s = &l->slot[l->taken % LOADER_BATCHES];

	PS_ASSERT(l->taken < l->requested && s->number == l->taken); /* invariant (1) */
	await(l, l->taken + 1);
	l->taken++;
	l->holds = 1;
	if (s->rc)
		return err_set(e, s->rc, "%s", s->e.text);
	*images = (struct kx_images){.pixels = s->pixels, .labels = s->labels, .n = s->batch.n};
	return PS_OK;
}
