/* table.c - see table.h. */
#include "worker/ctl/table.h"
#include <stdio.h>
#include <string.h>
#include "common/utf8.h"

#define GAP       2 /* blanks between columns */
#define MAX_CELL  128
#define MAX_TEXT  24 /* characters of a text that all columns fit beside */
#define FAIR_TEXT 12 /* cut to so much before the address is left out */
#define MIN_TEXT  8
#define N_COLUMNS (sizeof columns_of / sizeof columns_of[0])

static const struct column {
	const char *title, *key;
	int number;   /* to the right, and never cut */
	int leave;    /* left out in this order, 4 and 5 after texts were cut; 0: never */
	int shortens; /* may be cut to MIN_TEXT */
} columns_of[] = {
	{"worker", "worker", 1, 0, 0},
	{"state", "state", 0, 0, 0},
	{"name", "name", 0, 0, 1},
	{"host", "host", 0, 0, 1},
	{"pid", "pid", 1, 0, 0},
	{"address", "address", 0, 4, 0},
	{"device", "device", 0, 3, 1},
	{"images", "images", 1, 5, 0},
	{"pushes", "last_seq", 1, 2, 0},
	{"durable", "durable_seq", 1, 1, 0},
	{"silent ms", "silent_ms", 1, 0, 0},
};

struct table {
	const json_t *list;
	size_t rows;
	size_t width[N_COLUMNS]; /* 0: left out */
};

/* Characters, not bytes. */
static size_t length(const char *text)
{
	const uint8_t *p = (const uint8_t *)text, *end = p + strlen(text);
	size_t n = 0;

	for (; p < end; n++) {
		size_t bytes = utf8_length(p, end);
		p += bytes ? bytes : 1;
	}
	return n;
}

/* A worker's value as text: "-" for none. */
static const char *cell(const json_t *worker, const struct column *c, char text[MAX_CELL])
{
	const json_t *value = json_object_get(worker, c->key);

	if (json_is_number(value))
		snprintf(text, MAX_CELL, "%.0f", json_number_value(value));
	else if (json_is_string(value) && json_string_value(value)[0])
		snprintf(text, MAX_CELL, "%s", json_string_value(value));
	else
		snprintf(text, MAX_CELL, "-");
	return text;
}

static void natural_widths(struct table *t)
{
	for (size_t c = 0; c < N_COLUMNS; c++) {
		t->width[c] = strlen(columns_of[c].title);
		for (size_t i = 0; i < t->rows; i++) {
			char text[MAX_CELL];
			size_t n = length(cell(json_array_get(t->list, i), &columns_of[c], text));
			if (columns_of[c].shortens && n > MAX_TEXT)
				n = MAX_TEXT;
			if (n > t->width[c])
				t->width[c] = n;
		}
	}
}

static size_t total(const struct table *t)
{
	size_t n = 0;

	for (size_t c = 0; c < N_COLUMNS; c++)
		n += t->width[c] ? t->width[c] + GAP : 0;
	return n - GAP; /* there is always the first column */
}

static void leave_out(struct table *t, int number)
{
	for (size_t c = 0; c < N_COLUMNS; c++)
		if (columns_of[c].leave == number)
			t->width[c] = 0;
}

/* Take a character from the widest text. 0: none has more than `least`. */
static int shorten(struct table *t, size_t least)
{
	size_t widest = 0;

	for (size_t c = 0; c < N_COLUMNS; c++)
		if (columns_of[c].shortens && t->width[c] > t->width[widest])
			widest = c;
		else if (columns_of[c].shortens && !columns_of[widest].shortens)
			widest = c;
	if (!columns_of[widest].shortens || t->width[widest] <= least)
		return 0;
	t->width[widest]--;
	return 1;
}

static void fit(struct table *t, size_t columns)
{
	natural_widths(t);
	if (!columns)
		return;
	for (int number = 1; number <= 3 && total(t) > columns; number++)
		leave_out(t, number);
	while (total(t) > columns && shorten(t, FAIR_TEXT))
		continue;
	if (total(t) > columns)
		leave_out(t, 4);
	while (total(t) > columns && shorten(t, MIN_TEXT))
		continue;
	if (total(t) > columns)
		leave_out(t, 5);
}

/* In `width` characters; a text that is longer ends in '+'. */
static void put_cell(const char *text, size_t width, int right)
{
	const uint8_t *p = (const uint8_t *)text, *end = p + strlen(text);
	size_t n = length(text), shown = n > width ? width - 1 : n;

	if (right && n < width)
		printf("%*s", (int)(width - n), "");
	for (size_t i = 0; i < shown; i++) {
		size_t bytes = utf8_length(p, end);
		bytes = bytes ? bytes : 1;
		fwrite(p, 1, bytes, stdout);
		p += bytes;
	}
	if (n > width)
		putchar('+');
	if (!right && n < width)
		printf("%*s", (int)(width - n), "");
}

/* `worker` NULL: the titles. */
static void put_row(const struct table *t, const json_t *worker)
{
	char text[MAX_CELL];
	int first = 1;

	for (size_t c = 0; c < N_COLUMNS; c++) {
		const struct column *of = &columns_of[c];
		if (!t->width[c])
			continue;
		printf("%*s", first ? 0 : GAP, "");
		put_cell(worker ? cell(worker, of, text) : of->title, t->width[c], of->number);
		first = 0;
	}
	putchar('\n');
}

void ctl_table(const json_t *list, size_t columns, size_t rows)
{
	struct table t = {.list = list, .rows = json_array_size(list)};
	size_t n = t.rows;

	if (rows && t.rows > rows)
		t.rows = rows;
	fit(&t, columns);
	put_row(&t, NULL);
	for (size_t i = 0; i < t.rows; i++)
		put_row(&t, json_array_get(list, i));
	if (n > t.rows)
		printf("and %zu more\n", n - t.rows);
}
