/*
 * utf8.h - is this UTF-8, byte sequence by byte sequence (RFC 3629).
 *
 * Pure; thread: any.
 */
#ifndef COMMON_UTF8_H
#define COMMON_UTF8_H
#include <stddef.h>
#include <stdint.h>

/* Bytes of the character that begins at `p`, which is before `end`; 0: it is not UTF-8 (an overlong
 * form, a surrogate, a code point past U+10FFFF, or cut off). */
size_t utf8_length(const uint8_t *p, const uint8_t *end);

#endif
