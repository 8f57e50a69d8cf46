/* capture.c - see capture.h. */
#include "tests/support/capture.h"
#include "common/log.h"

void capture_begin(struct capture *c, int fd)
{
	char path[] = "/tmp/cnnps-unit-XXXXXX";

	fflush(NULL);
	c->fd = fd;
	c->file = mkstemp(path);
	assert_true(c->file >= 0);
	unlink(path);
	c->saved = dup(fd);
	assert_true(c->saved >= 0 && dup2(c->file, fd) == fd);
}

const char *capture_end(struct capture *c)
{
	fflush(NULL);
	dup2(c->saved, c->fd);
	close(c->saved);
	ssize_t n = pread(c->file, c->text, sizeof(c->text) - 1, 0);
	close(c->file);
	c->text[n > 0 ? n : 0] = '\0';
	return c->text;
}

const char *capture_log(struct capture *c)
{
	static const char shape[] = "ts=0000-00-00T00:00:00.000Z ";
	const size_t n = sizeof(shape) - 1;
	char *to = c->text;

	for (const char *line = capture_end(c); *line;) {
		const char *next = strchr(line, '\n');

		assert_non_null(next);
		if (!strncmp(line, "==", 2)) {
			line = next + 1;
			continue;
		}
		assert_true((size_t)(next - line) > n);
		for (size_t i = 0; i < n; i++)
			assert_true(shape[i] == '0' ? line[i] >= '0' && line[i] <= '9'
						    : line[i] == shape[i]);
		memmove(to, line + n, (size_t)(next + 1 - line) - n);
		to += (size_t)(next + 1 - line) - n;
		line = next + 1;
	}
	*to = '\0';
	return c->text;
}

size_t count_lines(const char *text)
{
	size_t lines = 0;

	for (; *text; text++)
		lines += *text == '\n';
	return lines;
}

int capture_info(void **state)
{
	(void)state;
	log_set_level(LOG_INFO);
	return 0;
}
