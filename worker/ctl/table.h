/*
 * table.h - the table of workers of cnn-ctl top: which columns fit, sorting, filter, and text with the
 * marks of screen.h. Thread: main.
 */
#ifndef WORKER_CTL_TABLE_H
#define WORKER_CTL_TABLE_H
#include <jansson.h>
#include <stddef.h>
#include <stdio.h>

#define FILTER_TEXT 64
#define TITLES_TEXT 192 /* the titles of all columns */

/* What the user has chosen, and what table_print has left out. Zero: all workers, by number. */
struct table_view {
	size_t sort;              /* number of the column */
	int reverse;              /* 1: the other direction */
	size_t first;             /* the first worker shown; table_print keeps it within the list */
	char filter[FILTER_TEXT]; /* "": all */
	size_t n_hidden;          /* columns that the last table_print left out ... */
	char hidden[TITLES_TEXT]; /* ... and their titles */
};

/* Chooses the next (+1) or the previous (-1) column to sort by. */
void table_sort_by(struct table_view *v, int step);
const char *table_sort_title(const struct table_view *v);
/* Prints the workers (an array of the status) that the filter admits, in the order of the view: a
 * line of titles, then at most `rows` lines of at most `columns` characters; 0: no limit. If the
 * table is too wide, the least important columns go, but not the one that sorts, and long names
 * shrink. Worker numbers and texts ascend and the other columns descend, unless v->reverse is set.
 * Returns how many workers the filter admits. */
size_t table_print(
	FILE *f, const json_t *workers, size_t columns, size_t rows, struct table_view *v);

#endif
