/*
 * opt.c - option tables over popt.
 *
 * popt only splits argv into (row, text); texts are then looked up in argv again, because popt
 * hands out copies that nobody would own. Values are judged here, by one function per type,
 * wherever they come from.
 */
#include "common/opt.h"
#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <popt.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "common/log.h"
#include "common/opt_impl.h"
#include "common/version.h"

/* What popt returns: a row's number from 1, its --no- form, or one of these. */
enum { VAL_HELP = 1000, VAL_VERSION = 1001, VAL_NO = 2000 };

static const char *const origin_names[] = {"default", "environment", "command-line"};

/* Where each row's value came from in the last parse, for opt_dump. A program has one table. */
static enum origin origins[MAX_ROWS];

int opt_given(const struct opt_program *p, const char *name)
{
	for (size_t i = 0; p->opts[i].name; i++)
		if (strcmp(p->opts[i].name, name) == 0)
			return origins[i] != FROM_DEFAULT;
	return 0;
}

enum origin opt_origin(size_t row)
{
	return origins[row];
}

struct parse {
	const struct opt_program *program;
	int argc;
	char **argv;
	const char *given[MAX_ROWS]; /* text from the command line, or NULL */
	int errors;
	int unknown; /* options without =VALUE: what follows may be their values */
	int show_help, show_version;
};

static void complain(struct parse *p, const char *fmt, ...) PS_PRINTF(2, 3);
static void complain(struct parse *p, const char *fmt, ...)
{
	struct err line;
	char text[sizeof line.text];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	err_set(&line, PS_EUSAGE, "%s",
		text); /* takes control characters out: one error, one line */
	fprintf(stderr, "%s: %s\n", p->program->name, line.text);
	p->errors++;
}

void opt_variable(const char *option, char *out, size_t size)
{
	snprintf(out, size, "CNN_%s", option);
	for (char *c = out; *c; c++)
		*c = *c == '-' ? '_' : (char)toupper((unsigned char)*c);
}

/* ---- values ----------------------------------------------------------------------------------
 * Each store_* reads `text` into the row's destination, or complains about `what`, the option or
 * the variable that carried it. */

static void store_text(struct parse *p, const struct opt *o, const char *what, const char *text)
{
	size_t n = strlen(text);
	if (o->max > 0 && ((double)n < o->min || (double)n > o->max))
		complain(p, "%s: \"%.100s\" has %zu characters; expected %.15g to %.15g", what,
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
		complain(p, "%s: \"%.100s\" is not a whole number; expected one in [%.15g, %.15g]",
			what, text, o->min, o->max);
	else if (errno == ERANGE || (double)v < o->min || (double)v > o->max)
		complain(p, "%s: %.100s is out of range; expected a whole number in [%.15g, %.15g]",
			what, text, o->min, o->max);
	else
		*(int64_t *)o->dest = v;
}

static void store_real(struct parse *p, const struct opt *o, const char *what, const char *text)
{
	char *end;
	errno = 0;
	double v = strtod(text, &end);
	/* the character set refuses nan, inf, hexadecimal and leading blanks */
	if (end == text || *end || strspn(text, "+-.0123456789eE") != strlen(text))
		complain(p, "%s: \"%.100s\" is not a number; expected a number in [%.15g, %.15g]",
			what, text, o->min, o->max);
	else if (errno == ERANGE || !isfinite(v) || v < o->min || v > o->max)
		complain(p, "%s: %.100s is out of range; expected a number in [%.15g, %.15g]", what,
			text, o->min, o->max);
	else
		*(double *)o->dest = v;
}

static void store_enum(struct parse *p, const struct opt *o, const char *what, const char *text)
{
	size_t n = strlen(text);
	int index = 0;
	for (const char *v = o->values; *v; index++) {
		size_t length = strcspn(v, "|");
		if (length == n && memcmp(v, text, n) == 0) {
			*(int *)o->dest = index;
			return;
		}
		v += length + (v[length] == '|');
	}
	complain(p, "%s: \"%.100s\" is not known; expected %s", what, text, o->values);
}

static void store_flag(struct parse *p, const struct opt *o, const char *what, const char *text)
{
	if (strcmp(text, "0") != 0 && strcmp(text, "1") != 0)
		complain(p, "%s: \"%.100s\" is neither 0 nor 1", what, text);
	else
		*(int *)o->dest = text[0] == '1';
}

static void store(struct parse *p, const struct opt *o, const char *what, const char *text)
{
	switch (o->type) {
	case OPT_TEXT:
		store_text(p, o, what, text);
		break;
	case OPT_INT:
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

/* What is called `was` no longer: "--a or --b", or as variables. "" if it never was a name. */
static void new_names(const struct opt_program *p, const char *was, size_t n_was, int variables,
	char *out, size_t size)
{
	size_t at = 0;

	out[0] = '\0';
	for (const struct opt *o = p->opts; o->name; o++) {
		char name[72];

		if (!o->was || strlen(o->was) != n_was || memcmp(o->was, was, n_was) != 0)
			continue;
		if (variables)
			opt_variable(o->name, name, sizeof name);
		else
			snprintf(name, sizeof name, "--%s", o->name);
		if (at < size)
			at += (size_t)snprintf(out + at, size - at, "%s%s", at ? " or " : "", name);
	}
}

/* Once for each old name: rows that share one are next to each other. */
static void refuse_old_variable(struct parse *p, const struct opt *o)
{
	const struct opt *before = o > p->program->opts ? o - 1 : NULL;
	char old[64], now[256];

	if (!o->was || (before && before->was && strcmp(before->was, o->was) == 0))
		return;
	opt_variable(o->was, old, sizeof old);
	new_names(p->program, o->was, strlen(o->was), 1, now, sizeof now);
	if (getenv(old))
		complain(p, "%s: was renamed to %s", old, now);
}

/* Take each row's value from the strongest origin that has one. */
static void store_all(struct parse *p)
{
	const struct opt *o = p->program->opts;
	for (size_t i = 0; o[i].name; i++) {
		char variable[64], option[64];
		refuse_old_variable(p, &o[i]);
		opt_variable(o[i].name, variable, sizeof variable);
		snprintf(option, sizeof option, "--%s", o[i].name);
		const char *from_environment = getenv(variable);
		if (p->given[i])
			store(p, &o[i], option, p->given[i]);
		else if (from_environment)
			store(p, &o[i], variable, from_environment);
		else if (o[i].def)
			store(p, &o[i], option, o[i].def);
		origins[i] = p->given[i]        ? FROM_COMMAND_LINE
			     : from_environment ? FROM_ENVIRONMENT
						: FROM_DEFAULT;
	}
}

/* ---- splitting ---------------------------------------------------------------------------- */

static size_t count_rows(const struct opt_program *p)
{
	size_t n = 0;
	while (p->opts[n].name)
		n++;
	assert(n <= MAX_ROWS);
	return n;
}

/* popt's table: every row, a --no- form for each flag, help and version, and the end. */
struct split_table {
	struct poptOption row[2 * MAX_ROWS + 3];
	char no[MAX_ROWS][64];
	size_t n;
};

static void add_row(struct split_table *t, const char *name, unsigned arg_info, int val)
{
	t->row[t->n++] = (struct poptOption){.longName = name, .argInfo = arg_info, .val = val};
}

static void fill_split_table(struct split_table *t, const struct opt_program *p)
{
	size_t rows = count_rows(p);
	for (size_t i = 0; i < rows; i++) {
		const struct opt *o = &p->opts[i];
		int val = (int)i + 1;
		add_row(t, o->name, o->type == OPT_FLAG ? POPT_ARG_NONE : POPT_ARG_STRING, val);
		if (o->type == OPT_FLAG) {
			snprintf(t->no[i], sizeof t->no[i], "no-%s", o->name);
			add_row(t, t->no[i], POPT_ARG_NONE, VAL_NO + val);
		}
	}
	add_row(t, "help", POPT_ARG_NONE, VAL_HELP);
	add_row(t, "version", POPT_ARG_NONE, VAL_VERSION);
	t->row[t->n - 2].shortName = 'h';
}

/* The string of argv that equals `text`, whole or behind an '='; NULL if popt made it up. */
static const char *find_in_argv(const struct parse *p, const char *text)
{
	for (int i = 1; i < p->argc; i++) {
		if (strcmp(p->argv[i], text) == 0)
			return p->argv[i];
		const char *equals = strchr(p->argv[i], '=');
		if (equals && strcmp(equals + 1, text) == 0)
			return equals + 1;
	}
	return NULL;
}

static void note_value(struct parse *p, int val, char *copy)
{
	int row = (val > VAL_NO ? val - VAL_NO : val) - 1;
	const struct opt *o = &p->program->opts[row];
	const char *text = o->type == OPT_FLAG ? (val > VAL_NO ? "0" : "1")
			   : copy              ? find_in_argv(p, copy)
					       : NULL;
	if (!text)
		complain(p, "--%s: needs a value", o->name);
	else if (p->given[row])
		complain(p, "--%s: given twice", o->name);
	else
		p->given[row] = text;
	free(copy);
}

static void note_unknown(struct parse *p, const char *option, int length)
{
	char now[256] = "";

	if (length > 2)
		new_names(p->program, option + 2, (size_t)length - 2, 0, now, sizeof now);
	if (now[0])
		complain(p, "%.*s: was renamed to %s", length, option, now);
	else
		complain(p, "%.*s: unknown option; --help lists them", length, option);
	p->unknown += option[length] == '\0';
}

static void note_bad_option(struct parse *p, poptContext context, int rc)
{
	const char *option = poptBadOption(context, POPT_BADOPTION_NOALIAS);
	int name = (int)strcspn(option, "=");
	if (rc == POPT_ERROR_BADOPT)
		note_unknown(p, option, name);
	else if (rc == POPT_ERROR_NOARG)
		complain(p, "%.*s: needs a value", name, option);
	else
		complain(p, "%.*s: %s", name, option, poptStrerror(rc));
}

/* After an unknown option they may be its value: that is one mistake, and one line. */
static void note_arguments(struct parse *p, poptContext context, const char **args, int *n_args)
{
	int max = p->program->max_args;
	const char *text;
	*n_args = 0;
	while ((text = poptGetArg(context))) {
		if (max >= 0 && *n_args >= max) {
			if (!p->unknown)
				complain(p, "\"%.100s\": unexpected argument; %s takes %d", text,
					p->program->name, max);
			continue;
		}
		const char *own = find_in_argv(p, text);
		if (own)
			args[(*n_args)++] = own;
	}
}

static int split(struct parse *p, const char **args, int *n_args)
{
	struct split_table table = {0};
	fill_split_table(&table, p->program);
	poptContext context = poptGetContext(
		p->program->name, p->argc, (const char **)p->argv, table.row, POPT_CONTEXT_NO_EXEC);
	if (!context)
		return PS_ENOMEM;
	int val;
	while ((val = poptGetNextOpt(context)) != -1) {
		if (val < 0)
			note_bad_option(p, context, val);
		else if (val == VAL_HELP)
			p->show_help = 1;
		else if (val == VAL_VERSION)
			p->show_version = 1;
		else
			note_value(p, val, poptGetOptArg(context));
	}
	note_arguments(p, context, args, n_args);
	poptFreeContext(context);
	return PS_OK;
}

int opt_parse(
	const struct opt_program *program, int argc, char **argv, const char **args, int *n_args)
{
	struct parse p = {.program = program, .argc = argc, .argv = argv};
	*n_args = 0;
	if (split(&p, args, n_args) != PS_OK) {
		complain(&p, "out of memory");
		return PS_EUSAGE;
	}
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

/* ---- for people --------------------------------------------------------------------------- */

#define HELP_INDENT 26
#define HELP_WIDTH  100

/* Print `text` in a column from HELP_INDENT to HELP_WIDTH; the cursor stands at `column`. */
static void print_wrapped(FILE *f, size_t column, const char *text)
{
	if (column >= HELP_INDENT) {
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

/* What values a row takes: "1 to 1024; ", "sgd|adagrad; " or nothing. */
static void describe_range(const struct opt *o, char *out, size_t size)
{
	out[0] = '\0';
	if (o->type == OPT_INT || o->type == OPT_REAL)
		snprintf(out, size, "%.15g to %.15g; ", o->min, o->max);
	else if (o->type == OPT_ENUM)
		snprintf(out, size, "%s; ", o->values);
}

static void help_row(FILE *f, const struct opt *o)
{
	char variable[64], range[256], text[1024], head[128], needs[256];
	opt_variable(o->name, variable, sizeof variable);
	describe_range(o, range, sizeof range);
	const char *def = !o->def               ? "none"
			  : o->type != OPT_FLAG ? o->def
			  : *o->def == '1'      ? "on"
						: "off";
	opt_describe_needs(o->needs, needs, sizeof needs);
	snprintf(
		text, sizeof text, "%s (%sdefault %s; %s%s)", o->help, range, def, variable, needs);
	if (o->type == OPT_FLAG)
		snprintf(head, sizeof head, "  --[no-]%s ", o->name);
	else
		snprintf(head, sizeof head, "  --%s %s ", o->name, o->arg ? o->arg : "VALUE");
	fputs(head, f);
	print_wrapped(f, strlen(head), text);
}

void opt_help(const struct opt_program *p, FILE *f)
{
	fprintf(f, "Usage: %s %s\n%s\n\nOptions, each also read from the variable named with it:\n",
		p->name, p->usage, p->about);
	for (const struct opt *o = p->opts; o->name; o++)
		help_row(f, o);
	fputs("  --help                  Show this text and exit.\n"
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
		snprintf(out, size, "%" PRId64, *(const int64_t *)o->dest);
		break;
	case OPT_REAL:
		snprintf(out, size, "%.15g", *(const double *)o->dest);
		break;
	case OPT_ENUM: {
		const char *v = o->values;
		for (int i = *(const int *)o->dest; i > 0 && *v; i--)
			v += strcspn(v, "|") + 1;
		snprintf(out, size, "%.*s", (int)strcspn(v, "|"), v);
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
			value_text(&p->opts[i], value, sizeof value), origin_names[origins[i]]);
}
