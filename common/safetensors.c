/*
 * safetensors.c - see safetensors.h.
 *
 * Jansson keeps keys in the order of their insertion, so equal models and weights give equal bytes.
 * Blanks pad the header, so that the data start at a multiple of 8.
 */
#include "common/safetensors.h"
#include <jansson.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/file.h"
#include "common/le.h"
#include "common/model.h"

#define LENGTH_BYTES 8
/* Maximum size of the JSON header, in bytes. Jansson's memory is up to about 50 times the text. */
#define MAX_HEADER ((size_t)256 << 10)

/* ---- writing ------------------------------------------------------------------------------ */

static json_t *tensor_json(const struct tensor *t)
{
	const size_t first = t->offset * sizeof(float), end = first + t->count * sizeof(float);
	json_t *shape = json_array();

	for (size_t i = 0; i < t->ndim; i++)
		if (json_array_append_new(shape, json_integer((json_int_t)t->dim[i])) != 0) {
			json_decref(shape);
			return NULL;
		}
	return json_pack("{s:s, s:o, s:[I, I]}", "dtype", "F32", "shape", shape, "data_offsets",
		(json_int_t)first, (json_int_t)end);
}

/* The JSON header without padding. The caller frees it with free(). NULL: no memory. */
static char *header_json(const struct model *m)
{
	json_t *root =
		json_pack("{s:{s:s, s:s}}", "__metadata__", "format", "pt", "model", m->text);
	int failed = root == NULL;
	for (size_t i = 0; !failed && i < m->n_tensors; i++)
		failed = json_object_set_new(root, m->tensor[i].name, tensor_json(&m->tensor[i])) !=
			 0;
	char *text = failed ? NULL : json_dumps(root, JSON_COMPACT);
	json_decref(root);
	return text;
}

int safetensors_write(const char *path, const struct model *m, const float *w, struct err *e)
{
	char *json = header_json(m);

	if (!json)
		return err_set(e, PS_EIO, "%s: no memory for its header", path);
	size_t used = strlen(json), padded = (used + 7) / 8 * 8;
	unsigned char length[LENGTH_BYTES];
	le64_put(length, padded);
	const struct file_part parts[] = {{length, sizeof(length)}, {json, used},
		{"       ", padded - used}, {w, m->n_params * sizeof(*w)}};
	int rc = file_replace_path(path, parts, sizeof(parts) / sizeof(parts[0]), e);
	free(json);
	return rc;
}

/* ---- reading ------------------------------------------------------------------------------ */

struct reader {
	const char *path;
	const struct model *m;
	float *w;
	const unsigned char *data; /* after the header */
	size_t data_bytes;
	size_t begin[MODEL_MAX_TENSORS]; /* offset of each tensor of m in data */
	size_t counter_bytes;            /* of the tensors that is_counter describes */
	struct err *e;
};

static int same_shape(const json_t *shape, const struct tensor *t)
{
	if (!json_is_array(shape) || json_array_size(shape) != t->ndim)
		return 0;
	for (size_t i = 0; i < t->ndim; i++) {
		const json_t *n = json_array_get(shape, i);

		if (!json_is_integer(n) || json_integer_value(n) != (json_int_t)t->dim[i])
			return 0;
	}
	return 1;
}

/* Read where a tensor's byte range begins. 1 if the range lies in the data and has `bytes` bytes.
 */
static int read_range(const struct reader *r, const json_t *offsets, size_t bytes, size_t *begin)
{
	const json_t *first = json_array_get(offsets, 0), *last = json_array_get(offsets, 1);

	if (json_array_size(offsets) != 2 || !json_is_integer(first) || !json_is_integer(last))
		return 0;
	json_int_t from = json_integer_value(first), to = json_integer_value(last);
	if (from < 0 || to < from || (uint64_t)to > r->data_bytes || (uint64_t)(to - from) != bytes)
		return 0;
	*begin = (size_t)from;
	return 1;
}

static void describe_shape(const struct tensor *t, char *out, size_t size)
{
	size_t used = 0;

	for (size_t i = 0; i < t->ndim; i++)
		used += (size_t)snprintf(
			out + used, size - used, "%s%zu", i ? ", " : "", t->dim[i]);
}

static int read_tensor(struct reader *r, size_t index, const json_t *entry)
{
	const struct tensor *t = &r->m->tensor[index];
	size_t *begin = &r->begin[index];
	char shape[128];

	if (!entry)
		return err_set(r->e, PS_EDATA, "%s: tensor \"%s\" is missing", r->path, t->name);
	const char *dtype = json_string_value(json_object_get(entry, "dtype"));
	if (!dtype || strcmp(dtype, "F32") != 0)
		return err_set(r->e, PS_EDATA, "%s: tensor \"%s\" has dtype %.20s; expected F32",
			r->path, t->name, dtype ? dtype : "none");
	describe_shape(t, shape, sizeof(shape));
	if (!same_shape(json_object_get(entry, "shape"), t))
		return err_set(r->e, PS_EDATA,
			"%s: tensor \"%s\" has another shape than the model \"%s\"; expected [%s]",
			r->path, t->name, r->m->text, shape);
	if (!read_range(r, json_object_get(entry, "data_offsets"), t->count * sizeof(float), begin))
		return err_set(r->e, PS_EDATA,
			"%s: tensor \"%s\" has data_offsets outside the file or not of %zu bytes",
			r->path, t->name, t->count * sizeof(float));
	memcpy(r->w + t->offset, r->data + *begin, t->count * sizeof(float));
	for (size_t i = 0; i < t->count; i++)
		if (!isfinite(r->w[t->offset + i]))
			return err_set(r->e, PS_EDATA,
				"%s: value %zu of tensor \"%s\" is not finite", r->path, i,
				t->name);
	return PS_OK;
}

static const struct tensor *find_tensor(const struct model *m, const char *name)
{
	for (size_t i = 0; i < m->n_tensors; i++)
		if (strcmp(m->tensor[i].name, name) == 0)
			return &m->tensor[i];
	return NULL;
}

/* Check that every byte of the data belongs to exactly one tensor: the sizes add up and no two
 * tensors overlap. */
static int check_cover(const struct reader *r)
{
	const struct tensor *t = r->m->tensor;

	if (r->data_bytes != r->m->n_params * sizeof(float) + r->counter_bytes)
		return err_set(r->e, PS_EDATA, "%s: %zu bytes of data; the model \"%s\" has %zu",
			r->path, r->data_bytes, r->m->text,
			r->m->n_params * sizeof(float) + r->counter_bytes);
	for (size_t i = 0; i < r->m->n_tensors; i++)
		for (size_t j = 0; j < i; j++)
			if (r->begin[i] < r->begin[j] + t[j].count * sizeof(float) &&
				r->begin[j] < r->begin[i] + t[i].count * sizeof(float))
				return err_set(r->e, PS_EDATA,
					"%s: tensors \"%s\" and \"%s\" overlap", r->path, t[j].name,
					t[i].name);
	return PS_OK;
}

/* 1: the tensor is a number that PyTorch keeps beside the running statistics of batchnorm, and that
 * nobody needs. */
static int is_counter(const char *name, const json_t *entry)
{
	const char *dtype = json_string_value(json_object_get(entry, "dtype"));
	const char *dot = strrchr(name, '.');

	return dot && strcmp(dot, ".num_batches_tracked") == 0 && dtype &&
	       strcmp(dtype, "I64") == 0;
}

static int read_root(struct reader *r, json_t *root)
{
	const char *key;
	json_t *entry;

	json_object_foreach(root, key, entry)
	{
		if (is_counter(key, entry))
			r->counter_bytes += sizeof(int64_t);
		else if (strcmp(key, "__metadata__") != 0 && !find_tensor(r->m, key))
			return err_set(r->e, PS_EDATA,
				"%s: tensor \"%.60s\" does not belong to the model \"%s\"", r->path,
				key, r->m->text);
	}
	for (size_t i = 0; i < r->m->n_tensors; i++) {
		int rc = read_tensor(r, i, json_object_get(root, r->m->tensor[i].name));

		if (rc)
			return rc;
	}
	return check_cover(r);
}

/* Parse the JSON header into *root; *data becomes the offset of the data after it. */
static int read_header(const char *path, const unsigned char *file, size_t size, json_t **root,
	size_t *data, struct err *e)
{
	uint64_t length = 0;

	*root = NULL;
	if (size < LENGTH_BYTES)
		return err_set(
			e, PS_EDATA, "%s: %zu bytes; too short for a safetensors file", path, size);
	length = le64_get(file);
	if (length > MAX_HEADER || length > size - LENGTH_BYTES)
		return err_set(e, PS_EDATA,
			"%s: header length %llu; expected at most %zu and no more than the file "
			"has",
			path, (unsigned long long)length, MAX_HEADER);
	json_error_t why;
	json_t *o = json_loadb(
		(const char *)file + LENGTH_BYTES, (size_t)length, JSON_REJECT_DUPLICATES, &why);
	if (!json_is_object(o)) {
		const char *reason = o ? "it has another type" : why.text;

		json_decref(o);
		return err_set(
			e, PS_EDATA, "%s: the header is not a JSON object: %s", path, reason);
	}
	*root = o;
	*data = LENGTH_BYTES + (size_t)length;
	return PS_OK;
}

static int read_file(struct reader *r, const unsigned char *file, size_t size)
{
	json_t *root = NULL;
	size_t data = 0;
	int rc = read_header(r->path, file, size, &root, &data, r->e);

	if (rc)
		return rc;
	r->data = file + data;
	r->data_bytes = size - data;
	rc = read_root(r, root);
	json_decref(root);
	return rc;
}

int safetensors_read(const char *path, const struct model *m, float *w, struct err *e)
{
	void *file;
	size_t size, max = LENGTH_BYTES + MAX_HEADER + m->n_params * sizeof(*w) +
			   MODEL_MAX_LAYERS * sizeof(int64_t);
	int rc = file_read(path, max, &file, &size, e);

	if (rc == PS_ETOOBIG)
		return err_set(e, PS_EDATA, "%s: larger than a file of the model \"%s\" can be",
			path, m->text);
	if (rc)
		return rc;
	struct reader r = {.path = path, .m = m, .w = w, .e = e};
	rc = read_file(&r, file, size);
	free(file);
	return rc;
}

static int copy_model(
	const char *path, const json_t *root, char text[MODEL_MAX_TEXT], struct err *e)
{
	const json_t *metadata = json_object_get(root, "__metadata__");
	const char *model = json_string_value(json_object_get(metadata, "model"));

	if (model && strlen(model) >= MODEL_MAX_TEXT)
		return err_set(e, PS_EDATA,
			"%s: the model in its metadata has %zu bytes; expected at "
			"most %d",
			path, strlen(model), MODEL_MAX_TEXT - 1);
	snprintf(text, MODEL_MAX_TEXT, "%s", model ? model : "");
	return PS_OK;
}

int safetensors_model(const char *path, char text[MODEL_MAX_TEXT], struct err *e)
{
	void *file;
	json_t *root;
	size_t size, data;
	int rc = file_read(path, LENGTH_BYTES + MAX_HEADER + MODEL_MAX_PARAMS * sizeof(float),
		&file, &size, e);

	text[0] = '\0';
	if (rc == PS_ETOOBIG)
		return err_set(e, PS_EDATA, "%s: larger than the file of any model", path);
	if (rc)
		return rc;
	rc = read_header(path, file, size, &root, &data, e);
	if (!rc)
		rc = copy_model(path, root, text, e);
	json_decref(root);
	free(file);
	return rc;
}

/* ---- vector:N with names --------------------------------------------------------------------- */

/* Read one entry of a header. The bytes that it has among the first `weights` bytes of the data are
 * added to *found; -1: it is malformed, or no part of the vector although it begins there. */
static int measure_entry(const struct reader *r, const json_t *entry, size_t weights, size_t *found)
{
	const json_t *offsets = json_object_get(entry, "data_offsets");
	json_int_t first = json_integer_value(json_array_get(offsets, 0)),
		   last = json_integer_value(json_array_get(offsets, 1));
	const char *dtype = json_string_value(json_object_get(entry, "dtype"));
	size_t begin;

	if (!dtype || last < first || first < 0 ||
		!read_range(r, offsets, (size_t)(last - first), &begin))
		return -1;
	if (begin >= weights)
		return 0;
	if (strcmp(dtype, "F32") != 0 || begin % sizeof(float) || (size_t)last > weights)
		return -1;
	*found += (size_t)(last - first);
	return 0;
}

/* Check that the tensors of a header fit a vector of n values and a file with `data_bytes`. */
static int check_vector(const char *path, json_t *root, size_t n, size_t data_bytes, struct err *e)
{
	const struct reader r = {.path = path, .data_bytes = data_bytes};
	size_t weights = n * sizeof(float), found = 0;
	const char *key;
	json_t *entry;

	if (data_bytes < weights)
		return err_set(e, PS_EDATA, "%s: %zu bytes of data; vector:%zu has %zu", path,
			data_bytes, n, weights);
	json_object_foreach(root, key, entry)
	{
		if (strcmp(key, "__metadata__") != 0 &&
			measure_entry(&r, entry, weights, &found) != 0)
			return err_set(e, PS_EDATA,
				"%s: tensor \"%.60s\" is malformed, or partly inside the first %zu "
				"values of type F32",
				path, key, n);
	}
	if (found != weights)
		return err_set(e, PS_EDATA,
			"%s: the tensors at its beginning have %zu values; vector:%zu", path,
			found / sizeof(float), n);
	return PS_OK;
}

static int check_finite(const char *path, const float *w, size_t n, struct err *e)
{
	for (size_t i = 0; i < n; i++)
		if (!isfinite(w[i]))
			return err_set(e, PS_EDATA, "%s: value %zu is not finite", path, i);
	return PS_OK;
}

/* Split a file into weights and frame: the frame is what remains without the weights. */
static int split_file(const char *path, unsigned char *file, size_t size, float *w, size_t n,
	struct safetensors_frame *f, struct err *e)
{
	size_t data = 0, weights = n * sizeof(*w);
	json_t *root = NULL;
	int rc = read_header(path, file, size, &root, &data, e);

	if (!rc)
		rc = check_vector(path, root, n, size - data, e);
	json_decref(root);
	if (rc)
		return rc;
	memcpy(w, file + data, weights);
	memmove(file + data, file + data + weights, size - data - weights);
	*f = (struct safetensors_frame){file, size - weights};
	return check_finite(path, w, n, e);
}

int safetensors_read_vector(const char *path, const struct model *m, float *w,
	struct safetensors_frame *f, struct err *e)
{
	size_t size,
		max = LENGTH_BYTES + MAX_HEADER + m->n_params * sizeof(*w) + SAFETENSORS_MAX_TAIL;
	void *file;
	int rc = file_read(path, max, &file, &size, e);

	*f = (struct safetensors_frame){0};
	if (rc == PS_ETOOBIG)
		return err_set(
			e, PS_EDATA, "%s: larger than a file of \"%s\" can be", path, m->text);
	if (rc)
		return rc;
	rc = split_file(path, file, size, w, m->n_params, f, e);
	if (rc) {
		free(file);
		*f = (struct safetensors_frame){0};
	}
	return rc;
}

int safetensors_write_vector(const char *path, const struct safetensors_frame *f, const float *w,
	size_t n, struct err *e)
{
	size_t data = 0;
	json_t *root = NULL;
	int rc;

	rc = read_header("the names of the run's tensors", f->bytes, f->size, &root, &data, e);
	if (!rc)
		rc = check_vector("the names of the run's tensors", root, n,
			f->size - data + n * sizeof(*w), e);
	json_decref(root);
	if (rc)
		return rc;
	const struct file_part parts[] = {
		{f->bytes, data}, {w, n * sizeof(*w)}, {f->bytes + data, f->size - data}};
	return file_replace_path(path, parts, sizeof(parts) / sizeof(parts[0]), e);
}
