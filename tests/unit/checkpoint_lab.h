/*
 * checkpoint_lab.h - a directory of checkpoints that say which generation they are of.
 *
 * A header with bodies, for one test program is one file. Thread: the test's.
 */
#ifndef TESTS_UNIT_CHECKPOINT_LAB_H
#define TESTS_UNIT_CHECKPOINT_LAB_H
#include "tests/support/capture.h"
#include "tests/support/temp_dir.h"
#include "common/checkpoint.h"
#include "common/file.h"

static char dir[64];
static struct err e;
static struct capture captured;

static inline int begin(void **state)
{
	(void)state;
	temp_dir_make(dir);
	memset(&e, 0, sizeof e);
	return 0;
}

static inline int end(void **state)
{
	(void)state;
	temp_dir_remove(dir);
	return 0;
}

/* Generation `g` of a small run: three sections that say which generation they are of. */
static inline int write_generation(uint64_t g)
{
	unsigned char run[16], weights[40];
	memset(run, (int)g, sizeof run);
	memset(weights, (int)g + 1, sizeof weights);
	const struct checkpoint c = {.generation = g,
		.n_sections = 3,
		.section = {{"run", run, sizeof run}, {"empty", NULL, 0},
			{"weights-15-long", weights, sizeof weights}}};
	return checkpoint_write(dir, &c, &e);
}

static inline void assert_is_generation(const struct checkpoint *c, uint64_t g)
{
	const struct checkpoint_section *run = checkpoint_find(c, "run");
	const struct checkpoint_section *weights = checkpoint_find(c, "weights-15-long");
	assert_int_equal(c->generation, g);
	assert_int_equal(c->n_sections, 3);
	assert_non_null(run);
	assert_int_equal(run->size, 16);
	assert_int_equal(((const unsigned char *)run->data)[15], g);
	assert_int_equal(checkpoint_find(c, "empty")->size, 0);
	assert_int_equal(weights->size, 40);
	assert_int_equal(((const unsigned char *)weights->data)[39], g + 1);
	assert_null(checkpoint_find(c, "other"));
}

static inline const char *name_of(uint64_t g)
{
	static char name[32];
	snprintf(name, sizeof name, "ckpt-%016llx", (unsigned long long)g);
	return name;
}

/* The bytes of generation `g`'s file; the caller's to free. */
static inline unsigned char *bytes_of(uint64_t g, size_t *size)
{
	char path[320];
	void *data;
	assert_int_equal(
		file_read(temp_dir_path(dir, name_of(g), path), 1 << 20, &data, size, &e), PS_OK);
	return data;
}

/* checkpoint_read of dir/name. */
static inline int read_name(const char *name, struct checkpoint *c)
{
	char path[320];
	return checkpoint_read(temp_dir_path(dir, name, path), c, &e);
}

/* checkpoint_read_newest, its log lines in `captured`. */
static inline int read_newest(int clean, struct checkpoint *c, uint64_t *seen)
{
	capture_begin(&captured, 2);
	int rc = checkpoint_read_newest(dir, clean, c, seen, &e);
	capture_end(&captured);
	return rc;
}

#endif
