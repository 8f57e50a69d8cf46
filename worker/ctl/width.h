/*
 * width.h - the width of a text on a terminal. The caller must have set the locale (LC_CTYPE). A
 * byte that belongs to no UTF-8 character counts as one column. If the locale has another encoding
 * than UTF-8, each character counts as one column.
 *
 * Thread: any.
 */
#ifndef WORKER_CTL_WIDTH_H
#define WORKER_CTL_WIDTH_H
#include <stddef.h>

/* Returns the number of columns that the first character of `text` occupies on a terminal: 2 for a
 * wide character such as a Chinese one, 0 for one that combines with the previous character. Writes
 * the length of the character to *bytes. */
size_t width_of_character(const char *text, size_t *bytes);
/* Removes from `text` the characters that join emoji or change their form: zero-width joiners,
 * variation selectors and skin tones. Some terminals draw such a sequence as one character of two
 * columns, others as several characters. For what remains, most terminals agree with wcwidth. They
 * do not agree on the vowel signs of Indian scripts that have a width of their own, but without
 * these signs the text would not be readable. */
void width_simplify(char *text);
/* Returns the number of columns that `text` occupies on a terminal. */
size_t width_of(const char *text);

#endif
