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
#include "common/zepoll.h"
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
	"  top               Show the status of the server on the terminal, and refresh\n"         \
	"                    it every second. The key h shows the help.\n"                         \
	"  checkpoint        Make the server write a checkpoint now, and print the number\n"       \
	"                    of this checkpoint (its generation).\n"                               \
	"  drain             End the run early: the server writes a last checkpoint if it\n"       \
	"                    has --checkpoint-dir, ends the workers, and exits. To\n"              \
	"                    continue the run, start a server with the same\n"                     \
	"                    --checkpoint-dir.\n"                                                  \
	"  release WORKER    End the quarantine of a worker, so that the server accepts\n"         \
	"                    it again. WORKER is the name or the key of the worker, as\n"          \
	"                    \"quarantine\" in the status shows it. The first 8 characters\n"      \
	"                    of a key are enough.\n"                                               \
	"  log-level LEVEL   Set the log level of the server to LEVEL: error, warn, info\n"        \
	"                    or debug. At its next start, the server uses its option\n"            \
	"                    --log-level again.\n"                                                 \
	"  export FILE       Write the weights of the server to FILE. With --checkpoint\n"         \
	"                    or --weights, write the weights of that checkpoint or file\n"         \
	"                    instead. If the name of FILE ends in .onnx, the command\n"            \
	"                    writes the model and the weights in the ONNX format;\n"               \
	"                    otherwise it writes the weights in the .safetensors format.\n"        \
	"  predict IMAGE...  Classify images with the weights of the server. With\n"               \
	"                    --checkpoint or --weights, use the weights of that\n"                 \
	"                    checkpoint or file instead. IMAGE is the number of a test\n"          \
	"                    image, a picture file (PGM, PNG or JPEG), or - for a picture\n"       \
	"                    file on standard input. A picture must look like the images\n"        \
	"                    of the data set: for MNIST, it must have 28x28 pixels, white\n"       \
	"                    on black.\n"                                                          \
	"  eval              Evaluate the weights of the server on the test images. With\n"        \
	"                    --checkpoint or --weights, evaluate the weights of that\n"            \
	"                    checkpoint or file instead. The command prints the accuracy,\n"       \
	"                    the loss, and how often the model takes an image of one\n"            \
	"                    class for another class. It also draws the three wrongly\n"           \
	"                    classified images with the greatest loss.\n"                          \
	"  history DIR       Print the history of the run whose checkpoints are in DIR.\n"         \
	"  report DIR...     Print an HTML page that compares up to 8 runs. Each DIR has\n"        \
	"                    the checkpoints of one run.\n"                                        \
	"  show DIR          List the checkpoints in DIR and the files of weights that\n"          \
	"                    cnn-ps --keep has written there, and say for each file\n"             \
	"                    whether it is damaged.\n"                                             \
	"  convert FROM TO   Convert the images in the directory FROM to IDX files (the\n"         \
	"                    format of MNIST) in the directory TO. FROM has the binary\n"          \
	"                    files of CIFAR, .npy files of NumPy, or a folder of PNG,\n"           \
	"                    JPEG or PGM pictures for each class.\n"                               \
	"  keygen DIR [WORKER...]\n"                                                               \
	"                    Write to DIR the key files of a server, a worker, an admin\n"         \
	"                    and an observer, and the list of the authorized keys. For\n"          \
	"                    each name WORKER, also write the key files of one more\n"             \
	"                    worker. Existing key files do not change."

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
				"newest undamaged checkpoint in this directory, and needs no "
				"server",
			.unset = "the weights of the server",
			.needs = "command=export|predict|eval"},
		{.name = "weights",
			.type = OPT_TEXT,
			.dest = &ctl->weights,
			.min = 1,
			.max = 4000,
			.arg = "FILE",
			.help = "file with the weights that the command uses, in the "
				".safetensors format; the command then needs no server",
			.unset = "the weights of the server or of --checkpoint",
			.needs = "command=export|predict|eval"},
		{.name = "model",
			.type = OPT_TEXT,
			.dest = &ctl->model,
			.min = 1,
			.max = MODEL_MAX_TEXT - 1,
			.arg = "MODEL",
			.help = "model to which the weights in the file --weights belong, in the "
				"syntax of cnn-ps --model",
			.unset = "the model in the metadata of the file",
			.needs = "weights"},
		CLIENT_OPT_DATA(&ctl->data, "command=predict|eval"),
		{.name = "invert",
			.type = OPT_FLAG,
			.dest = &ctl->invert,
			.def = "0",
			.help = "invert the brightness of the picture files: a dark digit on a "
				"light background becomes a light digit on a dark background",
			.needs = "command=predict"},
		{.name = "mistakes",
			.type = OPT_TEXT,
			.dest = &ctl->mistakes,
			.min = 1,
			.max = 4000,
			.arg = "FILE",
			.help = "PNG file to which the command writes the worst mistakes: of the "
				"images that the model classifies wrongly, the 48 (or fewer) "
				"with the greatest loss",
			.unset = "no such file",
			.needs = "command=eval"},
		{.name = "predictions",
			.type = OPT_TEXT,
			.dest = &ctl->predictions,
			.min = 1,
			.max = 4000,
			.arg = "FILE",
			.help = "CSV file to which the command writes a line for each test "
				"image: the number of the image, its label, the predicted class, "
				"and the probability of this class",
			.unset = "no such file",
			.needs = "command=eval"},
		{.name = "format",
			.type = OPT_ENUM,
			.dest = &history_format,
			.def = "csv",
			.values = "csv|json",
			.arg = "FORMAT",
			.help = "format in which the command prints the history: csv is a table; "
				"json is an array with one element for each row of this table",
			.needs = "command=history"},
		{.name = "tensorboard",
			.type = OPT_TEXT,
			.dest = &ctl->tensorboard,
			.min = 1,
			.max = 4000,
			.arg = "DIR",
			.help = "directory to which the command writes the history as an event "
				"file of TensorBoard. Give each run a directory of its own, such "
				"as events/run1, so that TensorBoard can compare the runs",
			.unset = "the command prints the history",
			.needs = "command=history"},
		{.name = "once",
			.type = OPT_FLAG,
			.dest = &ctl->once,
			.def = "0",
			.help = "print the status once and exit; the output is lines of text or, "
				"with --json, one line of JSON",
			.needs = "command=top"},
		{.name = "json",
			.type = OPT_FLAG,
			.dest = &ctl->json,
			.def = "0",
			.help = "print the status every second as one line of JSON, instead of "
				"showing it on the terminal",
			.needs = "command=top"},
		{.name = "connect-timeout-ms",
			.type = OPT_INT,
			.dest = &ctl->connect_timeout_ms,
			.def = "5000",
			.min = 1,
			.max = 3600000,
			.arg = "MS",
			.help = "number of milliseconds for which the program, after its start, "
				"waits for the first answer of the server; after this time, the "
				"program exits with status 3",
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

	zepoll_use();
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
