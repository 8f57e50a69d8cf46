/*
 * server_process.h - the program cnn-ps as a child process: start it, read its output, request its
 * HTTP pages, kill it. The functions ledger_* push the ledger gradient to the server and check the
 * weights.
 */
#ifndef TESTS_SUPPORT_SERVER_PROCESS_H
#define TESTS_SUPPORT_SERVER_PROCESS_H
#include <arpa/inet.h>
#include <errno.h>
#include <jansson.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include "common/clock.h"
#include "tests/support/capture.h"
#include "tests/support/temp_dir.h"
#include "worker/client/cnnps.h"

#define SERVER_DEADLINE_MS 30000
#define LEDGER_PARAMS      600u /* the number of weights of the model in LEDGER_OPTIONS */

#define LEDGER_OPTIONS                                                                             \
	"--model;vector:600;--optimizer;sgd;--lr;1;--lr-scaling;none;--staleness-scaling;"         \
	"constant;"                                                                                \
	"--max-staleness;"                                                                         \
	"1000000;--warm-start-updates;0;--checkpoint-ms;20;--http;127.0.0.1:0"

struct server_process {
	pid_t pid;
	/* the read ends of the pipes from the server's stdout (out) and stderr (err) */
	int out, err;
	/* said: all of its stderr so far; result: all of its stdout so far */
	char said[1 << 16], result[1 << 14];
	size_t n_said, n_result;
	int code; /* the exit status, valid after server_wait */
};

extern char server_dir[64]; /* a temporary directory */

/* server_tear_down kills the processes that are still running. */
int server_set_up(void **state);
int server_tear_down(void **state);

/* ---- processes ------------------------------------------------------------------------------ */

/* Start cnn-ps with the options in `line`, which are separated by ';'. */
struct server_process *server_start(const char *line);
/* Start cnn-ps in the checkpoint directory server_dir, on a free port, with the options `more`. */
struct server_process *server_start_here(const char *more);
/* Read the server's output for at most `ms` milliseconds. Returns 0 if both pipes are closed. */
int server_read(struct server_process *s, int ms);
/* Wait until the server logs `words`. Returns the text between `words` and the next blank. */
const char *server_await(struct server_process *s, const char *words);
/* Wait until the server exits. Returns the exit status, or 128 + the signal that ended the
 * server. */
int server_wait(struct server_process *s);
void server_kill(struct server_process *s);
/* Wait until the server logs its endpoint, and write the endpoint to `url`. */
void server_endpoint(struct server_process *s, char url[256]);
/* Returns the stdout of the server, which must be one line of JSON. The caller releases the value
 * with json_decref. */
json_t *server_result(struct server_process *s);
/* Check that `status` in the server's final JSON line equals the argument `status`. */
void server_expect_status(struct server_process *s, const char *status);
/* Simulate a full disk: after this call, a write that would make a file longer than `bytes` bytes
 * fails. */
void server_limit_files(const struct server_process *s, rlim_t bytes);

/* ---- HTTP ----------------------------------------------------------------------------------- */

/* Request a page. Returns the HTTP status code, and writes the body to `body`. */
int server_get(struct server_process *s, const char *path, char *body, size_t size);
/* Wait until /healthz answers with the HTTP status `code`, and write the body of this answer to
 * `why`. */
void server_await_health(struct server_process *s, int code, char why[256]);

/* ---- the ledger gradient -------------------------------------------------------------------- */

struct cnnps *ledger_join(const char *url);
/* Set coordinates [first, first + n) to -1, with one push for each coordinate. */
void ledger_push(struct cnnps *c, size_t first, size_t n);
/* Pull the weights, and check that the first `n` coordinates are -1 and the others 0. */
void ledger_expect(struct cnnps *c, size_t n);

#endif
