/* server.c - see ctl.h: the connection, and the commands that send a single request. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/log.h"
#include "common/plain.h"
#include "proto/msg.h"
#include "worker/client/pages.h"
#include "worker/ctl/ctl.h"

void ctl_say(const char *event, int rc, const char *text)
{
	enum log_level level = log_get_level();
	char safe[1024];

	if (log_get_format() == LOG_TEXT) {
		/* the text may be from a server, so it must not control the terminal */
		snprintf(safe, sizeof(safe), "%s", text);
		plain_text(safe, 0);
		fprintf(stderr, "cnn-ctl: %s\n", safe);
	} else if (rc) {
		log_error("ctl", event, "code=%s reason=\"%s\"", err_name(rc), text);
	} else {
		if (level < LOG_WARN)
			/* print the line at any log level, as in the text format */
			log_set_level(LOG_WARN);
		log_warn("ctl", event, "reason=\"%s\"", text);
		log_set_level(level);
	}
}

static void print_wait(void *arg, const char *line)
{
	(void)arg;
	ctl_say("waiting", PS_OK, line);
}

int ctl_connect(const struct ctl *ctl, struct cnnps **c, struct err *e)
{
	return ctl_connect_with(ctl, NULL, print_wait, NULL, ctl->connect_timeout_ms, c, e);
}

int ctl_connect_with(const struct ctl *ctl, int (*stop)(void *arg),
	void (*report)(void *arg, const char *line), void *arg, int64_t disconnect_timeout_ms,
	struct cnnps **c, struct err *e)
{
	struct cnnps_options o = {.size = sizeof(o),
		.server = ctl->server,
		.key = ctl->key,
		.server_key = ctl->server_key,
		.device = "cnn-ctl",
		.observer = 1,
		.stop = stop,
		.stop_arg = arg,
		.report = report,
		.report_arg = arg,
		.connect_timeout_ms = (uint32_t)ctl->connect_timeout_ms,
		.disconnect_timeout_ms = (uint32_t)disconnect_timeout_ms};
	int rc = cnnps_connect(c, &o);

	if (rc) {
		err_set(e, rc, "%s", cnnps_error(*c));
		cnnps_close(c);
	}
	return rc;
}

/* Sets *e to the reason of a failed call on an open connection. */
static int explain_failure(struct cnnps *c, int rc, struct err *e)
{
	if (!rc)
		return PS_OK;
	return err_set(e, rc, "%s", cnnps_error(c));
}

/* Appends the workers of a page to `o`, from worker number `first` on. Returns the number after the
 * last appended worker, or `first` if the page has no worker. */
static uint32_t take_page(json_t *o, const json_t *page, uint32_t first)
{
	json_t *all = json_object_get(o, "workers"), *w;
	uint32_t next = first;
	size_t i;

	json_array_foreach(json_object_get(page, "workers"), i, w)
	{
		json_int_t number = json_integer_value(json_object_get(w, "worker"));

		if (number >= (json_int_t)next && number < UINT32_MAX && !json_array_append(all, w))
			next = (uint32_t)number + 1;
	}
	if (next > first)
		json_object_set(o, "workers_left_out", json_object_get(page, "workers_left_out"));
	return next;
}

/* Requests the workers for which the status had no room, and appends them to `o`. The run may end
 * between two pages, in which case the first page is enough. Refuses more workers than a server can
 * have, because a hostile server could send pages without end. */
static int add_pages(struct cnnps *c, json_t *o, char *text, size_t size, struct err *e)
{
	const json_t *workers = json_object_get(o, "workers");
	const json_t *last = json_array_get(workers, json_array_size(workers) - 1);
	uint32_t first = (uint32_t)json_integer_value(json_object_get(last, "worker")) + 1, next;

	while (last && json_integer_value(json_object_get(o, "workers_left_out")) > 0) {
		if (first > WIRE_MAX_WORKERS)
			return err_set(e, PS_EPROTO,
				"the server lists more than %u workers, which no cnn-ps has",
				WIRE_MAX_WORKERS);
		json_t *page =
			cnnps_status_page(c, first, text, size) ? NULL : json_loads(text, 0, NULL);

		next = take_page(o, page, first);
		json_decref(page);
		if (next == first)
			break;
		first = next;
	}
	return PS_OK;
}

int ctl_fetch_status(struct cnnps *c, json_t **status, struct err *e)
{
	const size_t size = WIRE_MAX_TEXT + 1;
	char *text = malloc(size);
	int rc = text ? explain_failure(c, cnnps_status(c, text, size), e)
		      : err_set(e, PS_ENOMEM, "no memory for the status");

	*status = rc ? NULL : json_loads(text, 0, NULL);
	if (!rc && !*status)
		rc = err_set(e, PS_EPROTO, "the status is not JSON");
	if (!rc)
		rc = add_pages(c, *status, text, size, e);
	if (rc) {
		json_decref(*status);
		*status = NULL;
	}
	free(text);
	return rc;
}

int ctl_status(const struct ctl *ctl, struct err *e)
{
	json_t *status = NULL;
	struct cnnps *c;
	int rc = ctl_connect(ctl, &c, e);

	if (rc)
		return rc;
	rc = ctl_fetch_status(c, &status, e);
	if (!rc && ctl_print_json(status, JSON_INDENT(2) | JSON_REAL_PRECISION(9), ""))
		rc = err_set(e, PS_ENOMEM, "no memory for the status");
	if (!rc)
		putchar('\n');
	json_decref(status);
	cnnps_close(&c);
	return rc;
}

int ctl_checkpoint(const struct ctl *ctl, struct err *e)
{
	struct cnnps *c;
	uint64_t generation;
	int rc = ctl_connect(ctl, &c, e);

	if (rc)
		return rc;
	rc = explain_failure(c, cnnps_checkpoint(c, &generation), e);
	if (!rc)
		printf("generation %llu\n", (unsigned long long)generation);
	cnnps_close(&c);
	return rc;
}

int ctl_drain(const struct ctl *ctl, struct err *e)
{
	struct cnnps *c;
	int rc = ctl_connect(ctl, &c, e);

	if (rc)
		return rc;
	rc = explain_failure(c, cnnps_drain(c), e);
	if (!rc)
		puts("draining");
	cnnps_close(&c);
	return rc;
}

int ctl_release(const struct ctl *ctl, struct err *e)
{
	struct cnnps *c;
	int rc = ctl_connect(ctl, &c, e);

	if (rc)
		return rc;
	rc = explain_failure(c, cnnps_release(c, ctl->args[0]), e);
	if (!rc)
		printf("released %s\n", ctl->args[0]);
	cnnps_close(&c);
	return rc;
}

static int check_level(const char *text, struct err *e)
{
	for (int i = LOG_ERROR; i <= LOG_DEBUG; i++)
		if (!strcmp(text, log_level_name((enum log_level)i)))
			return PS_OK;
	return err_set(e, PS_EUSAGE,
		"log-level: \"%.40s\": expected one of error, warn, info and debug", text);
}

int ctl_log_level(const struct ctl *ctl, struct err *e)
{
	struct cnnps *c;
	int rc = check_level(ctl->args[0], e);

	if (!rc)
		rc = ctl_connect(ctl, &c, e);
	if (rc)
		return rc;
	rc = explain_failure(c, cnnps_log_level(c, ctl->args[0]), e);
	if (!rc)
		printf("log level %s\n", ctl->args[0]);
	cnnps_close(&c);
	return rc;
}
