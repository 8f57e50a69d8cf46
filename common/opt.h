/*
 * opt.h - one table per program drives the command line, the environment, ranges, --help and the
 * start-up dump.
 *
 * Order of precedence: command line, then CNN_<NAME> in the environment (--lease-batches reads
 * CNN_LEASE_BATCHES), then the row's default. The parser reports every error in one line and fails
 * at the end, before the program binds or writes anything. PS_EUSAGE (exit 2): an unknown option,
 * an option given twice, a value out of range, trailing characters, NaN, an empty number.
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

/*
 * A row of the table.
 *
 * Defaults: a text, or for other types also alternatives, separated by blanks: "mode=sync:0.5 0" is
 * 0.5 with --mode sync and 0 otherwise. Each alternative except the last begins with a condition on
 * an earlier row, and a colon. The first alternative with a true condition is the default.
 *
 * Conditions of `needs`, separated by blanks, must all be true:
 *   mode=ssp|sync            the value of an OPT_ENUM row is one of these; a text row's value
 *                            counts up to its first colon
 *   mode!=easgd              the value is none of these
 *   n-push=1|2               the number of an OPT_INT row is one of these
 *   checkpoint-dir           the OPT_TEXT row has a value that is not empty
 *   command=export|predict   the program runs one of these commands
 */
struct opt {
	const char *name; /* "lease-batches"; NULL ends the table */
	enum opt_type type;
	void *dest;
	const char *def;    /* as typed; see "Defaults" above. NULL: none, dest keeps its value */
	const char *unset;  /* what --help shows for a row without a default */
	double min, max;    /* inclusive */
	const char *values; /* OPT_ENUM: "sgd|adagrad" */
	int first;          /* OPT_ENUM: the value of the first name */
	const char *group;  /* a title before this row in --help; NULL: none */
	const char *arg;    /* name of the value in --help: "URL", "MS", "DIR" */
	const char *help;   /* one sentence with unit; --help adds range, default, variable */
	const char *needs; /* when the option has an effect; see "Conditions" above. NULL: always */
	const char *was;   /* an old name; using it is an error that gives the new name. Several
			     * rows may have one old name: the option was split. NULL: none */
};

struct opt_program {
	const char *name;       /* "cnn-ps" */
	const char *usage;      /* "[OPTION...] COMMAND" */
	const char *about;      /* one or two lines under the usage */
	const struct opt *opts; /* ends with a row whose name is NULL */
	int max_args;           /* positional arguments allowed; < 0: any number */
};

enum opt_result { OPT_RUN = 0, OPT_EXIT = 1 }; /* OPT_EXIT: --help or --version was answered */

/*
 * Parses the command line and the environment into the rows' destinations. args[0..*n_args) becomes
 * the positional arguments, as pointers into argv; it has room for argc. Returns OPT_RUN, OPT_EXIT,
 * or PS_EUSAGE after it has written each error as one line to stderr. Texts are valid as long as
 * argv and the environment.
 */
int opt_parse(const struct opt_program *p, int argc, char **argv, const char **args,
	int *n_args) PS_MUST_CHECK;
/* Returns 1 if the last parse found option `name` on the command line or in the environment. */
int opt_given(const struct opt_program *p, const char *name);
/* Returns the default of the numeric option `name`, given the other options of the last parse. */
double opt_default(const struct opt_program *p, const char *name);
/* Prints --help. */
void opt_help(const struct opt_program *p, FILE *f);
/*
 * Warns about each given option that has no effect (see `needs`), and about each CNN_* variable
 * that no program reads. Call it after opt_parse, when the rows have their final values. `command`
 * is the program's command, and warnings are then plain lines on stderr. NULL: the program has no
 * commands, and warnings go to the log.
 */
void opt_check(const struct opt_program *p, const char *command);
/* Logs each option at debug level: name=value origin=default|environment|command-line. */
void opt_dump(const struct opt_program *p);

#endif
