/*
 * options.h - the command line of cnn-worker.
 *
 * Thread: main, at start-up.
 */
#ifndef WORKER_OPTIONS_H
#define WORKER_OPTIONS_H
#include <stdint.h>
#include "common/err.h"
#include "common/opt.h"

struct worker_options {
	const char *server, *data, *device, *name; /* data NULL: search the usual directories */
	const char *key, *server_key;              /* key files, or NULL */
	int64_t threads, connect_timeout_ms, disconnect_timeout_ms, batch_timeout_ms, grace_ms,
		device_timeout_ms, replay_mb, data_mb, memory_mb;
	int precision, kernels; /* enums kx_precision, kx_kernels */
	int print_data_id;
	int lane; /* enum cnnps_lane */
	int wire; /* enum cnnps_wire */
	int64_t connections;
	int log_level, log_format; /* enums of common/log.h */
};

/* Parses the command line. Returns OPT_RUN, OPT_EXIT, or PS_EUSAGE after it has printed the errors
 * on stderr. */
int worker_options_parse(struct worker_options *o, int argc, char **argv) PS_MUST_CHECK;

#endif
