/*
 * ctl.c - cnn-ctl: shows and controls a running server, exports its weights and predicts with them.
 */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include "common/keys.h"
#include "common/log.h"
#include "worker/ctl/ctl.h"
#include "worker/options.h"

#define PROGRAM  "cnn-ctl"
#define MAX_ARGS 1000
#define DIALS    "command!=keygen" /* all other commands may connect to a server */

/* A command. `takes` describes its arguments. */
struct command {
	const char *name, *takes;
	int min_args, max_args;
	int (*run)(const struct ctl *ctl, struct err *e);
};

static const struct command commands[] = {
	{"status", "no argument", 0, 0, ctl_status},
	{"top", "no argument", 0, 0, ctl_top},
	{"checkpoint", "no argument", 0, 0, ctl_checkpoint},
	{"drain", "no argument", 0, 0, ctl_drain},
	{"log-level", "LEVEL: error, warn, info or debug", 1, 1, ctl_log_level},
	{"export", "FILE.safetensors", 1, 1, ctl_export},
	{"predict", "IMAGE...", 1, MAX_ARGS, ctl_predict},
	{"keygen", "DIR [WORKER...]", 1, MAX_ARGS, ctl_keygen},
};

#define ABOUT                                                                                      \
	"status            the server's state as JSON\n"                                           \
	"top               the same for people, renewed each second on a terminal\n"               \
	"checkpoint        write a checkpoint now; prints its generation\n"                        \
	"drain             write a last checkpoint, end the workers and the server\n"              \
	"log-level LEVEL   set the server's log level until its next start: error, warn, info\n"   \
	"                  or debug\n"                                                             \
	"export FILE       weights as .safetensors, from the server or --checkpoint\n"             \
	"predict IMAGE...  28x28 pictures (PGM, PNG, white on black) or numbers of test images,\n" \
	"                  by the weights of the server, --checkpoint or --weights\n"              \
	"keygen DIR        keys of a server, its workers, an admin and an observer, and the\n"     \
	"                  list of authorized keys; another key for each WORKER after DIR"

static int find_command(const char **args, int n_args, const struct command **found, struct err *e)
{
	*found = NULL;
	if (n_args < 1)
		return err_set(e, PS_EUSAGE,
			"command missing: status, top, checkpoint, drain, log-level, export, "
			"predict or keygen");
	for (size_t i = 0; i < sizeof(commands) / sizeof(*commands); i++)
		if (!strcmp(args[0], commands[i].name))
			*found = &commands[i];
	if (!*found)
		return err_set(e, PS_EUSAGE,
			"\"%.100s\": no such command; there are status, top, checkpoint, drain, "
			"log-level, export, predict and keygen",
			args[0]);
	if (n_args - 1 < (*found)->min_args || n_args - 1 > (*found)->max_args)
		return err_set(e, PS_EUSAGE, "%s: takes %s", args[0], (*found)->takes);
	return PS_OK;
}

static int check_sources(const struct ctl *ctl, struct err *e)
{
	if (ctl->weights && ctl->checkpoint)
		return err_set(e, PS_EUSAGE, "--weights and --checkpoint: only one of them");
	return PS_OK;
}

static int run_command(struct ctl *ctl, const char **args, int n_args, struct err *e)
{
	const struct command *command = NULL;
	int rc = find_command(args, n_args, &command, e);

	if (!rc)
		rc = check_sources(ctl, e);
	if (!rc && options_check_server(PROGRAM, ctl->server))
		return PS_EUSAGE;
	if (rc || !command)
		return rc;
	ctl->args = args + 1;
	ctl->n_args = n_args - 1;
	return command->run(ctl, e);
}

static int parse(struct ctl *ctl, int argc, char **argv, const char **args, int *n_args)
{
	int level, format, rc;
	const struct opt rows[] = {
		OPTIONS_SERVER_ROW(&ctl->server, DIALS),
		OPTIONS_KEY_ROW(&ctl->key, DIALS),
		OPTIONS_SERVER_KEY_ROW(&ctl->server_key, DIALS),
		{.name = "checkpoint",
			.type = OPT_TEXT,
			.dest = &ctl->checkpoint,
			.min = 1,
			.max = 4000,
			.arg = "DIR",
			.help = "weights of the newest good checkpoint in DIR; no server needed",
			.needs = "command=export|predict"},
		{.name = "weights",
			.type = OPT_TEXT,
			.dest = &ctl->weights,
			.min = 1,
			.max = 4000,
			.arg = "FILE",
			.help = "weights of a .safetensors file",
			.needs = "command=predict"},
		{.name = "model",
			.type = OPT_TEXT,
			.dest = &ctl->model,
			.min = 1,
			.max = MODEL_MAX_TEXT - 1,
			.arg = "MODEL",
			.help = "model of --weights, as cnn-ps --model; without it the file's "
				"metadata name it",
			.needs = "weights"},
		OPTIONS_DATA_ROW(&ctl->data, "command=predict"),
		{.name = "connect-timeout-ms",
			.type = OPT_INT,
			.dest = &ctl->connect_ms,
			.def = "5000",
			.min = 1,
			.max = 3600000,
			.arg = "MS",
			.help = "give up when the server does not answer for this time",
			.was = "connect-ms",
			.needs = DIALS},
		OPTIONS_LOG_ROW(&level, "error"),
		OPTIONS_LOG_FORMAT_ROW(&format),
		{0},
	};
	const struct opt_program program = {.name = PROGRAM,
		.usage = "[OPTION...] COMMAND [ARGUMENT...]",
		.about = ABOUT,
		.opts = rows,
		.max_args = MAX_ARGS};

	rc = opt_parse(&program, argc, argv, args, n_args);
	if (rc)
		return rc;
	log_set_format((enum log_format)format);
	log_set_level((enum log_level)level);
	if (*n_args)
		opt_check(&program, args[0]);
	return rc;
}

int main(int argc, char **argv)
{
	const char *args[MAX_ARGS];
	struct ctl ctl = {0};
	struct err e = {0};
	int n_args, rc;

	signal(SIGPIPE, SIG_IGN);
	rc = parse(&ctl, argc, argv, args, &n_args);
	if (rc)
		return rc == OPT_EXIT ? 0 : err_exit_code(rc);
	key_protect_process();
	rc = run_command(&ctl, args, n_args, &e);
	if (!rc && fflush(stdout))
		rc = err_set(&e, PS_EIO, "cannot write to standard output");
	if (rc && e.text[0])
		ctl_say("failed", rc, e.text);
	return err_exit_code(rc);
}
