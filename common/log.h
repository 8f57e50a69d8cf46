/*
 * log.h - one line per event on stderr: `level subsystem event key=value ...`.
 *
 * The only mutable state outside main's structs. On a terminal one progress line may stand at the
 * bottom; log lines are written above it.
 *
 * Thread: any thread may log (a line is one write under a mutex); log_progress: one thread.
 */
#ifndef COMMON_LOG_H
#define COMMON_LOG_H
#include "common/err.h"

enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG };

/* The values of --log-level, in the order of the enum, for an option row. */
#define LOG_LEVEL_NAMES "error|warn|info|debug"

void log_set_level(enum log_level level);
enum log_level log_get_level(void);

/* `fmt` gives the key=value part; "%s", "" for none, as compilers warn about an empty format. Quote
 * values that may hold blanks: key="%s". Control characters come out as '?'. */
void log_write(enum log_level level, const char *subsystem, const char *event, const char *fmt, ...)
	PS_PRINTF(4, 5);
#define log_error(...) log_write(LOG_ERROR, __VA_ARGS__)
#define log_warn(...)  log_write(LOG_WARN, __VA_ARGS__)
#define log_info(...)  log_write(LOG_INFO, __VA_ARGS__)
#define log_debug(...) log_write(LOG_DEBUG, __VA_ARGS__)

/* 1 if stderr is a terminal, so that a progress line makes sense. */
int log_on_terminal(void);
/* Show `line` as the progress line (no newline in it); NULL removes it. Does nothing off a
 * terminal. */
void log_progress(const char *line);

#endif
