/* capture.h - captures what a test process writes to stdout or stderr. */
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

/* capture_begin redirects `fd` to a file. capture_end restores `fd` and returns the text that was
 * written to it. */
void capture_begin(struct capture *c, int fd);
const char *capture_end(struct capture *c);
/* Does the same as capture_end, for log lines. Each line must begin with a timestamp, and the
 * timestamps are removed from the text. Lines that begin with "==", which a sanitizer prints, are
 * removed, too. */
const char *capture_log(struct capture *c);

/* Set the level of the log to info. For TEST_GROUP. */
int capture_info(void **state);

size_t count_lines(const char *text);

#endif
