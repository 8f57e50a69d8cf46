/*
 * number_text.h - losses, rates and times as text. Losses and times have the form in which the page
 * of the server (server/monitor/page) shows them.
 *
 * The functions are pure and return `text`. Any thread may call them.
 */
#ifndef COMMON_NUMBER_TEXT_H
#define COMMON_NUMBER_TEXT_H

#define NUMBER_TEXT 32 /* size of a buffer for a number as text */

/* Writes a loss with four decimals, such as 0.6931. A loss may be as small as 1e-12: if it is less
 * than 0.001 or has more digits than the buffer, the text has an exponent, such as 1.2e-11. */
const char *number_text_loss(double loss, char text[NUMBER_TEXT]);
/* Writes a rate as a whole number, or a rate below 1 with one significant digit, such as 0.04, so
 * that a slow rate does not look like none. */
const char *number_text_rate(double rate, char text[NUMBER_TEXT]);
/* Writes a time with the unit that fits: 42 s, 28 min or 3.4 h. */
const char *number_text_time(double seconds, char text[NUMBER_TEXT]);

#endif
