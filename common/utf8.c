/* utf8.c - see utf8.h. */
#include "common/utf8.h"

size_t utf8_length(const uint8_t *p, const uint8_t *end)
{
	static const uint32_t min[] = {0, 0, 0x80, 0x800, 0x10000};
	size_t n = p[0] < 0x80 ? 1 : p[0] < 0xc2 ? 0 : p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : 4;
	uint32_t c = p[0] & (0x7fu >> n);

	if (n <= 1 || p[0] > 0xf4 || n > (size_t)(end - p))
		return n == 1;
	for (size_t i = 1; i < n; i++) {
		if ((p[i] & 0xc0) != 0x80)
			return 0;
		c = c << 6 | (p[i] & 0x3fu);
	}
	return c < min[n] || c > 0x10ffff || (c >= 0xd800 && c <= 0xdfff) ? 0 : n;
}
