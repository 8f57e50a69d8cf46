/*
 * ctl.c - cnn-ctl: shows and controls a running server, exports its weights and predicts with them.
 */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include "common/client_opt.h"
#include "common/keys.h"
#include "common/log.h"
#include "common/opt.h"
#include "worker/ctl/ctl.h"

#define PROGRAM  "cnn-ctl"
#define MAX_ARGS 1000
/* condition that is true for the commands that may connect to a server */
#define DIALS "command!=keygen|convert|history|report|show"

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
	{"release", "WORKER: the name or key of a worker in quarantine", 1, 1, ctl_release},
	{"log-level", "LEVEL: error, warn, info or debug", 1, 1, ctl_log_level},
	{"export", "FILE.safetensors or FILE.onnx", 1, 1, ctl_export},
	{"predict", "IMAGE...", 1, MAX_ARGS, ctl_predict},
	{"eval", "no argument", 0, 0, ctl_eval},
	{"history", "DIR", 1, 1, ctl_history},
	{"report", "DIR...: 1 to 8 directories", 1, 8, ctl_report},
	{"show", "DIR", 1, 1, ctl_show},
	{"convert", "FROM and TO", 2, 2, ctl_convert},
	{"keygen", "DIR [WORKER...]", 1, MAX_ARGS, ctl_keygen},
};

#define N_COMMANDS (sizeof(commands) / sizeof(*commands))

#define ABOUT                                                                                      \
	"Show and control a running cnn-ps server, export its weights, predict with them.\n"       \
	"\n"                                                                                       \
	"Commands:\n"                                                                              \
	"  status            Print the status of the server as JSON.\n"                            \
	"  top               Show the status on the terminal and refresh it every second.\n"       \
	"                    The key h shows the help.\n"                                          \
	"  checkpoint        Write a checkpoint now and print its number, the generation.\n"       \
	"  drain             Write a last checkpoint, then end the workers and the server. If\n"   \
	"                    the server starts again with the same --checkpoint-dir, it\n"         \
	"                    continues the run.\n"                                                 \
	"  release WORKER    End the quarantine of a worker, so that the server accepts it\n"      \
	"                    again. WORKER is the name or the key of the worker, as\n"             \
	"                    \"quarantine\" in the status shows it; the first 8\n"                 \
	"                    characters of a key, or more, are enough.\n"                          \
	"  log-level LEVEL   Set the log level of the server until its next start. LEVEL is\n"     \
	"                    error, warn, info or debug.\n"                                        \
	"  export FILE       Write weights to FILE: those of the server, or those that\n"          \
	"                    --checkpoint or --weights names. If the name of FILE ends in\n"       \
	"                    .onnx, the command writes an ONNX file with the model and the\n"      \
	"                    weights, else a .safetensors file.\n"                                 \
	"  predict IMAGE...  Classify images with the weights of the server, or with those\n"      \
	"                    that --checkpoint or --weights names. IMAGE is the number of a\n"     \
	"                    test image, a PGM, PNG or JPEG file of the size of the model's\n"     \
	"                    images (for MNIST 28x28 pixels, white on black), or - for a file\n"   \
	"                    on standard input.\n"                                                 \
	"  eval              Evaluate the weights of the server, or those that --checkpoint\n"     \
	"                    or --weights names, on the test images. The command prints the\n"     \
	"                    accuracy, the loss and how often the model confuses which\n"          \
	"                    classes, and draws the three mistakes with the greatest loss.\n"      \
	"  history DIR       Print the history of the run whose checkpoints are in DIR.\n"         \
	"  report DIR...     Print an HTML page that compares up to 8 runs. Each DIR has the\n"    \
	"                    checkpoints of one run.\n"                                            \
	"  show DIR          List the checkpoints in DIR and the weights that --keep has kept.\n"  \
	"  convert FROM TO   Write the images in the directory FROM to the directory TO as\n"      \
	"                    IDX files (the format of MNIST). FROM has the binary files of\n"      \
	"                    CIFAR, .npy files of NumPy, or one folder of PNG or JPEG pictures\n"  \
	"                    for each class.\n"                                                    \
	"  keygen DIR [WORKER...]\n"                                                               \
	"                    Write to DIR the keys of a server, a worker, an admin and an\n"       \
	"                    observer, one more worker's key with the name WORKER for each\n"      \
	"                    WORKER, and the list of authorized keys."

/* Writes the names of all commands: "A, B or C" if `last` is " or ". */
static void list_commands(const char *last, char *out, size_t size)
{
	size_t used = 0;

	for (size_t i = 0; i < N_COMMANDS && used < size; i++) {
		const char *after = i + 1 == N_COMMANDS ? "" : i + 2 == N_COMMANDS ? last : ", ";

		used += (size_t)snprintf(out + used, size - used, "%s%s", commands[i].name, after);
	}
}

static int find_command(const char **args, int n_args, const struct command **found, struct err *e)
{
	char names[300];

	*found = NULL;
	if (n_args < 1) {
		list_commands(" or ", names, sizeof(names));
		return err_set(e, PS_EUSAGE, "command missing: %s", names);
	}
	for (size_t i = 0; i < N_COMMANDS; i++)
		if (!strcmp(args[0], commands[i].name))
			*found = &commands[i];
	if (!*found) {
		list_commands(" and ", names, sizeof(names));
		return err_set(
			e, PS_EUSAGE, "\"%.100s\": no such command; there are %s", args[0], names);
	}
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
	if (!rc && client_opt_check_server(PROGRAM, ctl->server))
		return PS_EUSAGE;
	if (rc || !command)
		return rc;
	ctl->args = args + 1;
	ctl->n_args = n_args - 1;
	return command->run(ctl, e);
}

static int parse(struct ctl *ctl, int argc, char **argv, const char **args, int *n_args)
{
	int level, format, history_format, rc;
	const struct opt rows[] = {
		CLIENT_OPT_SERVER(&ctl->server, DIALS),
		CLIENT_OPT_KEY(&ctl->key, DIALS),
		CLIENT_OPT_SERVER_KEY(&ctl->server_key, DIALS),
		{.name = "checkpoint",
			.type = OPT_TEXT,
			.dest = &ctl->checkpoint,
			.min = 1,
			.max = 4000,
			.arg = "DIR",
			.help = "directory with checkpoints; the command uses the weights of the "
				"newest undamaged checkpoint there and needs no server",
			.unset = "the weights of the server",
			.needs = "command=export|predict|eval"},
		{.name = "weights",
			.type = OPT_TEXT,
			.dest = &ctl->weights,
			.min = 1,
			.max = 4000,
			.arg = "FILE",
			.help = ".safetensors file with the weights that the command uses",
			.unset = "the weights of the server or of --checkpoint",
			.needs = "command=export|predict|eval"},
		{.name = "model",
			.type = OPT_TEXT,
			.dest = &ctl->model,
			.min = 1,
			.max = MODEL_MAX_TEXT - 1,
			.arg = "MODEL",
			.help = "model to which the weights of --weights belong, in the syntax of "
				"cnn-ps --model",
			.unset = "the model in the metadata of the file",
			.needs = "weights"},
		CLIENT_OPT_DATA(&ctl->data, "command=predict|eval"),
		{.name = "invert",
			.type = OPT_FLAG,
			.dest = &ctl->invert,
			.def = "0",
			.help = "invert the brightness of the pictures, so that a dark digit on a "
				"light ground becomes a light one on a dark ground",
			.needs = "command=predict"},
		{.name = "mistakes",
			.type = OPT_TEXT,
			.dest = &ctl->mistakes,
			.min = 1,
			.max = 4000,
			.arg = "FILE",
			.help = "PNG file to which the command writes pictures of at most 48 "
				"images that the model classifies wrongly, those with the greatest "
				"loss",
			.unset = "show only the three worst mistakes on the terminal",
			.needs = "command=eval"},
		{.name = "predictions",
			.type = OPT_TEXT,
			.dest = &ctl->predictions,
			.min = 1,
			.max = 4000,
			.arg = "FILE",
			.help = "CSV file to which the command writes, for each test image, its "
				"number, its label, the predicted class and the probability of "
				"that class",
			.unset = "no such file",
			.needs = "command=eval"},
		{.name = "format",
			.type = OPT_ENUM,
			.dest = &history_format,
			.def = "csv",
			.values = "csv|json",
			.arg = "FORMAT",
			.help = "format in which the command prints the history: csv, or json, an "
				"array with one element for each line of the history",
			.needs = "command=history"},
		{.name = "tensorboard",
			.type = OPT_TEXT,
			.dest = &ctl->tensorboard,
			.min = 1,
			.max = 4000,
			.arg = "DIR",
			.help = "directory to which the command writes the history as an event "
				"file of TensorBoard; with one directory per run, such as "
				"events/run1, TensorBoard compares the runs",
			.unset = "print the history",
			.needs = "command=history"},
		{.name = "once",
			.type = OPT_FLAG,
			.dest = &ctl->once,
			.def = "0",
			.help = "print the status once and exit: as lines of text or, with --json, "
				"as one line of JSON",
			.needs = "command=top"},
		{.name = "json",
			.type = OPT_FLAG,
			.dest = &ctl->json,
			.def = "0",
			.help = "print the status as one line of JSON every second, instead of "
				"showing it on the terminal",
			.needs = "command=top"},
		{.name = "connect-timeout-ms",
			.type = OPT_INT,
			.dest = &ctl->connect_timeout_ms,
			.def = "5000",
			.min = 1,
			.max = 3600000,
			.arg = "MS",
			.help = "exit if the server does not answer within MS milliseconds after "
				"the start",
			.was = "connect-ms",
			.needs = DIALS},
		CLIENT_OPT_LOG_LEVEL(&level, "error"),
		CLIENT_OPT_LOG_FORMAT(&format),
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
	ctl->format = (enum ctl_format)history_format;
	log_set_format((enum log_format)format);
	log_set_level((enum log_level)level);
	if (*n_args)
		opt_check(&program, args[0]);
	return rc;
}

/* Checks that all output was written. */
static int check_output(struct err *e)
{
	if (!fflush(stdout) && !ferror(stdout))
		return PS_OK;
	ctl_end_if_unread();
	return err_set(e, PS_EIO, "cannot write to standard output");
}

int main(int argc, char **argv)
{
	const char *args[MAX_ARGS];
	struct ctl ctl = {0};
	struct err e = {0};
	int n_args, rc;

	signal(SIGPIPE, SIG_IGN);
	log_set_level(LOG_INFO);
	rc = parse(&ctl, argc, argv, args, &n_args);
	if (rc)
		return rc == OPT_EXIT ? 0 : err_exit_code(rc);
	key_protect_process();
	rc = run_command(&ctl, args, n_args, &e);
	if (!rc || ferror(stdout))
		rc = check_output(&e);
	if (rc && e.text[0])
		ctl_say("failed", rc, e.text);
	return err_exit_code(rc);
}
