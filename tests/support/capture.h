/* capture.h - what a test's process writes to stdout or stderr. */
#ifndef TESTS_SUPPORT_CAPTURE_H
#define TESTS_SUPPORT_CAPTURE_H
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct capture {
	int fd, saved, file;
	char text[1 << 17];
};

/* Redirect `fd` to a file until capture_end, which returns the text. */
void capture_begin(struct capture *c, int fd);
const char *capture_end(struct capture *c);
/* The same for log lines. Each must begin with a timestamp, which is removed from the text. Lines
 * of a sanitizer are removed too. */
const char *capture_log(struct capture *c);

size_t count_lines(const char *text);

#endif
