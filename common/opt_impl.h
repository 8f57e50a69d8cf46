/*
 * opt_impl.h - what opt.c and opt_check.c share. Included by these alone.
 *
 * Thread: main, at start-up.
 */
#ifndef COMMON_OPT_IMPL_H
#define COMMON_OPT_IMPL_H
#include <stddef.h>

#define MAX_ROWS 128

enum origin { FROM_DEFAULT, FROM_ENVIRONMENT, FROM_COMMAND_LINE };

/* opt.c: where the value of a row came from in the last parse. */
enum origin opt_origin(size_t row);
/* opt.c: "CNN_LEASE_BATCHES" for "lease-batches". */
void opt_variable(const char *option, char *out, size_t size);
/* opt_check.c: a row's `needs` for --help: "; only with --mode ssp|sync". "" for NULL. */
void opt_describe_needs(const char *needs, char *out, size_t size);

#endif
