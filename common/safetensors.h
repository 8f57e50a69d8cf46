/*
 * safetensors.h - reads and writes the weights of a model as a .safetensors file (8-byte
 * little-endian header length, JSON header, raw float32 data), with PyTorch's names and shapes.
 *
 * Any thread may call these functions.
 */
#ifndef COMMON_SAFETENSORS_H
#define COMMON_SAFETENSORS_H
#include "common/err.h"
#include "common/model.h"

/* Writes m->n_params floats of `w` to `path` atomically. The metadata has the model text. The same
 * model and weights always give the same bytes. Error: PS_EIO. */
int safetensors_write(
	const char *path, const struct model *m, const float *w, struct err *e) PS_MUST_CHECK;
/* Reads `w` from `path`. The file must have exactly the tensors of `m`, with their shapes and dtype
 * F32. If a tensor differs, the function returns PS_EDATA, and the error names the first tensor
 * that differs. No number in the file decides how much memory the function allocates. */
int safetensors_read(
	const char *path, const struct model *m, float *w, struct err *e) PS_MUST_CHECK;
/* Reads the model text in the metadata of `path`, or "" if the metadata has none. Error:
 * PS_EDATA. */
int safetensors_model(const char *path, char text[MODEL_MAX_TEXT], struct err *e) PS_MUST_CHECK;

/* Reads the text `evaluation` in the metadata of `path`, which the caller must free(). Sets *text
 * to NULL if the metadata has no such text. Error: PS_EDATA. */
int safetensors_evaluation(const char *path, char **text, struct err *e) PS_MUST_CHECK;

/* ---- vector:N with names --------------------------------------------------------------------- */

/*
 * Reads the values of vector:N and the list of its tensors (tensor_list.h). The list is in the
 * metadata of the file. If the metadata has no list, all tensors of the file must be F32, and the
 * function makes a list that has these tensors in the order of the file's header. The caller must
 * free() *list. If the only tensor of the file is "vector", the function sets *list to NULL.
 * Errors: PS_EDATA, PS_ENOMEM.
 */
int safetensors_read_vector(const char *path, const struct model *m, float *w, char **list,
	struct err *e) PS_MUST_CHECK;
/* Writes a file with all tensors of a list, and with the list as metadata, atomically. The same
 * list and weights always give the same bytes. Returns PS_EDATA if the list does not describe the
 * vector of `m`. Other errors: PS_ENOMEM, PS_EIO. */
int safetensors_write_list(const char *path, const struct model *m, const char *list,
	const float *w, struct err *e) PS_MUST_CHECK;
/* Works as safetensors_write_list if `m` is vector:N and `list` is not "". In all other cases, the
 * function works as safetensors_write. The metadata also has the text `evaluation`, which may be
 * NULL. */
int safetensors_write_evaluated(const char *path, const struct model *m, const char *list,
	const float *w, const char *evaluation, struct err *e) PS_MUST_CHECK;

#endif
