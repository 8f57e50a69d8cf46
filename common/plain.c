/* plain.c - see plain.h. */
#include "common/plain.h"
#include <stdint.h>
#include <string.h>
#include "common/utf8.h"

uint32_t plain_code_point(const uint8_t *p, size_t n)
{
	uint32_t c = n == 1 ? p[0] : p[0] & (0x7fu >> n);

	for (size_t i = 1; i < n; i++)
		c = c << 6 | (p[i] & 0x3fu);
	return c;
}

int plain_is_control(uint32_t c)
{
	return c < 0x20 || (c >= 0x7f && c <= 0x9f) || c == 0x61c || c == 0x200e || c == 0x200f ||
	       (c >= 0x2028 && c <= 0x202e) || (c >= 0x2066 && c <= 0x2069);
}

void plain_text(char *text, int lines)
{
	uint8_t *from = (uint8_t *)text, *to = from;
	const uint8_t *end = from + strlen(text);

	while (from < end) {
		size_t n = utf8_length(from, end);
		uint32_t c = n ? plain_code_point(from, n) : 0;

		n = n ? n : 1;
		if (plain_is_control(c) && !(c == '\n' && lines))
			*to++ = '?';
		else {
			memmove(to, from, n);
			to += n;
		}
		from += n;
	}
	*to = '\0';
}
