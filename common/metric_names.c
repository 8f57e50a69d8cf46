/* metric_names.c - see metric_names.h. */
#include "common/metric_names.h"
#include <stdio.h>
#include <string.h>

#define CHARACTERS "abcdefghijklmnopqrstuvwxyz0123456789_"
#define BETWEEN    ", "

static int add_name(struct metric_names *m, const char *name, size_t length)
{
	if (length == strlen("accuracy") && strncmp(name, "accuracy", length) == 0)
		return !m->accuracy++;
	if (m->n == MAX_METRICS || length > MAX_METRIC_NAME || strspn(name, CHARACTERS) != length ||
		(length == strlen("none") && strncmp(name, "none", length) == 0))
		return 0;
	for (size_t i = 0; i < m->n; i++)
		if (strlen(m->name[i]) == length && strncmp(m->name[i], name, length) == 0)
			return 0;
	memcpy(m->name[m->n], name, length);
	m->name[m->n++][length] = '\0';
	return 1;
}

int metric_names_parse(struct metric_names *m, const char *text)
{
	size_t length;

	*m = (struct metric_names){.accuracy = !text[strspn(text, BETWEEN)]};
	if (strcmp(text, "none") == 0)
		return 1;
	for (text += strspn(text, BETWEEN); *text;
		text += length + strspn(text + length, BETWEEN)) {
		length = strcspn(text, BETWEEN);
		if (!add_name(m, text, length))
			return 0;
	}
	return 1;
}

void metric_names_text(const struct metric_names *m, char text[METRICS_TEXT])
{
	size_t at = 0;

	text[0] = '\0';
	if (m->n == 0) {
		snprintf(text, METRICS_TEXT, "%s", m->accuracy ? "" : "none");
		return;
	}
	if (m->accuracy)
		at += (size_t)snprintf(text, METRICS_TEXT, "accuracy");
	for (size_t i = 0; i < m->n; i++)
		at += (size_t)snprintf(
			text + at, METRICS_TEXT - at, "%s%s", at ? " " : "", m->name[i]);
}
