/*
 * model.c - parses a model text into layers and manifest.
 *
 * The parser makes one pass over the words. The parser splits each layer at ':', computes the shape
 * of its output from the output of the previous layer, and appends the layer to the canonical text.
 * Every number in the text is at most WINDOW_MAX_SIDE or MODEL_MAX_PARAMS, and every product has an
 * overflow check, so no text can overflow a size.
 */
#include "common/model.h"
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>
#include "common/assert.h"
#include "common/rng.h"
#include "common/window.h"
#include "common/words.h"

struct parser {
	struct model *m;
	struct err *e;
	struct word word; /* the layer being parsed */
	/* shape of the images or, after a layer, of the output of the newest layer */
	struct shape shape;
	size_t n_conv, n_fc, n_batchnorm;
	int has_input; /* 1 if the text has the shape of the images */
	/* 1 if there is a conv, and no layer after the last conv has changed the shape */
	int has_conv;
	struct window conv;
	struct shape conv_in;
	/* layer numbers of the skips whose add has not been parsed yet */
	size_t skip[MODEL_MAX_LAYERS];
	size_t n_skips;
};

static int bad(struct parser *p, const char *fmt, ...) PS_PRINTF(2, 3);
static int bad(struct parser *p, const char *fmt, ...)
{
	char text[400];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	return err_set(
		p->e, PS_EUSAGE, "layer %zu \"%s\": %s", p->m->n_layers + 1, p->word.text, text);
}

size_t shape_count(struct shape s)
{
	return s.c * s.h * s.w;
}

/* Sets *count to the number of values in `s`. Returns 1 if this number is at most
 * MODEL_MAX_PARAMS. */
static int count_checked(struct shape s, size_t *count)
{
	return !__builtin_mul_overflow(s.c, s.h, count) &&
	       !__builtin_mul_overflow(*count, s.w, count) && *count <= MODEL_MAX_PARAMS;
}

/* ---- texts -------------------------------------------------------------------------------- */

static int need_size(struct parser *p, const char *text, const char *what, size_t max, size_t *out)
{
	if (words_size(text, 1, max, out))
		return PS_OK;
	return bad(p, "%s \"%s\" is not a whole number in [1, %zu]", what, text, max);
}

/* Reads the next layer of *text into p->word. Returns 1, or 0 at the end of the text, or
 * PS_EUSAGE. */
static int next_layer(struct parser *p, const char **text)
{
	switch (words_next(text, &p->word)) {
	case WORDS_END:
		return 0;
	case WORDS_ONE:
		return 1;
	case WORDS_TOO_LONG:
		return bad(p, "longer than %d characters", WORDS_MAX_BYTES);
	case WORDS_TOO_MANY_FIELDS:
		return bad(p, "more than %d parts between colons", WORDS_MAX_FIELDS);
	}
	return 0;
}

static int model_append(struct parser *p, const char *fmt, ...) PS_PRINTF(2, 3);
static int model_append(struct parser *p, const char *fmt, ...)
{
	char *text = p->m->text;
	size_t used = strlen(text), room = MODEL_MAX_TEXT - used;
	va_list ap;

	va_start(ap, fmt);
	int n = vsnprintf(text + used, room, fmt, ap);
	va_end(ap);
	if (n < 0 || (size_t)n >= room)
		return bad(p, "the model text grows past %d characters", MODEL_MAX_TEXT - 1);
	return PS_OK;
}

/* ---- windows ------------------------------------------------------------------------------ */

/* Computes the padding of layer `l` and the shape of its output, except the number of channels
 * (out.c). If the window does not fit, the error names a size that fits. */
static int place_window(struct parser *p, const struct window *w, struct layer *l)
{
	size_t pad_h = window_pad(w, p->shape.h), pad_w = window_pad(w, p->shape.w);

	l->in = p->shape;
	l->size = w->size;
	l->stride = w->stride;
	l->pad_top = pad_h / 2;
	l->pad_bottom = pad_h - pad_h / 2;
	l->pad_left = pad_w / 2;
	l->pad_right = pad_w - pad_w / 2;
	l->out.h = window_out(w, p->shape.h);
	l->out.w = window_out(w, p->shape.w);
	return l->out.h && l->out.w;
}

static int bad_window_fit(struct parser *p, const struct window *w)
{
	struct shape s = p->shape;
	size_t fit = window_nearest(w, s, 1);
	char size[64] = "";

	if (fit)
		snprintf(size, sizeof(size), ", or size %zu", fit);
	size_t padded_h = s.h + window_pad(w, s.h), padded_w = s.w + window_pad(w, s.w);
	if (padded_h < w->size || padded_w < w->size)
		return bad(p, "size %zu is larger than the input %zux%zux%zu; use pad=auto%s",
			w->size, s.c, s.h, s.w, size);
	return bad(p,
		"size %zu with stride %zu does not tile the input %zux%zux%zu (%zux%zu with its "
		"padding); use pad=auto%s",
		w->size, w->stride, s.c, s.h, s.w, padded_h, padded_w, size);
}

static int bad_pool_fit(struct parser *p, const struct window *w)
{
	struct shape s = p->shape;
	size_t fit = p->has_conv ? window_nearest(&p->conv, p->conv_in, w->size) : 0;
	char size[64] = "";

	if (w->stride != w->size || w->pad)
		return bad_window_fit(p, w);
	if (fit)
		snprintf(size, sizeof(size), ", or conv size %zu before it", fit);
	return bad(p, "input %zux%zux%zu is not divisible by %zu; use pad=auto%s", s.c, s.h, s.w,
		w->size, size);
}

/* ---- tensors ------------------------------------------------------------------------------ */

/* Appends a tensor to the manifest. Its name consists of `kind`, `number`, a dot and `name`, as in
 * "conv1.weight". */
static int add_tensor(
	struct parser *p, const char *kind, size_t number, const char *name, struct tensor t)
{
	struct model *m = p->m;

	t.count = 1;
	for (size_t i = 0; i < t.ndim; i++)
		if (__builtin_mul_overflow(t.count, t.dim[i], &t.count) ||
			t.count > MODEL_MAX_PARAMS)
			return bad(p, "more than %zu parameters", MODEL_MAX_PARAMS);
	/* the sum cannot overflow, because both numbers are at most MODEL_MAX_PARAMS */
	size_t total = m->n_params + t.count;
	if (total > MODEL_MAX_PARAMS)
		return bad(p, "with it the model has %zu parameters; at most %zu fit", total,
			MODEL_MAX_PARAMS);
	t.offset = m->n_params;
	snprintf(t.name, sizeof(t.name), "%s%zu.%s", kind, number, name);
	m->tensor[m->n_tensors++] = t;
	m->n_params = total;
	return PS_OK;
}

/* Appends a weight tensor and its bias, both with random initial values. Their bound depends on
 * fan_in, which is the number of values of the weight tensor divided by its first dimension. */
static int add_weight_and_bias(
	struct parser *p, const char *kind, size_t number, struct tensor weight)
{
	struct tensor bias = {.ndim = 1, .dim = {weight.dim[0]}};
	size_t fan_in = 1;

	for (size_t i = 1; i < weight.ndim; i++)
		if (__builtin_mul_overflow(fan_in, weight.dim[i], &fan_in))
			return bad(p, "more than %zu parameters", MODEL_MAX_PARAMS);
	weight.init_bound = bias.init_bound = 1.0 / sqrt((double)fan_in);
	int rc = add_tensor(p, kind, number, "weight", weight);
	return rc ? rc : add_tensor(p, kind, number, "bias", bias);
}

/* Appends the finished layer, and makes its output the input of the next layer. */
static int add_layer(struct parser *p, struct layer l)
{
	size_t count;

	if (!count_checked(l.out, &count))
		return bad(p, "its output %zux%zux%zu has more than %zu values", l.out.c, l.out.h,
			l.out.w, MODEL_MAX_PARAMS);
	int weighted = l.kind == LAYER_CONV || l.kind == LAYER_FC || l.kind == LAYER_BATCHNORM;
	l.weight = weighted ? (int)p->m->n_tensors - 2 : -1;
	l.bias = weighted ? (int)p->m->n_tensors - 1 : -1;
	if (l.kind != LAYER_CONV && (l.in.c != l.out.c || l.in.h != l.out.h || l.in.w != l.out.w))
		p->has_conv = 0;
	p->m->layer[p->m->n_layers++] = l;
	p->shape = l.out;
	return PS_OK;
}

/* ---- one parser for each kind of layer ---------------------------------------------------- */

static int parse_pad(struct parser *p, const char *value, struct window *w)
{
	if (strcmp(value, "auto") == 0)
		w->rule = PAD_AUTO;
	else if (strcmp(value, "same") == 0)
		w->rule = PAD_SAME;
	else if (!words_size(value, 0, w->size - 1, &w->pad))
		return bad(p,
			"pad \"%s\" is not understood; expected a number below the size, same or "
			"auto",
			value);
	return PS_OK;
}

/* Parses the fields from `first` on: stride=S, pad=... and, if `groups` is not NULL, groups=G, each
 * at most once. */
static int parse_window_options(struct parser *p, size_t first, struct window *w, size_t *groups)
{
	int strides = 0, pads = 0, splits = 0, rc = PS_OK;

	for (size_t i = first; !rc && i < p->word.n_fields; i++) {
		const char *stride = words_value(p->word.field[i], "stride");
		const char *pad = words_value(p->word.field[i], "pad");
		const char *split = words_value(p->word.field[i], "groups");

		if (stride && strides++ == 0)
			rc = need_size(p, stride, "stride", WINDOW_MAX_SIDE, &w->stride);
		else if (pad && pads++ == 0)
			rc = parse_pad(p, pad, w);
		else if (split && groups && splits++ == 0)
			rc = need_size(p, split, "groups", MODEL_MAX_PARAMS, groups);
		else
			rc = bad(p, "\"%s\" is not understood; expected stride=S%s, each once",
				p->word.field[i],
				groups ? ", pad=P|same|auto or groups=G" : " or pad=P|same|auto");
	}
	return rc;
}

/* Appends the options of a window to the canonical text. `stride` is the layer's default; a stride
 * of this size is not written. */
static int write_window_options(struct parser *p, size_t stride, const struct window *w)
{
	int rc = w->stride != stride ? model_append(p, ":stride=%zu", w->stride) : PS_OK;

	if (!rc && w->rule == PAD_NUMBER && w->pad)
		rc = model_append(p, ":pad=%zu", w->pad);
	if (!rc && w->rule != PAD_NUMBER)
		rc = model_append(p, ":pad=%s", w->rule == PAD_SAME ? "same" : "auto");
	return rc;
}

static int parse_conv(struct parser *p)
{
	struct window w = {.stride = 1, .rule = PAD_NUMBER};
	struct layer l = {.kind = LAYER_CONV, .groups = 1};
	int rc = need_size(p, p->word.field[1], "number of filters", MODEL_MAX_PARAMS, &l.out.c);

	if (!rc)
		rc = need_size(p, p->word.field[2], "size", WINDOW_MAX_SIDE, &w.size);
	if (!rc)
		rc = parse_window_options(p, 3, &w, &l.groups);
	if (rc)
		return rc;
	if (l.out.c % l.groups || p->shape.c % l.groups)
		return bad(p,
			"the %zu filters and the %zu channels of the input must be multiples of "
			"groups=%zu",
			l.out.c, p->shape.c, l.groups);
	if (!place_window(p, &w, &l))
		return bad_window_fit(p, &w);
	struct tensor weight = {.ndim = 4, .dim = {l.out.c, p->shape.c / l.groups, w.size, w.size}};
	rc = add_weight_and_bias(p, "conv", ++p->n_conv, weight);
	if (!rc)
		rc = model_append(p, "conv:%zu:%zu", l.out.c, w.size);
	if (!rc)
		rc = write_window_options(p, 1, &w);
	if (!rc && l.groups > 1)
		rc = model_append(p, ":groups=%zu", l.groups);
	p->has_conv = 1;
	p->conv = w;
	p->conv_in = p->shape;
	return rc ? rc : add_layer(p, l);
}

/* Parses a pool or avgpool layer. */
static int parse_pooling(struct parser *p, const char *name, enum layer_kind kind)
{
	struct window w = {.rule = PAD_NUMBER};
	struct layer l = {.kind = kind, .out.c = p->shape.c};
	int rc = need_size(p, p->word.field[1], "size", WINDOW_MAX_SIDE, &w.size);

	w.stride = w.size;
	if (!rc)
		rc = parse_window_options(p, 2, &w, NULL);
	if (rc)
		return rc;
	if (w.stride > w.size)
		return bad(p,
			"stride %zu is larger than the size %zu: no window would see the "
			"pixels between",
			w.stride, w.size);
	if (!place_window(p, &w, &l))
		return bad_pool_fit(p, &w);
	rc = model_append(p, "%s:%zu", name, w.size);
	if (!rc)
		rc = write_window_options(p, w.size, &w);
	return rc ? rc : add_layer(p, l);
}

static int parse_pool(struct parser *p)
{
	return parse_pooling(p, "pool", LAYER_POOL);
}

static int parse_avgpool(struct parser *p)
{
	struct layer l = {.kind = LAYER_CHANNELS, .in = p->shape, .out = {p->shape.c, 1, 1}};

	if (strcmp(p->word.field[1], "global") != 0)
		return parse_pooling(p, "avgpool", LAYER_AVGPOOL);
	if (p->word.n_fields > 2)
		return bad(p, "expected avgpool:global without options");
	int rc = model_append(p, "avgpool:global");
	return rc ? rc : add_layer(p, l);
}

static int parse_fc(struct parser *p)
{
	struct layer l = {.kind = LAYER_FC, .in = p->shape, .out = {.h = 1, .w = 1}};
	int rc = need_size(p, p->word.field[1], "number of units", MODEL_MAX_PARAMS, &l.out.c);

	if (rc)
		return rc;
	struct tensor weight = {.ndim = 2, .dim = {l.out.c, shape_count(p->shape)}};
	rc = add_weight_and_bias(p, "fc", ++p->n_fc, weight);
	if (!rc)
		rc = model_append(p, "fc:%zu", l.out.c);
	return rc ? rc : add_layer(p, l);
}

/* Appends a layer that has no fields and keeps the shape. */
static int add_plain(struct parser *p, enum layer_kind kind)
{
	int rc = model_append(p, "%s", p->word.field[0]);

	return rc ? rc : add_layer(p, (struct layer){kind, .in = p->shape, .out = p->shape});
}

static int parse_relu(struct parser *p)
{
	return add_plain(p, LAYER_RELU);
}

static int parse_tanh(struct parser *p)
{
	return add_plain(p, LAYER_TANH);
}

static int parse_sigmoid(struct parser *p)
{
	return add_plain(p, LAYER_SIGMOID);
}

static int parse_dropout(struct parser *p)
{
	const char *text = p->word.field[1];
	char shortest[WORDS_REAL];
	float drop;

	if (!words_real(text, &drop) || !(drop < 1))
		return bad(p, "probability \"%s\" is not a number of at least 0 and below 1", text);
	words_put_real(shortest, drop);
	int rc = model_append(p, "dropout:%s", shortest);
	return rc ? rc
		  : add_layer(p, (struct layer){LAYER_DROPOUT, .in = p->shape, .out = p->shape,
					 .drop = drop});
}

/* Appends an option such as ":alpha=0.001" to the canonical text. */
static int append_option(struct parser *p, const char *key, float value)
{
	char shortest[WORDS_REAL];

	words_put_real(shortest, value);
	return model_append(p, ":%s=%s", key, shortest);
}

#define MAX_LRN ((float)1000)

static int parse_lrn(struct parser *p)
{
	struct layer l = {.kind = LAYER_LRN, .in = p->shape, .out = p->shape, .size = 5};
	static const char *const keys[] = {"alpha", "beta", "k"};
	static const float usual[] = {1e-4f, 0.75f, 2};
	float value[] = {1e-4f, 0.75f, 2};
	int given[3] = {0}, rc = PS_OK;
	size_t i = 1;

	if (i < p->word.n_fields && !strchr(p->word.field[i], '='))
		rc = need_size(p, p->word.field[i++], "size", WINDOW_MAX_SIDE, &l.size);
	for (; !rc && i < p->word.n_fields; i++) {
		size_t k = 0;

		while (k < 3 && !words_value(p->word.field[i], keys[k]))
			k++;
		if (k == 3 || given[k]++ ||
			!words_real(words_value(p->word.field[i], keys[k]), &value[k]) ||
			value[k] > MAX_LRN || (k == 2 && value[k] < 1e-3f))
			rc = bad(p,
				"\"%s\" is not understood; expected alpha=A, beta=B (0 to 1000) or "
				"k=K (0.001 to 1000), each once",
				p->word.field[i]);
	}
	if (!rc)
		rc = model_append(p, "lrn:%zu", l.size);
	for (size_t k = 0; !rc && k < 3; k++)
		if (value[k] < usual[k] || value[k] > usual[k])
			rc = append_option(p, keys[k], value[k]);
	l.alpha = value[0];
	l.beta = value[1];
	l.k = value[2];
	return rc ? rc : add_layer(p, l);
}

static int parse_batchnorm(struct parser *p)
{
	const struct tensor weight = {.ndim = 1, .dim = {p->shape.c}, .init_value = 1};
	const struct tensor bias = {.ndim = 1, .dim = {p->shape.c}};
	int rc = add_tensor(p, "bn", ++p->n_batchnorm, "weight", weight);

	if (!rc)
		rc = add_tensor(p, "bn", p->n_batchnorm, "bias", bias);
	return rc ? rc : add_plain(p, LAYER_BATCHNORM);
}

/* Appends the running statistics of all batchnorms after the other tensors. */
static int add_running(struct parser *p)
{
	struct model *m = p->m;
	size_t number = 0;
	int rc = PS_OK;

	m->n_trained = m->n_params;
	for (size_t i = 0; !rc && i < m->n_layers; i++) {
		struct layer *l = &m->layer[i];
		struct tensor t = {.ndim = 1, .dim = {l->in.c}};

		if (l->kind != LAYER_BATCHNORM)
			continue;
		l->running = (int)m->n_tensors;
		rc = add_tensor(p, "bn", ++number, "running_mean", t);
		t.init_value = 1;
		if (!rc)
			rc = add_tensor(p, "bn", number, "running_var", t);
	}
	return rc;
}

static int parse_skip(struct parser *p)
{
	p->skip[p->n_skips++] = p->m->n_layers;
	return add_plain(p, LAYER_SKIP);
}

/* An add layer uses only every s-th row and column of its skip, whose shape is `from`. Returns the
 * s with which the numbers of rows and columns become those of `to`. Returns 0 if there is no such
 * s, or if `from` has more channels than `to`. */
static size_t add_stride(struct shape from, struct shape to)
{
	const size_t stride = (from.h + to.h - 1) / to.h;

	return from.c <= to.c && (from.h + stride - 1) / stride == to.h &&
			       (from.w + stride - 1) / stride == to.w
		       ? stride
		       : 0;
}

static int parse_add(struct parser *p)
{
	struct layer l = {.kind = LAYER_ADD, .in = p->shape, .out = p->shape};

	if (p->n_skips == 0)
		return bad(p, "it needs a skip before it");
	l.partner = p->skip[--p->n_skips];
	struct layer *skip = &p->m->layer[l.partner];
	const struct shape from = skip->in, to = p->shape;
	l.stride = add_stride(from, to);
	if (!l.stride)
		return bad(p,
			"it cannot add the skip's %zux%zux%zu to %zux%zux%zu; expected the same "
			"shape, or more channels and rows and columns divided by one stride",
			from.c, from.h, from.w, to.c, to.h, to.w);
	skip->partner = p->m->n_layers;
	int rc = model_append(p, "add");
	return rc ? rc : add_layer(p, l);
}

static const struct {
	const char *name;
	size_t min_fields, max_fields;
	const char *form;
	int (*parse)(struct parser *p);
} layer_table[] = {
	{"conv", 3, 6, "conv:FILTERS:SIZE[:stride=S][:pad=P|same|auto][:groups=G]", parse_conv},
	{"relu", 1, 1, "relu", parse_relu},
	{"tanh", 1, 1, "tanh", parse_tanh},
	{"sigmoid", 1, 1, "sigmoid", parse_sigmoid},
	{"pool", 2, 4, "pool:SIZE[:stride=S][:pad=P|same|auto]", parse_pool},
	{"avgpool", 2, 4, "avgpool:SIZE[:stride=S][:pad=P|same|auto] or avgpool:global",
		parse_avgpool},
	{"lrn", 1, 5, "lrn[:SIZE][:alpha=A][:beta=B][:k=K]", parse_lrn},
	{"batchnorm", 1, 1, "batchnorm", parse_batchnorm},
	{"skip", 1, 1, "skip", parse_skip},
	{"add", 1, 1, "add", parse_add},
	{"fc", 2, 2, "fc:UNITS", parse_fc},
	{"dropout", 2, 2, "dropout:P", parse_dropout},
};

static int parse_layer(struct parser *p)
{
	if (p->m->n_layers == MODEL_MAX_LAYERS)
		return bad(p, "more than %d layers", MODEL_MAX_LAYERS);
	for (size_t i = 0; i < sizeof(layer_table) / sizeof(layer_table[0]); i++) {
		if (strcmp(p->word.field[0], layer_table[i].name) != 0)
			continue;
		if (p->word.n_fields < layer_table[i].min_fields ||
			p->word.n_fields > layer_table[i].max_fields)
			return bad(p, "expected %s", layer_table[i].form);
		int rc = p->m->n_layers ? model_append(p, " ") : PS_OK;
		return rc ? rc : layer_table[i].parse(p);
	}
	char known[128] = "";
	for (size_t i = 0; i < sizeof(layer_table) / sizeof(layer_table[0]); i++)
		snprintf(known + strlen(known), sizeof(known) - strlen(known), "%s%s",
			i ? ", " : "", layer_table[i].name);
	return bad(p,
		"unknown layer; the layers are %s; the words before the layers are input, norm, "
		"shift and flip; the names seed:F, lenet5, cnn99, cifar, resnet8, alexnet and "
		"vector:N stand alone",
		known);
}

void model_layer_text(const struct model *m, size_t layer, char text[WORDS_MAX_BYTES + 1])
{
	const char *next = m->text;
	struct word word;
	size_t words = 0;

	while (words_next(&next, &word) == WORDS_ONE)
		words++;
	next = m->text;
	for (size_t skip = words - m->n_layers + layer + 1; skip > 0; skip--)
		(void)words_next(&next, &word);
	memcpy(text, word.text, sizeof(word.text));
}

/* ---- images ------------------------------------------------------------------------------- */

int shape_parse(const char *text, struct shape *s)
{
	size_t side[3], n = 0;
	char number[8];

	for (;; text++) {
		size_t size = strspn(text, "0123456789");

		if (n == 3 || size >= sizeof(number))
			return 0;
		memcpy(number, text, size);
		number[size] = '\0';
		if (!words_size(number, 1, MODEL_MAX_SIDE, &side[n++]))
			return 0;
		text += size;
		if (*text != 'x')
			break;
	}
	if (n < 2 || *text)
		return 0;
	*s = (struct shape){n == 3 ? side[0] : 1, side[n - 2], side[n - 1]};
	return 1;
}

/* Parses p->word, input:CxHxW. */
static const char *parse_input(struct parser *p)
{
	if (p->has_input)
		return "it occurs twice";
	p->has_input = 1;
	return p->word.n_fields == 2 && shape_parse(p->word.field[1], &p->shape)
		       ? NULL
		       : "expected input:CHANNELSxROWSxCOLUMNS, each 1 to 4096";
}

/* Reads the words before the layers, and moves *text to the first layer. */
static int parse_images(struct parser *p, const char **text)
{
	for (const char *next = *text; words_next(&next, &p->word) == WORDS_ONE; *text = next) {
		const char *why = NULL;

		if (strcmp(p->word.field[0], "input") == 0)
			why = parse_input(p);
		else if (preprocess_find(&p->word) != PREPROCESS_NONE)
			why = preprocess_parse(&p->m->preprocess, &p->word);
		else
			break;
		if (why)
			return err_set(p->e, PS_EUSAGE, "\"%s\": %s", p->word.text, why);
	}
	return PS_OK;
}

static int is_mnist(struct shape s)
{
	return s.c == 1 && s.h == 28 && s.w == 28;
}

/* Sets the input, and begins the canonical text with the words about the images. */
static int place_images(struct parser *p)
{
	const struct preprocess *pre = &p->m->preprocess;
	char text[PREPROCESS_MAX_TEXT];
	size_t count;
	struct shape s = p->shape;

	if (!count_checked(s, &count) || count == 0)
		return err_set(p->e, PS_EUSAGE, "input %zux%zux%zu: expected 1 to %zu values", s.c,
			s.h, s.w, MODEL_MAX_PARAMS);
	if (pre->n_norm > 1 && pre->n_norm != s.c)
		return err_set(p->e, PS_EUSAGE,
			"norm has numbers for %zu channels, the images %zux%zux%zu have %zu",
			pre->n_norm, s.c, s.h, s.w, s.c);
	p->m->input = s;
	if (!is_mnist(s) && model_append(p, "input:%zux%zux%zu ", s.c, s.h, s.w))
		return PS_EUSAGE;
	preprocess_text(pre, text);
	return model_append(p, "%s", text);
}

int model_has_images(const struct model *m)
{
	return m->n_layers && (!is_mnist(m->input) || m->preprocess.n_norm ||
				      preprocess_is_random(&m->preprocess));
}

/* ---- whole models ------------------------------------------------------------------------- */

static const struct {
	const char *name;
	struct shape input; /* shape of the images; 0x0x0: that of MNIST's images */
	/* words about the images that the parser uses if the text itself has none */
	const char *images;
	const char *layers; /* all layers except the last one, which is an fc layer */
} names[] = {
	{"lenet5", {0, 0, 0}, "",
		"conv:6:5:pad=same relu pool:2 conv:16:5 relu pool:2 fc:120 relu fc:84 relu"},
	{"cnn99", {0, 0, 0}, "", "conv:32:5 relu pool:2 conv:64:5 relu pool:2 fc:128 relu"},
	/* the network of Krizhevsky 2012; groups=2 stands for its two GPUs; its padded images have
	 * 227 x 227 pixels */
	{"alexnet", {3, 224, 224}, "",
		"conv:96:11:stride=4:pad=auto relu lrn pool:3:stride=2 "
		"conv:256:5:pad=2:groups=2 relu lrn pool:3:stride=2 conv:384:3:pad=1 relu "
		"conv:384:3:pad=1:groups=2 relu conv:256:3:pad=1:groups=2 relu pool:3:stride=2 "
		"dropout:0.5 fc:4096 relu dropout:0.5 fc:4096 relu"},
	/* the network of He 2015 with three stages of one block each; the shortcuts have no
	 * weights */
	{"resnet8", {3, 32, 32}, "norm:0.4914,0.4822,0.4465:0.247,0.2435,0.2616 shift:4 flip",
		"conv:16:3:pad=1 batchnorm relu skip conv:16:3:pad=1 batchnorm relu "
		"conv:16:3:pad=1 batchnorm add relu skip conv:32:3:stride=2:pad=same batchnorm "
		"relu "
		"conv:32:3:pad=1 batchnorm add relu skip conv:64:3:stride=2:pad=same batchnorm "
		"relu "
		"conv:64:3:pad=1 batchnorm add relu avgpool:global"},
	{"cifar", {3, 32, 32}, "norm:0.4914,0.4822,0.4465:0.247,0.2435,0.2616 shift:4 flip",
		"conv:32:3:pad=1 relu conv:32:3:pad=1 relu pool:2 conv:64:3:pad=1 relu "
		"conv:64:3:pad=1 relu pool:2 fc:512 relu dropout:0.5"},
};

/* If `text` is the name of a model, writes the layers of the model to `buffer` and returns
 * `buffer`. Otherwise returns `text`. */
static const char *expand_name(
	struct parser *p, const char *text, size_t classes, char *buffer, size_t size)
{
	const char *next = text, *images;
	size_t filters;

	if (words_next(&next, &p->word) != WORDS_ONE || next[strspn(next, " \t")])
		return text;
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		if (strcmp(p->word.text, names[i].name) != 0)
			continue;
		if (!p->has_input && p->shape.c == 0)
			p->shape = names[i].input;
		images = names[i].images;
		if (!p->m->preprocess.n_norm && !preprocess_is_random(&p->m->preprocess))
			/* the text is from the table above, so it has no errors */
			(void)parse_images(p, &images);
		snprintf(buffer, size, "%s fc:%zu", names[i].layers, classes);
		return buffer;
	}
	if (p->word.n_fields != 2 || strcmp(p->word.field[0], "seed") != 0 ||
		!words_size(p->word.field[1], 1, MODEL_MAX_PARAMS, &filters))
		return text;
	snprintf(buffer, size, "conv:%zu:3 relu pool:2 fc:%zu", filters, classes);
	return buffer;
}

/* Parses vector:N, which has one tensor, and no input, layers or classes. In vector:N:running=S,
 * the last S values are running statistics. */
static int parse_vector(struct model *m, const char *text, struct err *e)
{
	const char *next = text, *last = NULL;
	size_t n = 0, running = 0;
	struct word w;

	if (words_next(&next, &w) != WORDS_ONE || *next || w.n_fields < 2 ||
		!words_size(w.field[1], 1, MODEL_MAX_PARAMS, &n))
		return err_set(e, PS_EUSAGE, "\"%.60s\": expected a whole number in [1, %zu]", text,
			MODEL_MAX_PARAMS);
	if (w.n_fields > 2)
		last = words_value(w.field[2], "running");
	if (w.n_fields > 3 || (w.n_fields == 3 && (!last || !words_size(last, 1, n - 1, &running))))
		return err_set(e, PS_EUSAGE,
			"\"%.60s\": expected vector:N, or vector:N:running=S with S below N", text);
	m->tensor[0] = (struct tensor){.name = "vector", .ndim = 1, .dim = {n}, .count = n};
	m->n_tensors = 1;
	m->n_params = n;
	m->n_trained = n - running;
	m->input = (struct shape){0, 0, 0};
	if (running)
		snprintf(m->text, sizeof(m->text), "vector:%zu:running=%zu", n, running);
	else
		snprintf(m->text, sizeof(m->text), "vector:%zu", n);
	return PS_OK;
}

static int parse_layers(struct parser *p, const char *text)
{
	int rc;

	while ((rc = next_layer(p, &text)) > 0) {
		rc = parse_layer(p);
		if (rc)
			return rc;
	}
	if (rc)
		return rc;
	const struct model *m = p->m;
	if (m->n_layers == 0)
		return err_set(p->e, PS_EUSAGE,
			"the model text is empty; expected layers such as "
			"\"conv:32:3 relu pool:2 fc:10\" or a name such as seed:32");
	if (p->n_skips)
		return err_set(p->e, PS_EUSAGE, "layer %zu \"skip\": no add follows",
			p->skip[p->n_skips - 1] + 1);
	if (m->layer[m->n_layers - 1].kind != LAYER_FC)
		return err_set(p->e, PS_EUSAGE,
			"layer %zu \"%s\": the last layer must be fc:UNITS, whose units are the "
			"classes (2 to %zu)",
			m->n_layers, p->word.text, MODEL_MAX_CLASSES);
	if (p->shape.c < 2 || p->shape.c > MODEL_MAX_CLASSES)
		return err_set(p->e, PS_EUSAGE,
			"layer %zu \"%s\": the units of the last layer are the classes; expected 2 "
			"to %zu",
			m->n_layers, p->word.text, MODEL_MAX_CLASSES);
	p->m->classes = p->shape.c;
	return add_running(p);
}

/* Returns the XXH3 of the text "<canonical text> @ CxHxW", which is easy to compute in any
 * language. */
static uint64_t fingerprint(const struct model *m)
{
	char text[MODEL_MAX_TEXT + 96];
	int n = snprintf(text, sizeof(text), "%s @ %zux%zux%zu", m->text, m->input.c, m->input.h,
		m->input.w);

	return XXH3_64bits(text, (size_t)n);
}

static int parse_network(struct parser *p, const char *text, size_t classes)
{
	char buffer[MODEL_MAX_TEXT];
	int rc = parse_images(p, &text);

	if (rc)
		return rc;
	text = expand_name(p, text, classes, buffer, sizeof(buffer));
	if (!p->has_input && p->shape.c == 0 && p->shape.h == 0 && p->shape.w == 0)
		p->shape = MODEL_MNIST;
	rc = place_images(p);
	return rc ? rc : parse_layers(p, text);
}

/* Returns 1 if the tensors cover [0, n_params) without gaps, and the running statistics are at the
 * end. */
static int tensors_cover(const struct model *m)
{
	size_t end = 0;

	for (size_t i = 0; i < m->n_tensors; i++) {
		if (m->tensor[i].offset != end)
			return 0;
		end += m->tensor[i].count;
	}
	return end == m->n_params && m->n_trained <= end;
}

static int sizes_fit(const struct model *m)
{
	int fit = m->n_params <= MODEL_MAX_PARAMS;
	size_t count;

	for (size_t i = 0; i < m->n_layers; i++)
		fit &= count_checked(m->layer[i].out, &count);
	return fit;
}

int model_parse_named(
	struct model *m, const char *text, struct shape input, size_t classes, struct err *e)
{
	struct parser p = {.m = m, .e = e, .shape = input};

	*m = (struct model){.input = input};
	int rc = strncmp(text, "vector:", 7) == 0 ? parse_vector(m, text, e)
						  : parse_network(&p, text, classes);
	if (rc)
		return rc;
	PS_ASSERT(tensors_cover(m)); /* invariant 1 */
	PS_ASSERT(sizes_fit(m));     /* invariant 2 */
	m->fingerprint = fingerprint(m);
	return PS_OK;
}

int model_parse(struct model *m, const char *text, struct shape input, struct err *e)
{
	return model_parse_named(m, text, input, MODEL_CLASSES, e);
}

void model_init(const struct model *m, uint64_t seed, float *w)
{
	for (size_t t = 0; t < m->n_tensors; t++) {
		struct rng r = rng_seed(seed, RNG_INIT, t);
		float *value = w + m->tensor[t].offset;
		double bound = m->tensor[t].init_bound;

		for (size_t i = 0; i < m->tensor[t].count; i++)
			value[i] = bound > 0 ? (float)((2 * rng_unit(&r) - 1) * bound)
					     : m->tensor[t].init_value;
	}
}
