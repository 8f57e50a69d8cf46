/*
 * table.h - the workers of a server's status as a table that fits a terminal.
 *
 * Thread: main.
 */
#ifndef WORKER_CTL_TABLE_H
#define WORKER_CTL_TABLE_H
#include <jansson.h>
#include <stddef.h>

/* Print `list` ("workers" of STATUS) on stdout: a line of titles and at most `rows` lines, of at
 * most `columns` characters each; 0: no limit. What does not fit is left out by importance: columns
 * first, then the ends of long names. */
void ctl_table(const json_t *list, size_t columns, size_t rows);

#endif
