/*
 * checkpointer_lab.h - starts and saves of a run in a temporary directory, without its sockets: what is
 * common to the tests of server/durability/checkpointer.h and server/durability/startup.h.
 */
#ifndef TESTS_UNIT_CHECKPOINTER_LAB_H
#define TESTS_UNIT_CHECKPOINTER_LAB_H
#include <signal.h>
#include "server/core/snapshot.h"
#include "server/durability/checkpointer.h"
#include "tests/unit/server_lab.h"

static struct options options;
static struct startup run;
static struct lab_worker worker;
static struct checkpointer *checkpointer;
static uv_loop_t loop;
static struct capture errors;
static char dir[64], line[1024];

static struct {
	int calls, rc;
	uint64_t generation;
} done;

static inline void on_done(void *arg, uint64_t generation, int rc)
{
	assert_ptr_equal(arg, &done);
	done.calls++;
	done.rc = rc;
	done.generation = generation;
}

static inline int set_up(void **state)
{
	(void)state;
	signal(SIGXFSZ, SIG_IGN);
	memset(&done, 0, sizeof(done));
	temp_dir_make(dir);
	return uv_loop_init(&loop);
}

static inline int tear_down(void **state)
{
	(void)state;
	checkpointer_free(&checkpointer);
	assert_null(checkpointer);
	startup_release(&run);
	temp_dir_remove(dir);
	return uv_loop_close(&loop);
}

/* A start with these options and this directory, up to where the port would be bound. */
static inline void start(const char *more)
{
	struct err e;

	snprintf(line, sizeof(line), "--checkpoint-dir;%s;--warm-start-updates;0;%s", dir, more);
	lab_options(&options, line);
	lab_restore(&run, &options);
	worker = (struct lab_worker){.core = run.core, .peer = 5, .now_ms = 1000};
	assert_int_equal(checkpointer_new(&checkpointer, &loop, dir, on_done, &done), PS_OK);
	assert_int_equal(
		checkpointer_write(checkpointer, run.core, core_config(run.core)->generation, &e),
		PS_OK);
}

/* The process is gone: no file is written, the lock is free. */
static inline void die(void)
{
	checkpointer_free(&checkpointer);
	startup_release(&run);
}

static inline void start_must_fail(const char *more, int status, const char *named)
{
	struct err e = {0};

	snprintf(line, sizeof(line), "--checkpoint-dir;%s;--warm-start-updates;0;%s", dir, more);
	lab_options(&options, line);
	assert_int_equal(startup(&run, &options, &e), status);
	if (!strstr(e.text, named))
		fail_msg("\"%s\" does not name \"%s\"", e.text, named);
}

static inline void save(uint64_t generation)
{
	checkpointer_start(checkpointer, run.core, generation);
	assert_true(checkpointer_busy(checkpointer));
	assert_int_equal(done.calls, 0); /* never from inside */
	uv_run(&loop, UV_RUN_DEFAULT);
	assert_false(checkpointer_busy(checkpointer));
	assert_int_equal(done.calls, 1);
	assert_int_equal(done.generation, generation);
	done.calls = 0;
}

/* Join as the core wants it: its WELCOME comes when a snapshot holds its incarnation. */
static inline void join(uint32_t n_train, uint32_t n_test)
{
	assert_null(lab_hello(&worker, "ann", n_train, n_test));
	const struct effect *e = core_effect(run.core, 0);
	assert_non_null(e);
	assert_int_equal(e->kind, EFFECT_SNAPSHOT);
	const struct event durable = {.kind = EVENT_DURABLE, .generation = e->generation};
	save(e->generation);
	core_step(run.core, &durable, 1000);
	const struct msg *welcome = lab_sent(run.core, MSG_WELCOME);
	assert_non_null(welcome);
	worker.stamp = welcome->welcome.stamp;
}

static inline unsigned char *image(size_t *size)
{
	unsigned char *bytes = NULL;

	*size = 0;
	for (int i = IMAGE_LEDGER; i < IMAGE_LIVE; i++) { /* RUN counts its recoveries */
		size_t n = image_size(run.core, (enum image_section)i);
		bytes = realloc(bytes, *size + n + 1);
		assert_non_null(bytes);
		image_write(run.core, (enum image_section)i, bytes + *size);
		*size += n;
	}
	return bytes;
}

static inline uint64_t epoch(void)
{
	return core_config(run.core)->term;
}

#endif
