/*
 * log.c - see log.h. The code builds a line in one buffer and writes it with one call, so that
 * lines of several threads or processes do not mix.
 */
#include "common/log.h"
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>
#include "common/io.h"
#include "common/plain.h"
#include "common/utf8.h"

/* PIPE_BUF of Linux: a write of at most this size to a pipe is atomic */
#define LINE_BYTES     4096
#define DETAIL_BYTES   4096
#define FMT_BYTES      512
#define PROGRESS_BYTES 256
/* bytes that are reserved for the ends of the value and the line */
#define TAIL  8
#define ERASE "\r\033[K" /* back to column 0, clear to the end of the line */

#define SILENT (-1)

static atomic_int current_level = SILENT, current_format = LOG_TEXT;
/* guards the variables below, and the write of each line */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
/* the visible progress line, or "" if there is none */
static char progress[PROGRESS_BYTES];
/* receives the lines; if NULL, they go to stderr */
static void (*current_sink)(void *arg, int level, const char *line);
static void *sink_arg;
static int handles_forks; /* 1 if every forked child calls unlock_in_child */

void log_set_level(enum log_level level)
{
	atomic_store(&current_level, (int)level);
}

/* Another thread of the parent may have locked the mutex. That thread does not exist in the child,
 * so the child takes a new mutex. The parent must not lock the mutex before a fork: a sink may wait
 * for a lock that the forking thread holds, such as Python's GIL. */
static void unlock_in_child(void)
{
	pthread_mutex_init(&mutex, NULL);
}

void log_set_sink(void (*sink)(void *arg, int level, const char *line), void *arg)
{
	pthread_mutex_lock(&mutex);
	if (sink && !handles_forks)
		handles_forks = !pthread_atfork(NULL, NULL, unlock_in_child);
	current_sink = sink;
	sink_arg = arg;
	pthread_mutex_unlock(&mutex);
}

enum log_level log_get_level(void)
{
	return (enum log_level)atomic_load(&current_level);
}

void log_set_format(enum log_format format)
{
	atomic_store(&current_format, (int)format);
}

enum log_format log_get_format(void)
{
	return (enum log_format)atomic_load(&current_format);
}

const char *log_level_name(enum log_level level)
{
	switch (level) {
	case LOG_ERROR:
		return "error";
	case LOG_WARN:
		return "warn";
	case LOG_INFO:
		return "info";
	case LOG_DEBUG:
		return "debug";
	}
	return "?";
}

/* ---- a line under construction --------------------------------------------------------------- */

struct line {
	char text[LINE_BYTES];
	size_t n;
	int json;
	/* 1 if the line is full; only the ends of the value and the line may then follow */
	int cut;
};

static size_t line_room(const struct line *l)
{
	return l->cut ? 0 : sizeof(l->text) - TAIL - l->n;
}

/* Appends the `n` bytes if they all fit; otherwise cuts the line off here. */
static void put_bytes(struct line *l, const char *bytes, size_t n)
{
	if (n > line_room(l)) {
		l->cut = 1;
		return;
	}
	memcpy(l->text + l->n, bytes, n);
	l->n += n;
}

/* Appends the end of a value or of a line. The line always has room for this text, because TAIL
 * bytes are reserved. */
static void put_end(struct line *l, const char *text)
{
	size_t n = strlen(text);

	memcpy(l->text + l->n, text, n);
	l->n += n;
}

/* Appends one character of a quoted value, escaped as in JSON. Characters that may control a
 * terminal or change the order of a text are escaped, too. */
static void put_character(struct line *l, const uint8_t *p, size_t bytes)
{
	uint32_t code_point = plain_code_point(p, bytes);
	static const char plain[] = "\"\\\n\r\t", letter[] = "\"\\nrt";
	const char *known = *p ? strchr(plain, *p) : NULL;
	char escaped[8];

	if (known) {
		const char pair[] = {'\\', letter[known - plain]};

		put_bytes(l, pair, sizeof(pair));
	} else if (plain_is_control(code_point)) {
		snprintf(escaped, sizeof(escaped), "\\u%04x", (unsigned)code_point & 0xffffu);
		put_bytes(l, escaped, strlen(escaped));
	} else {
		put_bytes(l, (const char *)p, bytes);
	}
}

static void put_quoted(struct line *l, const char *value, size_t n)
{
	const uint8_t *p = (const uint8_t *)value, *end = p + n;

	put_end(l, "\"");
	while (p < end && !l->cut) {
		size_t bytes = utf8_length(p, end);

		if (bytes)
			put_character(l, p, bytes);
		else
			put_bytes(l, "\\ufffd", 6);
		p += bytes ? bytes : 1;
	}
	put_end(l, l->cut ? "...\"" : "\"");
}

static int is_digits(const char **p, const char *end)
{
	const char *from = *p;

	while (*p < end && **p >= '0' && **p <= '9')
		(*p)++;
	return *p > from;
}

/* Returns 1 if the value is null or a number in JSON's grammar. */
static int is_number_or_null(const char *p, size_t n)
{
	const char *end = p + n;

	if (n == 4 && memcmp(p, "null", n) == 0)
		return 1;
	if (p < end && *p == '-')
		p++;
	if (end - p > 1 && p[0] == '0' && p[1] >= '0' && p[1] <= '9')
		return 0;
	if (!is_digits(&p, end))
		return 0;
	if (p < end && *p == '.' && (p++, !is_digits(&p, end)))
		return 0;
	if (p < end && (*p == 'e' || *p == 'E')) {
		p++;
		if (p < end && (*p == '+' || *p == '-'))
			p++;
		if (!is_digits(&p, end))
			return 0;
	}
	return p == end;
}

/* Returns 1 if the value needs no quotes in logfmt. */
static int is_bare(const char *p, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (p[i] <= ' ' || p[i] > '~' || strchr("\"\\=", p[i]))
			return 0;
	return n > 0;
}

enum form { AS_TEXT, AS_QUOTED, AS_NUMBER };

/* Returns 1 if the text is that of a number that is not finite, such as "inf" or "nan". JSON cannot
 * represent such a number. */
static int is_not_finite(const char *p, size_t n)
{
	if (n > 0 && *p == '-')
		p++, n--;
	return n == 3 && (memcmp(p, "nan", n) == 0 || memcmp(p, "inf", n) == 0);
}

static void add_field(struct line *l, const char *key, size_t key_bytes, const char *value,
	size_t n, enum form form)
{
	if (form == AS_NUMBER && is_not_finite(value, n)) {
		value = l->json ? "null" : "-";
		n = strlen(value);
	}
	int bare = l->json ? form == AS_NUMBER && is_number_or_null(value, n)
			   : form != AS_QUOTED && is_bare(value, n);

	if (line_room(l) < key_bytes + 4 + (bare ? n : TAIL)) {
		l->cut = 1;
		return;
	}
	if (l->json)
		put_bytes(l, l->n > 1 ? ",\"" : "\"", l->n > 1 ? 2 : 1);
	else if (l->n)
		put_bytes(l, " ", 1);
	put_bytes(l, key, key_bytes);
	put_bytes(l, l->json ? "\":" : "=", l->json ? 2 : 1);
	if (bare)
		put_bytes(l, value, n);
	else
		put_quoted(l, value, n);
}

static void add_text(struct line *l, const char *key, const char *value, enum form form)
{
	add_field(l, key, strlen(key), value, strlen(value), form);
}

/* ---- a line's fields ------------------------------------------------------------------------- */

uint64_t log_wall_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static void put_time(struct line *l)
{
	struct timespec now;
	struct tm t;
	char text[96];

	clock_gettime(CLOCK_REALTIME, &now);
	gmtime_r(&now.tv_sec, &t);
	snprintf(text, sizeof(text), "%04d-%02d-%02dT%02d:%02d:%02d.%03dZ", t.tm_year + 1900,
		t.tm_mon + 1, t.tm_mday, t.tm_hour, t.tm_min, t.tm_sec,
		(int)(now.tv_nsec / 1000000));
	add_text(l, "ts", text, AS_TEXT);
}

/* This struct describes a field of the format: where its key begins and ends, and where the
 * template of its value begins and ends. */
struct field {
	size_t key, key_end, value, value_end;
	enum form form;
};

/* Reads the field that begins at fmt[at]. Returns the index at which the next field begins, or 0 if
 * no field is left. */
static size_t next_field(const char *fmt, size_t at, struct field *f)
{
	at += strspn(fmt + at, " ");
	if (!fmt[at])
		return 0;
	f->key = at;
	f->key_end = at + strcspn(fmt + at, "= ");
	f->value = fmt[f->key_end] == '=' ? f->key_end + 1 : at;
	f->form = fmt[f->value] == '"' ? AS_QUOTED : AS_TEXT;
	f->value += f->form == AS_QUOTED;
	f->value_end = f->value + strcspn(fmt + f->value, f->form == AS_QUOTED ? "\"" : " ");
	if (f->form == AS_TEXT && strchr("dufg", fmt[f->value_end - 1]))
		/* the template may end in such a letter without being a conversion of a number, for
		 * example the text "abcd"; the value is later printed as a number only if it is a
		 * number */
		f->form = AS_NUMBER;
	return f->value_end + (fmt[f->value_end] == '"');
}

/* Formats the first `end` bytes of `fmt` with the arguments, and returns the length of the
 * result. */
static size_t length_to(const char *fmt, size_t end, va_list ap)
{
	char part[FMT_BYTES];
	va_list copy;
	int n;

	snprintf(part, sizeof(part), "%.*s", (int)end, fmt);
	va_copy(copy, ap);
#pragma GCC diagnostic push
/* `part` is a part of a format that the compiler has checked */
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
	n = vsnprintf(NULL, 0, part, copy);
#pragma GCC diagnostic pop
	va_end(copy);
	return n > 0 ? (size_t)n : 0;
}

/* Appends the fields. The function finds each value in the formatted text by the lengths of the
 * texts before and after the value. Therefore a value may contain any characters, even those of
 * another field. */
static void put_fields(struct line *l, const char *fmt, va_list ap) PS_PRINTF(2, 0);
static void put_fields(struct line *l, const char *fmt, va_list ap)
{
	char detail[DETAIL_BYTES];
	struct field f;
	va_list copy;
	int n;

	va_copy(copy, ap);
	n = vsnprintf(detail, sizeof(detail), fmt, copy);
	va_end(copy);
	for (size_t at = 0; n > 0 && (at = next_field(fmt, at, &f)) != 0;) {
		size_t from = length_to(fmt, f.value, ap), to = length_to(fmt, f.value_end, ap);
		const size_t last = strlen(detail);
		int named = f.value > f.key;

		if (from > last || f.value_end >= FMT_BYTES)
			return;
		add_field(l, named ? fmt + f.key : "detail", named ? f.key_end - f.key : 6,
			detail + from, (to < last ? to : last) - from, f.form);
	}
}

/* ---- out ------------------------------------------------------------------------------------- */

/* Writes to stderr. Ignores errors, because there is no other place to report them. */
static void write_stderr(const char *bytes, size_t n)
{
	if (io_write_all(STDERR_FILENO, bytes, n))
		return;
}

/* Writes the line. If a progress line is visible, the written line appears above it. */
static void put_line(enum log_level level, struct line *l)
{
	char out[LINE_BYTES + PROGRESS_BYTES + 16];
	int n;

	pthread_mutex_lock(&mutex);
	if (current_sink) {
		l->text[l->n] = '\0';
		current_sink(sink_arg, (int)level, l->text);
		pthread_mutex_unlock(&mutex);
		return;
	}
	if (progress[0])
		n = snprintf(out, sizeof(out), ERASE "%.*s\n%s", (int)l->n, l->text, progress);
	else
		n = snprintf(out, sizeof(out), "%.*s\n", (int)l->n, l->text);
	write_stderr(out, (size_t)n);
	pthread_mutex_unlock(&mutex);
}

void log_write(enum log_level level, const char *subsystem, const char *event, const char *fmt, ...)
{
	if ((int)level > atomic_load(&current_level))
		return;
	int saved_errno = errno;
	struct line l = {.json = log_get_format() == LOG_JSON};
	char msg[128];
	va_list ap;

	if (l.json)
		put_end(&l, "{");
	put_time(&l);
	add_text(&l, "level", log_level_name(level), AS_TEXT);
	snprintf(msg, sizeof(msg), "%.40s %.60s", subsystem, event);
	add_text(&l, "msg", msg, AS_QUOTED);
	va_start(ap, fmt);
	put_fields(&l, fmt, ap);
	va_end(ap);
	if (l.json)
		put_end(&l, "}");
	put_line(level, &l);
	errno = saved_errno;
}

/* ---- the progress line ----------------------------------------------------------------------- */

int log_on_terminal(void)
{
	pid_t front = tcgetpgrp(STDERR_FILENO);

	return isatty(STDERR_FILENO) && (front < 0 || front == getpgrp());
}

/* The result is 1 less than the width of the terminal, because a line that wraps cannot be
 * erased. */
size_t log_columns(void)
{
	struct winsize size;

	if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col < 2)
		return 79;
	return size.ws_col - 1u;
}

static void clean(char *text)
{
	for (; *text; text++)
		if ((unsigned char)*text < ' ' || *text == 127)
			*text = '?';
}

void log_progress(const char *line)
{
	if (!log_on_terminal() || log_get_format() == LOG_JSON)
		return;
	size_t columns = log_columns();
	char out[PROGRESS_BYTES + 16];
	pthread_mutex_lock(&mutex);
	snprintf(progress, sizeof(progress), "%.*s",
		(int)(columns < sizeof(progress) ? columns : sizeof(progress) - 1),
		line ? line : "");
	clean(progress);
	int n = snprintf(out, sizeof(out), ERASE "%s", progress);
	write_stderr(out, (size_t)n);
	pthread_mutex_unlock(&mutex);
}
