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

#define ABOUT                                                                                      \
	"Show and control a running cnn-ps server, export its weights, predict with them.\n"       \
	"\n"                                                                                       \
	"Commands:\n"                                                                              \
	"  status            Print the status of the server as JSON.\n"                            \
	"  top               Show the status on the terminal; refresh it every second; h: help.\n" \
	"  checkpoint        Write a checkpoint now and print its generation.\n"                   \
	"  drain             Write a last checkpoint, end the workers and the server.\n"           \
	"  release WORKER    End the quarantine of a worker. WORKER is its name or key in the\n"   \
	"                    status, or the first 8 characters of the key or more.\n"              \
	"  log-level LEVEL   Set the log level of the server until its next start: error,\n"       \
	"                    warn, info or debug.\n"                                               \
	"  export FILE       Write the weights of the server, --checkpoint or --weights\n"         \
	"                    to FILE: with the model as an ONNX file if the name ends\n"           \
	"                    in .onnx, else as a .safetensors file.\n"                             \
	"  predict IMAGE...  Classify images with the weights of the server, --checkpoint\n"       \
	"                    or --weights. IMAGE is the number of a test image or a file:\n"       \
	"                    PGM, PNG or JPEG of the size of the model's images (MNIST's:\n"       \
	"                    28x28 pixels, white on black). IMAGE - is standard input.\n"          \
	"  eval              Evaluate the weights of the server, --checkpoint or\n"                \
	"                    --weights on the test images: accuracy, loss, confused\n"             \
	"                    classes, and the worst mistakes as pictures.\n"                       \
	"  history DIR       Print the history of the run whose checkpoints are in DIR.\n"         \
	"  report DIR...     Print an HTML page that compares the runs of up to 8\n"               \
	"                    directories.\n"                                                       \
	"  show DIR          List the checkpoints in DIR.\n"                                       \
	"  convert FROM TO   Write the images of the directory FROM as IDX files to the\n"         \
	"                    directory TO. FROM has CIFAR's binaries, NumPy's .npy files,\n"       \
	"                    or a folder of PNG or JPEG pictures for each class.\n"                \
	"  keygen DIR [WORKER...]\n"                                                               \
	"                    Write to DIR: keys for a server, a worker, an admin and an\n"         \
	"                    observer, one more key for each WORKER, and the list of\n"            \
	"                    authorized keys."

static int find_command(const char **args, int n_args, const struct command **found, struct err *e)
{
	*found = NULL;
	if (n_args < 1)
		return err_set(e, PS_EUSAGE,
			"command missing: status, top, checkpoint, drain, release, log-level, "
			"export, predict, eval, history, report, show, convert or keygen");
	for (size_t i = 0; i < sizeof(commands) / sizeof(*commands); i++)
		if (!strcmp(args[0], commands[i].name))
			*found = &commands[i];
	if (!*found)
		return err_set(e, PS_EUSAGE,
			"\"%.100s\": no such command; there are status, top, checkpoint, drain, "
			"release, log-level, export, predict, eval, history, report, show, convert "
			"and "
			"keygen",
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
	int level, format, history_format, rc;
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
			.help = "use the weights of the newest good checkpoint in DIR, without a "
				"server",
			.unset = "the weights of the server",
			.needs = "command=export|predict|eval"},
		{.name = "weights",
			.type = OPT_TEXT,
			.dest = &ctl->weights,
			.min = 1,
			.max = 4000,
			.arg = "FILE",
			.help = "use the weights of this .safetensors file",
			.unset = "the weights of the server or of --checkpoint",
			.needs = "command=export|predict|eval"},
		{.name = "model",
			.type = OPT_TEXT,
			.dest = &ctl->model,
			.min = 1,
			.max = MODEL_MAX_TEXT - 1,
			.arg = "MODEL",
			.help = "model of --weights, in the syntax of cnn-ps --model",
			.unset = "the model in the metadata of the file",
			.needs = "weights"},
		OPTIONS_DATA_ROW(&ctl->data, "command=predict|eval"),
		{.name = "invert",
			.type = OPT_FLAG,
			.dest = &ctl->invert,
			.def = "0",
			.help = "invert pictures: dark on light becomes light on dark",
			.needs = "command=predict"},
		{.name = "mistakes",
			.type = OPT_TEXT,
			.dest = &ctl->mistakes,
			.min = 1,
			.max = 4000,
			.arg = "FILE",
			.help = "write the mistakes with the highest confidence, at most 48, to "
				"this PNG file",
			.unset = "show only the three worst on the terminal",
			.needs = "command=eval"},
		{.name = "predictions",
			.type = OPT_TEXT,
			.dest = &ctl->predictions,
			.min = 1,
			.max = 4000,
			.arg = "FILE",
			.help = "write number, label, class and probability of each image to this "
				"CSV file",
			.unset = "write none",
			.needs = "command=eval"},
		{.name = "format",
			.type = OPT_ENUM,
			.dest = &history_format,
			.def = "csv",
			.values = "csv|json",
			.arg = "FORMAT",
			.help = "print the history as CSV, or as a JSON array of its lines",
			.needs = "command=history"},
		{.name = "tensorboard",
			.type = OPT_TEXT,
			.dest = &ctl->tensorboard,
			.min = 1,
			.max = 4000,
			.arg = "DIR",
			.help = "write the history to DIR as an event file of TensorBoard",
			.unset = "print it",
			.needs = "command=history"},
		{.name = "once",
			.type = OPT_FLAG,
			.dest = &ctl->once,
			.def = "0",
			.help = "print the status once, as lines",
			.needs = "command=top"},
		{.name = "json",
			.type = OPT_FLAG,
			.dest = &ctl->json,
			.def = "0",
			.help = "print the status every second, as one line of JSON",
			.needs = "command=top"},
		{.name = "connect-timeout-ms",
			.type = OPT_INT,
			.dest = &ctl->connect_timeout_ms,
			.def = "5000",
			.min = 1,
			.max = 3600000,
			.arg = "MS",
			.help = "exit if the server does not answer within this time",
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
	ctl->format = (enum ctl_format)history_format;
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
	log_set_level(LOG_INFO);
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
