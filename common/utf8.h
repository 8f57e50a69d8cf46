/*
 * utf8.h - checks UTF-8, one character at a time (RFC 3629).
 *
 * The function is pure, and any thread may call it.
 */
#ifndef COMMON_UTF8_H
#define COMMON_UTF8_H
#include <stddef.h>
#include <stdint.h>

/* Returns the length in bytes of the character at `p` < `end`. Returns 0 if the bytes are not UTF-8
 * (an overlong form, a surrogate, a code point above U+10FFFF, or a truncated character). */
size_t utf8_length(const uint8_t *p, const uint8_t *end);

#endif
