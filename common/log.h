/*
 * log.h - writes one line per event, as logfmt or as JSON, to stderr or to a function of the
 * program.
 *
 *   text  ts=2026-11-22T09:30:00.125Z level=info msg="net listening" endpoint=tcp://[::]:5555
 *   json  {"ts":"2026-11-22T09:30:00.125Z","level":"info","msg":"net listening","endpoint":"..."}
 *
 * `msg` consists of the subsystem and the event. The timestamp is UTC. Only this module reads the
 * wall clock, and no decision of a program depends on its time. Both log formats escape values as
 * JSON does, so text from a peer can neither start a line nor end a value. Bytes that are not UTF-8
 * become U+FFFD.
 *
 * The log is the only mutable state outside the structs that main owns. On a terminal, one progress
 * line may be visible at the bottom, and log lines appear above it.
 *
 * Any thread may log, because a line is one write under a mutex. Only one thread may call
 * log_progress.
 */
#ifndef COMMON_LOG_H
#define COMMON_LOG_H
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"

enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG };
enum log_format { LOG_TEXT, LOG_JSON };

/* LOG_LEVEL_NAMES and LOG_FORMAT_NAMES list the values of --log-level and --log-format for an
 * option row, in the order of the enums. */
#define LOG_LEVEL_NAMES  "error|warn|info|debug"
#define LOG_FORMAT_NAMES "text|json"

/* Sets the least severe level that the log writes. Before the first call of log_set_level, the log
 * writes nothing, because a library must not write anything unless its program demands it. */
void log_set_level(enum log_level level);
enum log_level log_get_level(void);
/* Returns "error", "warn", "info" or "debug". */
const char *log_level_name(enum log_level level);
/* Makes the log call `sink` with each line, without a newline, instead of writing to stderr. If
 * `sink` is NULL, the log writes to stderr. The log calls `sink` from any thread, but never twice
 * at the same time. `sink` itself must not log. */
void log_set_sink(void (*sink)(void *arg, int level, const char *line), void *arg);
void log_set_format(enum log_format format);
enum log_format log_get_format(void);

/* Writes one line. `fmt` has the fields, separated by blanks: key=%s, or key="%s" for a value that
 * must always have quotes. The log line keeps the fields apart, whatever characters the values
 * contain. The value of key=%f is null (JSON) or - (text) if the number is not finite. Pass "%s",
 * "" for no fields, because compilers warn about an empty format. `fmt` has at most 511 bytes. */
void log_write(enum log_level level, const char *subsystem, const char *event, const char *fmt, ...)
	PS_PRINTF(4, 5);
#define log_error(...) log_write(LOG_ERROR, __VA_ARGS__)
#define log_warn(...)  log_write(LOG_WARN, __VA_ARGS__)
#define log_info(...)  log_write(LOG_INFO, __VA_ARGS__)
#define log_debug(...) log_write(LOG_DEBUG, __VA_ARGS__)

/* Returns 1 if stderr is a terminal that can show a progress line, and 0 for a background job of a
 * shell. */
int log_on_terminal(void);
/* Returns the number of columns that a progress line may fill. log_progress cuts a longer line. */
size_t log_columns(void);
/* Shows `line`, without a newline, as the progress line; NULL removes the line. Does nothing if
 * stderr is not a terminal, or if the format is JSON. */
void log_progress(const char *line);

/* Returns the time of the wall clock, which the timestamps show, in milliseconds since 1970. The
 * wall clock may jump, so use its time only in records for people. */
uint64_t log_wall_ms(void);

#endif
