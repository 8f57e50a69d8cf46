/*
 * ctl.h - the commands of cnn-ctl and the functions that they share. ctl.c has main, the options
 * and the table of commands.
 *
 * Thread: main.
 */
#ifndef WORKER_CTL_CTL_H
#define WORKER_CTL_CTL_H
#include <jansson.h>
#include <stdint.h>
#include "common/err.h"
#include "common/model.h"
#include "common/safetensors.h"
#include "worker/client/cnnps.h"

/* the end of a message about a wrong directory */
#define CTL_RUN_DIR "give the --checkpoint-dir of a run"

struct data;

enum ctl_format { CTL_CSV, CTL_JSON };

struct ctl {
	/* NULL: the option was not given; `server` is never NULL */
	const char *server, *data, *checkpoint, *weights, *model;
	const char *key, *server_key;       /* names of key files, or NULL */
	const char *tensorboard;            /* directory, or NULL */
	const char *mistakes, *predictions; /* eval: names of the files to write, or NULL */
	enum ctl_format format;             /* history: the output format */
	int once, json;                     /* top: 1 if --once or --json is set */
	int invert;                         /* predict: 1: --invert is set */
	int64_t connect_timeout_ms;
	const char **args; /* the arguments of the command */
	int n_args;
};

/* If the program that reads the standard output has ended, as in `cnn-ctl history DIR | head`, ends
 * this program by SIGPIPE, without a message, like other tools. In output.c. */
void ctl_end_if_unread(void);
/* Prints at most 1,023 bytes of a text from a server or a file, with '?' for each character that a
 * terminal would execute (common/plain.h). */
void ctl_print_plain(const char *text);
/* Returns the JSON string of a path. If a path is not valid UTF-8, the string has '?' in place of
 * each invalid byte and of each control character, and is cut after 4,096 bytes. NULL: no
 * memory. */
json_t *ctl_json_text(const char *text);
/* Prints JSON. The function escapes each character that a terminal would execute (common/plain.h),
 * and each character that is in `also`. Such characters must occur only inside of JSON strings,
 * where an escape sequence has the same meaning. `flags` are those of json_dumps. PS_ENOMEM:
 * nothing was printed. */
int ctl_print_json(const json_t *o, size_t flags, const char *also) PS_MUST_CHECK;
/* Prints one line on stderr in the format of --log-format. The line reports the error `status`, or
 * progress if `status` is PS_OK. In server.c. */
void ctl_say(const char *event, int status, const char *text);
/* Connects to the server as an observer, and prints the reason of each long wait on stderr. In
 * server.c. */
int ctl_connect(const struct ctl *ctl, struct cnnps **c, struct err *e) PS_MUST_CHECK;
/* Connects like ctl_connect, with the callbacks `stop` and `report` of cnnps_options, which both
 * receive `arg`. After the connection was made once, a request waits for a server that is away for
 * at most `disconnect_timeout_ms`. */
int ctl_connect_with(const struct ctl *ctl, int (*stop)(void *arg),
	void (*report)(void *arg, const char *line), void *arg, int64_t disconnect_timeout_ms,
	struct cnnps **c, struct err *e) PS_MUST_CHECK;
/* Gets the status with all workers, with several requests if needed. The caller releases *status.
 * PS_EPROTO: the reply is not JSON, or lists more workers than a server can have. */
int ctl_fetch_status(struct cnnps *c, json_t **status, struct err *e) PS_MUST_CHECK;
int ctl_status(const struct ctl *ctl, struct err *e) PS_MUST_CHECK;
int ctl_checkpoint(const struct ctl *ctl, struct err *e) PS_MUST_CHECK;
int ctl_drain(const struct ctl *ctl, struct err *e) PS_MUST_CHECK;
int ctl_release(const struct ctl *ctl, struct err *e) PS_MUST_CHECK;
int ctl_log_level(const struct ctl *ctl, struct err *e) PS_MUST_CHECK;
/* defined in keygen.c */
int ctl_keygen(const struct ctl *ctl, struct err *e) PS_MUST_CHECK;
/* defined in top.c */
int ctl_top(const struct ctl *ctl, struct err *e) PS_MUST_CHECK;

/* A model and its weights, which weights.c reads from --weights, --checkpoint or the server. */
struct ctl_weights {
	struct model model;
	float *w; /* model.n_params; owned */
	/* the list of the tensors of vector:N (tensor_list.h), owned; NULL: there is no list */
	char *tensors;
	uint64_t data; /* fingerprint of the run's data set; 0: not known */
};
/* Loads the weights and, if `with_data` is 1, the fingerprint of the run's data set. */
int ctl_weights_load(
	const struct ctl *ctl, int with_data, struct ctl_weights *w, struct err *e) PS_MUST_CHECK;
/* Returns 1 and prints a warning if the run that made the weights has another data set than `d`.
 * The warning begins with `command`. */
int ctl_weights_differ(const char *command, const struct ctl_weights *w, const struct data *d);
void ctl_weights_release(struct ctl_weights *w);
int ctl_export(const struct ctl *ctl, struct err *e) PS_MUST_CHECK;

/* Reads the lines of history.jsonl. `dir` is this file or its directory. PS_EUSAGE: there is no
 * such file or directory. PS_EDATA: the file has no history. PS_EIO. In history.c. */
int ctl_history_read(const char *dir, json_t **lines, struct err *e) PS_MUST_CHECK;
int ctl_history(const struct ctl *ctl, struct err *e) PS_MUST_CHECK;
int ctl_show(const struct ctl *ctl, struct err *e) PS_MUST_CHECK;
/* Prints an HTML page that compares the histories that the arguments name. In report.c. */
int ctl_report(const struct ctl *ctl, struct err *e) PS_MUST_CHECK;
/* Writes the lines of a history to `dir` as an event file of TensorBoard, and prints the name of
 * the file. `is_validated` is 1 if the run has --validate. In events.c. */
int ctl_write_events(
	const char *dir, const json_t *lines, int is_validated, struct err *e) PS_MUST_CHECK;

/* defined in convert.c */
int ctl_convert(const struct ctl *ctl, struct err *e) PS_MUST_CHECK;

/* defined in predict.c */
int ctl_predict(const struct ctl *ctl, struct err *e) PS_MUST_CHECK;
/* defined in eval.c */
int ctl_eval(const struct ctl *ctl, struct err *e) PS_MUST_CHECK;

#endif
