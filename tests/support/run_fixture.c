/* run_fixture.c - see run_fixture.h. */
#include "tests/support/run_fixture.h"

struct options run_options;
struct startup run_startup;
struct direct_worker run_worker;
struct checkpointer *run_checkpointer;
uv_loop_t run_loop;
struct capture run_errors;
char run_dir[64];
char run_line[1024];

const struct param_device *run_device;

struct run_saved run_saved;

static void on_run_saved(void *arg, uint64_t generation, int rc)
{
	assert_ptr_equal(arg, &run_saved);
	run_saved.calls++;
	run_saved.rc = rc;
	run_saved.generation = generation;
}

int run_with_one_thread(void **state)
{
	(void)state;
	setenv("UV_THREADPOOL_SIZE", "1", 1);
	return 0;
}

int run_set_up(void **state)
{
	(void)state;
	signal(SIGXFSZ, SIG_IGN);
	memset(&run_saved, 0, sizeof(run_saved));
	temp_dir_make(run_dir);
	return uv_loop_init(&run_loop);
}

int run_tear_down(void **state)
{
	(void)state;
	checkpointer_free(&run_checkpointer);
	assert_null(run_checkpointer);
	startup_release(&run_startup);
	temp_dir_remove(run_dir);
	return uv_loop_close(&run_loop);
}

void run_start(const char *more)
{
	struct err e;

	snprintf(run_line, sizeof(run_line), "--checkpoint-dir;%s;--warm-start-updates;0;%s",
		run_dir, more);
	parse_options(&run_options, run_line);
	run_options.core.device = run_device;
	start_core(&run_startup, &run_options);
	run_worker = (struct direct_worker){.core = run_startup.core, .peer = 5, .now_ms = 1000};
	assert_int_equal(
		checkpointer_new(&run_checkpointer, &run_loop, run_dir, on_run_saved, &run_saved),
		PS_OK);
	assert_int_equal(checkpointer_write(run_checkpointer, run_startup.core,
				 core_config(run_startup.core)->generation, &e),
		PS_OK);
}

void run_die(void)
{
	checkpointer_free(&run_checkpointer);
	startup_release(&run_startup);
}

void run_start_must_fail(const char *more, int status, const char *named)
{
	struct err e = {0};

	snprintf(run_line, sizeof(run_line), "--checkpoint-dir;%s;--warm-start-updates;0;%s",
		run_dir, more);
	parse_options(&run_options, run_line);
	assert_int_equal(startup(&run_startup, &run_options, &e), status);
	if (!strstr(e.text, named))
		fail_msg("\"%s\" does not name \"%s\"", e.text, named);
}

void run_save(uint64_t generation)
{
	checkpointer_start(run_checkpointer, run_startup.core, generation);
	assert_true(checkpointer_busy(run_checkpointer));
	/* checkpointer_start must return before it reports, so the callback has not been called
	 * yet */
	assert_int_equal(run_saved.calls, 0);
	uv_run(&run_loop, UV_RUN_DEFAULT);
	assert_false(checkpointer_busy(run_checkpointer));
	assert_int_equal(run_saved.calls, 1);
	assert_int_equal(run_saved.generation, generation);
	run_saved.calls = 0;
}

/* Returns the generation of the snapshot that the last step of the core requested, or 0 if it
 * requested none. */
static uint64_t generation_due(void)
{
	const struct effect *e;

	for (size_t i = 0; (e = core_effect(run_startup.core, i)) != NULL; i++)
		if (e->kind == EFFECT_SNAPSHOT)
			return e->generation;
	return 0;
}

void run_join(uint32_t n_train, uint32_t n_test)
{
	assert_null(direct_hello(&run_worker, "ann", n_train, n_test));
	const struct event durable = {.kind = EVENT_DURABLE, .generation = generation_due()};
	run_save(durable.generation);
	core_step(run_startup.core, &durable, 1000);
	const struct msg *welcome = direct_sent(run_startup.core, MSG_WELCOME);
	assert_non_null(welcome);
	run_worker.stamp = welcome->welcome.stamp;
}

unsigned char *run_sections(size_t *size)
{
	unsigned char *bytes = NULL;

	*size = 0;
	/* leave out the sections RUN and SESSIONS, because a restart changes them: RUN contains the
	 * number of recoveries, and SESSIONS connections and times */
	for (int i = SNAPSHOT_LEDGER; i < SNAPSHOT_SESSIONS; i++) {
		size_t n = snapshot_size(run_startup.core, (enum snapshot_section)i);

		bytes = realloc(bytes, *size + n + 1);
		assert_non_null(bytes);
		(void)snapshot_encode(
			run_startup.core, (enum snapshot_section)i, bytes + *size, n, NULL);
		*size += n;
	}
	return bytes;
}

uint64_t run_term(void)
{
	return core_config(run_startup.core)->term;
}
