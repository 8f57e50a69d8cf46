/* Proves the promises of common/opt.h. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include "common/log.h"
#include "common/opt.h"
#include "common/version.h"
#include "tests/support/capture.h"
#include "tests/support/test.h"

static struct {
	const char *bind, *name, *checkpoint, *data;
	int64_t epochs, seed, bound, count;
	double lr, rate;
	int mode, resume, quiet, rule;
	uint32_t bad;
} v;

static const struct opt rows[] = {
	{.name = "bind",
		.type = OPT_TEXT,
		.dest = &v.bind,
		.def = "tcp://*:5555",
		.arg = "URL",
		.help = "Where to listen."},
	{.name = "name", .type = OPT_TEXT, .dest = &v.name, .min = 1, .max = 8, .help = "Name."},
	{.name = "epochs",
		.type = OPT_INT,
		.dest = &v.epochs,
		.def = "3",
		.min = 0,
		.max = 65536,
		.arg = "N",
		.help = "Epochs to train."},
	{.name = "seed",
		.type = OPT_INT,
		.dest = &v.seed,
		.min = 0,
		.max = (double)INT64_MAX,
		.help = "Seed."},
	{.name = "lr",
		.type = OPT_REAL,
		.dest = &v.lr,
		.def = "0.03",
		.min = 1e-9,
		.max = 1000,
		.arg = "RATE",
		.help = "Learning rate."},
	{.name = "mode",
		.type = OPT_ENUM,
		.dest = &v.mode,
		.def = "sync",
		.values = "downpour|sync|ssp",
		.arg = "MODE",
		.help = "How workers are combined."},
	{.name = "accept-rollback",
		.type = OPT_FLAG,
		.dest = &v.resume,
		.def = "0",
		.help = "Go on with an older state."},
	{.name = "quiet",
		.type = OPT_FLAG,
		.dest = &v.quiet,
		.def = "1",
		.help = "Say less.",
		.needs = "epochs!=0"},
	{.name = "bound",
		.type = OPT_INT,
		.dest = &v.bound,
		.def = "4",
		.min = 0,
		.max = 9,
		.help = "Bound.",
		.needs = "mode=ssp name"},
	{.name = "checkpoint",
		.type = OPT_TEXT,
		.dest = &v.checkpoint,
		.help = "Source.",
		.needs = "command=export|predict"},
	{.name = "data",
		.type = OPT_TEXT,
		.dest = &v.data,
		.help = "Images.",
		.needs = "command=predict"},
	{.name = "rate",
		.type = OPT_REAL,
		.dest = &v.rate,
		.def = "mode=downpour|ssp:1 1",
		.min = 0,
		.max = 9,
		.help = "Rate.",
		.needs = "mode!=downpour|ssp bind"},
	{.name = "rule",
		.type = OPT_ENUM,
		.dest = &v.rule,
		.def = "mean",
		.values = "mean|trim[:F]|trimmed[:F]|krum",
		.number = &v.bad,
		.usual_number = 2,
		.max_number = 40,
		.arg = "RULE[:F]",
		.help = "Rule.",
		.was = "bad"},
	{.name = "count",
		.type = OPT_INT,
		.dest = &v.count,
		.def = "rule=trimmed:7 1",
		.max = 9,
		.help = "Count.",
		.needs = "rule=trimmed"},
	{0},
};

static const struct opt_program program = {.name = "cnn-test",
	.usage = "[OPTION...] [FILE]",
	.about = "Tests options.",
	.opts = rows,
	.max_args = 2};

#define MAX_ARGV 16
static const char *args[MAX_ARGV];
static int n_args;
static struct capture errors, output;

/* Parses a command line whose words are separated by ';'. Stores what opt_parse prints to stderr in
 * `errors`, and what it prints to stdout in `output`. */
static int parse_test_options(const char *line)
{
	static char text[1024], *argv[MAX_ARGV];
	int argc = 0;

	snprintf(text, sizeof(text), "cnn-test%s%s", *line ? ";" : "", line);
	for (char *at = text;; argc++) {
		argv[argc] = at;
		at = strchr(at, ';');
		if (!at)
			break;
		*at++ = '\0';
	}
	argc++;
	argv[argc] = NULL;
	memset(&v, 0, sizeof(v));
	capture_begin(&errors, 2);
	capture_begin(&output, 1);
	int rc = opt_parse(&program, argc, argv, args, &n_args);
	capture_end(&output);
	capture_end(&errors);
	return rc;
}

static int clear_environment(void **state)
{
	(void)state;
	static const char *const variables[] = {"CNN_BIND", "CNN_NAME", "CNN_EPOCHS", "CNN_SEED",
		"CNN_LR", "CNN_MODE", "CNN_ACCEPT_ROLLBACK", "CNN_QUIET", "CNN_BOUND",
		"CNN_CHECKPOINT", "CNN_DATA", "CNN_EPOCH", "CNN_PS_SERVICE_HOST", "CNN_RULE",
		"CNN_BAD"};
	for (size_t i = 0; i < sizeof(variables) / sizeof(variables[0]); i++)
		unsetenv(variables[i]);
	return 0;
}

static void assert_says(const char *line, const char *says)
{
	if (parse_test_options(line) != PS_EUSAGE)
		fail_msg("\"%s\" was accepted", line);
	if (!strstr(errors.text, says) || count_lines(errors.text) != 1 || output.text[0])
		fail_msg("\"%s\" says: %s", line, errors.text);
}

TEST_IN(without_arguments_the_defaults_hold, clear_environment, NULL)
{
	assert_int_equal(parse_test_options(""), OPT_RUN);
	assert_string_equal(v.bind, "tcp://*:5555");
	/* NULL as before, because the option has no default */
	assert_null(v.name);
	assert_int_equal(v.epochs, 3);
	assert_true(v.lr == 0.03);
	assert_int_equal(v.mode, 1);
	assert_int_equal(v.resume, 0);
	assert_int_equal(v.quiet, 1);
	assert_int_equal(n_args, 0);
	assert_string_equal(errors.text, "");
}

TEST_IN(both_spellings_and_arguments_anywhere_are_understood, clear_environment, NULL)
{
	assert_int_equal(
		parse_test_options("a=b;--bind=x;--epochs;0;--lr;1e-9;FILE;--mode=ssp;--accept-"
				   "rollback;--no-quiet"),
		OPT_RUN);
	assert_string_equal(v.bind, "x");
	assert_int_equal(v.epochs, 0);
	assert_true(v.lr == 1e-9);
	assert_int_equal(v.mode, 2);
	assert_int_equal(v.resume, 1);
	assert_int_equal(v.quiet, 0);
	assert_int_equal(n_args, 2);
	assert_string_equal(args[0], "a=b");
	assert_string_equal(args[1], "FILE");
	assert_int_equal(parse_test_options("--name=ab;--;--lr;-x"), OPT_RUN);
	assert_int_equal(n_args, 2);
	assert_string_equal(args[0], "--lr");
	assert_string_equal(args[1], "-x");
}

TEST_IN(texts_live_as_long_as_argv, clear_environment, NULL)
{
	char bind[] = "--bind=abc", name[] = "--name", value[] = "worker", argument[] = "arg";
	char *argv[] = {argument, bind, name, value, argument, NULL};

	assert_int_equal(opt_parse(&program, 5, argv, args, &n_args), OPT_RUN);
	assert_ptr_equal(v.bind, bind + 7);
	assert_ptr_equal(v.name, value);
	assert_ptr_equal(args[0], argument);
}

TEST_IN(the_command_line_overrides_the_environment_overrides_the_default, clear_environment, NULL)
{
	setenv("CNN_EPOCHS", "7", 1);
	setenv("CNN_LR", "0.5", 1);
	setenv("CNN_MODE", "downpour", 1);
	setenv("CNN_ACCEPT_ROLLBACK", "1", 1);
	setenv("CNN_QUIET", "0", 1);
	assert_int_equal(parse_test_options("--epochs=9"), OPT_RUN);
	assert_int_equal(v.epochs, 9);
	assert_true(v.lr == 0.5);
	assert_int_equal(v.mode, 0);
	assert_int_equal(v.resume, 1);
	assert_int_equal(v.quiet, 0);
	assert_string_equal(v.bind, "tcp://*:5555");
	assert_int_equal(parse_test_options("--no-accept-rollback;--quiet"), OPT_RUN);
	assert_int_equal(v.resume, 0);
	assert_int_equal(v.quiet, 1);
}

TEST_IN(every_bad_value_gets_one_line_that_says_what_would_be_right, clear_environment, NULL)
{
	static const char *const row[][2] = {
		{"--lr=abc", "cnn-test: --lr: \"abc\" is not a number; expected a number in "
			     "[1e-09, 1000]"},
		{"--lr=", "--lr: \"\" is not a number"},
		{"--lr;", "--lr: \"\" is not a number"},
		{"--lr=nan", "\"nan\" is not a number"},
		{"--lr=NAN(1)", "is not a number"},
		{"--lr=inf", "\"inf\" is not a number"},
		{"--lr=-Infinity", "is not a number"},
		{"--lr=0x1p-3", "is not a number"},
		{"--lr= 1", "is not a number"},
		{"--lr=1 ", "is not a number"},
		{"--lr=1,5", "is not a number"},
		{"--lr=1e", "is not a number"},
		{"--lr=--1", "is not a number"},
		{"--lr=0.1.2", "is not a number"},
		{"--lr=1\n2", "\"1?2\" is not a number"},
		{"--lr=1e999", "--lr: 1e999 is out of range; expected a number in [1e-09, 1000]"},
		{"--lr=1e-999", "is out of range"},
		{"--lr=0", "is out of range"},
		{"--lr=-1", "is out of range"},
		{"--lr=1000.0001", "is out of range"},
		{"--epochs=1.5",
			"--epochs: \"1.5\" is not a whole number; expected one in [0, 65536]"},
		{"--epochs=1e3", "is not a whole number"},
		{"--epochs=0x10", "is not a whole number"},
		{"--epochs=", "--epochs: \"\" is not a whole number"},
		{"--epochs= 3", "is not a whole number"},
		{"--epochs=3 ", "is not a whole number"},
		{"--epochs=+-3", "is not a whole number"},
		{"--epochs=70000",
			"--epochs: 70000 is out of range; expected a whole number in [0, 65536]"},
		{"--epochs=-1", "is out of range"},
		{"--epochs=99999999999999999999", "is out of range"},
		{"--epochs=-99999999999999999999", "is out of range"},
		{"--seed=9223372036854775808", "--seed: 9223372036854775808 is out of range"},
		{"--mode=sandblaster",
			"--mode: \"sandblaster\" is not known; expected downpour|sync|ssp"},
		{"--mode=", "--mode: \"\" is not known"},
		{"--mode=syn", "is not known"},
		{"--mode=sync|ssp", "is not known"},
		{"--mode=SYNC", "is not known"},
		{"--name=", "--name: \"\" has 0 characters; expected 1 to 8"},
		{"--name=123456789", "has 9 characters; expected 1 to 8"},
		{"--quiet=1", "--quiet: "},
		{"--lrr=1", "cnn-test: --lrr: unknown option; --help lists them"},
		{"--l=1", "--l: unknown option"},
		{"-lr=1", "unknown option"},
		{"-x", "-x: unknown option"},
		{"--no-lr", "--no-lr: unknown option"},
		{"--no-no-quiet", "unknown option"},
		{"--bind", "--bind: needs a value"},
		{"--lr=1;--lr=1", "--lr: given twice"},
		{"--quiet;--no-quiet", "--quiet: given twice"},
		{"--quiet;--quiet", "--quiet: given twice"},
		{"--lrr;1;2;3", "--lrr: unknown option; --help lists them"},
		{"a;b;c", "\"c\": unexpected argument; cnn-test takes 2"},
	};

	for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++)
		assert_says(row[i][0], row[i][1]);
}

TEST_IN(a_name_may_have_a_number_after_a_colon, clear_environment, NULL)
{
	static const struct {
		const char *text;
		int rule;
		uint32_t bad;
	} good[] = {{"mean", 0, 2}, {"trim", 1, 2}, {"trim:0", 1, 0}, {"trimmed", 2, 2},
		{"trimmed:1", 2, 1}, {"trimmed:40", 2, 40}, {"krum", 3, 2}};
	static const char *const bad[][2] = {
		{"krum:1", "cnn-test: --rule: \"krum:1\" is not known; expected "
			   "mean|trim[:F]|trimmed[:F]|krum"},
		{"mean:", "\"mean:\" is not known"},
		{"trimmed[:F]", "is not known"},
		{":1", "is not known"},
		{"trimmed:", "--rule: \"\" is not a whole number; expected one in [0, 40]"},
		{"trimmed:1:1", "--rule: \"1:1\" is not a whole number"},
		{"trimmed:41", "--rule: 41 is out of range; expected a whole number in [0, 40]"},
		{"trimmed:-1", "--rule: -1 is out of range"},
	};
	char line[64];

	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
		snprintf(line, sizeof(line), "--rule;%s", good[i].text);
		assert_int_equal(parse_test_options(line), OPT_RUN);
		assert_int_equal(v.rule, good[i].rule);
		assert_int_equal(v.bad, good[i].bad);
		assert_int_equal(v.count, good[i].rule == 2 ? 7 : 1);
	}
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		snprintf(line, sizeof(line), "--rule;%s", bad[i][0]);
		assert_says(line, bad[i][1]);
	}
	setenv("CNN_RULE", "trimmed:3", 1);
	assert_int_equal(parse_test_options(""), OPT_RUN);
	assert_int_equal(v.bad, 3);
}

TEST_IN(an_option_that_became_a_number_in_a_value_is_refused_with_its_new_form, clear_environment,
	NULL)
{
	assert_says("--bad=3", "cnn-test: --bad: was renamed to --rule RULE[:F]\n");
	setenv("CNN_BAD", "3", 1);
	assert_says("", "cnn-test: CNN_BAD: was renamed to CNN_RULE=RULE[:F]\n");
}

TEST_IN(a_bad_variable_is_named, clear_environment, NULL)
{
	static const char *const row[][3] = {
		{"CNN_LR", "fast", "cnn-test: CNN_LR: \"fast\" is not a number"},
		{"CNN_LR", "", "CNN_LR: \"\" is not a number"},
		{"CNN_EPOCHS", "", "CNN_EPOCHS: \"\" is not a whole number"},
		{"CNN_EPOCHS", "70000", "CNN_EPOCHS: 70000 is out of range"},
		{"CNN_MODE", "fast", "CNN_MODE: \"fast\" is not known"},
		{"CNN_ACCEPT_ROLLBACK", "yes", "CNN_ACCEPT_ROLLBACK: \"yes\" is neither 0 nor 1"},
		{"CNN_ACCEPT_ROLLBACK", "", "CNN_ACCEPT_ROLLBACK: \"\" is neither 0 nor 1"},
		{"CNN_NAME", "123456789", "CNN_NAME: \"123456789\" has 9 characters"},
	};

	for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
		setenv(row[i][0], row[i][1], 1);
		assert_says("", row[i][2]);
		unsetenv(row[i][0]);
	}
}

TEST_IN(all_errors_of_a_run_are_reported, clear_environment, NULL)
{
	setenv("CNN_MODE", "fast", 1);
	assert_int_equal(
		parse_test_options(
			"--lr=nan;--bogus=1;--epochs=-1;--name;123456789;--epochs=5;a;b;c;--bind"),
		PS_EUSAGE);
	static const char *const says[] = {"--lr: ", "--bogus: ", "--epochs: -1",
		"--epochs: given twice", "--name: ", "CNN_MODE: ", "\"c\": ", "--bind: "};
	for (size_t i = 0; i < sizeof(says) / sizeof(says[0]); i++)
		if (!strstr(errors.text, says[i]))
			fail_msg("no \"%s\" in: %s", says[i], errors.text);
	assert_int_equal(count_lines(errors.text), sizeof(says) / sizeof(says[0]));
	for (const char *line = errors.text; *line; line = strchr(line, '\n') + 1)
		assert_memory_equal(line, "cnn-test: ", 10);
}

TEST_IN(help_comes_from_the_rows_that_parse, clear_environment, NULL)
{
	assert_int_equal(parse_test_options("--lr=1;--help"), OPT_EXIT);
	static const char *const says[] = {"Usage: cnn-test [OPTION...] [FILE]\n",
		"Tests options.\n", "  --bind URL ",
		"Where to listen. (default tcp://*:5555; CNN_BIND)",
		"Epochs to train. (0 to 65536; default 3; CNN_EPOCHS)",
		"Learning rate. (1e-09 to 1000; default 0.03; CNN_LR)",
		"How workers are combined. (downpour|sync|ssp; default sync; CNN_MODE)",
		"  --[no-]accept-rollback",
		"Go on with an older state. (default off; CNN_ACCEPT_ROLLBACK)",
		"Say less. (default on; CNN_QUIET; not with --epochs 0)",
		"Name. (default: none; CNN_NAME)",
		"Bound. (0 to 9; default 4; CNN_BOUND; only with --mode ssp and --name)",
		"CNN_CHECKPOINT; only with command export|predict)",
		"Rate. (0 to 9; default 1; CNN_RATE; only with --bind; not with", "downpour|ssp)",
		"  --rule RULE[:F] ",
		"Rule. (mean|trim[:F]|trimmed[:F]|krum; default mean; CNN_RULE)", "--version"};
	char words[sizeof(output.text)]; /* the help text with its wrapped lines joined */
	size_t n = 0;
	for (const char *at = output.text; *at; at++)
		if (strncmp(at, "\n                          ", 27) == 0) {
			words[n++] = ' ';
			at += 26;
		} else
			words[n++] = *at;
	words[n] = '\0';
	for (size_t i = 0; i < sizeof(says) / sizeof(says[0]); i++)
		if (!strstr(words, says[i]))
			fail_msg("no \"%s\" in: %s", says[i], words);
	assert_string_equal(errors.text, "");
	for (const char *line = output.text; *line; line = strchr(line, '\n') + 1)
		assert_true(strcspn(line, "\n") <= 100);
	char help[sizeof(output.text)];
	memcpy(help, output.text, sizeof(help));
	assert_int_equal(parse_test_options("-h"), OPT_EXIT);
	assert_string_equal(output.text, help);
}

TEST_IN(version_is_the_programs_name_and_number, clear_environment, NULL)
{
	assert_int_equal(parse_test_options("--version"), OPT_EXIT);
	assert_string_equal(output.text, "cnn-test " PS_VERSION "\n");
}

TEST_IN(the_dump_says_where_each_value_came_from, clear_environment, NULL)
{
	setenv("CNN_LR", "0.5", 1);
	assert_int_equal(
		parse_test_options("--mode=ssp;--no-quiet;--bind=a\nb;--rule=trim"), OPT_RUN);
	log_set_level(LOG_DEBUG);
	capture_begin(&errors, 2);
	opt_dump(&program);
	capture_log(&errors);
	log_set_level(LOG_INFO);
#define VALUE "level=debug msg=\"options value\" name="
	assert_string_equal(errors.text, VALUE
		"bind value=\"a\\nb\" origin=command-line\n" VALUE
		"name value=\"\" origin=default\n" VALUE "epochs value=3 origin=default\n" VALUE
		"seed value=0 origin=default\n" VALUE "lr value=0.5 origin=environment\n" VALUE
		"mode value=ssp origin=command-line\n" VALUE
		"accept-rollback value=0 origin=default\n" VALUE
		"quiet value=0 origin=command-line\n" VALUE "bound value=4 origin=default\n" VALUE
		"checkpoint value=\"\" origin=default\n" VALUE
		"data value=\"\" origin=default\n" VALUE "rate value=1 origin=default\n" VALUE
		"rule value=trim:2 origin=command-line\n" VALUE "count value=1 origin=default\n");
}

/* ---- options without effect ----------------------------------------------------------------- */

/* Checks that opt_check() prints the warning `says` about the command line. If `says` is NULL,
 * there must be no warning. */
static void assert_warns(const char *line, const char *command, const char *says)
{
	assert_int_equal(parse_test_options(line), OPT_RUN);
	capture_begin(&errors, 2);
	opt_check(&program, command);
	capture_end(&errors);
	if (count_lines(errors.text) != (says != NULL) || (says && !strstr(errors.text, says)))
		fail_msg("\"%s\", command %s: %s", line, command ? command : "none", errors.text);
}

TEST_IN(a_row_without_effect_is_named_with_the_first_condition_that_fails, clear_environment, NULL)
{
	assert_warns("", "run", NULL);
	assert_warns("--bound=5;--mode=ssp;--name=a", "run", NULL);
	assert_warns("--bound=4", "run",
		"cnn-test: warning: --bound has no effect with --mode sync: it needs --mode ssp\n");
	assert_warns("--bound=5;--mode=ssp", "run", "--bound has no effect without --name\n");
	assert_warns("--bound=5", NULL,
		"level=warn msg=\"options no_effect\" reason=\"--bound has no effect with "
		"--mode sync: it needs --mode ssp\"\n");
	assert_warns("--rate=2", "run", NULL);
	assert_warns(
		"--rate=2;--mode=downpour", "run", "--rate has no effect with --mode downpour\n");
	assert_warns(
		"--rate=2;--mode=ssp;--bind=", "run", "--rate has no effect with --mode ssp\n");
	assert_warns("--rate=2;--bind=", "run", "--rate has no effect without --bind\n");
	assert_warns("--no-quiet;--epochs=0", "run", "--quiet has no effect with --epochs 0\n");
	assert_warns("--no-quiet;--epochs=10", "run", NULL);
	setenv("CNN_BOUND", "3", 1);
	assert_warns("", "run", "CNN_BOUND has no effect with --mode sync");
	log_set_format(LOG_JSON);
	log_set_level(LOG_ERROR);
	assert_warns("", "run",
		"\"level\":\"warn\",\"msg\":\"options no_effect\",\"reason\":\"CNN_BOUND has");
	assert_int_equal(log_get_level(), LOG_ERROR);
	log_set_level(LOG_INFO);
	log_set_format(LOG_TEXT);
}

TEST_IN(a_row_of_other_commands_is_named, clear_environment, NULL)
{
	assert_warns("--checkpoint=x", "export", NULL);
	assert_warns("--checkpoint=x", "predict", NULL);
	assert_warns("--checkpoint=x", "exp",
		"--checkpoint has no effect with exp: it is for "
		"export|predict\n");
	assert_warns("--data=x", "export", "--data has no effect with export: it is for predict\n");
	/* the variable CNN_DATA must cause no warning, because workers also read it */
	setenv("CNN_DATA", "x", 1);
	assert_warns("", "export", NULL);
}

TEST_IN(an_unknown_variable_is_named_with_its_neighbour, clear_environment, NULL)
{
	setenv("CNN_EPOCH", "secret", 1);
	assert_warns("", "run",
		"cnn-test: warning: CNN_EPOCH: unknown variable; did you mean CNN_EPOCHS?\n");
	assert_null(strstr(errors.text, "secret"));
	unsetenv("CNN_EPOCH");
	setenv("CNN_PS_SERVICE_HOST", "10.0.0.1", 1);
	assert_warns("", "run", NULL);
	char name[600];
	memset(name, 'X', sizeof(name) - 1);
	memcpy(name, "CNN_", 4);
	name[sizeof(name) - 1] = '\0';
	setenv(name, "1", 1);
	assert_warns("", "run", "unknown variable; --help lists them\n");
	unsetenv(name);
}

/* A variable may be meant for another program that reads the same environment. */
TEST_IN(a_renamed_variable_of_another_program_is_named_with_its_new_name, clear_environment, NULL)
{
	setenv("CNN_HANG_MS", "100", 1);
	assert_warns(
		"", "run", "cnn-test: warning: CNN_HANG_MS: was renamed to CNN_BATCH_TIMEOUT_MS\n");
	assert_warns("", NULL,
		"level=warn msg=\"options renamed_variable\" reason=\"CNN_HANG_MS: was renamed "
		"to CNN_BATCH_TIMEOUT_MS\"\n");
	unsetenv("CNN_HANG_MS");
	setenv("CNN_DECAY_SQUARE", "0.9", 1);
	assert_warns("", "run", "was renamed to CNN_BETA2 or CNN_RMSPROP_ALPHA\n");
	unsetenv("CNN_DECAY_SQUARE");
	/* both cnn-worker and cnn-ctl had this variable */
	setenv("CNN_CONNECT_MS", "100", 1);
	assert_warns("", "run", "was renamed to CNN_CONNECT_TIMEOUT_MS\n");
	unsetenv("CNN_CONNECT_MS");
}
