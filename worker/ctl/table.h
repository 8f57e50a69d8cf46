/*
 * table.h - the table of workers of cnn-ctl top. The module chooses the columns that fit, sorts and
 * filters the workers, and prints text with the marks of screen.h. Thread: main.
 */
#ifndef WORKER_CTL_TABLE_H
#define WORKER_CTL_TABLE_H
#include <jansson.h>
#include <stddef.h>
#include <stdio.h>

#define FILTER_TEXT 64
#define TITLES_TEXT 192 /* size of a buffer for the titles of all columns */

/* The choices of the user, and the columns that table_print has left out. A struct of zeros shows
 * all workers, sorted by number. */
struct table_view {
	size_t sort;              /* number of the column by which the table is sorted */
	int reverse;              /* 1: sort in the opposite direction */
	size_t first;             /* the first worker shown; table_print keeps it within the list */
	char filter[FILTER_TEXT]; /* text that the shown workers contain; "": show all workers */
	/* 1: the run has no images, so the table has no columns about images */
	int has_no_images;
	/* 1: the server has no --checkpoint-dir, so the table has no column of durable pushes */
	int has_no_disk;
	size_t n_hidden;          /* number of columns that the last table_print left out */
	char hidden[TITLES_TEXT]; /* the titles of the columns that were left out */
};

/* Chooses the next (+1) or the previous (-1) column to sort by. */
void table_sort_by(struct table_view *v, int step);
const char *table_sort_title(const struct table_view *v);
/* Prints the workers (an array of the status) that the filter admits, in the order of the view: a
 * line of titles, then at most `rows` lines of at most `columns` characters; 0: no limit. If the
 * table is too wide, the function leaves out the least important columns, but not the column by
 * which the table is sorted, and shortens long names. Worker numbers and texts are sorted in
 * ascending order and the other columns in descending order, unless v->reverse is set. Returns the
 * number of workers that the filter admits. */
size_t table_print(
	FILE *f, const json_t *workers, size_t columns, size_t rows, struct table_view *v);

#endif
