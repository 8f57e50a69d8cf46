/*
 * options.h - the table of the options of cnn-ps, and the checks of their values.
 *
 * These functions bind, create and write nothing. If the configuration is wrong, all its errors
 * appear on stderr, and the machine is unchanged. Thread: main, at start-up.
 */
#ifndef SERVER_CONFIG_OPTIONS_H
#define SERVER_CONFIG_OPTIONS_H
#include "common/err.h"
#include "common/log.h"
#include "common/model.h"
#include "server/config/keep_rule.h"
#include "server/config/stop_rule.h"
#include "server/core/core.h"

/* --lane: shared memory for workers on this host (server/net/lane.h) */
enum lane_choice { LANE_AUTO, LANE_TCP, LANE_SHM };

/* --sandbox: sandbox.h */
enum sandbox { SANDBOX_AUTO, SANDBOX_REQUIRE, SANDBOX_OFF };

struct options {
	struct core_config core; /* complete except run, term and generation (startup.c) */
	struct model model;
	/* --input auto (images.h) */
	int auto_input;
	int unknown_images;         /* 1: no worker has come yet: `model` is none that trains */
	int new_run;                /* 1: begin a new run, whatever the directory has */
	const char *model_text;     /* --model as typed */
	size_t classes;             /* --classes; 0: those of the images */
	const char *bind;           /* "tcp://HOST:PORT"; PORT 0 or *: any free one */
	const char *http;           /* "HOST:PORT" or "PORT"; NULL: off */
	const char *http_token;     /* file of the token; NULL: none */
	const char *checkpoint_dir; /* NULL: no checkpoints */
	uint64_t wal_bytes;         /* the server takes a checkpoint when the log is larger */
	const char *init;           /* a .safetensors file, or NULL */
	uint64_t memory_bytes; /* close all connections above it; 0: a limit from the machine */
	/* files; key NULL: no encryption; authorized_keys NULL: AUTHORIZED_KEYS_FILE beside key */
	const char *key, *authorized_keys;
	int insecure; /* 1: other machines may connect without keys */
	enum log_level log_level;
	enum log_format log_format;
	double usual_rate, usual_local_rate; /* the defaults of --lr and --local-lr */
	enum sandbox sandbox;
	int made_checkpoint_dir; /* 1: the directory is new (sandbox.c) */
	enum lane_choice lane;
	/* the Unix socket of shared-memory lanes; "": none */
	char lane_path[WIRE_MAX_SOCKET + 1];
	int check_config; /* 1: only check and print the configuration */

	struct stop_rule stop; /* --stop-at, --patience-epochs */
	struct keep_rule keep;
};

/* OPT_RUN, OPT_EXIT (--help, --version), or PS_EUSAGE after one line per error on stderr. Texts are
 * valid as long as argv and the environment. */
int options_parse(struct options *o, int argc, char **argv) PS_MUST_CHECK;
/* Set the fields of *c that follow from the model. */
void options_fill_model(struct core_config *c, const struct model *m);

#endif
