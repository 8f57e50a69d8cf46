/* names_file.c - see names_file.h. */
#include "common/names_file.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "common/file.h"
#include "common/le.h"

#define NAME      "TENSORS"
#define RUN_BYTES 16
#define MAX_BYTES (SAFETENSORS_MAX_TAIL + ((size_t)1 << 20))

static void put_mark(unsigned char out[RUN_BYTES], uint64_t hi, uint64_t lo)
{
	le64_put(out, hi);
	le64_put(out + 8, lo);
}

int names_file_write(
	const char *dir, uint64_t hi, uint64_t lo, const struct safetensors_frame *f, struct err *e)
{
	unsigned char run[RUN_BYTES];
	const struct file_part parts[] = {{run, sizeof(run)}, {f->bytes, f->size}};

	put_mark(run, hi, lo);
	return file_replace(dir, NAME, parts, 2, e);
}

int names_file_read(
	const char *dir, uint64_t hi, uint64_t lo, struct safetensors_frame *f, struct err *e)
{
	unsigned char run[RUN_BYTES], *bytes;
	char path[4096];
	size_t size;
	void *file;
	int rc;

	*f = (struct safetensors_frame){0};
	if ((size_t)snprintf(path, sizeof(path), "%s/" NAME, dir) >= sizeof(path) ||
		access(path, F_OK) != 0)
		return PS_OK;
	rc = file_read(path, MAX_BYTES, &file, &size, e);
	if (rc)
		return rc;
	put_mark(run, hi, lo);
	bytes = file;
	if (size < RUN_BYTES || memcmp(bytes, run, RUN_BYTES) != 0) {
		free(file);
		return PS_OK;
	}
	memmove(bytes, bytes + RUN_BYTES, size - RUN_BYTES);
	*f = (struct safetensors_frame){bytes, size - RUN_BYTES};
	return PS_OK;
}
