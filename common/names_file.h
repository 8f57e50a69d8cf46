/*
 * names_file.h - the file TENSORS of a checkpoint directory: the names and shapes of the tensors
 * that make up vector:N, and buffers of the model, as the file of --init had them.
 *
 * Layout, little-endian: u64 run.hi, u64 run.lo, then a struct safetensors_frame. The file of
 * another run is as good as none. Thread: any.
 */
#ifndef COMMON_NAMES_FILE_H
#define COMMON_NAMES_FILE_H
#include <stdint.h>
#include "common/err.h"
#include "common/safetensors.h"

/* Write the file of run (hi, lo) to `dir`. PS_EIO. */
int names_file_write(const char *dir, uint64_t hi, uint64_t lo, const struct safetensors_frame *f,
	struct err *e) PS_MUST_CHECK;
/* Read the file of that run. f->bytes NULL: there is none. PS_EIO, PS_ENOMEM. */
int names_file_read(const char *dir, uint64_t hi, uint64_t lo, struct safetensors_frame *f,
	struct err *e) PS_MUST_CHECK;

#endif
