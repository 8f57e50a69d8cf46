/*
 * onnx.c - see onnx.h.
 *
 * This file builds the graph layer by layer. Each node has one output, whose name is the name of
 * the node. A value has the shape N x C x H x W. After an fc layer a value is flat, with the shape
 * N x C, until a layer needs rows and columns again.
 */
#include "worker/ctl/onnx.h"
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/assert.h"
#include "common/file.h"
#include "common/mem.h"
#include "common/version.h"
#include "onnx.pb-c.h"

#define IR_VERSION 8
#define OPSET      13

/* ONNX's numbers for types of elements and of attributes */
enum element { FLOATS = 1, BYTES = 2, INTEGERS = 7 };
enum attribute { ATTRIBUTE_FLOAT = 1, ATTRIBUTE_INT = 2, ATTRIBUTE_INTS = 7 };

#define MAX_INPUTS      5
#define MAX_ATTRIBUTES  5
#define MAX_INTS        8
#define LAYER_NODES     12 /* maximum number of nodes for one layer */
#define MAX_NODES       (LAYER_NODES * (MODEL_MAX_LAYERS + 1))
#define LAYER_CONSTANTS 8
#define MAX_CONSTANTS   (LAYER_CONSTANTS * (MODEL_MAX_LAYERS + 1))
#define NAME            48

struct node {
	Onnx__NodeProto proto;
	char name[NAME];
	char *input[MAX_INPUTS], *output[1];
	Onnx__AttributeProto attribute[MAX_ATTRIBUTES], *attributes[MAX_ATTRIBUTES];
	int64_t ints[MAX_ATTRIBUTES][MAX_INTS];
};

/* A tensor of the model, or a constant, which has its own values. */
struct initializer {
	Onnx__TensorProto proto;
	char name[NAME];
	int64_t dim[4];
	union {
		int64_t ints[MAX_INTS];
		float floats[MAX_INTS];
	} values;
};

struct value {
	char *name;
	int flat;
};

struct graph {
	const struct model *m;
	char text[MODEL_MAX_TEXT];
	char scope[NAME / 2]; /* prefix of the names of the nodes of a layer, such as "layer3" */
	struct node node[MAX_NODES];
	Onnx__NodeProto *nodes[MAX_NODES];
	size_t n_nodes;
	struct initializer tensor[MODEL_MAX_TENSORS + MAX_CONSTANTS];
	Onnx__TensorProto *tensors[MODEL_MAX_TENSORS + MAX_CONSTANTS];
	size_t n_tensors;
	struct value skipped[MODEL_MAX_LAYERS];
};

/* ---- tensors --------------------------------------------------------------------------------- */

static struct initializer *add_initializer(struct graph *g, enum element type, size_t n_dims)
{
	PS_ASSERT(g->n_tensors < sizeof(g->tensor) / sizeof(g->tensor[0]));
	struct initializer *t = &g->tensor[g->n_tensors];

	onnx__tensor_proto__init(&t->proto);
	t->proto.name = t->name;
	t->proto.data_type = (int32_t)type;
	t->proto.dims = t->dim;
	t->proto.n_dims = n_dims;
	g->tensors[g->n_tensors++] = &t->proto;
	return t;
}

/* Adds the tensors of the model to the graph as its first initializers, in the order of the
 * model. */
static void add_model_tensors(struct graph *g, const float *w)
{
	for (size_t i = 0; i < g->m->n_tensors; i++) {
		const struct tensor *from = &g->m->tensor[i];
		struct initializer *t = add_initializer(g, FLOATS, from->ndim);

		snprintf(t->name, sizeof(t->name), "%s", from->name);
		for (size_t d = 0; d < from->ndim; d++)
			t->dim[d] = (int64_t)from->dim[d];
		/* copy the pointer to drop `const`: protobuf-c only reads the values */
		const float *values = w + from->offset;
		memcpy(&t->proto.raw_data.data, &values, sizeof(values));
		t->proto.raw_data.len = from->count * sizeof(*w);
	}
}

static char *weight_name(struct graph *g, int tensor)
{
	PS_ASSERT(tensor >= 0);
	return g->tensor[tensor].name;
}

static struct initializer *add_constant(struct graph *g, enum element type, size_t n, size_t width)
{
	struct initializer *t = add_initializer(g, type, 1);

	snprintf(t->name, sizeof(t->name), "%s.constant%zu", g->scope, g->n_tensors);
	t->dim[0] = (int64_t)n;
	t->proto.raw_data.data = (uint8_t *)&t->values;
	t->proto.raw_data.len = n * width;
	return t;
}

static char *int_constant(struct graph *g, const int64_t *values, size_t n)
{
	struct initializer *t = add_constant(g, INTEGERS, n, sizeof(*values));

	PS_ASSERT(n <= MAX_INTS);
	memcpy(t->values.ints, values, n * sizeof(*values));
	return t->name;
}

/* Adds a constant of shape n x 1 x 1: one value for all channels (n = 1), or one value for each
 * channel. */
static char *channel_constant(struct graph *g, const float *values, size_t n)
{
	struct initializer *t = add_constant(g, FLOATS, n, sizeof(*values));

	PS_ASSERT(n <= MAX_INTS);
	memcpy(t->values.floats, values, n * sizeof(*values));
	t->proto.n_dims = 3;
	t->dim[1] = t->dim[2] = 1;
	return t->name;
}

static char *number(struct graph *g, float value)
{
	struct initializer *t = add_constant(g, FLOATS, 1, sizeof(value));

	t->values.floats[0] = value;
	t->proto.n_dims = 0;
	return t->name;
}

/* ---- nodes ----------------------------------------------------------------------------------- */

static struct node *add_node(struct graph *g, char *op, char *input)
{
	PS_ASSERT(g->n_nodes < MAX_NODES);
	struct node *n = &g->node[g->n_nodes];

	onnx__node_proto__init(&n->proto);
	snprintf(n->name, sizeof(n->name), "%s.%s%zu", g->scope, op, g->n_nodes);
	n->output[0] = n->name;
	n->input[0] = input;
	n->proto.name = n->name;
	n->proto.op_type = op;
	n->proto.input = n->input;
	n->proto.n_input = 1;
	n->proto.output = n->output;
	n->proto.n_output = 1;
	n->proto.attribute = n->attributes;
	g->nodes[g->n_nodes++] = &n->proto;
	return n;
}

static void add_node_input(struct node *n, char *name)
{
	PS_ASSERT(n->proto.n_input < MAX_INPUTS);
	n->input[n->proto.n_input++] = name;
}

/* Adds a node with two inputs, and returns the name of its output. */
static char *binary(struct graph *g, char *op, char *left, char *right)
{
	struct node *n = add_node(g, op, left);

	add_node_input(n, right);
	return n->name;
}

static Onnx__AttributeProto *add_attribute(struct node *n, char *name, enum attribute type)
{
	PS_ASSERT(n->proto.n_attribute < MAX_ATTRIBUTES);
	Onnx__AttributeProto *a = &n->attribute[n->proto.n_attribute];

	onnx__attribute_proto__init(a);
	a->name = name;
	a->type = (int32_t)type;
	n->attributes[n->proto.n_attribute++] = a;
	return a;
}

static void set_int_attribute(struct node *n, char *name, size_t value)
{
	add_attribute(n, name, ATTRIBUTE_INT)->i = (int64_t)value;
}

static void set_float_attribute(struct node *n, char *name, double value)
{
	add_attribute(n, name, ATTRIBUTE_FLOAT)->f = (float)value;
}

static void set_ints_attribute(struct node *n, char *name, const size_t *values, size_t n_values)
{
	int64_t *ints = n->ints[n->proto.n_attribute];
	Onnx__AttributeProto *a = add_attribute(n, name, ATTRIBUTE_INTS);

	PS_ASSERT(n_values <= MAX_INTS);
	for (size_t i = 0; i < n_values; i++)
		ints[i] = (int64_t)values[i];
	a->ints = ints;
	a->n_ints = n_values;
}

/* ---- layers ---------------------------------------------------------------------------------- */

static char *as_image(struct graph *g, struct value v)
{
	static const int64_t rows_and_columns[] = {2, 3};

	return v.flat ? binary(g, "Unsqueeze", v.name, int_constant(g, rows_and_columns, 2))
		      : v.name;
}

static struct node *add_window_node(
	struct graph *g, char *op, const struct layer *l, struct value in)
{
	struct node *n = add_node(g, op, as_image(g, in));

	set_ints_attribute(n, "kernel_shape", (size_t[]){l->size, l->size}, 2);
	set_ints_attribute(n, "strides", (size_t[]){l->stride, l->stride}, 2);
	set_ints_attribute(
		n, "pads", (size_t[]){l->pad_top, l->pad_left, l->pad_bottom, l->pad_right}, 4);
	return n;
}

static char *add_conv(struct graph *g, const struct layer *l, struct value in)
{
	struct node *n = add_window_node(g, "Conv", l, in);

	add_node_input(n, weight_name(g, l->weight));
	add_node_input(n, weight_name(g, l->bias));
	set_int_attribute(n, "group", l->groups);
	return n->name;
}

static char *add_average(struct graph *g, const struct layer *l, struct value in)
{
	struct node *n = add_window_node(g, "AveragePool", l, in);

	set_int_attribute(n, "count_include_pad", 1);
	return n->name;
}

static char *add_dense(struct graph *g, const struct layer *l, struct value in)
{
	struct node *n =
		add_node(g, "Gemm", in.flat ? in.name : add_node(g, "Flatten", in.name)->name);

	add_node_input(n, weight_name(g, l->weight));
	add_node_input(n, weight_name(g, l->bias));
	set_int_attribute(n, "transB", 1);
	return n->name;
}

static char *add_batchnorm_node(struct graph *g, const struct layer *l, struct value in)
{
	struct node *n = add_node(g, "BatchNormalization", in.name);

	add_node_input(n, weight_name(g, l->weight));
	add_node_input(n, weight_name(g, l->bias));
	add_node_input(n, weight_name(g, l->running));
	add_node_input(n, weight_name(g, l->running + 1));
	set_float_attribute(n, "epsilon", BATCHNORM_EPS);
	return n->name;
}

/* Adds nodes that compute, at each pixel, the mean of the squares of l->size neighbouring channels.
 * Channels that do not exist count as zeros. The LRN node of ONNX is not enough, because its window
 * has equally many channels before and after a channel. */
static char *mean_of_squares(struct graph *g, const struct layer *l, char *in)
{
	static const int64_t axis[] = {1};
	char *squares = binary(g, "Unsqueeze", binary(g, "Mul", in, in), int_constant(g, axis, 1));
	struct node *n = add_node(g, "AveragePool", squares);

	set_ints_attribute(n, "kernel_shape", (size_t[]){l->size, 1, 1}, 3);
	set_ints_attribute(n, "pads", (size_t[]){l->size / 2, 0, 0, (l->size - 1) / 2, 0, 0}, 6);
	set_int_attribute(n, "count_include_pad", 1);
	return binary(g, "Squeeze", n->name, int_constant(g, axis, 1));
}

static char *add_lrn(struct graph *g, const struct layer *l, struct value in)
{
	char *image = as_image(g, in);
	/* multiply by the size, because ONNX divides alpha by the size */
	const float alpha = l->alpha * (float)l->size;

	if (l->size % 2) {
		struct node *n = add_node(g, "LRN", image);

		set_int_attribute(n, "size", l->size);
		set_float_attribute(n, "alpha", (double)alpha);
		set_float_attribute(n, "beta", (double)l->beta);
		set_float_attribute(n, "bias", (double)l->k);
		return n->name;
	}
	char *sum = binary(g, "Mul", mean_of_squares(g, l, image), number(g, alpha));
	char *base = binary(g, "Add", sum, number(g, l->k));

	return binary(g, "Div", image, binary(g, "Pow", base, number(g, l->beta)));
}

/* Adds nodes for an add layer. The value at the layer's skip may have more rows and columns, and
 * fewer channels, than `in`. The nodes take every stride-th row and column of this value, append
 * channels of zeros, and add the result to `in`. */
static char *add_sum(struct graph *g, const struct layer *l, struct value in)
{
	const struct layer *skip = &g->m->layer[l->partner];
	const int64_t stride = (int64_t)l->stride, lacking = (int64_t)(l->in.c - skip->in.c);
	char *from = as_image(g, g->skipped[l->partner]);

	if (stride > 1) {
		struct node *n = add_node(g, "Slice", from);

		add_node_input(n, int_constant(g, (int64_t[]){0, 0}, 2));
		add_node_input(n, int_constant(g, (int64_t[]){INT64_MAX, INT64_MAX}, 2));
		add_node_input(n, int_constant(g, (int64_t[]){2, 3}, 2));
		add_node_input(n, int_constant(g, (int64_t[]){stride, stride}, 2));
		from = n->name;
	}
	if (lacking > 0)
		from = binary(g, "Pad", from,
			int_constant(g, (int64_t[]){0, 0, 0, 0, 0, lacking, 0, 0}, 8));
	return binary(g, "Add", as_image(g, in), from);
}

/* Adds a node with operator `op`, which has no attributes and accepts values of any shape. */
static struct value curve(struct graph *g, char *op, struct value in)
{
	return (struct value){add_node(g, op, in.name)->name, in.flat};
}

static struct value onnx_layer(struct graph *g, size_t i, struct value in)
{
	const struct layer *l = &g->m->layer[i];

	switch (l->kind) {
	case LAYER_CONV:
		return (struct value){add_conv(g, l, in), 0};
	case LAYER_POOL:
		return (struct value){add_window_node(g, "MaxPool", l, in)->name, 0};
	case LAYER_AVGPOOL:
		return (struct value){add_average(g, l, in), 0};
	case LAYER_CHANNELS:
		return (struct value){add_node(g, "GlobalAveragePool", as_image(g, in))->name, 0};
	case LAYER_LRN:
		return (struct value){add_lrn(g, l, in), 0};
	case LAYER_ADD:
		return (struct value){add_sum(g, l, in), 0};
	case LAYER_FC:
		return (struct value){add_dense(g, l, in), 1};
	case LAYER_BATCHNORM:
		return (struct value){add_batchnorm_node(g, l, in), in.flat};
	case LAYER_RELU:
		return curve(g, "Relu", in);
	case LAYER_TANH:
		return curve(g, "Tanh", in);
	case LAYER_SIGMOID:
		return curve(g, "Sigmoid", in);
	case LAYER_SKIP:
		g->skipped[i] = in;
		return in;
	case LAYER_DROPOUT:
		return in;
	}
	return in;
}

/* Adds nodes that divide the pixels by 255, and normalise them if the model demands it
 * (preprocess.h). */
static struct value add_images(struct graph *g)
{
	const struct preprocess *p = &g->m->preprocess;
	struct node *cast = add_node(g, "Cast", "images");

	set_int_attribute(cast, "to", FLOATS);
	char *v = binary(g, "Div", cast->name, number(g, 255));
	if (p->n_norm) {
		v = binary(g, "Sub", v, channel_constant(g, p->mean, p->n_norm));
		v = binary(g, "Div", v, channel_constant(g, p->deviation, p->n_norm));
	}
	return (struct value){v, 0};
}

static void build_graph(struct graph *g, const float *w)
{
	add_model_tensors(g, w);
	snprintf(g->scope, sizeof(g->scope), "images");
	struct value v = add_images(g);
	for (size_t i = 0; i < g->m->n_layers; i++) {
		snprintf(g->scope, sizeof(g->scope), "layer%zu", i + 1);
		v = onnx_layer(g, i, v);
	}
	/* the last layer is an fc layer: rename its output */
	snprintf(g->node[g->n_nodes - 1].name, NAME, "logits");
	struct node *n = add_node(g, "Softmax", v.name);
	set_int_attribute(n, "axis", 1);
	snprintf(n->name, sizeof(n->name), "probabilities");
}

/* ---- the file -------------------------------------------------------------------------------- */

/* The type of an input or output: N x C x H x W, or N x C. */
struct shaped {
	Onnx__ValueInfoProto info;
	Onnx__TypeProto type;
	Onnx__TensorTypeProto tensor;
	Onnx__TensorShapeProto shape;
	Onnx__Dimension dim[4], *dims[4];
};

static Onnx__ValueInfoProto *describe_value(
	struct shaped *s, char *name, enum element type, const size_t *side, size_t n)
{
	onnx__value_info_proto__init(&s->info);
	onnx__type_proto__init(&s->type);
	onnx__tensor_type_proto__init(&s->tensor);
	onnx__tensor_shape_proto__init(&s->shape);
	s->info.name = name;
	s->info.type = &s->type;
	s->type.tensor_type = &s->tensor;
	s->tensor.elem_type = (int32_t)type;
	s->tensor.shape = &s->shape;
	s->shape.dim = s->dims;
	s->shape.n_dim = n + 1;
	for (size_t i = 0; i <= n; i++) {
		onnx__dimension__init(&s->dim[i]);
		s->dims[i] = &s->dim[i];
		if (i)
			s->dim[i].dim_value = (int64_t)side[i - 1];
	}
	s->dim[0].dim_param = "N";
	return &s->info;
}

static int pack_and_write(const char *path, const Onnx__ModelProto *model, struct err *e)
{
	const size_t size = onnx__model_proto__get_packed_size(model);
	uint8_t *bytes = mem_try(size, 1);
	int rc;

	if (!bytes)
		return err_set(e, PS_ENOMEM, "%s: no memory for its %zu bytes", path, size);
	onnx__model_proto__pack(model, bytes);
	rc = file_replace_path(path, &(struct file_part){bytes, size}, 1, e);
	free(bytes);
	return rc;
}

static int write_model(const char *path, struct graph *g, struct err *e)
{
	const struct shape in = g->m->input;
	struct shaped images, logits, probabilities;
	Onnx__ValueInfoProto *inputs[] = {
		describe_value(&images, "images", BYTES, (size_t[]){in.c, in.h, in.w}, 3)};
	Onnx__ValueInfoProto *outputs[] = {
		describe_value(&logits, "logits", FLOATS, &g->m->classes, 1),
		describe_value(&probabilities, "probabilities", FLOATS, &g->m->classes, 1)};
	Onnx__OperatorSetIdProto opset = ONNX__OPERATOR_SET_ID_PROTO__INIT, *opsets[] = {&opset};
	Onnx__StringStringEntryProto text = ONNX__STRING_STRING_ENTRY_PROTO__INIT;
	Onnx__StringStringEntryProto *texts[] = {&text};
	Onnx__GraphProto graph = ONNX__GRAPH_PROTO__INIT;
	Onnx__ModelProto model = ONNX__MODEL_PROTO__INIT;

	graph.name = "cnn-ps";
	graph.node = g->nodes;
	graph.n_node = g->n_nodes;
	graph.initializer = g->tensors;
	graph.n_initializer = g->n_tensors;
	graph.input = inputs;
	graph.n_input = 1;
	graph.output = outputs;
	graph.n_output = 2;
	opset.version = OPSET;
	text.key = "model";
	text.value = g->text;
	model.ir_version = IR_VERSION;
	model.producer_name = "cnn-ps";
	model.producer_version = PS_VERSION;
	model.graph = &graph;
	model.opset_import = opsets;
	model.n_opset_import = 1;
	model.metadata_props = texts;
	model.n_metadata_props = 1;
	return pack_and_write(path, &model, e);
}

int onnx_write(const char *path, const struct model *m, const float *w, struct err *e)
{
	struct graph *g;
	int rc;

	if (m->n_layers == 0)
		return err_set(e, PS_EUSAGE, "%s: model \"%s\" has no layers; ONNX needs them",
			path, m->text);
	g = mem_must(1, sizeof(*g), "graph of ONNX");
	g->m = m;
	memcpy(g->text, m->text, sizeof(g->text));
	build_graph(g, w);
	rc = write_model(path, g, e);
	free(g);
	return rc;
}
