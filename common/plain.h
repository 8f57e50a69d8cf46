/*
 * plain.h - makes text from a peer safe for a terminal.
 *
 * A terminal executes control characters (C0 and C1), for example escape sequences that move the
 * cursor or change the title. Bidirectional controls make a terminal show text in another order
 * than its bytes. Pure. Thread: any.
 */
#ifndef COMMON_PLAIN_H
#define COMMON_PLAIN_H

/* Replaces each control character, each bidirectional control and each byte that is not UTF-8 by
 * '?', in place. If `lines` is 1, the function does not replace newlines. */
void plain_text(char *text, int lines);

#endif
