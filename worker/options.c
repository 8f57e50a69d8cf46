/* options.c - see options.h. */
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include "common/client_opt.h"
#include "common/log.h"
#include "common/opt.h"
#include "kernels/backend.h"
#include "proto/lane.h"
#include "proto/wire.h"
#include "worker/client/cnnps.h"
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
		CLIENT_OPT_SERVER(&o->server, NULL),
		CLIENT_OPT_KEY(&o->key, NULL),
		CLIENT_OPT_SERVER_KEY(&o->server_key, NULL),
		CLIENT_OPT_DATA(&o->data, NULL),
		TEXT("device", device, "auto", 1, WIRE_MAX_NAME, "DEVICE",
			"device that computes the gradients: auto is a GPU if one works, else the "
			"CPU; cuda is the GPU with the least memory in use or, under Slurm, the "
			"GPU with number SLURM_LOCALID; cuda:N is GPU number N; cpu is the CPU, "
			"with threads and SIMD; cpu-ref is a slow reference implementation on the "
			"CPU"),
		{.name = "precision",
			.type = OPT_ENUM,
			.dest = &o->precision,
			.def = "fp32",
			.values = KX_PRECISION_NAMES,
			.arg = "NAME",
			.help = "number format in which device cuda multiplies numbers in "
				"convolutions and fully connected layers; tf32 and bf16 are faster "
				"than fp32 and less exact; tf32x3 is as exact as fp32 except in "
				"the gradients of convolutions (docs/gpu.md); other devices "
				"support only fp32"},
		{.name = "kernels",
			.type = OPT_ENUM,
			.dest = &o->kernels,
			.def = "auto",
			.values = KX_KERNELS_NAMES,
			.arg = "NAME",
			.help = "kernels that device cuda uses: auto uses the fastest kernels that "
				"fit the model; general uses only those kernels that run any "
				"model"},
		INT("threads", threads, NULL, 1, MAX_THREADS, "N",
			"number of threads of device cpu", .unset = "one per CPU"),
		{.name = "name",
			.type = OPT_TEXT,
			.dest = &o->name,
			.max = WIRE_MAX_NAME,
			.arg = "NAME",
			.help = "name of this worker; a worker that restarts with the same name "
				"gets its earlier slot (the server's entry for one worker) again; "
				"a running worker exits when another one with its name joins",
			.unset = "the server chooses a slot"},
		INT("connect-timeout-ms", connect_timeout_ms, "30000", 1, DAY_MS, "MS",
			"exit if the server does not answer within MS milliseconds after the start",
			.was = "connect-ms"),
		INT("disconnect-timeout-ms", disconnect_timeout_ms, "600000", 1, DAY_MS, "MS",
			"exit after MS milliseconds in a row without contact to the server",
			.was = "patience-ms"),
		INT("batch-timeout-ms", batch_timeout_ms, "60000", 100, DAY_MS, "MS",
			"stop the heartbeats if one batch takes longer than MS milliseconds, so "
			"that the server gives the work of this worker to others",
			.was = "hang-ms"),
		INT("grace-ms", grace_ms, "10000", 100, DAY_MS, "MS",
			"exit with status 12 at the latest MS milliseconds after SIGTERM, even if "
			"the last push or the message that the worker leaves (BYE) is not "
			"finished"),
		INT("device-timeout-ms", device_timeout_ms, "600000", 100, DAY_MS, "MS",
			"exit with status 13 if the device does not answer one call of the worker "
			"within MS milliseconds"),
		INT("replay-mb", replay_mb, "256", 1, 1048576, "MIB",
			"maximum memory, in MiB, for pushed gradients that are not yet on the "
			"server's disk; a worker that has reached it waits before it pushes again, "
			"but always keeps one gradient, whatever its size"),
		INT("data-memory-mb", data_mb, "0", 0, 1 << 24, "MIB",
			"maximum memory, in MiB, for the images of the data set; if they need "
			"more, the worker reads plain files batch by batch from the disk, and "
			"refuses gzipped files and files of EMNIST; 0 means half of the machine's "
			"memory"),
		INT("memory-mb", memory_mb, "0", 0, 1 << 24, "MIB",
			"maximum memory, in MiB, for the model of the server and the activations "
			"of its layers; if a model needs more, the worker exits with status 1; 0 "
			"means half of the memory of the machine or container"),
		{.name = "lane",
			.type = OPT_ENUM,
			.dest = &o->lane,
			.def = "auto",
			.values = LANE_NAMES,
			.arg = "LANE",
			.help = "how gradients and weights travel: auto uses shared memory if the "
				"server is on this host and permits it, else the connection; tcp "
				"uses the connection; shm uses shared memory, and the worker "
				"exits if that is not possible"},
		{.name = "wire",
			.type = OPT_ENUM,
			.dest = &o->wire,
			.def = "fp32",
			.values = "fp32|bf16",
			.arg = "FORMAT",
			.help = "number format of gradients and weights on the connection; bf16 "
				"needs half of the bytes of fp32, and the worker adds the rounding "
				"error of a gradient to the next gradient; shared memory (--lane) "
				"always has fp32"},
		INT("connections", connections, "1", 1, WIRE_MAX_CONNECTIONS, "N",
			"number of connections over which large gradients and weights travel; if "
			"the server's own --connections is smaller, its value applies "
			"(docs/connections.md)"),
		{.name = "print-data-id",
			.type = OPT_FLAG,
			.dest = &o->print_data_id,
			.def = "0",
			.help = "print the fingerprint of the data set and the numbers of its "
				"training and test images, which cnn-ps --data-id takes, and exit"},
		CLIENT_OPT_LOG_LEVEL(&o->log_level, "info"),
		CLIENT_OPT_LOG_FORMAT(&o->log_format),
		{0},
	};
	const struct opt_program program = {.name = PROGRAM,
		.usage = "[OPTION...]",
		.about = "Compute gradients for a cnn-ps server until the training is done.",
		.opts = rows,
		.max_args = 0};
	const char *none;
	int n_args, rc;

	*o = (struct worker_options){.name = "", .threads = cpu_count()};
	rc = opt_parse(&program, argc, argv, &none, &n_args);
	if (rc == OPT_EXIT)
		return OPT_EXIT;
	if (o->server && client_opt_check_server(PROGRAM, o->server))
		rc = PS_EUSAGE;
	if (o->name && check_name(o->name))
		rc = PS_EUSAGE;
	if (o->wire == CNNPS_WIRE_BF16 && o->lane == CNNPS_LANE_SHM) {
		fprintf(stderr, PROGRAM ": --wire bf16: expected no --lane shm, because shared "
					"memory has fp32: use --lane auto or tcp\n");
		rc = PS_EUSAGE;
	}
	if (rc)
		return rc;
	log_set_format((enum log_format)o->log_format);
	log_set_level((enum log_level)o->log_level);
	opt_check(&program, NULL);
	opt_dump(&program);
	return OPT_RUN;
}
