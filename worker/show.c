/* show.c - see show.h. */
#include "worker/show.h"
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/mem.h"
#include "kernels/backend.h"
#include "proto/msg.h"
#include "worker/data/class_names.h"
#include "worker/data/dataset.h"
#include "worker/watchdog.h"

/* maximum bytes of an answer; the server asks one worker every other second */
#define MAX_BYTES (31u * 1024)
#define PADDING   64u /* the index of "=" among the digits of base64 */
#define MORE      96  /* maximum bytes of the fields of an image besides its pixels */
/* maximum bytes of an entry of "names" besides the name: the number of the class, and the quotes,
 * colon and comma of JSON */
#define NAME_MORE 16

/* The size and the color mode of an image in the answer. */
struct small {
	size_t step, rows, columns;
	int color;
};

static struct small shrink_picture(struct shape s)
{
	size_t side = s.h > s.w ? s.h : s.w, step = (side + SHOW_SIDE - 1) / SHOW_SIDE;

	return (struct small){step, (s.h + step - 1) / step, (s.w + step - 1) / step, s.c == 3};
}

static uint8_t small_pixel(const uint8_t *image, struct shape s, const struct small *to, size_t i)
{
	const uint8_t *p = image + i / to->columns * to->step * s.w + i % to->columns * to->step;
	const size_t plane = s.h * s.w;

	if (!to->color)
		return *p;
	return (uint8_t)((p[0] & 0xe0) | (p[plane] & 0xe0) >> 3 | p[2 * plane] >> 6);
}

static json_t *base64(const uint8_t *image, struct shape s, const struct small *to)
{
	static const char digit[] =
		"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=";
	char text[(SHOW_SIDE * SHOW_SIDE + 2) / 3 * 4 + 1];
	size_t n = to->rows * to->columns, at = 0;

	for (size_t i = 0; i < n; i += 3) {
		uint32_t bits = 0;

		for (size_t k = 0; k < 3; k++)
			bits = bits << 8 | (i + k < n ? small_pixel(image, s, to, i + k) : 0);
		for (size_t k = 0; k < 4; k++)
			text[at++] = digit[k > n - i ? PADDING : bits >> (18 - 6 * k) & 63];
	}
	return json_stringn(text, at);
}

static size_t most_probable(const float *p, size_t classes)
{
	size_t best = 0;

	for (size_t c = 1; c < classes; c++)
		if (p[c] > p[best])
			best = c;
	return best;
}

static json_t *image_object(const uint8_t *image, const struct data *d, const struct small *to,
	size_t i, const float *p, size_t classes)
{
	const size_t best = most_probable(p, classes);

	return json_pack("{s:o, s:i, s:i, s:f}", "pixels", base64(image, d->shape, to), "label",
		(int)d->labels[TEST_PART][i], "class", (int)best, "sure", (double)p[best]);
}

/* Adds the name of a class to `names` if the class has a name, and if the name needs at most *left
 * bytes. JSON writes some characters of a name with two bytes. */
static void put_class_name(json_t *names, const struct class_names *c, size_t class, size_t *left)
{
	const char *name = class_names_get(c, class);
	const size_t bytes = 2 * strlen(name) + NAME_MORE;
	char key[NAME_MORE];

	snprintf(key, sizeof(key), "%zu", class);
	if (!name[0] || bytes > *left || json_object_get(names, key))
		return;
	*left -= bytes;
	json_object_set_new(names, key, json_string(name));
}

/* Returns the answer for n images with at most `left` bytes of names. */
static char *images_text(const struct data *d, const struct class_names *c, const uint8_t *pixels,
	const float *p, size_t n, size_t classes, size_t left)
{
	const struct small to = shrink_picture(d->shape);
	json_t *o = json_pack("{s:[i, i], s:b, s:[]}", "side", (int)to.rows, (int)to.columns,
		"color", to.color, "images");
	json_t *names = json_object();

	for (size_t i = 0; i < n; i++) {
		json_array_append_new(json_object_get(o, "images"),
			image_object(pixels + i * shape_count(d->shape), d, &to, i, p + i * classes,
				classes));
		put_class_name(names, c, d->labels[TEST_PART][i], &left);
		put_class_name(names, c, most_probable(p + i * classes, classes), &left);
	}
	if (json_object_size(names))
		json_object_set(o, "names", names);
	json_decref(names);
	char *text = json_dumps(o, JSON_COMPACT | JSON_REAL_PRECISION(4));
	json_decref(o);
	return text;
}

char *show_json(const struct data *d, const struct class_names *names, const struct model *m,
	struct backend *b, const float *weights)
{
	const struct small to = shrink_picture(d->shape);
	const size_t bytes = to.rows * to.columns / 3 * 4 + MORE, room = MAX_BYTES / bytes;
	size_t n = room < SHOW_IMAGES ? room : SHOW_IMAGES;
	char *text = NULL;
	int rc = PS_OK;
	struct err e;

	if (n > data_test(d).n)
		n = data_test(d).n;
	uint8_t *pixels = mem_try(n, shape_count(d->shape));
	uint16_t *labels = mem_try(n, sizeof(*labels));
	float *p = mem_try(n * m->classes, sizeof(*p));
	if (!pixels || !labels || !p)
		rc = PS_ENOMEM;
	for (size_t i = 0; i < n && !rc; i++)
		rc = data_image(d, TEST_PART, (uint32_t)i, pixels + i * shape_count(d->shape), &e);
	if (!rc && !data_in_memory(d, TEST_PART))
		rc = WATCHED(backend_use(
			b, &(struct kx_images){.pixels = pixels, .labels = labels, .n = n}, &e));
	if (!rc)
		rc = WATCHED(backend_predict(b, weights, 0, n, p));
	if (!rc)
		text = images_text(d, names, pixels, p, n, m->classes, MAX_BYTES - n * bytes);
	free(pixels);
	free(labels);
	free(p);
	return text;
}
