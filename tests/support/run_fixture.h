/*
 * run_fixture.h - the start-up and the checkpoints of a run in a temporary directory, without
 * sockets. The tests of server/durability/checkpointer.h and server/durability/startup.h use this
 * file.
 */
#ifndef TESTS_SUPPORT_RUN_FIXTURE_H
#define TESTS_SUPPORT_RUN_FIXTURE_H
#include <signal.h>
#include "server/core/snapshot.h"
#include "server/durability/checkpointer.h"
#include "tests/support/direct_worker.h"

extern struct options run_options;
extern struct startup run_startup;
extern struct direct_worker run_worker;
extern struct checkpointer *run_checkpointer;
extern uv_loop_t run_loop;
extern struct capture run_errors;
extern char run_dir[64];
extern char run_line[1024]; /* the command line of the last start */

extern const struct param_device *run_device; /* the device of the next start; NULL: none */

/* The number of reports of the checkpointer since run_save, and the newest report. */
struct run_saved {
	int calls, rc;
	uint64_t generation;
};

extern struct run_saved run_saved;

/* Give the thread pool of libuv one thread, so that its tasks run in order. For TEST_GROUP. */
int run_with_one_thread(void **state);
/* Create the directory and the event loop (set-up), and remove them (tear-down). */
int run_set_up(void **state);
int run_tear_down(void **state);

/* Start the server with the options `more` in the directory run_dir, up to the point where it would
 * bind its port. */
void run_start(const char *more);
/* Start the server with the options `more`. The start must fail with `status`, and the error text
 * of the start must contain `named`. */
void run_start_must_fail(const char *more, int status, const char *named);
/* Simulate the death of the server's process. After this call no thread writes a file, and the lock
 * of the directory is free. */
void run_die(void);
uint64_t run_term(void);
/* Join the worker `run_worker`, with a data set of `n_train` and `n_test` images, and complete the
 * snapshot that the core requests before WELCOME. */
void run_join(uint32_t n_train, uint32_t n_test);
/* Write a checkpoint, and wait for the checkpointer's report. */
void run_save(uint64_t generation);
/* Returns the sections of the core's snapshot, except for those that change at a restart. The
 * caller frees the bytes. */
unsigned char *run_sections(size_t *size);

#endif
