/* images.c - see images.h. */
#include "server/config/images.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "common/checkpoint.h"
#include "common/mem.h"
#include "common/run_head.h"
#include "server/config/fill_model.h"
#include "server/config/memory.h"
#include "server/core/dataset.h"

static void use_model(struct options *o, const struct model *m)
{
	o->model = *m;
	fill_model(&o->core, m);
	o->core.durable = o->checkpoint_dir != NULL;
	o->unknown_images = 0;
}

/* Sets in *o the model that the server uses while the images are unknown. This model expects images
 * with 0 channels, so no data set fits it. */
static int use_unknown(struct options *o, struct err *e)
{
	struct model *m = mem_must(1, sizeof(*m), "model");
	int rc = model_parse(m, "fc:2", (struct shape){1, 1, 1}, e);

	if (!rc) {
		memcpy(m->text, "input:auto", sizeof("input:auto"));
		use_model(o, m);
		o->core.images = (struct images){.channels = 0, .rows = 1, .cols = 1, .classes = 2};
		o->core.durable = 0;
		o->unknown_images = 1;
	}
	free(m);
	return rc;
}

static int parse_for(
	const struct options *o, struct shape shape, size_t classes, struct model *m, struct err *e)
{
	return model_parse_named(
		m, o->model_text, shape, o->classes ? (size_t)o->classes : classes, e);
}

/* Writes the model of the newest checkpoint to head->model. Writes "" if there is no checkpoint or
 * if the checkpoint cannot be read. */
static void read_checkpoint_model(const char *dir, struct run_head *head)
{
	struct checkpoint c;
	struct err e;

	head->model[0] = '\0';
	if (!dir || checkpoint_read_newest(dir, 0, &c, NULL, &e) != 0)
		return;
	const struct checkpoint_section *s =
		c.generation ? checkpoint_find(&c, RUN_HEAD_SECTION) : NULL;
	if (s && run_head_read(s->data, s->size, head) != 0)
		head->model[0] = '\0';
	checkpoint_release(&c);
}

int images_begin(struct options *o, struct err *e)
{
	struct run_head head;
	struct model *m;
	int rc;

	if (!o->auto_input)
		return PS_OK;
	read_checkpoint_model(o->checkpoint_dir, &head);
	if (!head.model[0])
		return use_unknown(o, e);
	m = mem_must(1, sizeof(*m), "model");
	rc = model_parse(m, head.model, MODEL_MNIST, e);
	if (!rc)
		rc = parse_for(o, m->input, m->classes, m, e);
	if (!rc)
		use_model(o, m);
	free(m);
	return rc;
}

static struct shape data_shape(const struct data_id *d)
{
	return (struct shape){d->channels ? d->channels : 1, d->rows, d->cols};
}

int images_differ(const struct options *o, const struct data_id *d)
{
	const struct shape *now = &o->model.input, s = data_shape(d);

	return o->unknown_images || now->c != s.c || now->h != s.h || now->w != s.w ||
	       (d->classes > o->model.classes && d->classes > MODEL_CLASSES);
}

/* Returns the entry of a key, a free entry if the key has none, or NULL if all are taken. */
static struct images_key *find_key(struct options *o, const char *owner)
{
	for (size_t i = 0; i < IMAGES_KEYS; i++) {
		struct images_key *k = &o->images_key[i];

		if (k->changes == 0 || strcmp(k->owner, owner) == 0)
			return k;
	}
	return NULL;
}

static int refuse_change(const struct options *o, struct err *e)
{
	return err_set(e, PS_EWRONGDATA,
		"--input auto: this worker%s has changed the images of the run %u times before any "
		"push: begin a run with --input and --classes",
		o->key ? "'s key" : " or another one", IMAGES_CHANGES);
}

static int refuse_data_set(const struct data_id *d, struct err *e)
{
	return err_set(e, PS_EWRONGDATA,
		"data set %016" PRIx64 " (%" PRIu32 " train, %" PRIu32
		" test) is not the server's --data-id: give --data the run's files",
		d->xxh3, d->n_train, d->n_test);
}

int images_take(struct options *o, const struct msg_hello *h, uint64_t memory_bytes, struct err *e)
{
	const struct data_id *d = &h->data;
	struct options *next;
	struct images_key *key;
	struct model *m;
	struct err why;
	int rc;

	if (!dataset_suits_option(&o->core, d))
		return refuse_data_set(d, e);
	key = find_key(o, h->owner);
	if (!key || key->changes >= IMAGES_CHANGES)
		return refuse_change(o, e);
	if (!d->rows || !d->cols || d->classes < 2 || d->rows > MODEL_MAX_SIDE ||
		d->cols > MODEL_MAX_SIDE || d->channels > MODEL_MAX_SIDE)
		return err_set(e, PS_EWRONGDATA,
			"--input auto: this worker does not send the shape of its images");
	m = mem_must(1, sizeof(*m), "model");
	next = mem_must(1, sizeof(*next), "options");
	*next = *o;
	rc = parse_for(o, data_shape(d), d->classes, m, &why);
	if (rc)
		rc = err_set(e, PS_EWRONGDATA,
			"--model does not fit the images %ux%ux%u of this worker: %.120s",
			d->channels ? d->channels : 1, d->rows, d->cols, why.text);
	else
		use_model(next, m);
	if (!rc && memory_min(next, m->n_params) > memory_bytes)
		rc = err_set(e, PS_EWRONGDATA,
			"the model has %zu parameters for the images %ux%ux%u of this worker: the "
			"server would need at least %llu MiB, its limit is %llu (--memory-mb)",
			m->n_params, d->channels ? d->channels : 1, d->rows, d->cols,
			(unsigned long long)(memory_min(next, m->n_params) >> 20),
			(unsigned long long)(memory_bytes >> 20));
	if (!rc) {
		*o = *next;
		memcpy(key->owner, h->owner, sizeof(key->owner));
		key->changes++;
	}
	free(next);
	free(m);
	return rc;
}
