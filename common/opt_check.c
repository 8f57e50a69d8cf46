/*
 * opt_check.c - what was given without effect: options that belong to another mode, optimizer or
 * command than the one chosen, and variables that no program reads.
 */
#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "common/log.h"
#include "common/opt.h"
#include "common/opt_impl.h"

#define PREFIX      "CNN_"
#define KUBERNETES  "CNN_PS_" /* what it sets for a service named cnn-ps */
#define COMMAND     "command"
#define MAX_NAME    63
#define MAX_UNKNOWN 20 /* variables that are named one by one */

extern char **environ;

/* Every option of every program: written by opt_names.sh from the option tables. */
static const struct known {
	const char *program, *option;
} known[] = {
#include "opt_names.h"
};

/* Variables of scripts, containers, kernels and tests, which are no options. */
static const char *const others[] = {"CNN_BUNDLE", "CNN_FAULT_SEED", "CNN_GARBAGE_SEED",
	"CNN_IMAGE", "CNN_IMAGES", "CNN_KX_ISA", "CNN_MEMORY", "CNN_MIRRORS", "CNN_SLOW",
	"CNN_TEST_DEVICE"};

#define N_KNOWN  (sizeof known / sizeof known[0])
#define N_OTHERS (sizeof others / sizeof others[0])

struct check {
	const struct opt_program *program;
	const char *command;
};

static void warn(const struct check *c, const char *event, const char *fmt, ...) PS_PRINTF(3, 4);
static void warn(const struct check *c, const char *event, const char *fmt, ...)
{
	struct err line;
	char text[sizeof line.text];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	err_set(&line, PS_EUSAGE, "%s", text); /* takes control characters out */
	if (c->command && log_get_format() == LOG_TEXT) {
		fprintf(stderr, "%s: warning: %s\n", c->program->name, line.text);
		return;
	}
	enum log_level level = log_get_level();
	if (c->command && level < LOG_WARN)
		log_set_level(LOG_WARN); /* a command warns whatever its level, as above */
	log_warn("options", event, "reason=\"%s\"", line.text);
	log_set_level(level);
}

/* ---- conditions ---------------------------------------------------------------------------- */

/* The `i`-th value of "a|b|c", and its length. */
static const char *nth_value(const char *values, int i, size_t *n)
{
	for (; i > 0 && *values; i--) {
		values += strcspn(values, "|");
		values += *values == '|';
	}
	*n = strcspn(values, "|");
	return values;
}

/* One of the conditions in a row's `needs`. */
struct condition {
	const char *name; /* of a row, or "command" */
	int n_name;
	const char *values; /* "a|b" */
	int n_values;       /* 0: the row must be given */
	int negated;        /* none of the values */
};

/* Take the next condition off *needs; 0: there is none. */
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

static int is_named(const struct condition *k, const char *name)
{
	return strlen(name) == (size_t)k->n_name && memcmp(k->name, name, strlen(name)) == 0;
}

/* Is the value of `n` characters one of the condition's? */
static int is_one_of(const struct condition *k, const char *value, size_t n)
{
	const char *list = k->values, *end = k->values + k->n_values;
	while (list < end) {
		size_t length = strcspn(list, "| ");
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
	assert(0 && "a row needs a row that is not in the table");
	return NULL;
}

/* The value that a condition compares: the command, or that of an OPT_ENUM or OPT_INT row. */
static const char *value_now(
	const struct check *c, const struct condition *k, char number[24], size_t *n)
{
	if (is_named(k, COMMAND)) {
		assert(c->command);
		*n = strlen(c->command);
		return c->command;
	}
	const struct opt *o = find_row(c->program, k);
	if (o->type == OPT_INT) {
		*n = (size_t)snprintf(number, 24, "%" PRId64, *(const int64_t *)o->dest);
		return number;
	}
	assert(o->type == OPT_ENUM);
	return nth_value(o->values, *(const int *)o->dest, n);
}

/* A row that must be given. If it is not, `instead` says so. */
static int is_given(const struct check *c, const struct condition *k, char *instead, size_t size)
{
	const struct opt *o = find_row(c->program, k);
	assert(o->type == OPT_TEXT);
	const char *text = *(const char *const *)o->dest;
	snprintf(instead, size, "without --%s", o->name);
	return text && text[0];
}

/* If it does not hold, `instead` says what there is and what the row needs. */
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

/* The conditions of one kind, "only with --mode ssp|sync and --name", at the end of `out`. */
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

void opt_describe_needs(const char *needs, char *out, size_t size)
{
	out[0] = '\0';
	describe(needs, 0, "; only with ", out, size);
	describe(needs, 1, "; not with ", out, size);
}

/* How many programs have this option. */
static int programs_with(const char *option)
{
	int n = 0;
	for (size_t i = 0; i < N_KNOWN; i++)
		n += strcmp(known[i].option, option) == 0;
	return n;
}

/* A variable that several programs share may be meant for another of them or another command. */
static int is_meant(const struct opt *o, size_t row)
{
	enum origin from = opt_origin(row);
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
	if (opt_origin(row) == FROM_ENVIRONMENT)
		opt_variable(o->name, name, sizeof name);
	else
		snprintf(name, sizeof name, "--%s", o->name);
	while (next_condition(&needs, &k))
		if (!holds(c, &k, instead, sizeof instead)) {
			warn(c, "no_effect", "%s has no effect %s", name, instead);
			return;
		}
}

/* ---- variables ------------------------------------------------------------------------------- */

static size_t least(size_t a, size_t b)
{
	return a < b ? a : b;
}

/* Edits (insert, delete, replace) that turn one name into the other; both of at most MAX_NAME. */
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
			row[j] = least(replaced, 1 + least(row[j], row[j - 1]));
		}
	}
	return row[n];
}

/* Does a program read `name`? Else the nearest name that one reads is in `near`, if any is near. */
static int is_known(const struct check *c, const char *name, char near[MAX_NAME + 1])
{
	char variable[MAX_NAME + 1];
	size_t best = strlen(name) / 4 + 1;
	near[0] = '\0';
	for (size_t i = 0; i < N_KNOWN + N_OTHERS; i++) {
		if (i < N_KNOWN)
			opt_variable(known[i].option, variable, sizeof variable);
		else
			snprintf(variable, sizeof variable, "%s", others[i - N_KNOWN]);
		int own = i < N_KNOWN && strcmp(known[i].program, c->program->name) == 0;
		size_t d = 2 * distance(name, variable) + !own; /* its own come first */
		if (d <= 1)
			return 1;
		if (d < 2 * best) {
			best = (d + 1) / 2;
			memcpy(near, variable, sizeof variable);
		}
	}
	return 0;
}

static int is_row(const struct opt_program *p, const char *name)
{
	char variable[MAX_NAME + 1];
	for (const struct opt *o = p->opts; o->name; o++) {
		opt_variable(o->name, variable, sizeof variable);
		if (strcmp(variable, name) == 0)
			return 1;
	}
	return 0;
}

/* `entry`: "NAME=VALUE". 1: it was warned about. */
static int check_variable(const struct check *c, const char *entry)
{
	char name[MAX_NAME + 1], near[MAX_NAME + 1];
	size_t n = strcspn(entry, "=");
	if (strncmp(entry, PREFIX, strlen(PREFIX)) != 0 ||
		strncmp(entry, KUBERNETES, strlen(KUBERNETES)) == 0)
		return 0;
	snprintf(name, sizeof name, "%.*s", (int)least(n, MAX_NAME), entry);
	if (is_row(c->program, name) || is_known(c, name, near))
		return 0;
	if (near[0])
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
