/*
 * onnx.h - writes a model and its weights as an ONNX file, which ONNX Runtime and other programs
 * run.
 *
 * The input "images" has the bytes of a data set: uint8, N x channels x rows x columns. The graph
 * in the file normalises the images. The outputs "logits" and "probabilities" are floats, N x
 * classes. The graph has no shift, flip and dropout, which are only for training. The metadata
 * contain the model text. The operators are those of opset 13. Thread: main.
 */
#ifndef WORKER_CTL_ONNX_H
#define WORKER_CTL_ONNX_H
#include "common/err.h"
#include "common/model.h"

/* Writes m->n_params floats of `w` to `path` atomically. The bytes depend only on the model and the
 * weights. PS_EUSAGE: the model has no images as input. PS_EIO, PS_ENOMEM. */
int onnx_write(
	const char *path, const struct model *m, const float *w, struct err *e) PS_MUST_CHECK;

#endif
