/* width.c - see width.h. */
#include "worker/ctl/width.h"
#include <stdint.h>
#include <string.h>
#include <wchar.h>
#include "common/plain.h"
#include "common/utf8.h"

size_t width_of_character(const char *text, size_t *bytes)
{
	const uint8_t *p = (const uint8_t *)text;
	wchar_t c;
	size_t n = utf8_length(p, p + strnlen(text, 4));
	int columns;

	*bytes = n ? n : 1;
	/* a locale whose encoding is not UTF-8 may have no wide character for these bytes */
	if (mbrtowc(&c, text, *bytes, &(mbstate_t){0}) != *bytes)
		return 1;
	columns = wcwidth(c);
	return columns < 0 ? 1 : (size_t)columns;
}

size_t width_of(const char *text)
{
	size_t width = 0, bytes;

	for (; *text; text += bytes)
		width += width_of_character(text, &bytes);
	return width;
}

static int changes_emoji(uint32_t c)
{
	return c == 0x200d || (c >= 0xfe00 && c <= 0xfe0f) || (c >= 0x1f3fb && c <= 0x1f3ff) ||
	       (c >= 0xe0020 && c <= 0xe007f);
}

void width_simplify(char *text)
{
	char *to = text;

	while (*text) {
		const uint8_t *p = (const uint8_t *)text;
		size_t n = utf8_length(p, p + strnlen(text, 4));

		if (n && changes_emoji(plain_code_point(p, n))) {
			text += n;
			continue;
		}
		for (n = n ? n : 1; n > 0; n--)
			*to++ = *text++;
	}
	*to = '\0';
}
