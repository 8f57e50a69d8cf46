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

/* Write m->n_params floats of `w` to `path` atomically. The metadata has the model text. The bytes
 * depend only on the model and the weights. PS_EIO. */
int safetensors_write(
	const char *path, const struct model *m, const float *w, struct err *e) PS_MUST_CHECK;
/* Read `w` from `path`. The file must have exactly the tensors of `m`, with their shapes and dtype
 * F32; PS_EDATA names the first tensor that differs. The sizes of allocations do not depend on
 * claims of the file. */
int safetensors_read(
	const char *path, const struct model *m, float *w, struct err *e) PS_MUST_CHECK;
/* Read the model text in the metadata of `path`; "": the metadata has none. PS_EDATA. */
int safetensors_model(const char *path, char text[MODEL_MAX_TEXT], struct err *e) PS_MUST_CHECK;

#endif
