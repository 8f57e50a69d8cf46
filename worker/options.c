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

/* DIGITS(MACRO): the number that MACRO stands for, as a string */
#define DIGITS(macro)     DIGITS_OF(macro)
#define DIGITS_OF(number) #number

/* Returns the number of CPUs on which this process may run. */
static int64_t cpu_count(void)
{
	cpu_set_t set;

	if (sched_getaffinity(0, sizeof(set), &set))
		return 1;
	return CPU_COUNT(&set) < MAX_THREADS ? CPU_COUNT(&set) : MAX_THREADS;
}

/* Checks the text of --name before the worker connects. Otherwise the server would refuse the name
 * with an error that does not mention the option. */
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
			"device that computes the gradients (docs/gpu.md): cuda is the GPU with "
			"the least memory in use or, under Slurm, the GPU whose number is "
			"SLURM_LOCALID modulo the number of GPUs; cuda:N is GPU number N; cpu is "
			"the CPU, with threads and SIMD; cpu-ref is the CPU, with a slow "
			"reference implementation. The value auto is the same GPU as cuda or, if "
			"no GPU works or has enough memory for the model, the CPU"),
		{.name = "precision",
			.type = OPT_ENUM,
			.dest = &o->precision,
			.def = "fp32",
			.values = KX_PRECISION_NAMES,
			.arg = "NAME",
			.help = "number format of the multiplications in convolutions and fully "
				"connected layers on device cuda (docs/gpu.md). The formats tf32 "
				"and bf16 are faster than fp32, but less exact. The format "
				"tf32x3 is as exact as fp32, except in the gradients of "
				"convolutions. Other devices support only fp32"},
		{.name = "kernels",
			.type = OPT_ENUM,
			.dest = &o->kernels,
			.def = "auto",
			.values = KX_KERNELS_NAMES,
			.arg = "NAME",
			.help = "kernels (functions for the GPU) that device cuda uses: auto "
				"uses the fastest kernels that support the model; general uses "
				"only the kernels that support every model"},
		INT("threads", threads, NULL, 1, MAX_THREADS, "N",
			"number of threads that device cpu uses; other devices ignore this option",
			.unset = "one per CPU"),
		{.name = "name",
			.type = OPT_TEXT,
			.dest = &o->name,
			.max = WIRE_MAX_NAME,
			.arg = "NAME",
			.help = "name of this worker. A worker that is started again with the "
				"same name gets its earlier slot (the server's entry for one "
				"worker). If another worker with this name joins, this worker "
				"exits",
			.unset = "the server chooses a slot"},
		INT("connect-timeout-ms", connect_timeout_ms, DIGITS(CNNPS_CONNECT_TIMEOUT_MS), 1,
			DAY_MS, "MS",
			"number of milliseconds for which the worker, after its start, waits "
			"until the server accepts the worker; after this time, the worker exits "
			"with status 3",
			.was = "connect-ms"),
		INT("disconnect-timeout-ms", disconnect_timeout_ms,
			DIGITS(CNNPS_DISCONNECT_TIMEOUT_MS), 1, DAY_MS, "MS",
			"number of milliseconds without contact with the server after which the "
			"worker exits with status 3",
			.was = "patience-ms"),
		INT("batch-timeout-ms", batch_timeout_ms, DIGITS(CNNPS_BATCH_TIMEOUT_MS), 100,
			DAY_MS, "MS",
			"maximum number of milliseconds for one batch; if a batch takes longer, "
			"the worker sends no more heartbeats, so that the server gives the work "
			"of this worker to other workers",
			.was = "hang-ms"),
		INT("grace-ms", grace_ms, "10000", 100, DAY_MS, "MS",
			"maximum number of milliseconds from SIGTERM to the exit of the worker "
			"(status 12); after this time, the worker exits even if it has not "
			"finished its last push or its last message to the server (BYE)"),
		INT("device-timeout-ms", device_timeout_ms, "600000", 100, DAY_MS, "MS",
			"maximum number of milliseconds for one call of the device (--device); "
			"if a call takes longer, the worker exits with status 13"),
		INT("replay-mb", replay_mb, DIGITS(CNNPS_REPLAY_MIB), 1, 1048576, "MIB",
			"maximum memory, in MiB, for pushed gradients that are not yet saved on "
			"the server's disk; if the next gradient does not fit, the worker waits "
			"before it pushes again. One gradient is always permitted, whatever its "
			"size"),
		INT("data-memory-mb", data_mb, "0", 0, 1 << 24, "MIB",
			"maximum memory, in MiB, for the images of the data set. If a plain file "
			"of images does not fit, the worker reads the images of this file batch "
			"by batch; gzipped files and files of EMNIST must fit. 0 means half of "
			"the memory of the machine or container"),
		INT("memory-mb", memory_mb, "0", 0, 1 << 24, "MIB",
			"maximum memory, in MiB, for the model of the run and the activations of "
			"its layers; if the model needs more, the worker exits with status 1. The "
			"value 0 means half of the memory of the machine or container"),
		{.name = "lane",
			.type = OPT_ENUM,
			.dest = &o->lane,
			.def = "auto",
			.values = LANE_NAMES,
			.arg = "LANE",
			.help = "how gradients and weights travel between worker and server "
				"(docs/lane.md): auto uses shared memory if the server is on "
				"this host and offers it, otherwise the network connection; tcp "
				"always uses the network connection; shm uses shared memory, and "
				"the worker exits if that is not possible"},
		{.name = "wire",
			.type = OPT_ENUM,
			.dest = &o->wire,
			.def = "fp32",
			.values = "fp32|bf16",
			.arg = "FORMAT",
			.help = "number format of gradients and weights on the network "
				"connection: bf16 takes half as many bytes as fp32, but is less "
				"exact (docs/bf16.md). With bf16, the worker adds the rounding "
				"error of each gradient to its next gradient, and receives the "
				"weights for evaluations in fp32. Shared memory (--lane) always "
				"uses fp32"},
		INT("connections", connections, "1", 1, WIRE_MAX_CONNECTIONS, "N",
			"number of connections over which the worker sends large gradients and "
			"receives large weights (docs/connections.md); if the server's "
			"--connections is smaller, the worker uses that number instead"),
		{.name = "print-data-id",
			.type = OPT_FLAG,
			.dest = &o->print_data_id,
			.def = "0",
			.help = "print the identity of the data set in the form of cnn-ps "
				"--data-id (the fingerprint, the number of training images and "
				"the number of test images), and exit"},
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
