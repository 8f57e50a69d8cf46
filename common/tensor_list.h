/*
 * tensor_list.h - a text that lists the tensors of a vector:N with their names, types and shapes.
 * An export uses this list to make the state_dict of a PyTorch model. The list also has the values
 * of integer tensors, because the vector can hold only float32 values. Each line describes one
 * tensor and ends with a newline:
 *
 *   NAME F32 SHAPE           the next values of the vector
 *   NAME TYPE SHAPE VALUES   a constant of type I64, I32, I16, I8, U8 or BOOL
 *   NAME = OTHER             another name of the tensor OTHER, which an earlier line describes
 *
 * One blank separates two fields. A name has 1 to TENSOR_LIST_NAME printable ASCII characters, but
 * no blank, '"' or '\'. No name occurs twice. SHAPE is "scalar", or 1 to TENSOR_LIST_DIMS sizes of
 * at least 1, such as 32x20. VALUES are whole numbers with commas between them.
 *
 * The functions allocate nothing, and their stack and time are bounded. Any thread may call these
 * functions.
 */
#ifndef COMMON_TENSOR_LIST_H
#define COMMON_TENSOR_LIST_H
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"

#define TENSOR_LIST_BYTES 49152u /* maximum bytes of a list */
#define TENSOR_LIST_LINES 4096u
#define TENSOR_LIST_NAME  255u
#define TENSOR_LIST_DIMS  8u
#define TENSOR_LIST_COUNT ((size_t)1 << 28) /* maximum number of values of a tensor */

struct tensor_type {
	const char *name;
	size_t bytes; /* number of bytes of one value */
	int64_t min, max;
};

struct tensor_line {
	/* the names have no NUL at their end; `other` is NULL unless the line is NAME = OTHER */
	const char *name, *other;
	size_t name_bytes, other_bytes;
	/* the type of a constant; NULL for a line with F32 and for NAME = OTHER */
	const struct tensor_type *type;
	size_t n_dims;
	size_t dim[TENSOR_LIST_DIMS], count;
	const char *values; /* the values of a constant, as text in the list */
};

/* Reads the line at *list and moves *list to the next line. Returns NULL, or the reason why the
 * line is malformed. The function does not compare the names with other lines. */
const char *tensor_list_next(const char **list, struct tensor_line *l) PS_MUST_CHECK;
/* Reads the number at *values, in the values of a constant, and moves *values to the next
 * number. */
int64_t tensor_list_value(const char **values);
/*
 * Checks a list for a vector of n_params values: n_trained values are trained, and the others are
 * running statistics. Returns NULL if the list is sound. If the list is not sound, returns the
 * reason, and sets *line to the number of the bad line, from 1, or to 0 if the reason concerns the
 * whole list.
 */
const char *tensor_list_check(
	const char *list, uint64_t n_params, uint64_t n_trained, size_t *line) PS_MUST_CHECK;
/* Returns the number, from 1, of the first line that differs between two sound lists, or 0 if no
 * line differs. The function ignores the values of constants. */
size_t tensor_list_difference(const char *a, const char *b);

#endif
