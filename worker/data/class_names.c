/* class_names.c - see class_names.h. */
#include "worker/data/class_names.h"
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/file.h"
#include "common/mem.h"
#include "common/model.h"
#include "common/plain.h"
#include "common/utf8.h"

#define MAX_BYTES ((size_t)MODEL_MAX_CLASSES * 256) /* maximum bytes of classes.txt */

/* Copies a line. A name that is too long is cut off after a whole character. */
static void copy_name(char to[CLASS_NAME], const char *line, size_t n)
{
	size_t end = 0, bytes;
	const uint8_t *p = (const uint8_t *)line;

	while (end < n &&
		(bytes = utf8_length(p + end, p + n), end + (bytes ? bytes : 1)) < CLASS_NAME)
		end += bytes ? bytes : 1;
	memcpy(to, line, end);
	to[end] = '\0';
	plain_text(to, 0);
}

static size_t count_names(const char *text, size_t size)
{
	size_t n = 0;

	for (size_t i = 0; i < size; i++)
		n += text[i] == '\n' || i + 1 == size;
	return n;
}

void class_names_read(struct class_names *c, const char *dir, size_t classes)
{
	char path[4200];
	void *file;
	size_t size;
	struct err e;

	*c = (struct class_names){.name = NULL};
	snprintf(path, sizeof(path), "%.4096s/classes.txt", dir);
	if (file_read(path, MAX_BYTES, &file, &size, &e))
		return;
	const char *text = file;
	/* ignore empty lines at the end */
	while (size > 0 && isspace((unsigned char)text[size - 1]))
		size--;
	size_t n = count_names(text, size);
	if (n > 0 && n <= classes) {
		c->name = mem_must(n, sizeof(*c->name), "names of classes");
		for (size_t at = 0; c->n < n; c->n++) {
			const char *end = memchr(text + at, '\n', size - at);
			size_t length = end ? (size_t)(end - text) - at : size - at;

			copy_name(c->name[c->n], text + at, length);
			at += length + 1;
		}
	}
	free(file);
}

void class_names_release(struct class_names *c)
{
	free(c->name);
	*c = (struct class_names){.name = NULL};
}

const char *class_names_get(const struct class_names *c, size_t class)
{
	return c && class < c->n ? c->name[class] : "";
}
