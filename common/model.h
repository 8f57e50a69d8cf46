/*
 * model.h - a model's text, its layers and its manifest. The manifest lists, in order, the tensors
 * of one flat float32 vector. Server, workers, checkpoints and exports use the same manifest.
 *
 * The text has first the words that describe the images, then the layers, all separated by blanks.
 * The words about the images are input:CxHxW (channels, rows, columns), norm, shift and flip
 * (preprocess.h). enum layer_kind lists the layers. The loss is always the softmax cross-entropy
 * over the units of the last layer. The name of a known network can stand for the layers: seed:F,
 * lenet5, cnn99, cifar, resnet8, alexnet. vector:N is a flat vector with no layers and no images;
 * the last S values of vector:N:running=S are running statistics. The canonical text contains the
 * word input:CxHxW unless the images have the shape of MNIST's images, 1x28x28.
 *
 * The window of a conv, pool or avgpool slides over its padded input in steps of `stride` and must
 * tile it exactly. If the window does not tile its input, the error names the layer and a size that
 * fits. pad=P adds P zeros on each side. pad=same adds enough zeros for out = in / stride, rounded
 * up. pad=auto adds the fewest zeros that make the window fit. If pad=same or pad=auto adds an odd
 * number of zeros, the bottom or the right gets one row or column more than the other side. The
 * maximum of a pool ignores the padding. The mean of an avgpool counts the padding as zeros.
 *
 * The tensors have PyTorch's names, shapes and order (NCHW). A conv has weight [F][C /
 * groups][K][K] and bias [F]; an fc has weight [units][inputs], where the inputs are flattened in
 * the order CHW, and bias [units]; a batchnorm has weight [C] and bias [C].
 *
 * batchnorm (Ioffe 2015, as PyTorch's BatchNorm2d): value a of channel c becomes weight * (a -
 * mean) / sqrt(variance + BATCHNORM_EPS) + bias. In training, mean and variance are computed over
 * all values of the channel: all images of the batch and all pixels. If the channel has N values,
 * the variance in training is the sum of squared deviations divided by N. In evaluation, mean and
 * variance are the running statistics running_mean [C] and running_var [C]. The tensors of all
 * running statistics come after all other tensors. Running statistics are not trained: values
 * [n_trained, n_params) of a gradient are not derivatives, but the mean and the variance of the
 * batch. The variance that a gradient contains is the sum of squared deviations divided by N - 1,
 * or by 1 if N is 1. An update moves each running statistic towards the value of the batch, by
 * BATCHNORM_MOMENTUM of the distance.
 *
 * Invariants:
 * (1) the tensors are in the order of the layers, followed by the running statistics, and cover [0,
 *     n_params) exactly and without gaps (asserted by model_parse_named;
 *     invariant_1_tensors_have_pytorchs_names_shapes_and_order);
 * (2) n_params, and the number of values of each layer's output, are at most MODEL_MAX_PARAMS
 *     (asserted by model_parse_named; invariant_2_whatever_is_too_large_is_refused).
 *
 * Promises:
 * (1) equal canonical texts and inputs have equal fingerprints
 *     (promise_1_the_fingerprint_is_xxh3_of_text_and_input).
 *
 * Any thread may use a struct model, which is plain data and does not change after model_parse.
 */
#ifndef COMMON_MODEL_H
#define COMMON_MODEL_H
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"
#include "common/preprocess.h"
#include "common/words.h"

#define MODEL_MAX_TEXT    512
#define MODEL_MAX_LAYERS  64
#define MODEL_MAX_TENSORS (4 * MODEL_MAX_LAYERS)
#define MODEL_MAX_PARAMS  ((size_t)1 << 28) /* 1 GiB of float32 values */
#define MODEL_MAX_CLASSES ((size_t)65536)
/* maximum number of channels, of rows and of columns of an image */
#define MODEL_MAX_SIDE ((size_t)4096)
/* number of classes of a known network, unless the caller demands another number */
#define MODEL_CLASSES 10

#define BATCHNORM_EPS      1e-5
#define BATCHNORM_MOMENTUM 0.1

enum layer_kind {
	LAYER_CONV, /* conv:FILTERS:SIZE[:stride=S][:pad=P|same|auto][:groups=G] */
	LAYER_RELU, /* relu */
	/* pool:SIZE[:stride=S][:pad=P|same|auto]: the maximum of each window; S is at most SIZE */
	LAYER_POOL,
	LAYER_FC,      /* fc:UNITS */
	LAYER_DROPOUT, /* dropout:P, 0 <= P < 1 */
	LAYER_TANH,    /* tanh */
	LAYER_SIGMOID, /* sigmoid */
	/* avgpool:SIZE, with the options of pool: the sum over the window, divided by SIZE^2 */
	LAYER_AVGPOOL,
	LAYER_CHANNELS,  /* avgpool:global: the mean of each channel */
	LAYER_LRN,       /* lrn[:SIZE][:alpha=A][:beta=B][:k=K], see struct layer */
	LAYER_BATCHNORM, /* batchnorm, as the head of this file defines it */
	LAYER_SKIP,      /* skip: marks its input for the next add; changes nothing */
	/* add: adds the input of the last skip that has no add yet, see struct layer */
	LAYER_ADD,
};

struct shape {
	size_t c, h, w; /* channels, rows, columns; an fc output is c = units, h = w = 1 */
};

struct layer {
	enum layer_kind kind;
	struct shape in, out;
	/* conv, pool, avgpool: side of the window in pixels; lrn: number of channels */
	size_t size;
	/* >= 1; for pool and avgpool, at most `size`; for add, see the comment of `partner` */
	size_t stride;
	/* number of rows or columns of zeros on each side (the maximum of a pool ignores the
	 * zeros) */
	size_t pad_top, pad_left, pad_bottom, pad_right;
	/* conv: filters and channels form `groups` equal groups, and the filters of a group use
	 * only the channels of the same group */
	size_t groups;
	float drop; /* dropout: probability that a value becomes 0 */
	/*
	 * lrn, between channels (Krizhevsky 2012; defaults 5, 1e-4, 0.75, 2): value a of channel c
	 * becomes a / (k + alpha * sum)^beta. `sum` is the sum of the squares of channels c - size
	 * / 2 to c + (size - 1) / 2 at the same pixel, without channels that do not exist.
	 * PyTorch's LocalResponseNorm uses alpha / size in place of alpha.
	 */
	float alpha, beta, k;
	/*
	 * In a skip, `partner` is the number of its add; in an add, it is the number of its skip.
	 * If the input of an add is smaller than the input of its skip, the add uses every
	 * stride-th row and column of the skip's input. If the skip has fewer channels than the
	 * add, the add leaves the other channels unchanged (He 2015, option A).
	 */
	size_t partner;
	/* indices of the layer's tensors in the manifest; -1: the layer has none */
	int weight, bias;
	/* batchnorm: index of the tensor running_mean; running_var has the next index */
	int running;
};

struct tensor {
	char name[24]; /* PyTorch's usual name: "conv1.weight", numbered from 1 for each kind */
	size_t ndim, dim[4];
	/* index of the first value in the flat vector, and number of values */
	size_t offset, count;
	double init_bound; /* initial values are uniform in (-init_bound, init_bound) */
	float init_value;  /* if init_bound is 0, all initial values are init_value */
};

struct model {
	/* canonical text: the layers in place of a network's name, with one blank between two
	 * words */
	char text[MODEL_MAX_TEXT];
	struct shape input; /* 0x0x0 for vector:N */
	struct preprocess preprocess;
	size_t n_layers;
	struct layer layer[MODEL_MAX_LAYERS];
	size_t n_tensors;
	struct tensor tensor[MODEL_MAX_TENSORS];
	/* n_params: number of all values; n_trained: number of values that are not running
	 * statistics */
	size_t n_params, n_trained;
	size_t classes;       /* units of the last layer; 0 for vector:N */
	uint64_t fingerprint; /* XXH3-64 of "<canonical text> @ CxHxW" */
};

/* The images have this shape if neither the text nor the caller gives one. */
#define MODEL_MNIST ((struct shape){1, 28, 28})

/* Parses `text`. `input` is the shape of the images if the text has none. After PS_EUSAGE, *e has
 * the reason, and *m is unspecified. */
int model_parse(struct model *m, const char *text, struct shape input, struct err *e) PS_MUST_CHECK;
/* Parses `text` like model_parse, but the last layer of a known network has `classes` units instead
 * of MODEL_CLASSES, and cifar has its own shape if `input` is 0x0x0. */
int model_parse_named(struct model *m, const char *text, struct shape input, size_t classes,
	struct err *e) PS_MUST_CHECK;
/* Reads "CxHxW", or "HxW" for one channel. Returns 1 if every side is in [1, MODEL_MAX_SIDE]. */
int shape_parse(const char *text, struct shape *s);
/* Returns 1 if the canonical text begins with words about the images. */
int model_has_images(const struct model *m);
/* Writes to `text` the word of the canonical text for layer number `layer`, counted from 0. */
void model_layer_text(const struct model *m, size_t layer, char text[WORDS_MAX_BYTES + 1]);
/* Returns the number of values in a shape. */
size_t shape_count(struct shape s);
/*
 * Writes the initial weights to the m->n_params floats of `w`. Each value of tensor t is
 * (float)((2u - 1) * bound), where u is the next rng_unit of stream RNG_INIT, sub-stream t. The
 * bound of a weight and of its bias is PyTorch's default, 1/sqrt(fan_in). All weights of vector:N
 * begin with 0. The weights and running variances of batchnorm begin with 1, its biases and running
 * means with 0.
 */
void model_init(const struct model *m, uint64_t seed, float *w);

#endif
