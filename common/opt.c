/*
 * opt.c - option tables: splits the command line, reads values, computes defaults, prints --help,
 * and warns about options without effect.
 *
 * For each type of option, one function reads values of every origin: command line, environment and
 * default. The value of a text option points into argv or the environment.
 */
#include "common/opt.h"
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "common/assert.h"
#include "common/log.h"
#include "common/version.h"

#define MAX_ROWS 128
#define PREFIX   "CNN_"
/* prefix of the variables that Kubernetes sets for a service named cnn-ps */
#define KUBERNETES  "CNN_PS_"
#define COMMAND     "command"
#define MAX_NAME    63
#define MAX_UNKNOWN 20 /* maximum number of unknown variables that get a warning each */

extern char **environ;

/* This table has a row for each option of each program. `was` is an old name of the option, or
 * NULL. opt_names.sh generates the rows from the option tables. */
static const struct known {
	const char *program, *option, *was;
} known[] = {
#include "opt_names.h"
};

/* Scripts, containers, kernels and tests read these variables, which are not options. */
static const char *const others[] = {"CNN_BUNDLE", "CNN_FAULT_SEED", "CNN_GARBAGE_SEED",
	"CNN_IMAGE", "CNN_IMAGES", "CNN_KX_ISA", "CNN_MEMORY", "CNN_MIRRORS", "CNN_SLOW",
	"CNN_TEST_DEVICE"};

#define N_KNOWN  (sizeof(known) / sizeof(known[0]))
#define N_OTHERS (sizeof(others) / sizeof(others[0]))

enum origin { FROM_DEFAULT, FROM_ENVIRONMENT, FROM_COMMAND_LINE };
static const char *const origin_names[] = {"default", "environment", "command-line"};

/* Each entry is the origin of a row's value in the last parse. One array is enough, because a
 * program has only one table. */
static enum origin origins[MAX_ROWS];

struct parse {
	const struct opt_program *program;
	/* the value of each row on the command line, as text; NULL: not given */
	const char *given[MAX_ROWS];
	int errors;
	/* number of unknown options without =VALUE; the word after each of them may be its value */
	int unknown;
	int show_help, show_version;
};

struct check {
	const struct opt_program *program;
	const char *command;
};

static void usage_error(struct parse *p, const char *fmt, ...) PS_PRINTF(2, 3);
static void usage_error(struct parse *p, const char *fmt, ...)
{
	struct err line;
	va_list ap;

	va_start(ap, fmt);
	(void)err_vset(&line, PS_EUSAGE, fmt, ap);
	va_end(ap);
	fprintf(stderr, "%s: %s\n", p->program->name, line.text);
	p->errors++;
}

/* Writes the name of an option's variable, such as "CNN_LEASE_BATCHES" for "lease-batches". */
static void opt_variable(const char *option, char *out, size_t size)
{
	snprintf(out, size, "CNN_%s", option);
	for (char *c = out; *c; c++)
		*c = (char)(*c == '-' ? '_' : toupper((unsigned char)*c));
}

int opt_given(const struct opt_program *p, const char *name)
{
	for (size_t i = 0; p->opts[i].name; i++)
		if (strcmp(p->opts[i].name, name) == 0)
			return origins[i] != FROM_DEFAULT;
	return 0;
}

/* ---- values ----------------------------------------------------------------------------------
 * Each function store_* reads `text` into the row's destination. The error message names `what`,
 * which is the option or variable with this text. */

static void set_int(const struct opt *o, int64_t v)
{
	if (o->type == OPT_U32)
		*(uint32_t *)o->dest = (uint32_t)v;
	else if (o->type == OPT_U64)
		*(uint64_t *)o->dest = (uint64_t)v;
	else
		*(int64_t *)o->dest = v;
}

static int64_t get_int(const struct opt *o)
{
	return o->type == OPT_U32   ? (int64_t) * (const uint32_t *)o->dest
	       : o->type == OPT_U64 ? (int64_t) * (const uint64_t *)o->dest
				    : *(const int64_t *)o->dest;
}

static void store_text(struct parse *p, const struct opt *o, const char *what, const char *text)
{
	size_t n = strlen(text);

	if (o->max > 0 && ((double)n < o->min || (double)n > o->max))
		usage_error(p, "%s: \"%.100s\" has %zu characters; expected %.15g to %.15g", what,
			text, n, o->min, o->max);
	else
		*(const char **)o->dest = text;
}

static void store_int(struct parse *p, const struct opt *o, const char *what, const char *text)
{
	char *end;

	errno = 0;
	long long v = strtoll(text, &end, 10);
	if (end == text || *end || strspn(text, "+-0123456789") != strlen(text))
		usage_error(p,
			"%s: \"%.100s\" is not a whole number; expected one in [%.15g, %.15g]",
			what, text, o->min, o->max);
	else if (errno == ERANGE || (double)v < o->min || (double)v > o->max)
		usage_error(p,
			"%s: %.100s is out of range; expected a whole number in [%.15g, %.15g]",
			what, text, o->min, o->max);
	else
		set_int(o, v);
}

static void store_real(struct parse *p, const struct opt *o, const char *what, const char *text)
{
	char *end;

	errno = 0;
	double v = strtod(text, &end);
	/* the set of permitted characters excludes nan, inf, hexadecimal numbers and leading
	 * blanks */
	if (end == text || *end || strspn(text, "+-.0123456789eE") != strlen(text))
		usage_error(p,
			"%s: \"%.100s\" is not a number; expected a number in [%.15g, %.15g]", what,
			text, o->min, o->max);
	else if (errno == ERANGE || !isfinite(v) || v < o->min || v > o->max)
		usage_error(p, "%s: %.100s is out of range; expected a number in [%.15g, %.15g]",
			what, text, o->min, o->max);
	else
		*(double *)o->dest = v;
}

/* Reads the number after the colon of a value NAME:NUMBER. `text` is NULL if there is no colon. */
static void store_number(struct parse *p, const struct opt *o, const char *what, const char *text)
{
	const struct opt number = {.type = OPT_U32, .dest = o->number, .max = o->max_number};

	*o->number = o->usual_number;
	if (text)
		store_int(p, &number, what, text);
}

static void store_enum(struct parse *p, const struct opt *o, const char *what, const char *text)
{
	size_t n = o->number ? strcspn(text, ":") : strlen(text);
	int index = 0;

	for (const char *v = o->values; *v; index++) {
		size_t length = strcspn(v, "|[");

		if (length == n && memcmp(v, text, n) == 0 && (!text[n] || v[n] == '[')) {
			*(int *)o->dest = o->first + index;
			if (o->number)
				store_number(p, o, what, text[n] ? text + n + 1 : NULL);
			return;
		}
		v += strcspn(v, "|");
		v += *v == '|';
	}
	usage_error(p, "%s: \"%.100s\" is not known; expected %s", what, text, o->values);
}

static void store_flag(struct parse *p, const struct opt *o, const char *what, const char *text)
{
	if (strcmp(text, "0") != 0 && strcmp(text, "1") != 0)
		usage_error(p, "%s: \"%.100s\" is neither 0 nor 1", what, text);
	else
		*(int *)o->dest = text[0] == '1';
}

static void store_value(struct parse *p, const struct opt *o, const char *what, const char *text)
{
	switch (o->type) {
	case OPT_TEXT:
		store_text(p, o, what, text);
		break;
	case OPT_INT:
	case OPT_U32:
	case OPT_U64:
		store_int(p, o, what, text);
		break;
	case OPT_REAL:
		store_real(p, o, what, text);
		break;
	case OPT_ENUM:
		store_enum(p, o, what, text);
		break;
	case OPT_FLAG:
		store_flag(p, o, what, text);
		break;
	}
}

/* ---- conditions ---------------------------------------------------------------------------- */

/* Returns name number `i`, counted from 0, in a list such as "a|b[:F]|c". Sets *n to the length of
 * the name. */
static const char *nth_value(const char *values, int i, size_t *n)
{
	for (; i > 0 && *values; i--) {
		values += strcspn(values, "|");
		values += *values == '|';
	}
	*n = strcspn(values, "|[");
	return values;
}

/* This struct is one of the conditions in a row's `needs`. */
struct condition {
	const char *name; /* the name of a row, or "command" */
	int n_name;
	const char *values; /* the values after the operator, such as "a|b" */
	/* number of characters in `values`; if it is 0, the row must have a value */
	int n_values;
	int negated; /* 1 for "!=": the value must be none of `values` */
};

/* Reads the next condition of *needs and moves *needs past it. Returns 0 if no condition is
 * left. */
static int next_condition(const char **needs, struct condition *k)
{
	const char *at = *needs;

	if (!at || !*at)
		return 0;
	int n = (int)strcspn(at, " ");
	k->name = at;
	k->n_name = (int)strcspn(at, "!= ");
	k->negated = at[k->n_name] == '!';
	k->values = at + (k->n_name < n ? k->n_name + 1 + k->negated : n);
	k->n_values = (int)(at + n - k->values);
	*needs = at + n + (at[n] == ' ');
	return 1;
}

static int has_same_name(const struct condition *a, const struct condition *b)
{
	return a->n_name == b->n_name && memcmp(a->name, b->name, (size_t)a->n_name) == 0;
}

static int is_named(const struct condition *k, const char *name)
{
	return strlen(name) == (size_t)k->n_name && memcmp(k->name, name, strlen(name)) == 0;
}

/* Returns 1 if the value of `n` characters is one of the condition's values. */
static int is_one_of(const struct condition *k, const char *value, size_t n)
{
	const char *list = k->values, *end = k->values + k->n_values;

	while (list < end) {
		size_t length = strcspn(list, "| &:"); /* in a default, "&" or ":" ends it */

		if (length == n && memcmp(list, value, n) == 0)
			return 1;
		list += length + 1;
	}
	return 0;
}

static const struct opt *find_row(const struct opt_program *p, const struct condition *k)
{
	for (const struct opt *o = p->opts; o->name; o++)
		if (is_named(k, o->name))
			return o;
	PS_ASSERT(0 && "a row needs a row that is not in the table");
}

/* Returns the value that the condition compares, which is the command or the row's value. If the
 * value is a text, returns only the part before the first colon. */
static const char *value_now(
	const struct check *c, const struct condition *k, char number[24], size_t *n)
{
	if (is_named(k, COMMAND)) {
		PS_ASSERT(c->command);
		*n = strlen(c->command);
		return c->command;
	}
	const struct opt *o = find_row(c->program, k);
	if (o->type == OPT_TEXT) {
		const char *text = *(const char *const *)o->dest;

		*n = text ? strcspn(text, ":") : 0;
		return text ? text : "";
	}
	if (o->type != OPT_ENUM) {
		*n = (size_t)snprintf(number, 24, "%" PRId64, get_int(o));
		return number;
	}
	return nth_value(o->values, *(const int *)o->dest - o->first, n);
}

/* Returns 1 if the option of the condition has a text that is not empty. If it has none, writes the
 * reason to `instead`. */
static int is_given(const struct check *c, const struct condition *k, char *instead, size_t size)
{
	const struct opt *o = find_row(c->program, k);

	PS_ASSERT(o->type == OPT_TEXT);
	const char *text = *(const char *const *)o->dest;
	snprintf(instead, size, "without --%s", o->name);
	return text && text[0];
}

/* Returns 1 if the condition is true. If the condition is false, writes the actual value and the
 * required value to `instead`. */
static int holds(const struct check *c, const struct condition *k, char *instead, size_t size)
{
	char number[24];
	size_t n;

	if (k->n_values == 0)
		return is_given(c, k, instead, size);
	const char *value = value_now(c, k, number, &n);
	if (is_named(k, COMMAND) && k->negated)
		snprintf(instead, size, "with %.*s", (int)n, value);
	else if (is_named(k, COMMAND))
		snprintf(instead, size, "with %.*s: it is for %.*s", (int)n, value, k->n_values,
			k->values);
	else if (k->negated)
		snprintf(instead, size, "with --%.*s %.*s", k->n_name, k->name, (int)n, value);
	else
		snprintf(instead, size, "with --%.*s %.*s: it needs --%.*s %.*s", k->n_name,
			k->name, (int)n, value, k->n_name, k->name, k->n_values, k->values);
	return is_one_of(k, value, n) != k->negated;
}

/* ---- defaults --------------------------------------------------------------------------------
 * A default such as "mode=sync:0.5 0" lists alternatives, separated by blanks. The first
 * alternative whose conditions (such as "epochs=0&store=cuda") are true is the default. The last
 * alternative of a default has no condition. */

#define MAX_CONDITIONS 2

struct alternative {
	struct condition when[MAX_CONDITIONS]; /* all must be true */
	size_t n_when;
	char value[64];
};

/* Reads the next alternative of *def and moves *def past it. Returns 0 if no alternative is
 * left. */
static int next_alternative(const char **def, struct alternative *a)
{
	const char *at = *def, *end = at + strcspn(at, " ");

	if (!*at)
		return 0;
	memset(a, 0, sizeof(*a));
	while (memchr(at, '=', (size_t)(end - at))) {
		size_t name = strcspn(at, "="), n = name + strcspn(at + name, "&:");

		PS_ASSERT(a->n_when < MAX_CONDITIONS);
		a->when[a->n_when++] = (struct condition){.name = at,
			.n_name = (int)name,
			.values = at + name + 1,
			.n_values = (int)(n - name - 1)};
		at += n + 1;
	}
	snprintf(a->value, sizeof(a->value), "%.*s", (int)(end - at), at);
	*def = end + (*end == ' ');
	return 1;
}

static int applies(const struct check *c, const struct alternative *a)
{
	char instead[256];
	int all = 1;

	for (size_t i = 0; i < a->n_when; i++)
		all &= holds(c, &a->when[i], instead, sizeof(instead));
	return all;
}

/* Returns the default of a row, which may depend on the values of earlier rows. */
static const char *default_of(
	const struct opt_program *p, const struct opt *o, struct alternative *a)
{
	const struct check c = {.program = p};
	const char *def = o->def;

	if (!def || o->type == OPT_TEXT)
		return def;
	while (next_alternative(&def, a))
		if (applies(&c, a))
			return a->value;
	PS_ASSERT(0 && "the last alternative of a default has no condition");
}

double opt_default(const struct opt_program *p, const char *name)
{
	struct alternative a;

	for (const struct opt *o = p->opts; o->name; o++)
		if (strcmp(o->name, name) == 0)
			return strtod(default_of(p, o, &a), NULL);
	return 0;
}

/* ---- all values ------------------------------------------------------------------------------ */

/* Appends `name` to the list `out`, such as "--a or --b". */
static void append_name(char *out, size_t size, const char *name)
{
	size_t at = strlen(out);

	snprintf(out + at, size - at, "%s%s", at ? " or " : "", name);
}

/* Writes the present names of the options whose old name is `was`, such as "--a or --b", or the
 * names of their variables. If the old option is now a number in the value of another option, also
 * writes the form of this value, such as "--a NAME[:F]". Writes "" if no option had this name. */
static void new_names(const struct opt_program *p, const char *was, size_t n_was, int variables,
	char *out, size_t size)
{
	out[0] = '\0';
	for (const struct opt *o = p->opts; o->name; o++) {
		char name[72];

		if (!o->was || strlen(o->was) != n_was || memcmp(o->was, was, n_was) != 0)
			continue;
		if (variables)
			opt_variable(o->name, name, sizeof(name));
		else
			snprintf(name, sizeof(name), "--%s", o->name);
		append_name(out, size, name);
		size_t at = strlen(out);
		if (o->number)
			snprintf(out + at, size - at, "%c%s", variables ? '=' : ' ', o->arg);
	}
}

/* Reports an error if the environment has a variable with the old name of this option. Rows with
 * the same old name are neighbours, and only the first of these rows reports the variable. */
static void refuse_old_variable(struct parse *p, const struct opt *o)
{
	const struct opt *before = o > p->program->opts ? o - 1 : NULL;
	char old[64], now[256];

	if (!o->was || (before && before->was && strcmp(before->was, o->was) == 0))
		return;
	opt_variable(o->was, old, sizeof(old));
	new_names(p->program, o->was, strlen(o->was), 1, now, sizeof(now));
	if (getenv(old))
		usage_error(p, "%s: was renamed to %s", old, now);
}

/* Stores the value of each row. A value from the command line has priority over the environment,
 * and the environment has priority over the default. */
static void store_all(struct parse *p)
{
	const struct opt *o = p->program->opts;

	for (size_t i = 0; o[i].name; i++) {
		char variable[64], option[64];
		struct alternative a;

		refuse_old_variable(p, &o[i]);
		opt_variable(o[i].name, variable, sizeof(variable));
		snprintf(option, sizeof(option), "--%s", o[i].name);
		const char *from_environment = getenv(variable);
		const char *def = default_of(p->program, &o[i], &a);

		origins[i] = p->given[i]        ? FROM_COMMAND_LINE
			     : from_environment ? FROM_ENVIRONMENT
						: FROM_DEFAULT;
		/* store the default even before a value that may be bad, because later conditions
		 * read the destination */
		if (def)
			store_value(p, &o[i], option, def);
		if (p->given[i])
			store_value(p, &o[i], option, p->given[i]);
		else if (from_environment)
			store_value(p, &o[i], variable, from_environment);
	}
}

/* ---- splitting ------------------------------------------------------------------------------- */

static size_t count_rows(const struct opt_program *p)
{
	size_t n = 0;

	while (p->opts[n].name)
		n++;
	return n;
}

static const struct opt *row_named(const struct opt_program *p, const char *name, size_t n)
{
	for (const struct opt *o = p->opts; o->name; o++)
		if (strlen(o->name) == n && memcmp(o->name, name, n) == 0)
			return o;
	return NULL;
}

static void note_unknown(struct parse *p, const char *option, int length)
{
	char now[256] = "";

	if (length > 2)
		new_names(p->program, option + 2, (size_t)length - 2, 0, now, sizeof(now));
	if (now[0])
		usage_error(p, "%.*s: was renamed to %s", length, option, now);
	else
		usage_error(p, "%.*s: unknown option; --help lists them", length, option);
	p->unknown += option[length] == '\0';
}

static void note_value(struct parse *p, const struct opt *o, const char *text)
{
	size_t row = (size_t)(o - p->program->opts);

	if (!text)
		usage_error(p, "--%s: needs a value", o->name);
	else if (p->given[row])
		usage_error(p, "--%s: given twice", o->name);
	else
		p->given[row] = text;
}

/* Stores an option of the form "--NAME", "--NAME=VALUE", "--NAME VALUE" or "--no-NAME". Returns the
 * number of words of this option: 1, or 2 if `next` is the value. */
static int note_option(struct parse *p, const char *word, const char *next)
{
	const char *name = word + 2;
	size_t n = strcspn(name, "=");
	const char *value = name[n] ? name + n + 1 : NULL;
	const struct opt *o = row_named(p->program, name, n);
	const struct opt *off = n > 3 && memcmp(name, "no-", 3) == 0
					? row_named(p->program, name + 3, n - 3)
					: NULL;
	int is_help = n == 4 && memcmp(name, "help", 4) == 0;
	int is_version = n == 7 && memcmp(name, "version", 7) == 0;

	if (off && off->type != OPT_FLAG)
		off = NULL;
	if ((is_help || is_version || off || (o && o->type == OPT_FLAG)) && value) {
		usage_error(p, "--%.*s: takes no value", (int)n, name);
	} else if (is_help || is_version) {
		p->show_help |= is_help;
		p->show_version |= is_version;
	} else if (off) {
		note_value(p, off, "0");
	} else if (o && o->type == OPT_FLAG) {
		note_value(p, o, "1");
	} else if (o) {
		note_value(p, o, value ? value : next);
		return value || !next ? 1 : 2;
	} else {
		note_unknown(p, word, 2 + (int)n);
	}
	return 1;
}

/* Stores a positional argument. After an unknown option, a word too many may be the value of this
 * option, so the function then reports no error for the word. */
static void note_argument(struct parse *p, const char *word, const char **args, int *n_args)
{
	int max = p->program->max_args;

	if (max < 0 || *n_args < max)
		args[(*n_args)++] = word;
	else if (!p->unknown)
		usage_error(p, "\"%.100s\": unexpected argument; %s takes %d", word,
			p->program->name, max);
}

static void split(struct parse *p, int argc, char **argv, const char **args, int *n_args)
{
	int options = 1; /* 0 after "--", which ends the options */

	for (int i = 1; i < argc;) {
		const char *word = argv[i++];

		if (!options || word[0] != '-' || !word[1])
			note_argument(p, word, args, n_args);
		else if (strcmp(word, "--") == 0)
			options = 0;
		else if (strcmp(word, "-h") == 0)
			p->show_help = 1;
		else if (word[1] == '-')
			i += note_option(p, word, argv[i]) - 1;
		else
			note_unknown(p, word, (int)strcspn(word, "="));
	}
}

int opt_parse(
	const struct opt_program *program, int argc, char **argv, const char **args, int *n_args)
{
	struct parse p = {.program = program};

	PS_ASSERT(count_rows(program) <= MAX_ROWS);
	*n_args = 0;
	split(&p, argc, argv, args, n_args);
	if (p.show_help) {
		opt_help(program, stdout);
		return OPT_EXIT;
	}
	if (p.show_version) {
		printf("%s %s\n", program->name, PS_VERSION);
		return OPT_EXIT;
	}
	store_all(&p);
	return p.errors ? PS_EUSAGE : OPT_RUN;
}

/* ---- help ------------------------------------------------------------------------------------ */

#define HELP_INDENT 26
#define HELP_WIDTH  80

/* Prints `text` in the columns HELP_INDENT to HELP_WIDTH. `column` is the number of columns that
 * the present line of the output already has. */
static void print_wrapped(FILE *f, size_t column, const char *text)
{
	if (column + 1 > HELP_INDENT - 1) {
		fputc('\n', f);
		column = 0;
	}
	fprintf(f, "%*s", (int)(HELP_INDENT - column), "");
	column = HELP_INDENT;
	while (*text) {
		size_t word = strcspn(text, " ");

		if (column > HELP_INDENT && column + 1 + word > HELP_WIDTH) {
			fprintf(f, "\n%*s", HELP_INDENT, "");
			column = HELP_INDENT;
		}
		int n = fprintf(f, "%s%.*s", column > HELP_INDENT ? " " : "", (int)word, text);
		column += n > 0 ? (size_t)n : 0;
		text += word;
		text += strspn(text, " ");
	}
	fputc('\n', f);
}

/* Appends the conditions of one kind to `out`, such as "only with --mode ssp|sync and --name". */
static void describe(const char *needs, int negated, const char *before, char *out, size_t size)
{
	struct condition k;
	size_t at = strlen(out);
	const char *between = before;

	while (next_condition(&needs, &k) && at < size) {
		if (k.negated != negated)
			continue;
		int n = snprintf(out + at, size - at, "%s%s%.*s%s%.*s", between,
			is_named(&k, COMMAND) ? "" : "--", k.n_name, k.name, k.n_values ? " " : "",
			k.n_values, k.values);
		at += n > 0 ? (size_t)n : 0;
		between = negated ? " or " : " and ";
	}
}

static void describe_needs(const char *needs, char *out, size_t size)
{
	out[0] = '\0';
	describe(needs, 0, "; only with ", out, size);
	describe(needs, 1, "; not with ", out, size);
}

/* Writes the range of a row's values, such as "1 to 1024; " or "sgd|adagrad; ", or "" if the row
 * has no range. */
static void describe_range(const struct opt *o, char *out, size_t size)
{
	out[0] = '\0';
	if (o->type == OPT_ENUM)
		snprintf(out, size, "%s; ", o->values);
	else if (o->type != OPT_TEXT && o->type != OPT_FLAG)
		snprintf(out, size, "%.15g to %.15g; ", o->min, o->max);
}

/* Returns 1 if `needs` contains the negation of the alternative's condition, with the same list of
 * values. The row then has no effect when the alternative applies, so --help does not show this
 * default. */
static int is_excluded(const char *needs, const struct alternative *a)
{
	struct condition k;

	while (a->n_when == 1 && next_condition(&needs, &k))
		if (k.negated && has_same_name(&k, a->when) && k.n_values == a->when->n_values &&
			memcmp(k.values, a->when->values, (size_t)k.n_values) == 0)
			return 1;
	return 0;
}

/* Writes a text such as "default with --optimizer sgd:" or "default with --epochs 0 and --store
 * cuda:". Returns its length. */
static size_t describe_conditions(
	const struct alternative *a, const char *begin, char *out, size_t size)
{
	size_t at = 0;

	for (size_t i = 0; i < a->n_when && at < size; i++) {
		const struct condition *k = &a->when[i];

		at += (size_t)snprintf(out + at, size - at, "%s --%.*s %.*s%s", i ? " and" : begin,
			k->n_name, k->name, k->n_values, k->values, i + 1 < a->n_when ? "" : ":");
	}
	return at;
}

/* Writes a text such as "default 3" or "default with --optimizer sgd: 0.2, adam: 0.002, else with
 * --mode sync: 0.3, otherwise 0.03". If consecutive alternatives depend on the same option, the
 * text names this option only once. */
static void describe_default(const struct opt *o, char *out, size_t size)
{
	const char *def = o->def;
	struct alternative a, before = {0};
	size_t at = 0;

	if (!def || o->type == OPT_TEXT || o->type == OPT_FLAG) {
		snprintf(out, size, "default%s %s", def ? "" : ":",
			!def                  ? o->unset ? o->unset : "none"
			: o->type == OPT_TEXT ? def
			: *def == '1'         ? "on"
					      : "off");
		return;
	}
	for (int n = 0; next_alternative(&def, &a) && at < size;) {
		const struct condition *k = a.when;

		if (is_excluded(o->needs, &a))
			continue;
		int same = a.n_when == 1 && before.n_when == 1 && has_same_name(k, before.when);

		if (!a.n_when)
			at += (size_t)snprintf(
				out + at, size - at, "%s", n ? ", otherwise" : "default");
		else if (same)
			at += (size_t)snprintf(
				out + at, size - at, ", %.*s:", k->n_values, k->values);
		else
			at += describe_conditions(
				&a, n ? ", else with" : "default with", out + at, size - at);
		if (at < size)
			at += (size_t)snprintf(out + at, size - at, " %s", a.value);
		before = a;
		n++;
	}
}

static void help_row(FILE *f, const struct opt *o)
{
	char variable[64], range[256], text[1536], head[128], needs[256], def[512];

	if (o->group)
		fprintf(f, "\n%s:\n", o->group);
	opt_variable(o->name, variable, sizeof(variable));
	describe_range(o, range, sizeof(range));
	describe_default(o, def, sizeof(def));
	describe_needs(o->needs, needs, sizeof(needs));
	snprintf(text, sizeof(text), "%s (%s%s; %s%s)", o->help, range, def, variable, needs);
	if (o->type == OPT_FLAG)
		snprintf(head, sizeof(head), "  --[no-]%s", o->name);
	else
		snprintf(head, sizeof(head), "  --%s %s", o->name, o->arg ? o->arg : "VALUE");
	fputs(head, f);
	print_wrapped(f, strlen(head), text);
}

void opt_help(const struct opt_program *p, FILE *f)
{
	fprintf(f,
		"Usage: %s %s\n%s\n\nEach option also has an environment variable, shown in "
		"parentheses.\n%s",
		p->name, p->usage, p->about, p->opts[0].group ? "" : "\nOptions:\n");
	for (const struct opt *o = p->opts; o->name; o++)
		help_row(f, o);
	fputs("\n  --help                  Show this text and exit.\n"
	      "  --version               Show the version and exit.\n",
		f);
}

static const char *value_text(const struct opt *o, char *out, size_t size)
{
	switch (o->type) {
	case OPT_TEXT: {
		const char *text = *(const char **)o->dest;

		snprintf(out, size, "%s", text ? text : "");
		break;
	}
	case OPT_INT:
	case OPT_U32:
	case OPT_U64:
		snprintf(out, size, "%" PRId64, get_int(o));
		break;
	case OPT_REAL:
		snprintf(out, size, "%.15g", *(const double *)o->dest);
		break;
	case OPT_ENUM: {
		size_t n;
		const char *v = nth_value(o->values, *(const int *)o->dest - o->first, &n);

		if (v[n] == '[')
			snprintf(out, size, "%.*s:%" PRIu32, (int)n, v, *o->number);
		else
			snprintf(out, size, "%.*s", (int)n, v);
		break;
	}
	case OPT_FLAG:
		snprintf(out, size, "%d", *(const int *)o->dest);
		break;
	}
	return out;
}

void opt_dump(const struct opt_program *p)
{
	char value[1024];
	size_t rows = count_rows(p);

	for (size_t i = 0; i < rows; i++)
		log_debug("options", "value", "name=%s value=%s origin=%s", p->opts[i].name,
			value_text(&p->opts[i], value, sizeof(value)), origin_names[origins[i]]);
}

/* ---- warnings -------------------------------------------------------------------------------- */

static void warn(const struct check *c, const char *event, const char *fmt, ...) PS_PRINTF(3, 4);
static void warn(const struct check *c, const char *event, const char *fmt, ...)
{
	struct err line;
	va_list ap;

	va_start(ap, fmt);
	(void)err_vset(&line, PS_EUSAGE, fmt, ap);
	va_end(ap);
	if (c->command && log_get_format() == LOG_TEXT) {
		fprintf(stderr, "%s: warning: %s\n", c->program->name, line.text);
		return;
	}
	enum log_level level = log_get_level();
	if (c->command && level < LOG_WARN)
		/* a program with commands prints a warning even if its log level excludes
		 * warnings */
		log_set_level(LOG_WARN);
	log_warn("options", event, "reason=\"%s\"", line.text);
	log_set_level(level);
}

/* Returns the number of programs that have this option. */
static int programs_with(const char *option)
{
	int n = 0;

	for (size_t i = 0; i < N_KNOWN; i++)
		n += strcmp(known[i].option, option) == 0;
	return n;
}

/* Returns 1 if the user has certainly set the option for this program. Returns 0 for a variable
 * that several programs share, because the user may have set it for another program or command. */
static int is_meant(const struct opt *o, size_t row)
{
	enum origin from = origins[row];

	return from == FROM_COMMAND_LINE ||
	       (from == FROM_ENVIRONMENT && programs_with(o->name) < 2);
}

static void check_row(const struct check *c, const struct opt *o, size_t row)
{
	char name[MAX_NAME + 8], instead[256];
	const char *needs = o->needs;
	struct condition k;

	if (!needs || !is_meant(o, row))
		return;
	if (origins[row] == FROM_ENVIRONMENT)
		opt_variable(o->name, name, sizeof(name));
	else
		snprintf(name, sizeof(name), "--%s", o->name);
	while (next_condition(&needs, &k))
		if (!holds(c, &k, instead, sizeof(instead))) {
			warn(c, "no_effect", "%s has no effect %s", name, instead);
			return;
		}
}

/* ---- variables ------------------------------------------------------------------------------- */

static size_t min(size_t a, size_t b)
{
	return a < b ? a : b;
}

/* Returns the edit distance (insert, delete, replace) of two names of at most MAX_NAME bytes. */
static size_t distance(const char *a, const char *b)
{
	size_t row[MAX_NAME + 1], n = strlen(b);

	for (size_t j = 0; j <= n; j++)
		row[j] = j;
	for (size_t i = 1; a[i - 1]; i++) {
		size_t diagonal = row[0];

		row[0] = i;
		for (size_t j = 1; j <= n; j++) {
			size_t replaced = diagonal + (a[i - 1] != b[j - 1]);

			diagonal = row[j];
			row[j] = min(replaced, 1 + min(row[j], row[j - 1]));
		}
	}
	return row[n];
}

/* Returns 1 if a program reads the variable `name`. If no program reads it, writes the most similar
 * known name, or "", to `near`. */
static int is_known(const struct check *c, const char *name, char near[MAX_NAME + 1])
{
	char variable[MAX_NAME + 1];
	size_t best = strlen(name) / 4 + 1;

	near[0] = '\0';
	for (size_t i = 0; i < N_KNOWN + N_OTHERS; i++) {
		if (i < N_KNOWN)
			opt_variable(known[i].option, variable, sizeof(variable));
		else
			snprintf(variable, sizeof(variable), "%s", others[i - N_KNOWN]);
		int own = i < N_KNOWN && strcmp(known[i].program, c->program->name) == 0;
		/* of two equally near names, prefer the option of this program */
		size_t d = 2 * distance(name, variable) + !own;
		if (d <= 1)
			return 1;
		if (d < 2 * best) {
			best = (d + 1) / 2;
			memcpy(near, variable, sizeof(variable));
		}
	}
	return 0;
}

static int is_row(const struct opt_program *p, const char *name)
{
	char variable[MAX_NAME + 1];

	for (const struct opt *o = p->opts; o->name; o++) {
		opt_variable(o->name, variable, sizeof(variable));
		if (strcmp(variable, name) == 0)
			return 1;
	}
	return 0;
}

/* Returns 1 if an earlier row of `known` has the same option and the same old name, because several
 * programs have the option. */
static int is_repeated(size_t row)
{
	for (size_t i = 0; i < row; i++)
		if (known[i].was && strcmp(known[i].was, known[row].was) == 0 &&
			strcmp(known[i].option, known[row].option) == 0)
			return 1;
	return 0;
}

/* Writes the present variables of all programs' options whose old variable is `was`, such as "CNN_A
 * or CNN_B". Writes "" if no program had this variable. */
static void new_variables(const char *was, char *out, size_t size)
{
	char variable[MAX_NAME + 1];

	out[0] = '\0';
	for (size_t i = 0; i < N_KNOWN; i++) {
		if (!known[i].was || is_repeated(i))
			continue;
		opt_variable(known[i].was, variable, sizeof(variable));
		if (strcmp(variable, was) != 0)
			continue;
		opt_variable(known[i].option, variable, sizeof(variable));
		append_name(out, size, variable);
	}
}

/* Checks the variable `entry`, "NAME=VALUE". The parser has already refused the old variables of
 * this program. Returns 1 if the function has warned about the variable. */
static int check_variable(const struct check *c, const char *entry)
{
	char name[MAX_NAME + 1], near[MAX_NAME + 1], now[256];
	size_t n = strcspn(entry, "=");

	if (strncmp(entry, PREFIX, strlen(PREFIX)) != 0 ||
		strncmp(entry, KUBERNETES, strlen(KUBERNETES)) == 0)
		return 0;
	snprintf(name, sizeof(name), "%.*s", (int)min(n, MAX_NAME), entry);
	if (is_row(c->program, name) || is_known(c, name, near))
		return 0;
	new_variables(name, now, sizeof(now));
	if (now[0])
		warn(c, "renamed_variable", "%s: was renamed to %s", name, now);
	else if (near[0])
		warn(c, "unknown_variable", "%s: unknown variable; did you mean %s?", name, near);
	else
		warn(c, "unknown_variable", "%s: unknown variable; --help lists them", name);
	return 1;
}

void opt_check(const struct opt_program *p, const char *command)
{
	const struct check c = {.program = p, .command = command};
	int unknown = 0;

	for (size_t i = 0; p->opts[i].name; i++)
		check_row(&c, &p->opts[i], i);
	for (char **entry = environ; *entry && unknown < MAX_UNKNOWN; entry++)
		unknown += check_variable(&c, *entry);
}
