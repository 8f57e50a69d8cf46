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

/* --sandbox: sandbox.h */
enum sandbox { SANDBOX_AUTO, SANDBOX_REQUIRE, SANDBOX_OFF };

struct gpu_store; /* server/device/gpu_store.h */

struct options {
	/* complete except for run, term and generation, which startup.c sets */
	struct core_config core;

	/* These members have the options of the shell as the user gave them. A text is NULL if the
	 * user gave nothing or "". */
	const char *model_text; /* --model */
	const char *input;      /* "CxHxW" or "auto" */
	int64_t classes;        /* --classes; 0: the number of classes of the images */
	const char *init;       /* a .safetensors file */
	const char *data_id;    /* FINGERPRINT[:TRAIN:TEST] */
	const char *metrics;    /* names with commas */
	const char *bind;       /* "tcp://HOST:PORT"; PORT 0 or *: any free port */
	const char *key;        /* file of the secret key; NULL: no encryption */
	/* file of the list; NULL: AUTHORIZED_KEYS_FILE in the directory of `key` */
	const char *authorized_keys;
	int insecure;           /* 1: other machines may connect to --bind without keys */
	const char *http;       /* "HOST:PORT" or "PORT"; NULL: off */
	const char *http_token; /* file of the token; NULL: no token */
	const char *stop_at;    /* "accuracy=X" */
	int64_t patience_epochs;
	const char *checkpoint_dir; /* NULL: no checkpoints */
	const char *keep_text;      /* --keep */
	enum sandbox sandbox;
	int64_t memory_mb; /* 0: 80 % of the memory of the machine or container */
	enum lane_choice lane;
	const char *lane_socket;
	int64_t connections; /* maximum number of connections for the tensors of a worker */
	int64_t wal_mb;
	int64_t threads;   /* 0: automatic */
	const char *store; /* "host" or "cuda:N" */
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
	size_t n_cpus;  /* CPUs on which this process may run */
	int store_gpu;  /* the N of --store cuda:N; -1: host */
	uint32_t sides; /* maximum number of side connections of a worker (server/net/sides.h) */
	/* the Unix socket of shared-memory lanes; "": none */
	char lane_path[WIRE_MAX_SOCKET + 1];
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
	struct gpu_store *gpu;   /* NULL: --store host; main owns it */
	int made_checkpoint_dir; /* 1: the directory is new (sandbox.c) */
};

/* Reads the options from the command line and the environment. Returns OPT_RUN, OPT_EXIT (after
 * --help or --version), or PS_EUSAGE after one line per error on stderr. The texts in *o are valid
 * as long as argv and the environment do not change. */
int options_parse(struct options *o, int argc, char **argv) PS_MUST_CHECK;
/* Sets the fields of *c that follow from the model. */
void options_fill_model(struct core_config *c, const struct model *m);
/* Sets only the fields n_running and running of *c. */
void options_fill_running(struct core_config *c, const struct model *m);

/* Returns the number of workers' keys that --aggregate needs to withstand a key whose gradients are
 * wrong. Returns 0 for the rule `mean`. */
size_t options_keys_needed(const struct core_config *c);

#endif
