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
#include "common/tensor_list.h"

#define LENGTH_BYTES   8
#define EVALUATION_KEY "evaluation" /* the key of the evaluation in the metadata */
/* The JSON header may have at most this number of bytes. Jansson needs up to about 50 times as much
 * memory as the text. */
#define MAX_HEADER ((size_t)512 << 10)
#define MAX_TAIL   ((size_t)16 << 20) /* maximum bytes of a vector file besides the values */

/* ---- writing ------------------------------------------------------------------------------ */

/* Makes the entry for a tensor in the JSON header, and returns it. */
static json_t *tensor_json(
	const char *dtype, size_t n_dims, const size_t *dim, size_t first, size_t bytes)
{
	size_t end = first + bytes;
	json_t *shape = json_array();

	for (size_t i = 0; i < n_dims; i++)
		if (json_array_append_new(shape, json_integer((json_int_t)dim[i])) != 0) {
			json_decref(shape);
			return NULL;
		}
	return json_pack("{s:s, s:o, s:[I, I]}", "dtype", dtype, "shape", shape, "data_offsets",
		(json_int_t)first, (json_int_t)end);
}

/* Returns the JSON header without padding. `evaluation` may be NULL. The caller frees the header
 * with free(). Returns NULL if there is no memory. */
static char *header_json(const struct model *m, const char *evaluation)
{
	json_t *root = json_pack("{s:{s:s, s:s, s:s*}}", "__metadata__", "format", "pt", "model",
		m->text, EVALUATION_KEY, evaluation);
	int failed = root == NULL;

	for (size_t i = 0; !failed && i < m->n_tensors; i++) {
		const struct tensor *t = &m->tensor[i];

		failed = json_object_set_new(root, t->name,
				 tensor_json("F32", t->ndim, t->dim, t->offset * sizeof(float),
					 t->count * sizeof(float))) != 0;
	}
	char *text = failed ? NULL : json_dumps(root, JSON_COMPACT);
	json_decref(root);
	return text;
}

static int write_file(
	const char *path, const char *json, const void *data, size_t bytes, struct err *e)
{
	if (!json)
		return err_set(e, PS_EIO, "%s: no memory for its header", path);
	size_t used = strlen(json), padded = (used + 7) / 8 * 8;
	unsigned char length[LENGTH_BYTES];
	le64_put(length, padded);
	const struct file_part parts[] = {
		{length, sizeof(length)}, {json, used}, {"       ", padded - used}, {data, bytes}};
	return file_replace_path(path, parts, sizeof(parts) / sizeof(parts[0]), e);
}

static int write_tensors(const char *path, const struct model *m, const float *w,
	const char *evaluation, struct err *e)
{
	char *json = header_json(m, evaluation);
	int rc = write_file(path, json, w, m->n_params * sizeof(*w), e);

	free(json);
	return rc;
}

int safetensors_write(const char *path, const struct model *m, const float *w, struct err *e)
{
	return write_tensors(path, m, w, NULL, e);
}

/* ---- reading ------------------------------------------------------------------------------ */

struct reader {
	const char *path;
	const struct model *m;
	float *w;
	const unsigned char *data; /* the bytes after the header */
	size_t data_bytes;
	size_t begin[MODEL_MAX_TENSORS]; /* byte offset in `data` of each tensor of `m` */
	size_t counter_bytes;            /* total size of the tensors for which is_counter is 1 */
	struct err *e;
};

static int same_shape(const json_t *shape, size_t n_dims, const size_t *dim)
{
	if (!json_is_array(shape) || json_array_size(shape) != n_dims)
		return 0;
	for (size_t i = 0; i < n_dims; i++) {
		const json_t *n = json_array_get(shape, i);

		if (!json_is_integer(n) || json_integer_value(n) != (json_int_t)dim[i])
			return 0;
	}
	return 1;
}

/* Reads the byte range of a tensor, and sets *begin to the first byte of the range. Returns 1 if
 * the range lies in the data and has `bytes` bytes. */
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

static void describe_shape(size_t n_dims, const size_t *dim, char *out, size_t size)
{
	size_t used = 0;

	out[0] = '\0';
	for (size_t i = 0; i < n_dims; i++)
		used += (size_t)snprintf(out + used, size - used, "%s%zu", i ? ", " : "", dim[i]);
}

/* This struct has the name, the shape and the place that a tensor of the file must have. */
struct wanted {
	const char *name;
	size_t n_dims;
	const size_t *dim;
	/* count: number of values; offset: index of the first value in the vector */
	size_t count, offset;
};

/* Reads the values of a tensor, and sets *begin to their offset in the data. */
static int read_tensor(struct reader *r, const struct wanted *t, const json_t *entry, size_t *begin)
{
	char shape[256];

	if (!entry)
		return err_set(r->e, PS_EDATA, "%s: tensor \"%.60s\" is missing", r->path, t->name);
	const char *dtype = json_string_value(json_object_get(entry, "dtype"));
	if (!dtype || strcmp(dtype, "F32") != 0)
		return err_set(r->e, PS_EDATA, "%s: tensor \"%.60s\" has dtype %.20s; expected F32",
			r->path, t->name, dtype ? dtype : "none");
	describe_shape(t->n_dims, t->dim, shape, sizeof(shape));
	if (!same_shape(json_object_get(entry, "shape"), t->n_dims, t->dim))
		return err_set(r->e, PS_EDATA,
			"%s: tensor \"%.60s\" has another shape than the model \"%s\"; expected "
			"[%s]",
			r->path, t->name, r->m->text, shape);
	if (!read_range(r, json_object_get(entry, "data_offsets"), t->count * sizeof(float), begin))
		return err_set(r->e, PS_EDATA,
			"%s: tensor \"%.60s\" has data_offsets outside the file or not of %zu "
			"bytes",
			r->path, t->name, t->count * sizeof(float));
	memcpy(r->w + t->offset, r->data + *begin, t->count * sizeof(float));
	for (size_t i = 0; i < t->count; i++)
		if (!isfinite(r->w[t->offset + i]))
			return err_set(r->e, PS_EDATA,
				"%s: value %zu of tensor \"%.60s\" is not finite", r->path, i,
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

/* Checks that every byte of the data belongs to exactly one tensor: the sizes add up and no two
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

/* Returns 1 if the tensor is num_batches_tracked, which PyTorch stores beside the running
 * statistics of batchnorm. The reader ignores this tensor. */
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
		const struct tensor *t = &r->m->tensor[i];
		const struct wanted wanted = {t->name, t->ndim, t->dim, t->count, t->offset};
		int rc = read_tensor(r, &wanted, json_object_get(root, t->name), &r->begin[i]);

		if (rc)
			return rc;
	}
	return check_cover(r);
}

/* Parses the JSON header into *root, and sets *data to the offset of the data after the header. */
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
			"has: this is no safetensors file, or a damaged one",
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

/* Reads the header of the file of any model into *root, or sets *root to NULL. */
static int read_any_header(const char *path, json_t **root, struct err *e)
{
	void *file;
	size_t size, data;
	int rc = file_read(path, LENGTH_BYTES + MAX_HEADER + MODEL_MAX_PARAMS * sizeof(float),
		&file, &size, e);

	*root = NULL;
	if (rc == PS_ETOOBIG)
		return err_set(e, PS_EDATA, "%s: larger than the file of any model", path);
	if (rc)
		return rc;
	rc = read_header(path, file, size, root, &data, e);
	free(file);
	return rc;
}

int safetensors_model(const char *path, char text[MODEL_MAX_TEXT], struct err *e)
{
	json_t *root;
	int rc = read_any_header(path, &root, e);

	text[0] = '\0';
	if (!rc)
		rc = copy_model(path, root, text, e);
	json_decref(root);
	return rc;
}

int safetensors_evaluation(const char *path, char **text, struct err *e)
{
	json_t *root;
	int rc = read_any_header(path, &root, e);
	const char *evaluation = json_string_value(
		json_object_get(json_object_get(root, "__metadata__"), EVALUATION_KEY));

	*text = evaluation ? strdup(evaluation) : NULL;
	json_decref(root);
	return rc;
}

/* ---- vector:N with names --------------------------------------------------------------------- */

#define LIST_KEY "tensor_list" /* the key of the list in the metadata */

/* This struct has the parts of a file that is being made: its header and the values of its
 * tensors. */
struct list_file {
	const char *list;
	const float *w;
	json_t *root;
	unsigned char *data;
	/* at: number of bytes of `data` that are filled; size: number of all bytes of `data` */
	size_t at, size;
};

/* Returns the number of bytes of one value of the tensor. */
static size_t value_bytes(const struct tensor_line *l)
{
	return l->type ? l->type->bytes : sizeof(float);
}

/* Returns the offset in the vector at which the values of the next tensor begin, if those of `l`
 * begin at `offset`. */
static size_t after(const struct tensor_line *l, size_t offset)
{
	return l->type || l->other ? offset : offset + l->count;
}

/* If `l` is a line NAME = OTHER, replaces `l` by the line of the tensor OTHER, and sets *offset to
 * the offset of OTHER's values in the vector. Otherwise changes nothing. */
static void find_tensor_of(const char *list, struct tensor_line *l, size_t *offset)
{
	const struct tensor_line alias = *l;

	if (!alias.other)
		return;
	*offset = 0;
	while (!tensor_list_next(&list, l) &&
		(l->name_bytes != alias.other_bytes ||
			memcmp(l->name, alias.other, alias.other_bytes) != 0))
		*offset = after(l, *offset);
}

static void put_constant(unsigned char *out, const struct tensor_line *l)
{
	const char *values = l->values;

	for (size_t i = 0; i < l->count; i++) {
		unsigned char raw[8];

		le64_put(raw, (uint64_t)tensor_list_value(&values));
		memcpy(out + i * l->type->bytes, raw, l->type->bytes);
	}
}

/* Adds the tensor of line `l` to the file, under the name in line `named`. */
static int put_tensor(struct list_file *f, const struct tensor_line *named,
	const struct tensor_line *l, size_t offset)
{
	char name[TENSOR_LIST_NAME + 1];
	size_t bytes = l->count * value_bytes(l);

	memcpy(name, named->name, named->name_bytes);
	name[named->name_bytes] = '\0';
	if (l->type)
		put_constant(f->data + f->at, l);
	else
		memcpy(f->data + f->at, f->w + offset, bytes);
	f->at += bytes;
	return json_object_set_new(f->root, name,
		tensor_json(
			l->type ? l->type->name : "F32", l->n_dims, l->dim, f->at - bytes, bytes));
}

/* Adds all tensors with values of `size` bytes to the file. If f->data is NULL, only counts the
 * bytes of these tensors. */
static int put_tensors_of(struct list_file *f, size_t size)
{
	struct tensor_line named, l;
	size_t next = 0, offset;
	int rc = 0;

	for (const char *at = f->list; *at && !rc;) {
		rc = tensor_list_next(&at, &named) != NULL;
		l = named;
		offset = next;
		next = after(&l, next);
		find_tensor_of(f->list, &l, &offset);
		if (rc || value_bytes(&l) != size)
			continue;
		if (f->data)
			rc = put_tensor(f, &named, &l, offset);
		else
			f->size += l.count * size;
	}
	return rc;
}

/* Adds all tensors to the file: first those with values of 8 bytes, then 4, 2 and 1. In this order
 * each value is aligned to its size, as PyTorch requires. */
static int put_all_tensors(struct list_file *f)
{
	int rc = 0;

	for (size_t size = 8; size >= 1 && !rc; size /= 2)
		rc = put_tensors_of(f, size);
	return rc;
}

static int refuse_list(const char *path, const char *why, size_t line, struct err *e)
{
	if (line)
		return err_set(
			e, PS_EDATA, "%s: its list of tensors, line %zu: %s", path, line, why);
	return err_set(e, PS_EDATA, "%s: its list of tensors: %s", path, why);
}

static int write_listed(const char *path, const struct model *m, const char *list, const float *w,
	const char *evaluation, struct err *e)
{
	struct list_file f = {.list = list, .w = w};
	char *json = NULL;
	size_t line;
	const char *why = tensor_list_check(list, m->n_params, m->n_trained, &line);
	int rc;

	if (why)
		return refuse_list(path, why, line, e);
	rc = put_all_tensors(&f);
	f.data = rc ? NULL : malloc(f.size + 1);
	f.root = json_pack("{s:{s:s, s:s, s:s*}}", "__metadata__", "format", "pt", LIST_KEY, list,
		EVALUATION_KEY, evaluation);
	if (f.data && f.root && put_all_tensors(&f) == 0)
		json = json_dumps(f.root, JSON_COMPACT);
	rc = f.data ? write_file(path, json, f.data, f.size, e)
		    : err_set(e, PS_ENOMEM, "%s: no memory for %zu bytes", path, f.size);
	json_decref(f.root);
	free(json);
	free(f.data);
	return rc;
}

int safetensors_write_list(
	const char *path, const struct model *m, const char *list, const float *w, struct err *e)
{
	return write_listed(path, m, list, w, NULL, e);
}

int safetensors_write_evaluated(const char *path, const struct model *m, const char *list,
	const float *w, const char *evaluation, struct err *e)
{
	return m->n_layers == 0 && list[0] ? write_listed(path, m, list, w, evaluation, e)
					   : write_tensors(path, m, w, evaluation, e);
}

/* Returns a list of all tensors of a file that has no list, in the order of its header. */
static char *make_list(json_t *root)
{
	const char *key;
	json_t *entry, *dim;
	char *list = NULL;
	size_t size, i;
	FILE *out = open_memstream(&list, &size);

	if (!out)
		return NULL;
	json_object_foreach(root, key, entry)
	{
		json_t *shape = json_object_get(entry, "shape");

		if (strcmp(key, "__metadata__") == 0)
			continue;
		fprintf(out, "%s F32 %s", key, json_array_size(shape) ? "" : "scalar");
		json_array_foreach(shape, i, dim)
			fprintf(out, "%s%lld", i ? "x" : "", (long long)json_integer_value(dim));
		fprintf(out, "\n");
	}
	if (fclose(out) == 0)
		return list;
	free(list);
	return NULL;
}

/* Reads the values of the vector from the tensors that `list` names. */
static int read_listed(struct reader *r, const json_t *root, const char *list)
{
	char name[TENSOR_LIST_NAME + 1];
	struct tensor_line l;
	size_t offset = 0, line, begin;
	const char *why = tensor_list_check(list, r->m->n_params, r->m->n_trained, &line);
	int rc = why ? refuse_list(r->path, why, line, r->e) : PS_OK;

	while (!rc && *list && !tensor_list_next(&list, &l)) {
		const struct wanted wanted = {name, l.n_dims, l.dim, l.count, offset};

		if (l.type || l.other)
			continue;
		memcpy(name, l.name, l.name_bytes);
		name[l.name_bytes] = '\0';
		rc = read_tensor(r, &wanted, json_object_get(root, name), &begin);
		offset += l.count;
	}
	return rc;
}

static int read_vector(struct reader *r, json_t *root, char **list)
{
	const char *own =
		json_string_value(json_object_get(json_object_get(root, "__metadata__"), LIST_KEY));

	if (!own && json_object_get(root, r->m->tensor[0].name))
		/* the file has all values as one tensor, "vector", and no list of tensors */
		return read_root(r, root);
	*list = own ? strdup(own) : make_list(root);
	if (!*list)
		return err_set(r->e, PS_ENOMEM, "%s: no memory for its list of tensors", r->path);
	return read_listed(r, root, *list);
}

int safetensors_read_vector(
	const char *path, const struct model *m, float *w, char **list, struct err *e)
{
	size_t size, data = 0,
		     max = LENGTH_BYTES + MAX_HEADER + m->n_params * sizeof(*w) + MAX_TAIL;
	void *file;
	json_t *root;
	int rc = file_read(path, max, &file, &size, e);

	*list = NULL;
	if (rc == PS_ETOOBIG)
		return err_set(
			e, PS_EDATA, "%s: larger than a file of \"%s\" can be", path, m->text);
	if (rc)
		return rc;
	rc = read_header(path, file, size, &root, &data, e);
	if (!rc) {
		struct reader r = {.path = path,
			.m = m,
			.w = w,
			.data = (unsigned char *)file + data,
			.data_bytes = size - data,
			.e = e};

		rc = read_vector(&r, root, list);
	}
	json_decref(root);
	free(file);
	if (rc) {
		free(*list);
		*list = NULL;
	}
	return rc;
}
