/*
 * safetensors.h - read and write a model's weights as a .safetensors file (8-byte little-endian
 * header length, JSON header, raw float32 data), with PyTorch's names and shapes.
 *
 * Thread: any.
 */
#ifndef COMMON_SAFETENSORS_H
#define COMMON_SAFETENSORS_H
#include "common/err.h"

struct model;

/* Write m->n_params floats of `w` to `path` atomically; metadata holds the model text. The bytes
 * depend on the model and the weights only. PS_EIO. */
int safetensors_write(
	const char *path, const struct model *m, const float *w, struct err *e) PS_MUST_CHECK;
/* Fill `w` from `path`. Every tensor of `m` must be there with its exact shape, dtype F32, and no
 * other tensor: PS_EDATA names the first one that differs. No allocation trusts the file. */
int safetensors_read(
	const char *path, const struct model *m, float *w, struct err *e) PS_MUST_CHECK;

#endif
