/* weights.c - see ctl.h: loads the weights of a model from a server, checkpoint or file, and
 * exports them. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include "common/checkpoint.h"
#include "common/file.h"
#include "common/mem.h"
#include "common/run_head.h"
#include "common/safetensors.h"
#include "worker/ctl/ctl.h"
#include "worker/ctl/onnx.h"
#include "worker/data/dataset.h"

/* Parses the model `text` and allocates memory for its weights. */
static int open_model(struct ctl_weights *w, const char *text, struct err *e)
{
	int rc = model_parse(&w->model, text, MODEL_MNIST, e);

	if (rc)
		return rc;
	w->w = mem_try(w->model.n_params, sizeof(*w->w));
	return w->w ? PS_OK : err_set(e, PS_ENOMEM, "no memory for %zu weights", w->model.n_params);
}

/* Chooses the model: the model in the metadata of the file, or --model. If the file names a model
 * and --model is given, the two must agree. */
static int choose_model(const struct ctl *ctl, struct ctl_weights *w, struct err *e)
{
	char named[MODEL_MAX_TEXT];
	struct model *of_file;
	int rc = safetensors_model(ctl->weights, named, e);

	if (rc)
		return rc;
	if (!named[0] && !ctl->model)
		return err_set(e, PS_EUSAGE,
			"%s: its metadata do not name a model; add --model MODEL", ctl->weights);
	rc = open_model(w, ctl->model ? ctl->model : named, e);
	if (rc || !named[0] || !ctl->model)
		return rc;
	of_file = mem_must(1, sizeof(*of_file), "model");
	rc = model_parse(of_file, named, MODEL_MNIST, e);
	if (!rc && strcmp(of_file->text, w->model.text) != 0)
		rc = err_set(e, PS_EUSAGE,
			"--model \"%.120s\" is not the model of %.120s, \"%.120s\"; leave "
			"--model out",
			w->model.text, ctl->weights, of_file->text);
	free(of_file);
	return rc;
}

static int from_file(const struct ctl *ctl, struct ctl_weights *w, struct err *e)
{
	int rc = file_check_readable(
		ctl->weights, "--weights: give a file that cnn-ctl export wrote", e);

	if (!rc)
		rc = choose_model(ctl, w, e);
	return rc ? rc : safetensors_read(ctl->weights, &w->model, w->w, e);
}

/* Copies a list of tensors of at most `size` bytes. An empty list counts as no list. */
static int keep_list(struct ctl_weights *w, const char *list, size_t size, struct err *e)
{
	if (w->model.n_layers || strnlen(list, size) == 0)
		return PS_OK;
	w->tensors = strndup(list, size);
	return w->tensors ? PS_OK : err_set(e, PS_ENOMEM, "no memory for the list of tensors");
}

static int take_sections(
	const struct checkpoint *c, const char *dir, struct ctl_weights *w, struct err *e)
{
	const struct checkpoint_section *run = checkpoint_find(c, RUN_HEAD_SECTION);
	const struct checkpoint_section *weights = checkpoint_find(c, RUN_HEAD_WEIGHTS);
	const struct checkpoint_section *tensors = checkpoint_find(c, RUN_HEAD_TENSORS);
	const struct checkpoint_section *leases = checkpoint_find(c, RUN_HEAD_LEASES);
	struct run_head head;

	if (!run || !weights || run_head_read(run->data, run->size, &head))
		return err_set(e, PS_ECHECKPOINT, "%s: generation %llu has no run or no weights",
			dir, (unsigned long long)c->generation);
	if (open_model(w, head.model, e))
		return e->status = PS_ECHECKPOINT;
	if (weights->size != w->model.n_params * sizeof(*w->w))
		return err_set(e, PS_ECHECKPOINT, "%s: %zu bytes of weights, the model has %zu",
			dir, weights->size, w->model.n_params * sizeof(*w->w));
	memcpy(w->w, weights->data, weights->size);
	if (leases)
		w->data = run_head_data(run->data, run->size, leases->data, leases->size);
	return tensors ? keep_list(w, (const char *)tensors->data, tensors->size, e) : PS_OK;
}

static int from_checkpoint(const struct ctl *ctl, struct ctl_weights *w, struct err *e)
{
	struct checkpoint c;
	int rc = file_check_dir(ctl->checkpoint, "--checkpoint: " CTL_RUN_DIR, e);

	if (!rc)
		rc = checkpoint_read_newest(ctl->checkpoint, 0, &c, NULL, e);
	if (rc)
		return rc;
	if (!c.generation)
		rc = err_set(e, PS_ECHECKPOINT,
			"%s: holds no checkpoint; --checkpoint: " CTL_RUN_DIR, ctl->checkpoint);
	else
		rc = take_sections(&c, ctl->checkpoint, w, e);
	checkpoint_release(&c);
	return rc;
}

static int pull(struct cnnps *c, struct ctl_weights *w, struct err *e)
{
	const struct cnnps_info *i = cnnps_info(c);
	int rc = open_model(w, i->model, e);

	if (rc)
		return rc;
	if (w->model.n_params != i->n_params)
		return err_set(e, PS_EPROTO, "the server's model has %llu weights, \"%s\" has %zu",
			(unsigned long long)i->n_params, i->model, w->model.n_params);
	rc = cnnps_pull(c, &(struct cnnps_pull){.size = sizeof(struct cnnps_pull), .into = w->w});
	return rc ? err_set(e, rc, "%s", cnnps_error(c))
		  : keep_list(w, i->tensors, strlen(i->tensors), e);
}

/* Gets the fingerprint of the run's data set from the server. */
static int get_data(struct cnnps *c, struct ctl_weights *w, struct err *e)
{
	json_t *status;
	int rc = ctl_fetch_status(c, &status, e);

	if (rc)
		return rc;
	const char *text =
		json_string_value(json_object_get(json_object_get(status, "data"), "xxh3"));
	w->data = text ? strtoull(text, NULL, 16) : 0;
	json_decref(status);
	return PS_OK;
}

static int from_server(const struct ctl *ctl, int with_data, struct ctl_weights *w, struct err *e)
{
	struct cnnps *c;
	int rc = ctl_connect(ctl, &c, e);

	if (rc)
		return rc;
	rc = pull(c, w, e);
	if (!rc && with_data)
		rc = get_data(c, w, e);
	cnnps_close(&c);
	return rc;
}

int ctl_weights_load(const struct ctl *ctl, int with_data, struct ctl_weights *w, struct err *e)
{
	int rc;

	memset(w, 0, sizeof(*w));
	rc = ctl->weights      ? from_file(ctl, w, e)
	     : ctl->checkpoint ? from_checkpoint(ctl, w, e)
			       : from_server(ctl, with_data, w, e);
	if (rc)
		ctl_weights_release(w);
	return rc;
}

void ctl_weights_release(struct ctl_weights *w)
{
	free(w->w);
	free(w->tensors);
	w->w = NULL;
	w->tensors = NULL;
}

int ctl_weights_differ(const char *command, const struct ctl_weights *w, const struct data *d)
{
	char text[900];

	if (w->data == 0 || w->data == d->id.xxh3)
		return 0;
	snprintf(text, sizeof(text),
		"%s: %.500s is not the data set of the run: its fingerprint is %016" PRIx64
		", the run has %016" PRIx64 "; name the directory of the run with --data",
		command, d->files.dir, d->id.xxh3, w->data);
	ctl_say("data", PS_OK, text);
	return 1;
}

static int is_onnx(const char *path)
{
	const size_t n = strlen(path), suffix = strlen(".onnx");

	return n > suffix && strcasecmp(path + n - suffix, ".onnx") == 0;
}

int ctl_export(const struct ctl *ctl, struct err *e)
{
	struct ctl_weights *w;
	int rc = file_check_target(ctl->args[0], e);

	if (!rc && strcmp(ctl->args[0], "-") == 0)
		rc = err_set(e, PS_EUSAGE,
			"export: \"-\" is no name of a file: name one, such as "
			"weights.safetensors");
	if (rc)
		return rc;
	w = mem_must(1, sizeof(*w), "export");
	rc = ctl_weights_load(ctl, 0, w, e);
	if (!rc && is_onnx(ctl->args[0]))
		rc = onnx_write(ctl->args[0], &w->model, w->w, e);
	else if (!rc && w->tensors)
		rc = safetensors_write_list(ctl->args[0], &w->model, w->tensors, w->w, e);
	else if (!rc)
		rc = safetensors_write(ctl->args[0], &w->model, w->w, e);
	if (!rc)
		printf("%s: %s, %zu weights\n", ctl->args[0], w->model.text, w->model.n_params);
	ctl_weights_release(w);
	free(w);
	return rc;
}
