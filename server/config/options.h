/*
 * options.h - the table of the options of cnn-ps, and the checks of their values.
 *
 * The functions in this header bind no port and write no file. If the configuration is wrong,
 * options_parse prints all its errors on stderr. Only the main thread calls these functions, at
 * start-up.
 */
#ifndef SERVER_CONFIG_OPTIONS_H
#define SERVER_CONFIG_OPTIONS_H
#include <stdint.h>
#include "common/err.h"
#include "common/log.h"
#include "common/model.h"
#include "proto/lane.h"
#include "server/config/keep_rule.h"
#include "server/config/stop_rule.h"
#include "server/core/core.h"

/* With --input auto, the workers of each key may change the images IMAGES_CHANGES times, for at
 * most IMAGES_KEYS keys. Without keys, all workers count as one key. */
#define IMAGES_CHANGES 8u
#define IMAGES_KEYS    64u

/* the values of --sandbox (sandbox.h) */
enum sandbox { SANDBOX_AUTO, SANDBOX_REQUIRE, SANDBOX_OFF };

struct gpu_store; /* see server/device/gpu_store.h */

struct options {
	/* all members are set except run, term and generation, which startup.c sets later */
	struct core_config core;

	/* These members have the options of the shell as the user gave them. A text is NULL if the
	 * user did not give the option or gave "". */
	const char *model_text; /* --model */
	const char *input;      /* --input: "CxHxW" or "auto" */
	int64_t classes;        /* --classes; 0: not given */
	const char *init;       /* --init: a .safetensors file */
	const char *data_id;    /* --data-id: FINGERPRINT[:TRAIN:TEST] */
	const char *metrics;    /* --metrics: names with commas between them */
	const char *bind;       /* --bind: "tcp://HOST:PORT"; PORT 0 or *: any free port */
	const char *key;        /* --key: file of the secret key; NULL: no encryption */
	/* --authorized-keys: file of the list of keys; NULL: AUTHORIZED_KEYS_FILE in the directory
	 * of `key` */
	const char *authorized_keys;
	/* --insecure; 1: --bind may be reachable from other machines although the server has no
	 * keys */
	int insecure;
	const char *http;       /* --http: "HOST:PORT" or "PORT"; NULL: no HTTP port */
	const char *http_token; /* --http-token: file of the token; NULL: no token */
	const char *stop_at;    /* --stop-at: "accuracy=X" */
	int64_t patience_epochs;
	const char *checkpoint_dir; /* --checkpoint-dir; NULL: no checkpoints */
	const char *keep_text;      /* --keep */
	enum sandbox sandbox;
	int64_t memory_mb; /* --memory-mb; 0: 80 % of the memory of the machine or container */
	enum lane_choice lane;
	const char *lane_socket;
	/* --connections: maximum number of connections for the tensors of each worker */
	int64_t connections;
	int64_t wal_mb;
	int64_t threads;   /* --threads; 0: the server chooses the number */
	const char *store; /* --store: "host" or "cuda:N" */
	enum log_level log_level;
	enum log_format log_format;
	int check_config; /* 1: only check and print the configuration */

	/* The following values follow from the options. */
	struct model model;
	int auto_input;        /* 1: --input auto (images.h) */
	struct stop_rule stop; /* --stop-at, --patience-epochs */
	struct keep_rule keep;
	/* if more memory is in use, the server closes all connections; 0: 80 % of the memory of the
	 * machine or container */
	uint64_t memory_bytes;
	/* size of the write-ahead log from which on the server takes a checkpoint */
	uint64_t wal_bytes;
	/* number of threads that process vectors, including the main thread; at least 1 */
	size_t n_threads;
	size_t n_cpus;  /* number of CPUs on which this process may run */
	int store_gpu;  /* the N of --store cuda:N; -1: host */
	uint32_t sides; /* maximum number of side connections of a worker (server/net/sides.h) */
	/* the Unix socket of shared-memory lanes; "": none */
	char lane_path[WIRE_MAX_SOCKET + 1];
	/* 1: --norm-ratio is on the command line or in the environment */
	int norm_ratio_given;
	/* the defaults of --lr and --local-lr, which depend on other options */
	double usual_rate, usual_local_rate;

	/* The server sets the following values after options_parse. */
	/* how often the workers of each key have changed the images (images.h) */
	struct images_key {
		char owner[WIRE_MAX_OWNER + 1];
		uint32_t changes;
	} images_key[IMAGES_KEYS];
	int unknown_images;      /* 1: no worker has joined yet, so `model` cannot be trained */
	int new_run;             /* 1: begin a new run, even if the directory has a checkpoint */
	struct gpu_store *gpu;   /* the GPU of --store cuda:N; NULL: --store host; main owns it */
	int made_checkpoint_dir; /* 1: sandbox_enter created the checkpoint directory */
	/* the socket that listens on lane_path for the life of the process (net/lane.h); -1: none,
	 * for the reason in lane_why */
	int lane_fd;
	struct err lane_why;
};

/* Reads the options from the command line and the environment. Returns OPT_RUN, OPT_EXIT (after
 * --help or --version), or PS_EUSAGE after one line per error on stderr. The texts in *o are valid
 * as long as argv and the environment do not change. */
int options_parse(struct options *o, int argc, char **argv) PS_MUST_CHECK;

/* Returns the number of workers' keys that --aggregate needs to withstand a key whose gradients are
 * wrong. Returns 0 for the rule `mean`. */
size_t options_keys_needed(const struct core_config *c);

#endif
