/*
 * direct_worker.h - a core that is configured by a command line, and a worker whose messages go
 * directly to that core. The tests of the server's shell use this core and this worker.
 */
#ifndef TESTS_SUPPORT_DIRECT_WORKER_H
#define TESTS_SUPPORT_DIRECT_WORKER_H
#include "common/opt.h"
#include "server/config/options.h"
#include "server/core/core.h"
#include "server/durability/startup.h"
#include "server/monitor/progress.h"
#include "tests/support/capture.h"
#include "tests/support/temp_dir.h"

/* Parse options that are separated by ';'. The strings in `o` are valid until the next call of
 * parse_options. */
void parse_options(struct options *o, const char *line);
/* Build the core as a server with the options `o` does at its start. */
void start_core(struct startup *r, const struct options *o);

struct direct_worker {
	struct core *core;
	uint32_t peer;
	uint64_t now_ms;
	struct stamp stamp;
	uint64_t seq, request;
	struct msg_grant grant; /* the newest grant */
};

/* Returns the first message of `type` that the last step sent, or NULL. */
const struct msg *direct_sent(const struct core *core, enum msg_type type);
/* Pass the effects of the core's last step to the progress bar `p`. */
void direct_progress(struct progress *p, const struct direct_worker *w);

/* Send HELLO with a data set of `n_train` and `n_test` images. Returns the WELCOME, or NULL if the
 * core sends none. */
const struct msg *direct_hello(
	struct direct_worker *w, const char *name, uint32_t n_train, uint32_t n_test);
/* Join the core as worker `name`. The options must have no checkpoint directory, so that the core
 * sends WELCOME at once. */
void direct_join(struct direct_worker *w, const char *name, uint32_t n_train, uint32_t n_test);
const struct msg_grant *direct_lease(struct direct_worker *w);
/* Push `value` at coordinate 0, as the gradient of `work`, with the code of a grant. */
const struct msg_ack *direct_push(
	struct direct_worker *w, struct work work, uint32_t images, float loss, float value);
void direct_result(struct direct_worker *w, uint32_t correct, double loss_sum);

#endif
