/*
 * report.c - see ctl.h: writes the histories of runs as one HTML file. The page is made of parts of
 * the server's page (server/monitor/page/) and of worker/ctl/report/. The page loads nothing from a
 * network.
 */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "worker/ctl/ctl.h"
#include "report_bytes.h"

#define PLACE "@DATA@" /* the line of the page that the data replaces */

/* Writes JSON that is safe between <script> tags: it contains no "<", which could end the
 * script. */
static int write_json(const char *text, size_t n, void *arg)
{
	FILE *f = arg;

	for (size_t i = 0; i < n; i++)
		if (text[i] == '<')
			fputs("\\u003c", f);
		else
			putc(text[i], f);
	return 0;
}

static size_t place_of_data(void)
{
	size_t at = 0;

	while (memcmp(report_bytes + at, PLACE, strlen(PLACE)) != 0)
		at++;
	return at;
}

static void write_page(const json_t *runs)
{
	size_t at = place_of_data(), after = at + strlen(PLACE);

	fwrite(report_bytes, 1, at, stdout);
	(void)json_dump_callback(runs, write_json, stdout, JSON_COMPACT | JSON_REAL_PRECISION(7));
	fwrite(report_bytes + after, 1, sizeof(report_bytes) - after, stdout);
}

int ctl_report(const struct ctl *ctl, struct err *e)
{
	json_t *runs = json_array();
	int rc = PS_OK;

	for (int i = 0; i < ctl->n_args && !rc; i++) {
		json_t *lines;

		rc = ctl_history_read(ctl->args[i], &lines, e);
		if (!rc)
			json_array_append_new(runs,
				json_pack("{s:s, s:o}", "name", ctl->args[i], "lines", lines));
	}
	if (!rc)
		write_page(runs);
	json_decref(runs);
	return rc;
}
