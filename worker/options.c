/* options.c - see options.h. */
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/log.h"
#include "proto/msg.h"
#include "worker/options.h"

#define PROGRAM     "cnn-worker"
#define MAX_THREADS 256
#define DAY_MS      86400000

/* The CPUs this process may run on. */
static int64_t cpu_count(void)
{
	cpu_set_t set;

	if (sched_getaffinity(0, sizeof set, &set))
		return 1;
	return CPU_COUNT(&set) < MAX_THREADS ? CPU_COUNT(&set) : MAX_THREADS;
}

static int is_port(const char *text)
{
	char *end;
	unsigned long port;

	errno = 0;
	port = strtoul(text, &end, 10);
	return !errno && !*end && text[0] >= '0' && text[0] <= '9' && port >= 1 && port <= 65535;
}

int options_check_server(const char *program, const char *server)
{
	const char *host = server + 6, *colon = strrchr(server, ':');
	struct err line;

	if (!strncmp(server, "tcp://", 6) && colon > host && is_port(colon + 1) &&
		!strpbrk(host, " /"))
		return PS_OK;
	err_set(&line, PS_EUSAGE, "--server: \"%.100s\": expected tcp://HOST:PORT, PORT 1 to 65535",
		server);
	fprintf(stderr, "%s: %s\n", program, line.text);
	return PS_EUSAGE;
}

int worker_options_parse(struct worker_options *o, int argc, char **argv)
{
	const struct opt rows[] = {
		OPTIONS_SERVER_ROW(&o->server),
		OPTIONS_DATA_ROW(&o->data),
		{.name = "device",
			.type = OPT_TEXT,
			.dest = &o->device,
			.def = "auto",
			.min = 1,
			.max = WIRE_MAX_NAME,
			.arg = "DEVICE",
			.help = "what computes gradients: auto, cpu (threads and SIMD), cpu-ref "
				"(slow and obvious)"},
		{.name = "threads",
			.type = OPT_INT,
			.dest = &o->threads,
			.min = 1,
			.max = MAX_THREADS,
			.arg = "N",
			.help = "threads of device cpu; without it one per CPU"},
		{.name = "name",
			.type = OPT_TEXT,
			.dest = &o->name,
			.max = WIRE_MAX_NAME,
			.arg = "NAME",
			.help = "a name keeps its worker slot over restarts; a second worker of "
				"that "
				"name ends the first"},
		{.name = "connect-ms",
			.type = OPT_INT,
			.dest = &o->connect_ms,
			.def = "30000",
			.min = 1,
			.max = DAY_MS,
			.arg = "MS",
			.help = "give up when the server has not answered so long after the start"},
		{.name = "patience-ms",
			.type = OPT_INT,
			.dest = &o->patience_ms,
			.def = "600000",
			.min = 1,
			.max = DAY_MS,
			.arg = "MS",
			.help = "give up so long after contact with the server was lost"},
		{.name = "hang-ms",
			.type = OPT_INT,
			.dest = &o->hang_ms,
			.def = "60000",
			.min = 100,
			.max = DAY_MS,
			.arg = "MS",
			.help = "a batch that takes longer counts as a hang: heartbeats stop"},
		{.name = "replay-mb",
			.type = OPT_INT,
			.dest = &o->replay_mb,
			.def = "256",
			.min = 1,
			.max = 1048576,
			.arg = "MB",
			.help = "most memory for gradients that the server does not have on disk "
				"yet"},
		OPTIONS_LOG_ROW(&o->log_level, "info"),
		{0},
	};
	const struct opt_program program = {.name = PROGRAM,
		.usage = "[OPTION...]",
		.about = "Compute gradients for a cnn-ps server, until it says that training is "
			 "done.",
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
	if (status)
		return status;
	log_set_level((enum log_level)o->log_level);
	opt_dump(&program);
	return OPT_RUN;
}
