/* table.c - see table.h. */
#include "worker/ctl/table.h"
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "common/assert.h"
#include "common/mem.h"
#include "common/number_text.h"
#include "common/plain.h"
#include "worker/ctl/screen.h"
#include "worker/ctl/width.h"

#define GAP        2 /* blanks between columns */
#define MAX_CELL   128
#define N_COMMON   4  /* maximum number of parts that all texts of a column have in common */
#define MIN_COMMON 3  /* minimum number of characters of a common part */
#define MAX_TEXT   24 /* maximum width of a text column, in characters */
/* texts shrink to this width before more columns are left out (fit_columns) */
#define FAIR_TEXT   12
#define MIN_TEXT    8
#define LAST_LEAVE  15
#define LAST_OF_ALL 17
#define N_COLUMNS   (sizeof(columns_of) / sizeof(columns_of[0]))

enum kind { TEXT, NUMBER, RATE, PERCENT };

static const struct column {
	const char *title;
	enum kind kind;
	const char *key; /* a key in the worker's object; for PERCENT, a key in its "time" */
	double factor;
	int decimals;
	/* columns are left out in the order of this number (fit_columns); 0: the column always
	 * stays */
	int leave;
	int shortens; /* 1: the column may shrink to MIN_TEXT characters */
} columns_of[] = {
	{"#", NUMBER, "worker", 1, 0, 0, 0},
	{"name", TEXT, "name", 0, 0, 0, 1},
	{"host", TEXT, "host", 0, 0, 15, 1},
	{"pid", NUMBER, "pid", 1, 0, 5, 0},
	{"address", TEXT, "address", 0, 0, 4, 0},
	{"device", TEXT, "device", 0, 0, 14, 1},
	{"state", TEXT, "state", 0, 0, 0, 0},
	{"images/s", RATE, "images_per_s", 1, 0, 0, 0},
	{"compute", PERCENT, "compute", 100, 0, 13, 0},
	{"pull", PERCENT, "weights", 100, 0, 12, 0},
	{"copy", PERCENT, "copy", 100, 0, 10, 0},
	{"ack", PERCENT, "push", 100, 0, 11, 0},
	{"work", PERCENT, "lease", 100, 0, 9, 0},
	{"stale", NUMBER, "staleness", 1, 2, 16, 0},
	{"silent", NUMBER, "silent_ms", 1e-3, 1, 17, 0},
	{"images", NUMBER, "images", 1, 0, 3, 0},
	{"pushes", NUMBER, "last_seq", 1, 0, 2, 0},
	{"durable", NUMBER, "durable_seq", 1, 0, 1, 0},
	{"again", NUMBER, "duplicates", 1, 0, 7, 0},
	{"rejected", NUMBER, "rejected", 1, 0, 6, 0},
	{"refused", NUMBER, "refusals", 1, 0, 8, 0},
	{"wire", TEXT, "wire", 0, 0, 1, 0},
};

struct row {
	const json_t *worker;
};

struct table {
	struct row *row;
	size_t rows;
	size_t width[N_COLUMNS]; /* width of each column; 0: the column is not shown */
	/* the parts that all texts that are too wide for the column have in common, in the order in
	 * which cut_common shortens them; "": no part */
	char common[N_COLUMNS][N_COMMON][MAX_CELL];
};

/* Returns the number under `key`, or NaN if there is none. */
static double number_at(const json_t *o, const char *key)
{
	const json_t *value = key ? json_object_get(o, key) : NULL;

	return json_is_number(value) ? json_number_value(value) : (double)NAN;
}

static double cell_number(const json_t *worker, const struct column *c)
{
	const json_t *o = c->kind == PERCENT ? json_object_get(worker, "time") : worker;

	return c->factor * number_at(o, c->key);
}

static const char *cell_text(const json_t *worker, const struct column *c)
{
	const char *text = json_string_value(json_object_get(worker, c->key));

	return text ? text : "";
}

/* Returns a worker's value in column `c` as text, or "-" if there is no value. */
static const char *cell(const json_t *worker, const struct column *c, char text[MAX_CELL])
{
	double value = c->kind == TEXT ? (double)NAN : cell_number(worker, c);

	if (c->kind == TEXT && cell_text(worker, c)[0])
		snprintf(text, MAX_CELL, "%s", cell_text(worker, c));
	else if (isnan(value))
		snprintf(text, MAX_CELL, "-");
	else if (c->kind == RATE)
		number_text_rate(value, text);
	else
		snprintf(text, MAX_CELL, "%.*f%s", c->decimals, value,
			c->kind == PERCENT ? "%" : "");
	plain_text(text, 0);
	width_simplify(text);
	return text;
}

/* ---- widths ---------------------------------------------------------------------------------- */

static void natural_widths(struct table *t)
{
	for (size_t c = 0; c < N_COLUMNS; c++) {
		t->width[c] = strlen(columns_of[c].title);
		for (size_t i = 0; i < t->rows; i++) {
			char text[MAX_CELL];
			size_t n = width_of(cell(t->row[i].worker, &columns_of[c], text));

			if (columns_of[c].shortens && n > MAX_TEXT)
				n = MAX_TEXT;
			if (n > t->width[c])
				t->width[c] = n;
		}
	}
}

static size_t total_width(const struct table *t)
{
	size_t n = 0;

	for (size_t c = 0; c < N_COLUMNS; c++)
		n += t->width[c] ? t->width[c] + GAP : 0;
	/* no GAP follows the last column; n > 0, because the first column is always shown */
	return n - GAP;
}

/* Returns 1 if the run has the values of a column. */
static int is_in_run(const struct table_view *v, size_t column)
{
	const char *key = columns_of[column].key;

	if (v->has_no_images && strncmp(key, "images", 6) == 0)
		return 0;
	return !v->has_no_disk || strcmp(key, "durable_seq") != 0;
}

/* Leaves out the columns whose `leave` is `number`, except the one by which the table is sorted. */
static void leave_out(struct table *t, int number, size_t sort)
{
	for (size_t c = 0; c < N_COLUMNS; c++)
		if (columns_of[c].leave == number && c != sort)
			t->width[c] = 0;
}

/* Shrinks the widest text column by one character. Returns 0 if no text column is wider than
 * `min`. */
static int shorten(struct table *t, size_t min)
{
	size_t widest = 0;

	for (size_t c = 0; c < N_COLUMNS; c++)
		if (columns_of[c].shortens &&
			(!columns_of[widest].shortens || t->width[c] > t->width[widest]))
			widest = c;
	if (!columns_of[widest].shortens || t->width[widest] <= min)
		return 0;
	t->width[widest]--;
	return 1;
}

/* Leaves out the columns with a `leave` from `first` to `last`, in order, until the table fits. */
static void leave_out_until_it_fits(
	struct table *t, int first, int last, size_t columns, size_t sort)
{
	for (int number = first; number <= last && total_width(t) > columns; number++)
		leave_out(t, number, sort);
}

/* Shrinks texts to `min` characters or, if the table then fits, less. */
static void shorten_until_it_fits(struct table *t, size_t min, size_t columns)
{
	while (total_width(t) > columns && shorten(t, min))
		continue;
}

/* Returns the width that the table has after all texts have shrunk to MIN_TEXT. */
static size_t least_width(const struct table *t)
{
	size_t n = total_width(t);

	for (size_t c = 0; c < N_COLUMNS; c++)
		if (columns_of[c].shortens && t->width[c] > MIN_TEXT)
			n -= t->width[c] - MIN_TEXT;
	return n;
}

/* Takes the following steps until the table fits. It leaves out the columns with a `leave` of 1 to
 * 3, shrinks texts to FAIR_TEXT, and leaves out the columns with a `leave` of 4 to 6. Shorter texts
 * are hard to read, so it shrinks them now only if the table then fits, and otherwise after it has
 * left out the columns with a `leave` of 7 to 15. Last, it leaves out the columns with a `leave` of
 * 16 or 17. On a terminal of 120 characters, the table always has the columns whose `leave` is 0 or
 * more than 6. */
static void fit_columns(struct table *t, size_t columns, const struct table_view *v)
{
	natural_widths(t);
	for (size_t c = 0; c < N_COLUMNS; c++)
		if (!is_in_run(v, c))
			t->width[c] = 0;
	if (!columns)
		return;
	leave_out_until_it_fits(t, 1, 3, columns, v->sort);
	shorten_until_it_fits(t, FAIR_TEXT, columns);
	leave_out_until_it_fits(t, 4, 6, columns, v->sort);
	if (least_width(t) > columns)
		leave_out_until_it_fits(t, 7, LAST_LEAVE, columns, v->sort);
	shorten_until_it_fits(t, MIN_TEXT, columns);
	leave_out_until_it_fits(t, LAST_LEAVE + 1, LAST_OF_ALL, columns, v->sort);
}

/* Writes the number and the titles of the columns that are not shown to `v`. */
static void note_hidden(const struct table *t, struct table_view *v)
{
	size_t at = 0;

	v->n_hidden = 0;
	v->hidden[0] = '\0';
	for (size_t c = 0; c < N_COLUMNS; c++)
		if (!t->width[c] && is_in_run(v, c)) {
			at += (size_t)snprintf(v->hidden + at, sizeof(v->hidden) - at, "%s%s",
				v->n_hidden ? ", " : "", columns_of[c].title);
			v->n_hidden++;
			PS_ASSERT(at < sizeof(v->hidden));
		}
}

/* ---- sorting and filter ---------------------------------------------------------------------- */

void table_sort_by(struct table_view *v, int step)
{
	do
		v->sort = (v->sort + N_COLUMNS + (size_t)step) % N_COLUMNS;
	while (!is_in_run(v, v->sort));
	v->reverse = 0;
}

const char *table_sort_title(const struct table_view *v)
{
	return columns_of[v->sort].title;
}

static int compare_numbers(double a, double b)
{
	if (isnan(a) || isnan(b))
		return isnan(a) - isnan(b); /* workers without a value come last */
	return (a > b) - (a < b);
}

static int compare(const void *a, const void *b, void *view)
{
	const json_t *left = ((const struct row *)a)->worker,
		     *right = ((const struct row *)b)->worker;
	const struct table_view *v = view;
	const struct column *c = &columns_of[v->sort];
	int up = (c->kind == TEXT || v->sort == 0) != v->reverse;
	double x = cell_number(left, c), y = cell_number(right, c);
	int order = c->kind == TEXT              ? strcmp(cell_text(left, c), cell_text(right, c))
		    : isnan(x) || isnan(y) || up ? compare_numbers(x, y)
						 : -compare_numbers(x, y);

	if (c->kind == TEXT && !up)
		order = -order;
	return order ? order
		     : compare_numbers(number_at(left, "worker"), number_at(right, "worker"));
}

static int admits(const struct table_view *v, const json_t *worker)
{
	for (size_t c = 0; c < N_COLUMNS; c++)
		if (columns_of[c].kind == TEXT &&
			strcasestr(cell_text(worker, &columns_of[c]), v->filter))
			return 1;
	return 0;
}

/* ---- texts that are too long ----------------------------------------------------------------- */

/* Replaces the domain in the name of a host by '+'. The hosts of a cluster usually have the same
 * domain. */
static void drop_domain(char *host)
{
	size_t n = strcspn(host, ".");

	if (host[n] && strspn(host, "0123456789") < n) /* the host is a name and not an address */
		memcpy(host + n, "+", sizeof("+"));
}

/* Like cell, but without the domain of a host that is too wide. */
static void brief_cell(const json_t *worker, const struct table *t, size_t c, char text[MAX_CELL])
{
	if (width_of(cell(worker, &columns_of[c], text)) > t->width[c] &&
		!strcmp(columns_of[c].key, "host"))
		drop_domain(text);
}

/* Shortens `common` in a text that is wider than `width`, as far as necessary, with '+' in place of
 * its middle. */
static void cut_common(char *text, const char *common, size_t width)
{
	char *at = common[0] ? strstr(text, common) : NULL;
	size_t n = strlen(common), wide = width_of(text);

	if (!at || wide <= width)
		return;
	size_t keep = n > wide - width + 1 ? n - (wide - width + 1) : 0, head = (keep + 1) / 2;
	at[head] = '+';
	memmove(at + head + 1, at + n - (keep - head), strlen(at + n - (keep - head)) + 1);
}

/* Returns 1 if each of the `n` texts has the part `common`. The part must consist of visible ASCII
 * characters other than '+'. */
static int is_common(char (*texts)[MAX_CELL], size_t n, const char *common)
{
	for (const char *at = common; *at; at++)
		if (*at <= ' ' || *at > '~' || *at == '+')
			return 0;
	for (size_t i = 0; i < n; i++)
		if (!strstr(texts[i], common))
			return 0;
	return 1;
}

/* Writes the longest part that the `n` texts have in common to `common`, or "". */
static void find_common_part(char (*texts)[MAX_CELL], size_t n, char common[MAX_CELL])
{
	const size_t length = n ? strlen(texts[0]) : 0;

	for (size_t size = length; size >= MIN_COMMON; size--)
		for (size_t at = 0; at + size <= length; at++) {
			snprintf(common, MAX_CELL, "%.*s", (int)size, texts[0] + at);
			if (is_common(texts, n, common))
				return;
		}
	common[0] = '\0';
}

/* Finds what the texts that are too wide for column `c` have in common, so that the rows show the
 * parts in which these texts differ. */
static void note_common(struct table *t, size_t c)
{
	char(*texts)[MAX_CELL] = mem_try(t->rows ? t->rows : 1, sizeof(*texts));

	for (size_t k = 0; texts && k < N_COMMON; k++) {
		size_t n = 0;

		for (size_t i = 0; i < t->rows; i++) {
			brief_cell(t->row[i].worker, t, c, texts[n]);
			for (size_t before = 0; before < k; before++)
				cut_common(texts[n], t->common[c][before], t->width[c]);
			n += width_of(texts[n]) > t->width[c];
		}
		find_common_part(texts, n, t->common[c][k]);
	}
	free(texts);
}

/* ---- printing -------------------------------------------------------------------------------- */

/* Prints the characters of `text` that fit into `*columns`, and subtracts their width from it.
 * Returns the rest of `text`. */
static const char *put_fitting(FILE *f, const char *text, size_t *columns)
{
	size_t bytes, wide;

	for (; *text && (wide = width_of_character(text, &bytes)) <= *columns; text += bytes) {
		fwrite(text, 1, bytes, f);
		*columns -= wide;
	}
	return text;
}

/* Prints `text`, which is too long, in `width` columns, with '+' in place of its middle: the names
 * of many workers often differ only at their end. */
static void put_cut_text(FILE *f, const char *text, size_t width)
{
	size_t tail = (width - 1) / 2, head = width - 1 - tail, bytes;

	text = put_fitting(f, text, &head);
	fputc('+', f);
	while (*text && (width_of(text) > tail || !width_of_character(text, &bytes))) {
		(void)width_of_character(text, &bytes);
		text += bytes;
	}
	(void)put_fitting(f, text, &tail);
	/* fill up with blanks, because wide characters may not fill the width exactly */
	fprintf(f, "%*s", (int)(head + tail), "");
}

/* Prints `text` in `width` columns. */
static void put_cell(FILE *f, const char *text, size_t width, int right)
{
	size_t n = width_of(text);
	int blanks = n < width ? (int)(width - n) : 0;

	if (n > width)
		put_cut_text(f, text, width);
	else
		fprintf(f, "%*s%s%*s", right ? blanks : 0, "", text, right ? 0 : blanks, "");
}

static enum mark mark_of(const json_t *worker)
{
	const char *state = json_string_value(json_object_get(worker, "state"));

	if (!state)
		return MARK_PLAIN;
	if (!strcmp(state, "live"))
		return MARK_GOOD;
	return !strcmp(state, "stalled") || !strcmp(state, "excluded") ||
			       !strcmp(state, "quarantined")
		       ? MARK_BAD
		       : MARK_WARN;
}

static void put_titles(FILE *f, const struct table *t, size_t sort)
{
	fprintf(f, "%c", MARK_TITLE);
	for (size_t c = 0; c < N_COLUMNS; c++) {
		if (!t->width[c])
			continue;
		fprintf(f, "%*s", c ? GAP : 0, "");
		if (c == sort)
			fprintf(f, "%c", MARK_STRONG);
		put_cell(f, columns_of[c].title, t->width[c], columns_of[c].kind != TEXT);
		if (c == sort)
			fprintf(f, "%c", MARK_TITLE);
	}
	fprintf(f, "%c\n", MARK_PLAIN);
}

static void put_row_of(FILE *f, const struct table *t, const json_t *worker)
{
	char text[MAX_CELL];

	for (size_t c = 0; c < N_COLUMNS; c++) {
		const struct column *of = &columns_of[c];
		int is_state = !strcmp(of->key, "state");

		if (!t->width[c])
			continue;
		fprintf(f, "%*s", c ? GAP : 0, "");
		if (is_state)
			fprintf(f, "%c", mark_of(worker));
		brief_cell(worker, t, c, text);
		for (size_t k = 0; k < N_COMMON && of->shortens; k++)
			cut_common(text, t->common[c][k], t->width[c]);
		put_cell(f, text, t->width[c], of->kind != TEXT);
		if (is_state)
			fprintf(f, "%c", MARK_PLAIN);
	}
	fputc('\n', f);
}

size_t table_print(
	FILE *f, const json_t *workers, size_t columns, size_t rows, struct table_view *v)
{
	size_t n = json_array_size(workers);
	struct table t = {.row = mem_try(n ? n : 1, sizeof(*t.row))};

	for (size_t i = 0; t.row && i < n; i++)
		if (!v->filter[0] || admits(v, json_array_get(workers, i)))
			t.row[t.rows++].worker = json_array_get(workers, i);
	if (t.rows)
		qsort_r(t.row, t.rows, sizeof(*t.row), compare, v);
	fit_columns(&t, columns, v);
	note_hidden(&t, v);
	for (size_t c = 0; c < N_COLUMNS; c++)
		if (t.width[c] && columns_of[c].shortens)
			note_common(&t, c);
	put_titles(f, &t, v->sort);
	if (!rows || rows >= t.rows)
		v->first = 0, rows = t.rows;
	else if (v->first > t.rows - rows)
		v->first = t.rows - rows;
	for (size_t i = v->first; i < v->first + rows; i++)
		put_row_of(f, &t, t.row[i].worker);
	free(t.row);
	return t.rows;
}
