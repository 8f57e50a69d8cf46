/*
 * log.h - one line per event on stderr, as logfmt or as JSON.
 *
 *   text  ts=2026-11-22T09:30:00.125Z level=info msg="net listening" endpoint=tcp://[::]:5555
 *   json  {"ts":"2026-11-22T09:30:00.125Z","level":"info","msg":"net listening","endpoint":"..."}
 *
 * `msg` is the subsystem and the event. The timestamp is UTC; this is the only place that reads the
 * wall clock, and nothing is decided by it. Values are escaped as in JSON, in both formats: what a
 * peer sends can neither start a line nor end a value, and what is not UTF-8 becomes U+FFFD.
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
enum log_format { LOG_TEXT, LOG_JSON };

/* The values of --log-level and --log-format, in the order of the enums, for an option row. */
#define LOG_LEVEL_NAMES  "error|warn|info|debug"
#define LOG_FORMAT_NAMES "text|json"

void log_set_level(enum log_level level);
enum log_level log_get_level(void);
/* "error", ... */
const char *log_level_name(enum log_level level);
void log_set_format(enum log_format format);
enum log_format log_get_format(void);

/* `fmt` gives the fields: key=%s, or key="%s" for a value that is to be quoted in any case,
 * separated by blanks; "%s", "" for none, as compilers warn about an empty format. Each is a field
 * of its own whatever its value holds. At most 511 bytes. */
void log_write(enum log_level level, const char *subsystem, const char *event, const char *fmt, ...)
	PS_PRINTF(4, 5);
#define log_error(...) log_write(LOG_ERROR, __VA_ARGS__)
#define log_warn(...)  log_write(LOG_WARN, __VA_ARGS__)
#define log_info(...)  log_write(LOG_INFO, __VA_ARGS__)
#define log_debug(...) log_write(LOG_DEBUG, __VA_ARGS__)

/* 1 if stderr is a terminal, so that a progress line makes sense. */
int log_on_terminal(void);
/* Show `line` as the progress line (no newline in it); NULL removes it. Does nothing off a
 * terminal, or where lines are JSON. */
void log_progress(const char *line);

#endif
