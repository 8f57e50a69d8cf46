/*
 * opt.h - one table per program drives the command line, the environment, ranges, --help and the
 * start-up dump.
 *
 * Order of precedence: command line, then CNN_<NAME> in the environment (--lease-batches reads
 * CNN_LEASE_BATCHES), then the row's default. Every error of a run is reported, each in one line,
 * and the parse fails once at the end: nothing is bound or written before it. An unknown option, an
 * option given twice, a value out of range, trailing junk, NaN, an empty number: PS_EUSAGE (exit
 * 2).
 *
 * Thread: main, at start-up.
 */
#ifndef COMMON_OPT_H
#define COMMON_OPT_H
#include <stddef.h>
#include <stdio.h>
#include "common/err.h"

enum opt_type {
	OPT_TEXT, /* dest: const char **; min/max bound the length when max > 0 */
	OPT_INT,  /* dest: int64_t *, in [min, max] */
	OPT_U32,  /* dest: uint32_t * */
	OPT_U64,  /* dest: uint64_t * */
	OPT_REAL, /* dest: double *, finite, in [min, max] */
	OPT_ENUM, /* dest: int * or an enum *, `first` + the index into `values` */
	OPT_FLAG, /* dest: int *, 0 or 1; --name, --no-name, CNN_NAME=0|1 */
};

struct opt {
	const char *name; /* "lease-batches"; a NULL name ends the table */
	enum opt_type type;
	void *dest;
	const char *def;   /* as typed; NULL: none, dest stays as the program set it. Not of a text:
			  * alternatives by the values of rows above, "mode=sync:0.5 0", of which
			  * the first one holds whose condition does; the last one has none. A text
			  * row's value is compared up to a colon */
	const char *unset; /* what --help says of a row without a default */
	double min, max;   /* inclusive */
	const char *values; /* OPT_ENUM: "sgd|adagrad" */
	int first;          /* OPT_ENUM: the value of the first name */
	const char *group;  /* a title before this row in --help; NULL: none */
	const char *arg;    /* what --help calls the value: "URL", "MS", "DIR" */
	const char *help;   /* one sentence with unit; --help adds range, default and variable */
	const char *needs;  /* when the row has an effect; NULL: always. Conditions with blanks
			     * between them, all of which must hold: "mode=ssp|sync" names values of
			     * an OPT_ENUM row, "mode!=easgd" all others, "n-push=1|2" numbers of an
			     * OPT_INT row, "checkpoint-dir" a row that is given and not empty,
			     * "command=export|predict" the program's command */
	const char *was;    /* an older name, which is refused with the new one; NULL: none. Several
			     * rows may share one: the option was split */
};

struct opt_program {
	const char *name;       /* "cnn-ps" */
	const char *usage;      /* "[OPTION...] COMMAND" */
	const char *about;      /* a line or two under the usage */
	const struct opt *opts; /* ends with a row whose name is NULL */
	int max_args;           /* positional arguments allowed; < 0: any number */
};

enum opt_result { OPT_RUN = 0, OPT_EXIT = 1 }; /* OPT_EXIT: --help or --version was answered */

/*
 * Parse. Positional arguments are stored in args[0..*n_args) (pointers into argv; room for argc).
 * Returns OPT_RUN, OPT_EXIT, or PS_EUSAGE after writing each error as one line to stderr.
 * Texts stay valid as long as argv and the environment do.
 */
int opt_parse(const struct opt_program *p, int argc, char **argv, const char **args,
	int *n_args) PS_MUST_CHECK;
/* 1: the last parse found option `name` on the command line or in the environment. */
int opt_given(const struct opt_program *p, const char *name);
/* The default that the values of the last parse give option `name`, a number. */
double opt_default(const struct opt_program *p, const char *name);
/* What --help prints. */
void opt_help(const struct opt_program *p, FILE *f);
/*
 * Warn about each option that is given and has no effect (see `needs`), and about each CNN_*
 * variable that no program reads. After opt_parse; the rows' values must be the final ones.
 * `command`: of a program that has commands: its warnings are plain lines on stderr. NULL: they go
 * to the log.
 */
void opt_check(const struct opt_program *p, const char *command);
/* One log line at debug level per option: name=value origin=default|environment|command-line. */
void opt_dump(const struct opt_program *p);

#endif
