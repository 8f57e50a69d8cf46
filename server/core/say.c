/* say.c - see say.h. */
#include "server/core/say.h"

static void put(struct say *s, char c)
{
	if (s->n + 1 < sizeof(s->text))
		s->text[s->n++] = c;
	s->text[s->n] = '\0';
}

void say_begin(struct say *s, const char *text)
{
	s->n = 0;
	s->text[0] = '\0';
	say_text(s, text);
}

void say_text(struct say *s, const char *text)
{
	while (*text)
		put(s, *text++);
}

void say_number(struct say *s, uint64_t n)
{
	char digit[20];
	size_t count = 0;

	do
		digit[count++] = (char)('0' + n % 10);
	while ((n /= 10) > 0);
	while (count > 0)
		put(s, digit[--count]);
}

void say_hex(struct say *s, uint64_t n)
{
	for (int shift = 60; shift >= 0; shift -= 4)
		put(s, "0123456789abcdef"[n >> shift & 15]);
}

void say_run(struct say *s, const struct run_id *run)
{
	say_hex(s, run->hi);
	say_hex(s, run->lo);
}
