/*
 * plain.h - makes text from a peer safe for a terminal.
 *
 * A terminal executes control characters (C0 and C1), for example escape sequences that move the
 * cursor or change the title. Bidirectional controls make a terminal show text in another order
 * than its bytes. The functions are pure, and any thread may call them.
 */
#ifndef COMMON_PLAIN_H
#define COMMON_PLAIN_H
#include <stddef.h>
#include <stdint.h>

/* Returns the code point of a character, given its `n` bytes of UTF-8 at p. */
uint32_t plain_code_point(const uint8_t *p, size_t n);
/* Returns 1 if the code point is a control character or a bidirectional control, or ends a line. */
int plain_is_control(uint32_t code_point);

/* Replaces each control character, each bidirectional control and each byte that is not UTF-8 by
 * '?', in place. If `lines` is 1, the function does not replace newlines. */
void plain_text(char *text, int lines);

#endif
