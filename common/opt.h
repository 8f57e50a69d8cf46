/*
 * opt.h - the options of a program, from one table. The table determines the options of the command
 * line, the variables of the environment, the ranges of the values, --help, and the list of options
 * in the log.
 *
 * A value on the command line has priority over the variable CNN_<NAME> in the environment
 * (CNN_LEASE_BATCHES for --lease-batches), and the variable has priority over the row's default.
 * The parser reports each error in one line and continues. At the end it returns PS_EUSAGE (exit
 * status 2) if there was an error, so that the program ends before it binds a port or writes a
 * file. Errors are: an unknown option, an option that is given twice, a value out of range,
 * characters after a number, NaN, and an empty number.
 *
 * Only the main thread calls these functions, at start-up.
 */
#ifndef COMMON_OPT_H
#define COMMON_OPT_H
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include "common/err.h"

enum opt_type {
	OPT_TEXT, /* dest: const char **; if max > 0, the length must be in [min, max] */
	OPT_INT,  /* dest: int64_t *, in [min, max] */
	OPT_U32,  /* dest: uint32_t * */
	OPT_U64,  /* dest: uint64_t * */
	OPT_REAL, /* dest: double *, finite, in [min, max] */
	OPT_ENUM, /* dest: int * or an enum *, set to `first` + the index of the name in `values` */
	OPT_FLAG, /* dest: int *, 0 or 1; --name, --no-name, CNN_NAME=0|1 */
};

/*
 * This struct is a row of the table of options.
 *
 * The default is a text. For types other than OPT_TEXT, the default may also consist of
 * alternatives, separated by blanks: "mode=sync:0.5 0" is 0.5 with --mode sync and 0 otherwise.
 * Each alternative except the last begins with a condition on an earlier row, or with two of them
 * joined by "&", and a colon. The first alternative with true conditions is the default.
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
	const char *name; /* the name without "--", such as "lease-batches"; NULL ends the table */
	enum opt_type type;
	void *dest;
	/* the default as a user types it, or alternatives (see above). If it is NULL, there is no
	 * default, and dest keeps its value */
	const char *def;
	/* the text that --help shows instead of a default if the row has none */
	const char *unset;
	double min, max; /* limits of the value, or of the length of a text, both included */
	/* OPT_ENUM: the names of the values, such as "sgd|adagrad". If text in brackets follows a
	 * name, as in "mean|trimmed[:F]", a user may type a colon and a whole number after it */
	const char *values;
	int first; /* OPT_ENUM: the value of the first name */
	/* OPT_ENUM: where to store the number after the colon, which is at most max_number; without
	 * a colon, the parser stores usual_number. NULL: no name may have a number */
	uint32_t *number, usual_number, max_number;
	const char *group; /* a title before this row in --help, or NULL */
	const char *arg;   /* name of the value in --help: "URL", "MS", "DIR" */
	/* the help text, with the unit of the value: one or more sentences, without a full stop at
	 * the end. --help adds the range, the default and the variable */
	const char *help;
	/* the conditions under which the option has an effect (see above). If it is NULL, the
	 * option always has an effect */
	const char *needs;
	/* an old name of the option, or NULL. If a user gives the old name, the error names the new
	 * one. Several rows have the same old name if the old option was split */
	const char *was;
};

struct opt_program {
	const char *name;       /* the name of the program, such as "cnn-ps" */
	const char *usage;      /* the words after the name, such as "[OPTION...] COMMAND" */
	const char *about;      /* one or two lines under the usage */
	const struct opt *opts; /* ends with a row whose name is NULL */
	/* maximum number of positional arguments; a negative number means no limit */
	int max_args;
};

/* OPT_EXIT: the parser has answered --help or --version, so the program must exit */
enum opt_result { OPT_RUN = 0, OPT_EXIT = 1 };

/*
 * Parses the command line and the environment into the rows' destinations. Sets args[0..*n_args) to
 * the positional arguments, as pointers into argv; `args` must have room for argc pointers. Returns
 * OPT_RUN, OPT_EXIT, or PS_EUSAGE after it has written each error as one line to stderr. The value
 * of a text option points into argv or the environment, and is valid as long as these do not
 * change.
 */
int opt_parse(const struct opt_program *p, int argc, char **argv, const char **args,
	int *n_args) PS_MUST_CHECK;
/* Returns 1 if the last parse found option `name` on the command line or in the environment. */
int opt_given(const struct opt_program *p, const char *name);
/* Returns the default of the numeric option `name` for the values that the other options had in the
 * last parse. */
double opt_default(const struct opt_program *p, const char *name);
/* Prints --help. */
void opt_help(const struct opt_program *p, FILE *f);
/*
 * Warns about each given option that has no effect (see `needs`), and about each CNN_* variable
 * that no program reads. Call this function after opt_parse, when the options have their final
 * values. If the program has commands, `command` is the one that the user gave, and the warnings
 * are plain lines on stderr. If `command` is NULL, the program has no commands, and the warnings go
 * to the log.
 */
void opt_check(const struct opt_program *p, const char *command);
/* Logs each option at debug level: name=value origin=default|environment|command-line. */
void opt_dump(const struct opt_program *p);

#endif
