/*
 * options.h - the command line of cnn-ps as one table, and the judgement of the whole of it.
 *
 * Nothing is bound, created or written here: a bad configuration ends with every one of its errors
 * on stderr and the machine as it was. Thread: main, at start-up.
 */
#ifndef SERVER_CONFIG_OPTIONS_H
#define SERVER_CONFIG_OPTIONS_H
#include "common/err.h"
#include "common/log.h"
#include "common/model.h"
#include "server/core/core.h"

struct options {
	struct core_config core; /* complete but for run, epoch and generation: startup.c */
	struct model model;
	const char *bind;           /* "tcp://HOST:PORT"; PORT 0 or *: any free one */
	const char *http;           /* "HOST:PORT", or NULL: off */
	const char *checkpoint_dir; /* or NULL: none */
	uint64_t wal_bytes;         /* a larger log asks for a checkpoint */
	const char *init;           /* a .safetensors file, or NULL */
	uint64_t memory_bytes;      /* hang up past it; 0: as the machine has */
	const char *key,
		*authorized_keys; /* files; key NULL: no encryption, authorized_keys NULL: beside key */
	int insecure;             /* the network may talk to us without keys */
	enum log_level log_level;
	enum log_format log_format;
	double usual_rate, usual_local_rate; /* of the mode and optimizer: --lr, --local-lr */
	int check_config;                    /* only check and print the configuration */
};

/* OPT_RUN, OPT_EXIT (--help, --version), or PS_EUSAGE after one line per error on stderr. Texts
 * live as long as argv and the environment. */
int options_parse(struct options *o, int argc, char **argv) PS_MUST_CHECK;

#endif
