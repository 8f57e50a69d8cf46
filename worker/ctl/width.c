/* width.c - see width.h. */
#include "worker/ctl/width.h"
#include <stdint.h>
#include <string.h>
#include <wchar.h>
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
