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

/* ---- vector:N with names --------------------------------------------------------------------- */

/* All of a file but the weights of vector:N, which are its first N values: the length of the
 * header, the header, and the bytes after the weights, such as buffers of a PyTorch model. */
struct safetensors_frame {
	unsigned char *bytes; /* free() it */
	size_t size;
};

#define SAFETENSORS_MAX_TAIL ((size_t)16 << 20) /* bytes after the weights */

/* Read the first m->n_params values of `path` and the rest of the file. The tensors that begin
 * among these values must be F32 and have exactly m->n_params values. PS_EDATA. */
int safetensors_read_vector(const char *path, const struct model *m, float *w,
	struct safetensors_frame *f, struct err *e) PS_MUST_CHECK;
/* Write such a file with other weights, atomically. PS_EDATA: the frame is not one of n weights.
 * PS_EIO. */
int safetensors_write_vector(const char *path, const struct safetensors_frame *f, const float *w,
	size_t n, struct err *e) PS_MUST_CHECK;

#endif
