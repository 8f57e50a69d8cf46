/*
 * core_images.h - images of a core on the bench: saved, read back into poisoned memory, gone on
 * with as a restart does.
 */
#ifndef TESTS_UNIT_CORE_IMAGES_H
#define TESTS_UNIT_CORE_IMAGES_H
#include "server/core/snapshot.h"
#include "tests/unit/core_bench.h"

struct bench_image {
	unsigned char *data[IMAGE_SECTIONS];
	size_t size[IMAGE_SECTIONS];
};

static inline struct bench_image bench_save(const struct bench *b)
{
	struct bench_image img;

	for (int i = 0; i < IMAGE_SECTIONS; i++) {
		img.size[i] = image_size(b->core, (enum image_section)i);
		img.data[i] = malloc(img.size[i] + 1);
		assert_non_null(img.data[i]);
		image_write(b->core, (enum image_section)i, img.data[i]);
	}
	return img;
}

static inline void bench_drop(struct bench_image *img)
{
	for (int i = 0; i < IMAGE_SECTIONS; i++)
		free(img->data[i]);
}

static inline int bench_read(
	struct bench *b, struct core_config cfg, const struct bench_image *img, const char **why)
{
	const unsigned char *data[IMAGE_SECTIONS];

	memcpy(data, img->data, sizeof(data));
	*b = (struct bench){.cfg = cfg, .now_ms = 1000, .memory = bench_memory(&cfg)};
	return image_read(
		b->memory, bench_weights(b->memory, &cfg), &b->cfg, data, img->size, &b->core, why);
}

/* A start of the server with this configuration from an image that must be good. */
static inline void bench_load(
	struct bench *b, struct core_config cfg, const struct bench_image *img)
{
	const char *why = NULL;

	cfg.term++;
	cfg.generation += 1000;
	assert_int_equal(bench_read(b, cfg, img, &why), PS_OK);
	assert_non_null(b->core);
}

/* Killed, and started again from a snapshot of this instant. */
static inline void bench_restart(struct bench *b)
{
	struct bench_image img = bench_save(b);
	struct core_config cfg = b->cfg;

	bench_close(b);
	bench_load(b, cfg, &img);
	bench_drop(&img);
}

/* Worker 1, joined over connection 9, with `n` pushes applied; durable up to its WELCOME only. */
static inline struct stamp bench_open_with_pushes(
	struct bench *b, struct core_config cfg, uint64_t n)
{
	struct stamp s;

	bench_open(b, cfg);
	s = bench_join(b, 9, "");
	for (uint64_t seq = 1; seq <= n; seq++) {
		struct msg m = bench_push_ones(s, seq);

		bench_applied(b, 9, &m);
	}
	return s;
}

#endif
