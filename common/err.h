/*
 * err.h - the table of all status codes, and an error message with its code.
 *
 * Every fallible function returns 0 or a negative PS_E*. The messages ERROR and BYE contain these
 * numbers with the opposite sign, so a number must never change its meaning. Each row of the table
 * also has the exit code of a program that ends with this status.
 *
 * Any thread may call the functions; a struct err belongs to its caller.
 */
#ifndef COMMON_ERR_H
#define COMMON_ERR_H
#include <stdarg.h>

/* each row is X(name, value, exit code, text) */
#define PS_STATUS_MAP(X)                                                                           \
	X(OK, 0, 0, "ok")                                                                          \
	X(EUSAGE, -1, 2, "bad usage or configuration")                                             \
	X(ENOMEM, -2, 1, "out of memory")                                                          \
	X(EIO, -3, 10, "disk error")                                                               \
	X(EUNREACHABLE, -4, 3, "server unreachable")                                               \
	X(EWRONGRUN, -5, 4, "the server is in another run")                                        \
	X(EFENCED, -6, 5, "a newer incarnation of this worker exists")                             \
	X(EDATA, -7, 6, "bad data file")                                                           \
	X(EWRONGDATA, -8, 6, "the data set differs from the run's")                                \
	X(ECHECKPOINT, -9, 7, "checkpoint refused")                                                \
	X(ELOCKED, -10, 8, "directory locked by another process")                                  \
	X(EAUTH, -11, 9, "authentication refused")                                                 \
	X(EPROTO, -12, 1, "malformed message")                                                     \
	X(EVERSION, -13, 2, "protocol version not supported")                                      \
	X(ETERM, -14, 1, "the server has restarted: send HELLO again")                             \
	X(EGAP, -15, 1, "sequence gap")                                                            \
	X(ESTATE, -16, 1, "message not allowed in this session state")                             \
	X(EFULL, -17, 3, "the server has no free worker slot")                                     \
	X(EROLLEDBACK, -18, 4, "the server lost pushes that it had reported as durable")           \
	X(ESHUTDOWN, -19, 0, "the server is shutting down")                                        \
	X(EDONE, -20, 0, "training is done")                                                       \
	X(EAGAIN, -21, 1, "not now")                                                               \
	X(EDEVICE, -22, 1, "compute device error")                                                 \
	X(ETOOBIG, -23, 1, "over a size limit")                                                    \
	X(EQUARANTINE, -24, 11, "too many gradients or losses of this worker were bad")            \
	X(EDIVERGED, -25, 1, "training diverged: gradients not finite, or of another size")        \
	X(ENET, -26, 1, "network library error")

enum ps_status {
#define X(name, value, exit_code, text) PS_##name = (value),
	PS_STATUS_MAP(X)
#undef X
};

#define PS_MUST_CHECK       __attribute__((warn_unused_result))
#define PS_PRINTF(fmt, arg) __attribute__((format(printf, fmt, arg)))

/* The text of an error tells a person, in one line without a newline, what is wrong, where, and how
 * to repair it. */
struct err {
	int status; /* 0 or PS_E* */
	char text[512];
};

/* Fills `e` (may be NULL) and returns `status`, so that callers can write `return err_set(...)`. */
int err_set(struct err *e, int status, const char *fmt, ...) PS_PRINTF(3, 4);
/* Does the same as err_set, for a function that itself takes a format and arguments. Replaces
 * characters as plain_text does, so that the text is one line and does not control a terminal. */
int err_vset(struct err *e, int status, const char *fmt, va_list ap) PS_PRINTF(3, 0);
/* Returns the name of `status`, such as "PS_EGAP", or "PS_E?" for a number that is not in the
 * table. */
const char *err_name(int status);
/* Returns the text that the table has for `status`. */
const char *err_text(int status);
/* Returns the exit code of a program that ends with `status`, or 1 for a number that is not in the
 * table. */
int err_exit_code(int status);
/* Returns 1 if the table has `status`. Check every status number that comes from a peer with this
 * function. */
int err_known(long status);

#endif
