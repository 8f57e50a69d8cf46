/* options.c - see options.h. */
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include "common/endpoint.h"
#include "common/log.h"
#include "kernels/backend.h"
#include "proto/wire.h"
#include "worker/options.h"

#define PROGRAM     "cnn-worker"
#define MAX_THREADS 256
#define DAY_MS      86400000

/* Returns the number of CPUs on which this process may run. */
static int64_t cpu_count(void)
{
	cpu_set_t set;

	if (sched_getaffinity(0, sizeof(set), &set))
		return 1;
	return CPU_COUNT(&set) < MAX_THREADS ? CPU_COUNT(&set) : MAX_THREADS;
}

int options_check_server(const char *program, const char *server)
{
	struct endpoint e;
	struct err line;

	if (!endpoint_parse(server, &e) && e.number > 0)
		return PS_OK;
	err_set(&line, PS_EUSAGE, "--server: \"%.100s\": expected tcp://HOST:PORT, PORT 1 to 65535",
		server);
	fprintf(stderr, "%s: %s\n", program, line.text);
	return PS_EUSAGE;
}

/* Checks the text of --name before the worker connects. The error of a server that refused the name
 * would not mention the option. */
static int check_name(const char *name)
{
	struct err line;

	if (wire_is_line(name))
		return PS_OK;
	err_set(&line, PS_EUSAGE,
		"--name: \"%.100s\": expected no tabs or other control characters", name);
	fprintf(stderr, PROGRAM ": %s\n", line.text);
	return PS_EUSAGE;
}

/* NOLINTBEGIN(bugprone-macro-parentheses): C permits no parentheses around a member or an
 * initialiser */
/* clang-format off */
#define TEXT(n, to, d, min_, max_, a, h) \
	{.name = n, .type = OPT_TEXT, .dest = &o->to, .def = d, .min = min_, .max = max_, \
	 .arg = a, .help = h}
#define INT(n, to, d, min_, max_, a, ...) \
	{.name = n, .type = OPT_INT, .dest = &o->to, .def = d, .min = min_, .max = max_, \
	 .arg = a, .help = __VA_ARGS__}
/* clang-format on */
/* NOLINTEND(bugprone-macro-parentheses) */

int worker_options_parse(struct worker_options *o, int argc, char **argv)
{
	const struct opt rows[] = {
		OPTIONS_SERVER_ROW(&o->server, NULL),
		OPTIONS_KEY_ROW(&o->key, NULL),
		OPTIONS_SERVER_KEY_ROW(&o->server_key, NULL),
		OPTIONS_DATA_ROW(&o->data, NULL),
		TEXT("device", device, "auto", 1, WIRE_MAX_NAME, "DEVICE",
			"device that computes the gradients: auto (a GPU if one works, else the "
			"CPU), cuda (the GPU with the least memory in use; under Slurm the GPU "
			"with number SLURM_LOCALID), cuda:N (GPU N), cpu (threads and SIMD), "
			"cpu-ref (slow reference)"),
		{.name = "precision",
			.type = OPT_ENUM,
			.dest = &o->precision,
			.def = "fp32",
			.values = KX_PRECISION_NAMES,
			.arg = "NAME",
			.help = "number format of products on device cuda; other devices support "
				"only fp32"},
		{.name = "kernels",
			.type = OPT_ENUM,
			.dest = &o->kernels,
			.def = "auto",
			.values = KX_KERNELS_NAMES,
			.arg = "NAME",
			.help = "kernels that device cuda uses; auto: the fastest kernels that fit "
				"the model; general: only kernels that run any model"},
		INT("threads", threads, NULL, 1, MAX_THREADS, "N",
			"number of threads of device cpu", .unset = "one per CPU"),
		{.name = "name",
			.type = OPT_TEXT,
			.dest = &o->name,
			.max = WIRE_MAX_NAME,
			.arg = "NAME",
			.help = "name of this worker, which keeps its slot across restarts; a "
				"second worker with the same name ends the first one",
			.unset = "the server chooses a slot"},
		INT("connect-timeout-ms", connect_timeout_ms, "30000", 1, DAY_MS, "MS",
			"exit if the server does not answer within this time after the start",
			.was = "connect-ms"),
		INT("disconnect-timeout-ms", disconnect_timeout_ms, "600000", 1, DAY_MS, "MS",
			"exit after this time without contact to the server", .was = "patience-ms"),
		INT("batch-timeout-ms", batch_timeout_ms, "60000", 100, DAY_MS, "MS",
			"stop the heartbeats if one batch takes longer than this, so that the "
			"server regards this worker as hung",
			.was = "hang-ms"),
		INT("grace-ms", grace_ms, "10000", 100, DAY_MS, "MS",
			"exit with status 12 at the latest this time after SIGTERM, even if the "
			"last push or the goodbye to the server is not finished"),
		INT("device-timeout-ms", device_timeout_ms, "600000", 100, DAY_MS, "MS",
			"exit with status 13 if the device takes longer than this for one call"),
		INT("replay-mb", replay_mb, "256", 1, 1048576, "MIB",
			"maximum memory for gradients that are not yet on the server's disk"),
		INT("data-memory-mb", data_mb, "0", 0, 1 << 24, "MIB",
			"maximum memory for images; larger plain files stay on the disk and are "
			"read batch by batch; larger gzipped files and larger files of EMNIST are "
			"refused; 0: half of the machine's memory"),
		{.name = "lane",
			.type = OPT_ENUM,
			.dest = &o->lane,
			.def = "auto",
			.values = "auto|tcp|shm",
			.arg = "LANE",
			.help = "how gradients and weights travel; auto: in shared memory if the "
				"server is on this host and permits it, else over the connection; "
				"tcp: over the connection; shm: in shared memory; exit if that is "
				"not possible"},
		{.name = "print-data-id",
			.type = OPT_FLAG,
			.dest = &o->print_data_id,
			.def = "0",
			.help = "print the fingerprint of the data set, for cnn-ps --data-id, and "
				"exit"},
		OPTIONS_LOG_ROW(&o->log_level, "info"),
		OPTIONS_LOG_FORMAT_ROW(&o->log_format),
		{0},
	};
	const struct opt_program program = {.name = PROGRAM,
		.usage = "[OPTION...]",
		.about = "Compute gradients for a cnn-ps server until the training is done.",
		.opts = rows,
		.max_args = 0};
	const char *none;
	int n_args, status;

	*o = (struct worker_options){.name = "", .threads = cpu_count()};
	status = opt_parse(&program, argc, argv, &none, &n_args);
	if (status == OPT_EXIT)
		return OPT_EXIT;
	if (o->server && options_check_server(PROGRAM, o->server))
		status = PS_EUSAGE;
	if (o->name && check_name(o->name))
		status = PS_EUSAGE;
	if (status)
		return status;
	log_set_format((enum log_format)o->log_format);
	log_set_level((enum log_level)o->log_level);
	opt_check(&program, NULL);
	opt_dump(&program);
	return OPT_RUN;
}
