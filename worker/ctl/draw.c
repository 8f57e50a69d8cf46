/* draw.c - see draw.h. */
#include "worker/ctl/draw.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "common/assert.h"
#include "worker/ctl/width.h"

#define BAR_CELLS   30
#define CLASS_LINES 12 /* maximum number of lines for classes beside a picture */
#define FIRST_CLASS 2  /* the line, from 0, on which the first class stands */
/* maximum number of pixels of a side; larger pictures are drawn at a smaller scale */
#define MAX_DRAWN 56
/* the maximum number of columns of the name of a class, which has other text beside it */
#define NAME_COLUMNS 16

size_t draw_best(const float *p, size_t n)
{
	size_t best = 0;

	for (size_t i = 1; i < n; i++)
		if (p[i] > p[best])
			best = i;
	return best;
}

int draw_may_colour(void)
{
	const char *no = getenv("NO_COLOR");

	return !no || !*no;
}

/* Draws two pixels, one above the other, as one character: with two greys if colours are permitted,
 * else with lit and dark halves. */
static void draw_cell(int top, int bottom, int colours)
{
	static const char *const halves[] = {" ", "\u2580", "\u2584", "\u2588"};

	if (colours)
		printf("\033[38;5;%dm\033[48;5;%dm\u2580", 232 + top * 23 / 255,
			232 + bottom * 23 / 255);
	else
		fputs(halves[(top > 127) + 2 * (bottom > 127)], stdout);
}

static void draw_bar(float p)
{
	int eighths = (int)(p * BAR_CELLS * 8 + 0.5f);

	for (int i = 0; i < eighths / 8; i++)
		fputs("\u2588", stdout);
	if (eighths % 8 >= 4)
		fputs("\u258c", stdout);
}

/* Selects the classes to show beside a picture: all of them in order, or, if there are more than
 * CLASS_LINES, the most probable ones, best first. Returns their number. */
static size_t classes_shown(const float *p, size_t n, size_t shown[CLASS_LINES])
{
	size_t used = 0;

	for (size_t class = 0; class < n; class ++) {
		size_t at = used;

		if (n > CLASS_LINES)
			while (at > 0 && p[class] > p[shown[at - 1]])
				at--;
		if (at == CLASS_LINES)
			continue;
		used += used < CLASS_LINES;
		memmove(shown + at + 1, shown + at, (used - at - 1) * sizeof(*shown));
		shown[at] = class;
	}
	return used;
}

static int digits(size_t classes)
{
	int n = 1;

	for (; classes > 10; classes = (classes + 9) / 10)
		n++;
	return n;
}

/* Returns the grey of one pixel of the drawing, which is the mean of the channels of the
 * corresponding pixel of the picture. */
static int grey_at(const struct drawing *d, size_t step, size_t y, size_t x)
{
	const struct shape *s = &d->shape;
	size_t sum = 0;

	PS_ASSERT(s->c > 0);
	if (y * step >= s->h)
		return 0;
	for (size_t c = 0; c < s->c; c++)
		sum += d->pixels[(c * s->h + y * step) * s->w + x * step];
	return (int)(sum / s->c);
}

/* Prints the name in a field of `columns` columns of a terminal; a name that is too long is cut. */
static void print_name(const char *name, size_t columns)
{
	size_t used = 0, bytes;

	for (size_t width; *name; name += bytes, used += width) {
		width = width_of_character(name, &bytes);
		if (used + width > columns)
			break;
		fwrite(name, 1, bytes, stdout);
	}
	printf("%*s", (int)(columns - used), "");
}

/* Draws one line: two rows of pixels of the picture, then the probability of a class, unless no
 * class belongs to this line. The name of the class takes `columns` columns. */
static void draw_line(
	const struct drawing *d, size_t line, const size_t *class, size_t columns, int colours)
{
	const size_t side = d->shape.h > d->shape.w ? d->shape.h : d->shape.w;
	const size_t step = (side + MAX_DRAWN - 1) / MAX_DRAWN;
	const int beside = 2 * line * step >= d->shape.h; /* 1: the picture ends above this line */

	for (size_t x = 0; x * step < d->shape.w; x++)
		if (beside)
			putchar(' ');
		else
			draw_cell(grey_at(d, step, 2 * line, x), grey_at(d, step, 2 * line + 1, x),
				colours);
	if (colours && !beside)
		fputs("\033[0m", stdout);
	if (class) {
		printf("  %*zu ", digits(d->classes), *class);
		if (columns) {
			print_name(class_names_get(d->names, *class), columns);
			putchar(' ');
		}
		printf("%5.1f %% ", 100 * (double)d->probability[*class]);
		draw_bar(d->probability[*class]);
	}
	putchar('\n');
}

static size_t lines_of(const struct drawing *d, size_t classes)
{
	const size_t side = d->shape.h > d->shape.w ? d->shape.h : d->shape.w;
	const size_t step = (side + MAX_DRAWN - 1) / MAX_DRAWN;
	const size_t rows = (d->shape.h + step - 1) / step, lines = (rows + 1) / 2;

	return lines > classes + FIRST_CLASS ? lines : classes + FIRST_CLASS;
}

/* Returns the number of columns for the names of `n` classes; 0: they have no names. */
static size_t name_columns(const struct drawing *d, const size_t *shown, size_t n)
{
	size_t columns = 0;

	for (size_t i = 0; i < n; i++) {
		size_t width = width_of(class_names_get(d->names, shown[i]));

		columns = width > columns ? width : columns;
	}
	return columns < NAME_COLUMNS ? columns : NAME_COLUMNS;
}

/* Prints the number of a class, and its name if it has one. */
static void print_class(const struct drawing *d, size_t class)
{
	const char *name = class_names_get(d->names, class);

	printf("%zu%s%s", class, *name ? " " : "", name);
}

void draw_prediction(const char *name, const struct drawing *d)
{
	const int colours = isatty(STDOUT_FILENO) && draw_may_colour();
	size_t best = draw_best(d->probability, d->classes), shown[CLASS_LINES];
	size_t n = classes_shown(d->probability, d->classes, shown);
	const size_t columns = name_columns(d, shown, n);

	printf("%s: ", name);
	print_class(d, best);
	printf(" (%.2f %%)", 100 * (double)d->probability[best]);
	if (d->label >= 0) {
		printf(", label ");
		print_class(d, (size_t)d->label);
		fputs((size_t)d->label == best ? "" : ", wrong", stdout);
	}
	putchar('\n');
	for (size_t line = 0; line < lines_of(d, n); line++) {
		/* unsigned: for the first lines, which have no class, this wraps to a number above
		 * all rows */
		size_t row = line - FIRST_CLASS;

		draw_line(d, line, row < n ? &shown[row] : NULL, columns, colours);
	}
}
