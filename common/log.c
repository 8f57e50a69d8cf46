/*
 * log.c - event lines and one progress line on stderr.
 *
 * A line is put together in one buffer and leaves in one write, so that lines of several threads or
 * processes do not mix. Control characters become '?': what a peer sends cannot start a new line.
 */
#include "common/log.h"
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define LINE_BYTES     2048
#define PROGRESS_BYTES 256
#define ERASE          "\r\033[K" /* back to column 0, clear to the end of the line */

static atomic_int current_level = LOG_INFO;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* guards progress and the write */
static char progress[PROGRESS_BYTES];                     /* "": no progress line stands */

void log_set_level(enum log_level level)
{
	atomic_store(&current_level, (int)level);
}

enum log_level log_get_level(void)
{
	return (enum log_level)atomic_load(&current_level);
}

static const char *level_name(enum log_level level)
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

static void write_all(const char *bytes, size_t n)
{
	while (n) {
		ssize_t done = write(STDERR_FILENO, bytes, n);
		if (done < 0 && errno == EINTR)
			continue;
		if (done <= 0)
			return; /* nobody to tell */
		bytes += done;
		n -= (size_t)done;
	}
}

static void clean(char *text)
{
	for (; *text; text++)
		if ((unsigned char)*text < ' ' || *text == 127)
			*text = '?';
}

/* Write `line` above the progress line, if one stands. */
static void put_line(const char *line)
{
	char out[LINE_BYTES + PROGRESS_BYTES + 16];
	pthread_mutex_lock(&mutex);
	int n = progress[0] ? snprintf(out, sizeof out, ERASE "%s\n%s", line, progress)
			    : snprintf(out, sizeof out, "%s\n", line);
	write_all(out, (size_t)n);
	pthread_mutex_unlock(&mutex);
}

void log_write(enum log_level level, const char *subsystem, const char *event, const char *fmt, ...)
{
	if ((int)level > atomic_load(&current_level))
		return;
	int saved_errno = errno;
	char line[LINE_BYTES], detail[LINE_BYTES - 128];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(detail, sizeof detail, fmt, ap);
	va_end(ap);
	snprintf(line, sizeof line, "%s %.40s %.60s%s%s", level_name(level), subsystem, event,
		detail[0] ? " " : "", detail);
	clean(line);
	put_line(line);
	errno = saved_errno;
}

int log_on_terminal(void)
{
	return isatty(STDERR_FILENO);
}

/* Columns that a progress line may fill without wrapping: a wrapped line cannot be erased. */
static size_t progress_columns(void)
{
	struct winsize size;
	if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col < 2)
		return 79;
	return size.ws_col - 1u;
}

void log_progress(const char *line)
{
	if (!log_on_terminal())
		return;
	size_t room = progress_columns();
	char out[PROGRESS_BYTES + 16];
	pthread_mutex_lock(&mutex);
	snprintf(progress, sizeof progress, "%.*s",
		(int)(room < sizeof progress ? room : sizeof progress - 1), line ? line : "");
	clean(progress);
	int n = snprintf(out, sizeof out, ERASE "%s", progress);
	write_all(out, (size_t)n);
	pthread_mutex_unlock(&mutex);
}
