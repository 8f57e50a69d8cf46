/*
 * onnx.h - writes a model and its weights as an ONNX file, which ONNX Runtime and other programs
 * run.
 *
 * Input "images": uint8, N x channels x rows x columns, the bytes of a data set. The graph in the
 * file normalises the images. Outputs "logits" and "probabilities": float, N x classes. Shift, flip
 * and dropout are for training only and left out. The metadata have the model text. Operators are
 * those of opset 13. Thread: main.
 */
#ifndef WORKER_CTL_ONNX_H
#define WORKER_CTL_ONNX_H
#include "common/err.h"
#include "common/model.h"

/* Writes m->n_params floats of `w` to `path` atomically. The bytes depend only on the model and the
 * weights. PS_EUSAGE: a model without images. PS_EIO, PS_ENOMEM. */
int onnx_write(
	const char *path, const struct model *m, const float *w, struct err *e) PS_MUST_CHECK;

#endif
