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
	/* if `data` is NULL, the worker searches the usual directories */
	const char *server, *data, *device, *name;
	const char *key, *server_key; /* names of key files; NULL: the option is not given */
	int64_t threads, connect_timeout_ms, disconnect_timeout_ms, batch_timeout_ms, grace_ms,
		device_timeout_ms, replay_mb, data_mb, memory_mb;
	int precision, kernels; /* values of enum kx_precision and enum kx_kernels */
	int print_data_id;
	int lane; /* a value of enum cnnps_lane */
	int wire; /* a value of enum cnnps_wire */
	int64_t connections;
	int log_level, log_format; /* values of the enums of common/log.h */
};

/* Parses the command line. Returns OPT_RUN, OPT_EXIT, or PS_EUSAGE after it has printed the errors
 * on stderr. */
int worker_options_parse(struct worker_options *o, int argc, char **argv) PS_MUST_CHECK;

#endif
