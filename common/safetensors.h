/*
 * safetensors.h - read and write a model's weights as a .safetensors file (8-byte little-endian
 * header length, JSON header, raw float32 data), with PyTorch's names and shapes.
 *
 * Thread: any.
 */
#ifndef COMMON_SAFETENSORS_H
#define COMMON_SAFETENSORS_H
#include "common/err.h"
#include "common/model.h"

/* Write m->n_params floats of `w` to `path` atomically; metadata holds the model text. The bytes
 * depend on the model and the weights only. PS_EIO. */
int safetensors_write(
	const char *path, const struct model *m, const float *w, struct err *e) PS_MUST_CHECK;
/* Fill `w` from `path`. Every tensor of `m` must be there with its exact shape, dtype F32, and no
 * other tensor: PS_EDATA names the first one that differs. No allocation trusts the file. */
int safetensors_read(
	const char *path, const struct model *m, float *w, struct err *e) PS_MUST_CHECK;
/* The model that the metadata of `path` name into `text`; "" if they name none. PS_EDATA. */
int safetensors_model(const char *path, char text[MODEL_MAX_TEXT], struct err *e) PS_MUST_CHECK;

#endif
