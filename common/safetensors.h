/*
 * safetensors.h - reads and writes the weights of a model as a .safetensors file (8-byte
 * little-endian header length, JSON header, raw float32 data), with PyTorch's names and shapes.
 *
 * Thread: any.
 */
#ifndef COMMON_SAFETENSORS_H
#define COMMON_SAFETENSORS_H
#include "common/err.h"
#include "common/model.h"

/* Writes m->n_params floats of `w` to `path` atomically. The metadata has the model text. The bytes
 * depend only on the model and the weights. PS_EIO. */
int safetensors_write(
	const char *path, const struct model *m, const float *w, struct err *e) PS_MUST_CHECK;
/* Reads `w` from `path`. The file must have exactly the tensors of `m`, with their shapes and dtype
 * F32; PS_EDATA: the error names the first tensor that differs. Numbers in the file do not
 * determine the size of an allocation. */
int safetensors_read(
	const char *path, const struct model *m, float *w, struct err *e) PS_MUST_CHECK;
/* Reads the model text in the metadata of `path`, or "" if the metadata has none. PS_EDATA. */
int safetensors_model(const char *path, char text[MODEL_MAX_TEXT], struct err *e) PS_MUST_CHECK;

/* ---- vector:N with names --------------------------------------------------------------------- */

/*
 * Reads the values of vector:N and the list of its tensors (tensor_list.h). The metadata of the
 * file contains the list. If it does not, all tensors of the file must be F32, and the list has
 * them in the order of the header. The caller must free() *list. Sets *list to NULL if the only
 * tensor of the file is "vector". PS_EDATA, PS_ENOMEM.
 */
int safetensors_read_vector(const char *path, const struct model *m, float *w, char **list,
	struct err *e) PS_MUST_CHECK;
/* Writes all tensors of a list, and the list as metadata, atomically. The bytes depend only on the
 * list and the weights. PS_EDATA: the list does not describe the vector of `m`. PS_ENOMEM,
 * PS_EIO. */
int safetensors_write_list(const char *path, const struct model *m, const char *list,
	const float *w, struct err *e) PS_MUST_CHECK;

#endif
