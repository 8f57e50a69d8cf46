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

#define PLACE "@DATA@" /* the line of the page that is replaced by the data of the runs */

static size_t place_of_data(void)
{
	size_t at = 0;

	while (memcmp(report_bytes + at, PLACE, strlen(PLACE)) != 0)
		at++;
	return at;
}

/* Writes the page. The data lie between <script> tags, so they must not contain "<", which could
 * end the script. */
static int write_page(const json_t *runs, struct err *e)
{
	size_t at = place_of_data(), after = at + strlen(PLACE);

	fwrite(report_bytes, 1, at, stdout);
	if (ctl_print_json(runs, JSON_COMPACT | JSON_REAL_PRECISION(7), "<"))
		return err_set(e, PS_ENOMEM, "no memory for the page");
	fwrite(report_bytes + after, 1, sizeof(report_bytes) - after, stdout);
	return PS_OK;
}

int ctl_report(const struct ctl *ctl, struct err *e)
{
	json_t *runs = json_array();
	int rc = PS_OK;

	for (int i = 0; i < ctl->n_args && !rc; i++) {
		json_t *lines;

		rc = ctl_history_read(ctl->args[i], &lines, e);
		if (!rc)
			json_array_append_new(
				runs, json_pack("{s:o, s:o}", "name", ctl_json_text(ctl->args[i]),
					      "lines", lines));
	}
	if (!rc)
		rc = write_page(runs, e);
	json_decref(runs);
	return rc;
}
