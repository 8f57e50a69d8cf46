/* checkpoint_fixture.c - see checkpoint_fixture.h. */
#include "tests/support/checkpoint_fixture.h"

char checkpoint_dir[64];
struct err checkpoint_err;
struct capture checkpoint_log;

int checkpoint_set_up(void **state)
{
	(void)state;
	temp_dir_make(checkpoint_dir);
	memset(&checkpoint_err, 0, sizeof(checkpoint_err));
	return 0;
}

int checkpoint_tear_down(void **state)
{
	(void)state;
	temp_dir_remove(checkpoint_dir);
	return 0;
}

int write_generation(uint64_t g)
{
	unsigned char run[16], weights[40];

	memset(run, (int)g, sizeof(run));
	memset(weights, (int)g + 1, sizeof(weights));
	const struct checkpoint c = {.generation = g,
		.n_sections = 3,
		.section = {{"run", run, sizeof(run)}, {"empty", NULL, 0},
			{"weights-15-long", weights, sizeof(weights)}}};
	return checkpoint_write(checkpoint_dir, &c, &checkpoint_err);
}

void assert_is_generation(const struct checkpoint *c, uint64_t g)
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

const char *name_of(uint64_t g)
{
	static char name[32];

	snprintf(name, sizeof(name), "ckpt-%016llx", (unsigned long long)g);
	return name;
}

unsigned char *bytes_of(uint64_t g, size_t *size)
{
	char path[320];
	void *data;

	assert_int_equal(file_read(temp_dir_path(checkpoint_dir, name_of(g), path), 1 << 20, &data,
				 size, &checkpoint_err),
		PS_OK);
	return data;
}

int read_name(const char *name, struct checkpoint *c)
{
	char path[320];

	return checkpoint_read(temp_dir_path(checkpoint_dir, name, path), c, &checkpoint_err);
}

int read_newest(int clean, struct checkpoint *c, uint64_t *seen)
{
	capture_begin(&checkpoint_log, 2);
	int rc = checkpoint_read_newest(checkpoint_dir, clean, c, seen, &checkpoint_err);
	capture_end(&checkpoint_log);
	return rc;
}
