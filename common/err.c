/*
 * err.c - see err.h.
 */
#include "common/err.h"
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include "common/plain.h"

struct row {
	int status, exit_code;
	const char *name, *text;
};

static const struct row rows[] = {
#define X(name, value, exit_code, text) {value, exit_code, "PS_" #name, text},
	PS_STATUS_MAP(X)
#undef X
};

static const struct row *find_status(long status)
{
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		if (rows[i].status == status)
			return &rows[i];
	return NULL;
}

int err_vset(struct err *e, int status, const char *fmt, va_list ap)
{
	/* format into a copy, because the arguments may point into e->text */
	char text[sizeof(e->text)];

	if (!e)
		return status;
	vsnprintf(text, sizeof(text), fmt, ap);
	plain_text(text, 0);
	memcpy(e->text, text, strlen(text) + 1);
	e->status = status;
	return status;
}

int err_set(struct err *e, int status, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	(void)err_vset(e, status, fmt, ap);
	va_end(ap);
	return status;
}

const char *err_name(int status)
{
	const struct row *r = find_status(status);

	return r ? r->name : "PS_E?";
}

const char *err_text(int status)
{
	const struct row *r = find_status(status);

	return r ? r->text : "unknown status";
}

int err_exit_code(int status)
{
	const struct row *r = find_status(status);

	return r ? r->exit_code : 1;
}

int err_known(long status)
{
	return find_status(status) != NULL;
}
