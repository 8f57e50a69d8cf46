/*
 * say.h - the text of a refusal put together from words and values, without stdio: the core is
 * pure. What does not fit is cut off.
 */
#ifndef SERVER_CORE_SAY_H
#define SERVER_CORE_SAY_H
#include <stddef.h>
#include <stdint.h>
#include "proto/msg.h"

#define SAY_BYTES 256 /* workers show 255 characters of a refusal */

struct say {
	char text[SAY_BYTES];
	size_t n; /* characters; a NUL follows */
};

void say_begin(struct say *s, const char *text);
void say_text(struct say *s, const char *text);
void say_number(struct say *s, uint64_t n);
void say_hex(struct say *s, uint64_t n);               /* 16 hexadecimal digits */
void say_run(struct say *s, const struct run_id *run); /* 32 hexadecimal digits */
#endif
