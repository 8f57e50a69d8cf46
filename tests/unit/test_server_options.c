/*
 * test_server_options.c - cnn-ps accepts a valid command line. cnn-ps refuses an invalid command
 * line, and reports every error in it, before it creates any file (server/config/options.h).
 * Covers attack A19 of docs/faults.md.
 */
#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>
#include "common/opt.h"
#include "tests/support/capture.h"
#include "tests/support/temp_dir.h"
#include "server/config/options.h"
#include "tests/support/test.h"

#define MAX_ARGV 96

static struct capture errors;
static struct options options;

/* Parses a command line whose words are separated by ';', because the text of a model contains
 * blanks. Returns the status of options_parse. */
static int parse_server_options(const char *line)
{
	static char text[4096], *argv[MAX_ARGV];
	int argc = 0;

	snprintf(text, sizeof(text), "cnn-ps%s%s", *line ? ";" : "", line);
	for (char *at = text;; argc++) {
		assert_true(argc < MAX_ARGV - 1);
		argv[argc] = at;
		at = strchr(at, ';');
		if (!at)
			break;
		*at++ = '\0';
	}
	argv[++argc] = NULL;
	capture_begin(&errors, STDERR_FILENO);
	int rc = options_parse(&options, argc, argv);
	capture_end(&errors);
	return rc;
}

static int set_up_options(void **state)
{
	(void)state;
	log_set_level(LOG_INFO);
	temp_dir_make(temp_dir);
	return 0;
}

/* ---- valid command lines -------------------------------------------------------------------- */

TEST(defaults_are_those_of_the_architecture)
{
	assert_int_equal(parse_server_options(""), OPT_RUN);
	assert_string_equal(options.bind, "tcp://127.0.0.1:5555");
	assert_null(options.http);
	assert_null(options.checkpoint_dir);
	assert_null(options.init);
	assert_string_equal(options.core.model, "conv:32:3 relu pool:2 fc:10");
	assert_int_equal(options.core.n_params, options.model.n_params);
	assert_int_equal(options.core.model_fingerprint, options.model.fingerprint);
	assert_int_equal(options.core.optim.kind, OPTIM_RMSPROP);
	assert_true(options.core.rate.lr == 0.009 && options.core.optim.eps == 1e-8);
	assert_true(options.core.optim.rmsprop_alpha == 0.9);
	assert_int_equal(options.core.rate.scaling, LR_SCALING_SQRT);
	assert_int_equal(options.core.schedule.kind, SCHEDULE_CONSTANT);
	assert_true(options.core.optim.weight_decay == 0 && options.core.optim.clip_norm == 0);
	assert_true(options.core.schedule.warmup == 0);
	assert_int_equal(options.core.training.epochs, 3);
	assert_int_equal(options.core.training.batch_size, 100);
	assert_int_equal(options.core.rate.staleness_scaling, STALE_RELATIVE);
	assert_int_equal(options.core.sessions.replay_window, 256);
	assert_int_equal(options.core.checkpoint.interval_ms, 500);
	assert_false(options.core.durable);
	assert_int_equal(count_lines(errors.text), 0);
}

/* A sum of n gradients is already n times as large as their mean, so --lr-scaling must not multiply
 * the rate by n again. */
TEST(a_sum_in_sync_is_not_scaled_once_more)
{
	assert_int_equal(parse_server_options("--mode;sync;--push;sum"), OPT_RUN);
	assert_int_equal(options.core.rate.scaling, LR_SCALING_NONE);
	assert_int_equal(parse_server_options("--mode;sync;--push;sum;--lr-scaling;none"), OPT_RUN);
	assert_int_equal(parse_server_options("--mode;sync"), OPT_RUN);
	assert_int_equal(options.core.rate.scaling, LR_SCALING_SQRT);
	assert_int_equal(parse_server_options("--push;sum;--n-push;4"), OPT_RUN);
	assert_int_equal(options.core.rate.scaling, LR_SCALING_SQRT);
}

TEST(every_value_arrives_where_it_belongs)
{
	const struct core_config *c = &options.core;
	char line[2048];

	snprintf(line, sizeof(line),
		"--bind;tcp://[::1]:0;--http;127.0.0.1:0;--model;fc:7 relu fc:10;--optimizer;sgd;"
		"--lr;0.5;--eps;1e-7;--adagrad-init;0.1;--momentum;0.7;--rmsprop-alpha;0.8;"
		"--weight-decay;0.01;--clip-norm;3;--schedule;step;--warmup;0.25;"
		"--schedule-gamma;0.3;--schedule-every;2;--schedule-floor;0.4;--epochs;4;--batch-"
		"size;"
		"12;--seed;99;"
		"--checkpoint-dir;%s;--checkpoint-ms;21;--min-workers;2;--max-workers;3;"
		"--staleness-scaling;inverse;--max-staleness;17;--reject-norm;2.5;--warm-start-"
		"updates;18;"
		"--max-updates;19;--lease-batches;20;--eval-images;22;--push-window;5;"
		"--replay-window;6;--heartbeat-ms;31;--suspect-ms;32;--dead-ms;33;--session-ttl-ms;"
		"35;"
		"--recovery-ms;34;--accept-rollback;--log-level;warn",
		temp_dir);
	assert_int_equal(parse_server_options(line), OPT_RUN);
	assert_string_equal(options.bind, "tcp://[::1]:0");
	assert_string_equal(options.http, "127.0.0.1:0");
	assert_string_equal(options.checkpoint_dir, temp_dir);
	assert_string_equal(c->model, "fc:7 relu fc:10");
	assert_int_equal(c->optim.kind, OPTIM_SGD);
	assert_true(c->rate.lr == 0.5 && c->optim.eps == 1e-7 && c->optim.adagrad_init == 0.1);
	assert_true(c->optim.momentum == 0.7 && c->optim.rmsprop_alpha == 0.8);
	assert_true(c->optim.weight_decay == 0.01 && c->optim.clip_norm == 3);
	assert_int_equal(c->schedule.kind, SCHEDULE_STEP);
	assert_true(c->schedule.warmup == 0.25 && c->schedule.gamma == 0.3);
	assert_true(c->schedule.every_epochs == 2 && c->schedule.floor == 0.4);
	assert_true(c->limits.reject_norm == 2.5);
	const uint64_t got[] = {c->training.epochs, c->training.batch_size, c->training.seed,
		c->checkpoint.interval_ms, c->leases.min_workers, c->sessions.max_workers,
		c->rate.staleness_scaling, c->limits.max_staleness, c->leases.warm_start_updates,
		c->training.max_updates, c->leases.max_batches, c->leases.eval_images,
		c->sessions.push_window, c->sessions.replay_window, c->sessions.heartbeat_ms,
		c->sessions.suspect_ms, c->sessions.dead_ms, c->sessions.ttl_ms,
		c->sessions.recovery_ms};
	const uint64_t expected[] = {
		4, 12, 99, 21, 2, 3, STALE_INVERSE, 17, 18, 19, 20, 22, 5, 6, 31, 32, 33, 35, 34};
	assert_memory_equal(got, expected, sizeof(expected));
	assert_true(c->durable && c->sessions.accept_rollback);
	assert_int_equal(options.log_level, LOG_WARN);
	assert_int_equal(log_get_level(), LOG_WARN);
}

/* --lr is the learning rate for one worker. With --lr-scaling auto, each mode scales this rate by
 * the rule that gave the best results in measurements. */
TEST(each_mode_trains_with_defaults_of_its_own)
{
	static const struct {
		const char *line;
		enum optim_kind optim;
		double lr, clip_norm;
		enum lr_scaling scaling;
		uint32_t epochs, batch_images;
	} row[] = {
		{"--mode;downpour", OPTIM_RMSPROP, 0.009, 0, LR_SCALING_SQRT, 3, 0},
		{"--mode;ssp", OPTIM_RMSPROP, 0.009, 0, LR_SCALING_SQRT, 3, 0},
		{"--optimizer;adagrad", OPTIM_ADAGRAD, 0.04, 0, LR_SCALING_SQRT, 3, 0},
		{"--optimizer;sgd", OPTIM_SGD, 0.2, 0, LR_SCALING_LINEAR, 3, 0},
		{"--optimizer;sgd;--lr-scaling;none", OPTIM_SGD, 0.2, 0, LR_SCALING_NONE, 3, 0},
		{"--mode;sync", OPTIM_NESTEROV, 0.3, 0.5, LR_SCALING_SQRT, 3, 0},
		{"--mode;sync;--lr-scaling;linear", OPTIM_NESTEROV, 0.3, 0.5, LR_SCALING_LINEAR, 3,
			0},
		{"--mode;sandblaster", OPTIM_LBFGS, 1, 0, LR_SCALING_NONE, 30, 0},
		{"--mode;sandblaster;--optimizer;sgd", OPTIM_SGD, 0.2, 0, LR_SCALING_NONE, 30,
			6000},
	};

	for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
		const struct core_config *c = &options.core;

		assert_int_equal(parse_server_options(row[i].line), OPT_RUN);
		assert_int_equal(c->optim.kind, row[i].optim);
		assert_true(c->rate.lr == row[i].lr && c->optim.clip_norm == row[i].clip_norm);
		assert_int_equal(c->rate.scaling, row[i].scaling);
		assert_int_equal(c->training.epochs, row[i].epochs);
		if (c->training.mode == MODE_SANDBLASTER)
			assert_int_equal(c->sandblaster.step_images, row[i].batch_images);
	}
}

/* The constants of the optimizers have the defaults of PyTorch. Each optimizer has a default
 * learning rate of its own. */
TEST(an_optimizer_has_the_usual_defaults)
{
	static const struct {
		const char *line;
		double lr, eps, decay_square;
	} row[] = {
		{"--optimizer;sgd", 0.2, 0, 0},
		{"--optimizer;momentum", 0.03, 0, 0},
		{"--optimizer;nesterov", 0.03, 0, 0},
		{"--optimizer;adagrad", 0.04, 1e-10, 0},
		{"--optimizer;rmsprop", 0.009, 1e-8, 0.9},
		{"--optimizer;adam", 0.002, 1e-8, 0.999},
	};
	const struct optim *o = &options.core.optim;

	for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
		assert_int_equal(parse_server_options(row[i].line), OPT_RUN);
		print_message("%s: %g\n", row[i].line, options.core.rate.lr);
		assert_true(options.core.rate.lr == row[i].lr && o->momentum == 0.9);
		assert_true(row[i].eps == 0 || o->eps == row[i].eps);
		assert_true(row[i].decay_square == 0 ||
			    row[i].decay_square ==
				    (o->kind == OPTIM_ADAM ? o->beta2 : o->rmsprop_alpha));
	}
	assert_int_equal(parse_server_options("--optimizer;adam;--beta1;0.8;--beta2;0.7"), OPT_RUN);
	assert_true(o->beta1 == 0.8 && o->beta2 == 0.7);
	assert_int_equal(parse_server_options("--schedule;onecycle"), OPT_RUN);
	assert_true(options.core.schedule.warmup == 0.3 && options.core.schedule.floor == 0);
	assert_int_equal(parse_server_options("--schedule;onecycle;--warmup;0"), OPT_RUN);
	assert_true(options.core.schedule.warmup == 0);
}

TEST(the_norm_ratio_depends_on_data_set_and_store)
{
	static const struct {
		const char *options;
		double ratio;
	} runs[] = {{"--model;fc:10", 4}, {"--model;fc:10;--store;cuda:0", 4},
		{"--model;fc:10;--mode;sandblaster", 4},
		{"--model;fc:10;--mode;sandblaster;--optimizer;sgd", 4}, {"--model;vector:8", 100},
		{"--model;vector:8;--store;cuda:0", 0}, {"--model;vector:8;--epochs;2", 4},
		{"--model;vector:8;--store;cuda:0;--norm-ratio;7", 7}};

	for (size_t i = 0; i < sizeof(runs) / sizeof(runs[0]); i++) {
		char text[256];

		snprintf(text, sizeof(text), "%s", runs[i].options);
		print_message("%s\n", text);
		assert_int_equal(parse_server_options(text), OPT_RUN);
		assert_true(fabs(options.core.limits.norm_ratio - runs[i].ratio) < 1e-9);
	}
}

TEST(a_vector_has_no_epochs_by_default)
{
	assert_int_equal(parse_server_options("--model;vector:50"), OPT_RUN);
	assert_int_equal(options.core.training.epochs, 0);
	assert_int_equal(options.core.n_params, 50);
	assert_int_equal(parse_server_options("--model;vector:50;--epochs;2"), OPT_RUN);
	assert_int_equal(options.core.training.epochs, 2);
	assert_int_equal(parse_server_options("--epochs;0"), OPT_RUN);
	assert_int_equal(options.core.training.epochs, 0);
}

TEST(the_number_of_bad_workers_is_a_part_of_the_rule)
{
	static const struct {
		const char *text;
		uint32_t bad_workers;
	} row[] = {{"mean", 1}, {"median", 1}, {"trimmed", 1}, {"trimmed:3", 3}, {"krum", 1},
		{"krum:2", 2}, {"krum:0", 0}};
	char line[64];

	for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
		snprintf(line, sizeof(line), "--buffer-size;7;--aggregate;%s", row[i].text);
		assert_int_equal(parse_server_options(line), OPT_RUN);
		assert_int_equal(options.core.push.bad_workers, row[i].bad_workers);
	}
	assert_int_equal(options.core.push.aggregate, AGGREGATE_KRUM);
}

TEST(empty_texts_mean_off)
{
	assert_int_equal(parse_server_options("--http;;--checkpoint-dir;;--init;"), OPT_RUN);
	assert_null(options.http);
	assert_null(options.checkpoint_dir);
	assert_null(options.init);
}

TEST(good_addresses_are_taken)
{
	static const char *const lines[] = {"--bind;tcp://*:5555;--insecure",
		"--bind;tcp://*:*;--key;k", "--bind;tcp://0.0.0.0:65535;--insecure",
		"--bind;tcp://eth0:1;--insecure", "--bind;tcp://127.1.2.3:1",
		"--bind;tcp://[::1]:1", "--bind;tcp://localhost:5555", "--bind;tcp://lo:5555",
		"--bind;tcp://[::ffff:127.0.0.1]:5555", "--http;localhost:8080", "--http;[::1]:0",
		"--http;8080", "--http;0.0.0.0:80;--http-token;t",
		"--http;[::]:80;--http-token;t;--key;k",
		"--bind;tcp://*:5555;--insecure;--http;[::]:80;--http-token;t"};

	for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++)
		if (parse_server_options(lines[i]) != OPT_RUN)
			fail_msg("%s: %s", lines[i], errors.text);
}

/* ---- invalid command lines ------------------------------------------------------------------ */

/* each row: a command line, and a text that its only error line must contain */
static const char *const bad[][2] = {
	{"--memory-mb;1", "--memory-mb: 1 is too little: the server needs at least 38"},
	{"--memory-mb;1;--input;auto",
		"--memory-mb: 1 is too little: the server needs at least 37"},
	{"--memory-mb;148;--model;vector:10000000;--epochs;0",
		"--memory-mb: 148 is too little: the server needs at least 185"},
	{"--memory-mb;148;--model;vector:10000000;--epochs;0;--optimizer;adam",
		"--memory-mb: 148 is too little: the server needs at least 223"},
	/* a step of sync keeps the gradients of six workers */
	{"--memory-mb;500;--model;fc:12000 relu fc:10;--mode;sync;--min-workers;6",
		"--memory-mb: 500 is too little: the server needs at least"},
	{"--memory-mb;500;--model;fc:12000 relu fc:10;--mode;sync;--sync-workers;6",
		"--memory-mb: 500 is too little: the server needs at least"},
	{"--lr;nan", "--lr"},
	{"--lr;inf", "--lr"},
	{"--lr;-1", "--lr"},
	{"--lr;0", "--lr"},
	{"--lr;1e7", "--lr"},
	{"--lr;1e-400", "--lr"},
	{"--lr;", "--lr"},
	{"--lr;0.1x", "--lr"},
	{"--lr;0,1", "--lr"},
	{"--lr;0x1p-3", "--lr"},
	{"--lr; 1", "--lr"},
	{"--lr;0.1;--lr;0.1", "--lr"},
	{"--lr", "--lr"},
	{"--eps;0", "--eps"},
	{"--eps;2", "--eps"},
	{"--momentum;1", "--momentum"},
	{"--momentum;-1", "--momentum"},
	{"--beta2;1", "--beta2"},
	{"--rmsprop-alpha;-1", "--rmsprop-alpha"},
	{"--weight-decay;-0.1", "--weight-decay"},
	{"--weight-decay;nan", "--weight-decay"},
	{"--weight-decay;0.5;--lr;3", "--weight-decay"},
	{"--clip-norm;-1", "--clip-norm"},
	{"--schedule;linear", "--schedule"},
	{"--schedule;cosine;--epochs;0", "--schedule"},
	{"--warmup;0.1;--model;vector:3", "--warmup"},
	{"--warmup;1.1", "--warmup"},
	{"--warmup;-1", "--warmup"},
	{"--schedule-gamma;2", "--schedule-gamma"},
	{"--schedule-every;0", "--schedule-every"},
	{"--schedule-floor;-0.1", "--schedule-floor"},
	{"--adagrad-init;-0.1", "--adagrad-init"},
	{"--reject-norm;-1", "--reject-norm"},
	{"--norm-ratio;-1", "--norm-ratio"},
	{"--aggregate;median", "--aggregate"},
	{"--aggregate;median;--mode;easgd", "--aggregate"},
	{"--aggregate;krum;--buffer-size;4", "krum:F needs 2F + 3"},
	{"--aggregate;krum;--mode;sync;--min-workers;4", "krum:F needs 2F + 3"},
	{"--aggregate;krum:2;--mode;sync;--sync-workers;6", "krum:F needs 2F + 3"},
	{"--aggregate;trimmed:2;--mode;sync;--sync-workers;4", "trimmed:F needs 2F + 1"},
	{"--aggregate;krum:3;--buffer-size;9;--max-workers;2",
		"--max-workers: --aggregate krum:F needs 2F + 3"},
	{"--aggregate;krum:3;--buffer-size;9;--max-workers;8",
		"--max-workers: --aggregate krum:F needs 2F + 3"},
	{"--mode;sync;--aggregate;krum;--sync-workers;5;--max-workers;2",
		"--max-workers: --aggregate krum:F needs 2F + 3"},
	{"--mode;ssp;--aggregate;trimmed;--buffer-size;3;--max-workers;2",
		"--max-workers: --aggregate trimmed:F needs 2F + 1"},
	{"--aggregate;median:1;--buffer-size;3", "\"median:1\" is not known"},
	{"--aggregate;trimmed:1025;--buffer-size;3", "[0, 1024]"},
	{"--bad-workers=1", "--bad-workers: was renamed to --aggregate RULE[:F]"},
	{"--epochs;-1", "--epochs"},
	{"--epochs;65537", "--epochs"},
	{"--epochs;1.5", "--epochs"},
	{"--epochs;1e1", "--epochs"},
	{"--epochs;99999999999999999999", "--epochs"},
	{"--epochs;three", "--epochs"},
	{"--batch-size;0", "--batch-size"},
	{"--batch-size;16777217", "--batch-size"},
	{"--batch-size;-100", "--batch-size"},
	{"--batch-size;+", "--batch-size"},
	{"--seed;-1", "--seed"},
	{"--seed;0x10", "--seed"},
	{"--seed;18446744073709551616", "--seed"},
	{"--checkpoint-ms;0", "--checkpoint-ms"},
	{"--checkpoint-ms;3600001", "--checkpoint-ms"},
	{"--min-workers;0", "--min-workers"},
	{"--max-workers;1025", "--max-workers"},
	{"--max-workers;0", "--max-workers"},
	{"--min-workers;3;--max-workers;2", "--min-workers"},
	{"--lease-batches;0", "--lease-batches"},
	{"--eval-images;0", "--eval-images"},
	{"--push-window;0", "--push-window"},
	{"--push-window;1025", "--push-window"},
	{"--replay-window;1025", "--replay-window"},
	{"--push-window;9;--replay-window;8", "--replay-window"},
	{"--heartbeat-ms;0", "--heartbeat-ms"},
	{"--heartbeat-ms;1500", "--suspect-ms"},
	{"--suspect-ms;10000", "--dead-ms"},
	{"--dead-ms;600001", "--session-ttl-ms"},
	{"--max-updates;-1", "--max-updates"},
	{"--max-staleness;4294967296", "--max-staleness"},
	{"--warm-start-updates;-5", "--warm-start-updates"},
	{"--optimizer;magic", "--optimizer"},
	{"--optimizer;SGD", "--optimizer"},
	{"--optimizer;", "--optimizer"},
	{"--staleness-scaling;rel", "--staleness-scaling"},
	{"--mode;sync;--epochs;0", "--mode"},
	{"--mode;ssp;--model;vector:5", "--mode"},
	{"--optimizer;lbfgs", "sandblaster"},
	{"--mode;sandblaster;--optimizer;lbfgs;--model;fc:9 dropout:0.5 fc:10",
		"--optimizer: lbfgs compares passes that must be equal: leave \"dropout:0.5\" out"},
	{"--mode;sandblaster;--optimizer;lbfgs;--model;batchnorm fc:10", "leave \"batchnorm\" out"},
	{"--mode;sandblaster;--optimizer;lbfgs;--model;flip fc:10", "leave shift and flip out"},
	{"--mode;easgd;--optimizer;adam", "--optimizer"},
	{"--mode;easgd;--weight-decay;0.01", "--weight-decay"},
	{"--mode;easgd;--clip-norm;1", "--clip-norm"},
	{"--mode;sync;--n-push;2", "--n-push"},
	{"--mode;sandblaster;--push;sum", "--push"},
	{"--mode;sync;--push;sum;--lr-scaling;sqrt", "--lr-scaling"},
	{"--mode;sync;--push;sum;--lr-scaling;linear", "--lr-scaling"},
	{"--mode;sandblaster;--n-fetch;2", "--n-fetch"},
	{"--mode;sync;--delay-compensation;constant", "--delay-compensation"},
	{"--delay-compensation;constant;--n-push;2", "--n-fetch must be a multiple"},
	{"--delay-compensation;adaptive;--n-push;2;--n-fetch;3", "--n-fetch must be a multiple"},
	{"--delay-compensation;constant;--n-push;2;--n-fetch;4;--push;sum", "--push mean"},
	{"--mode;sandblaster;--lbfgs-armijo;0.4;--lbfgs-wolfe;0.3", "--lbfgs-armijo"},
	{"--n-push;0", "--n-push"},
	{"--elastic=0.1", "--elastic: was renamed to --easgd-beta"},
	{"--decay-square=0.9", "--decay-square: was renamed to --beta2 or --rmsprop-alpha"},
	{"--optimizer;adam;--momentum;0.8",
		"--momentum: was renamed to --beta1 for --optimizer adam"},
	{"--mode;easgd;--easgd-beta;0", "--easgd-beta"},
	{"--mode;easgd;--easgd-beta;1.1", "--easgd-beta"},
	{"--mode;easgd;--easgd-momentum;1", "--easgd-momentum"},
	{"--lbfgs-history;33", "--lbfgs-history"},
	{"--mode;upside-down", "upside-down"},
	{"--mode;", "--mode"},
	{"--log-level;shout", "--log-level"},
	{"--model;", "--model"},
	{"--model;blob:3", "blob"},
	{"--model;conv:32:99 fc:10", "conv"},
	{"--model;conv:8:3 pool:4 fc:10", "pool"},
	{"--model;fc:99999999999", "fc"},
	{"--model;fc:", "fc"},
	{"--model;vector:0", "vector"},
	{"--model;vector:268435457", "vector"},
	{"--model;vector:-3", "vector"},
	{"--model;dropout:1.5 fc:10", "dropout"},
	{"--model;seed:0", "seed"},
	{"--bind;tcp://127.0.0.1:70000", "70000"},
	{"--bind;tcp://127.0.0.1:65536", "--bind"},
	{"--bind;tcp://127.0.0.1:-1", "--bind"},
	{"--bind;tcp://127.0.0.1:99999999999999999999999", "--bind"},
	{"--bind;tcp://127.0.0.1", "--bind"},
	{"--bind;tcp://:5555", "--bind"},
	{"--bind;tcp://127.0.0.1:", "--bind"},
	{"--bind;tcp://::1:5555", "--bind"},
	{"--bind;tcp://[]:5555", "--bind"},
	{"--bind;tcp://a b:5555", "--bind"},
	{"--bind;udp://127.0.0.1:5555", "--bind"},
	{"--bind;127.0.0.1:5555", "--bind"},
	{"--bind;nonsense", "nonsense"},
	{"--bind;", "--bind"},
	{"--bind;tcp://0.0.0.0:5555", "--insecure"},
	{"--bind;tcp://*:5555", "--insecure"},
	{"--bind;tcp://[::]:5555", "--insecure"},
	{"--bind;tcp://[::ffff:126.0.0.1]:5555", "--insecure"},
	{"--bind;tcp://198.18.0.1:5555", "--insecure"},
	{"--bind;tcp://1270.0.0.1:5555", "--bind"},
	{"--bind;tcp://no-such-host.invalid:5555", "has no address"},
	{"--key;k;--insecure", "only one"},
	{"--key;k;--insecure;--http;0.0.0.0:80;--http-token;t", "only one"},
	{"--authorized-keys;a", "--key"},
	{"--http;127.0.0.1:70000", "70000"},
	{"--http;70000", "70000"},
	{"--http;nonsense", "nonsense"},
	{"--http;http://127.0.0.1:80", "--http"},
	{"--http;*:80", "--http"},
	{"--http;127.0.0.1:*", "--http"},
	{"--http;0.0.0.0:80", "--http-token FILE"},
	{"--http;0.0.0.0:80;--insecure", "--http-token FILE"},
	{"--http;0.0.0.0:80;--key;k", "--http-token FILE"},
	{"--http;[::]:80", "--http-token FILE"},
	{"--http;198.18.0.1:80", "--http-token FILE"},
	{"--http;no-such-host.invalid:80", "has no address"},
	{"--checkpoint-dir;/proc/no/such/dir", "/proc/no/such/dir"},
	{"--checkpoint-dir;/dev/null", "--checkpoint-dir"},
	{"--checkpoint-dir;/dev/null/x", "--checkpoint-dir"},
	{"--checkpoint-dir;/no-such-place/x", "--checkpoint-dir"},
	{"--init;/no/such/file", "--init"},
	{"--accept-rollback=yes", "--accept-rollback"},
	{"--check-config;--no-check-config", "--check-config"},
	{"--no-such-option", "--no-such-option"},
	{"--no-such-option=3", "--no-such-option"},
	{"--no-lr", "--no-lr"},
	{"-x", "-x"},
	{"stray", "stray"},
};

TEST(each_bad_value_is_one_line_that_names_it)
{
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		if (parse_server_options(bad[i][0]) != PS_EUSAGE)
			fail_msg("accepted: %s", bad[i][0]);
		if (count_lines(errors.text) != 1 || !strstr(errors.text, bad[i][1]))
			fail_msg("%s: not one line with \"%s\": %s", bad[i][0], bad[i][1],
				errors.text);
	}
}

TEST(texts_too_long_or_with_control_characters_are_one_line)
{
	char line[3000] = "--model;";
	size_t n = strlen(line);

	memset(line + n, 'x', 2900);
	line[n + 2900] = '\0';
	assert_int_equal(parse_server_options(line), PS_EUSAGE);
	assert_int_equal(count_lines(errors.text), 1);
	memcpy(line, "--bind;tcp", 10);
	assert_int_equal(parse_server_options(line), PS_EUSAGE);
	assert_int_equal(count_lines(errors.text), 1);
	assert_int_equal(parse_server_options("--bind;a\nb\x1b[2J"), PS_EUSAGE);
	assert_int_equal(count_lines(errors.text), 1);
	assert_null(strchr(errors.text, '\x1b'));
}

TEST(all_errors_are_reported_in_one_run)
{
	static const char *const named[] = {"--lr", "--epochs", "--optimizer", "--model", "--bind",
		"--http", "--mode", "--checkpoint-dir", "--init", "--no-such-option"};

	assert_int_equal(
		parse_server_options(
			"--lr;nan;--epochs;-1;--optimizer;magic;--model;blob;--bind;x;--http;y;"
			"--mode;z;--checkpoint-dir;/proc/a/b;--init;/no/file;--no-such-option"),
		PS_EUSAGE);
	for (size_t i = 0; i < sizeof(named) / sizeof(named[0]); i++)
		if (!strstr(errors.text, named[i]))
			fail_msg("%s is not in:\n%s", named[i], errors.text);
	assert_int_equal(count_lines(errors.text), 10);
}

TEST(a_bad_environment_is_named_by_its_variable)
{
	setenv("CNN_LR", "nan", 1);
	setenv("CNN_SUSPECT_MS", "11", 1);
	assert_int_equal(parse_server_options(""), PS_EUSAGE);
	assert_non_null(strstr(errors.text, "CNN_LR"));
	assert_non_null(strstr(errors.text, "CNN_SUSPECT_MS"));
	unsetenv("CNN_LR");
	unsetenv("CNN_SUSPECT_MS");
}

TEST(a_bad_configuration_leaves_no_directory_behind)
{
	char line[256];

	snprintf(line, sizeof(line), "--lr;nan;--checkpoint-dir;%s/new", temp_dir);
	assert_int_equal(parse_server_options(line), PS_EUSAGE);
	assert_false(temp_dir_exists(temp_dir, "new"));
	/* one error line, because only --lr is invalid */
	assert_int_equal(count_lines(errors.text), 1);
	snprintf(line, sizeof(line), "--checkpoint-dir;%s/new", temp_dir);
	assert_int_equal(parse_server_options(line), OPT_RUN);
	assert_false(temp_dir_exists(temp_dir, "new"));
}

TEST(a_file_is_no_checkpoint_directory)
{
	char line[256];

	temp_dir_write(temp_dir, "file", "x", 1);
	snprintf(line, sizeof(line), "--checkpoint-dir;%s/file", temp_dir);
	assert_int_equal(parse_server_options(line), PS_EUSAGE);
	snprintf(line, sizeof(line), "--checkpoint-dir;%s/file/sub", temp_dir);
	assert_int_equal(parse_server_options(line), PS_EUSAGE);
}

TEST_GROUP(set_up_options, temp_dir_tear_down)
