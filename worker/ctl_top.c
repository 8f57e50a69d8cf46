/* ctl_top.c - see ctl.h: the server's status as a screen. */
#include <jansson.h>
#include <poll.h>
#include <stdio.h>
#include <unistd.h>
#include "proto/msg.h"
#include "worker/ctl.h"

#define PERIOD_MS  1000
#define CLEAR      "\033[H\033[J"
#define MOST_SHOWN 40 /* workers */

static double number(const json_t *o, const char *key)
{
	return json_number_value(json_object_get(o, key));
}

static const char *text(const json_t *o, const char *key)
{
	const char *t = json_string_value(json_object_get(o, key));

	return t ? t : "-";
}

/* "label value unit", or a dash while the server does not know the value. */
static void show(const json_t *o, const char *label, const char *key, double factor, int decimals,
	const char *unit)
{
	if (json_is_number(json_object_get(o, key)))
		printf("%s %.*f%s   ", label, decimals, number(o, key) * factor, unit);
	else
		printf("%s -   ", label);
}

static void show_run(const json_t *o)
{
	const json_t *c = json_object_get(o, "counters");

	printf("%s   epoch %.0f of %.0f   model %s   optimizer %s", text(o, "state"),
		number(o, "training_epoch"), number(o, "epochs"), text(o, "model"),
		text(o, "optimizer"));
	if (json_is_string(json_object_get(o, "degraded")))
		printf("   DEGRADED: %s", text(o, "degraded"));
	putchar('\n');
	show(o, "images", "images", 1, 0, "");
	show(o, "images/s", "images_per_s", 1, 0, "");
	show(o, "loss", "loss", 1, 4, "");
	show(o, "accuracy", "accuracy", 100, 2, " %");
	show(o, "ETA", "eta_s", 1, 0, " s");
	putchar('\n');
	show(o, "updates", "updates", 1, 0, "");
	show(o, "staleness", "staleness_mean", 1, 2, "");
	show(c, "duplicates", "duplicates", 1, 0, "");
	show(c, "rejected", "rejected", 1, 0, "");
	show(c, "refusals", "refusals", 1, 0, "");
	show(o, "memory", "rss_bytes", 1.0 / (1 << 20), 0, " MiB");
	puts("\n");
}

static void show_workers(const json_t *o)
{
	const json_t *list = json_object_get(o, "workers");
	size_t n = json_array_size(list);

	printf("%6s  %-8s %-16s %-28s %10s %10s %10s %9s\n", "worker", "state", "name", "device",
		"images", "pushes", "durable", "silent ms");
	for (size_t i = 0; i < n && i < MOST_SHOWN; i++) {
		const json_t *w = json_array_get(list, i);

		printf("%6.0f  %-8s %-16.16s %-28.28s %10.0f %10.0f %10.0f %9.0f\n",
			number(w, "worker"), text(w, "state"), text(w, "name"), text(w, "device"),
			number(w, "images"), number(w, "last_seq"), number(w, "durable_seq"),
			number(w, "silent_ms"));
	}
	if (n > MOST_SHOWN)
		printf("and %zu more\n", n - MOST_SHOWN);
}

static int show_once(struct cnnps *c)
{
	char answer[WIRE_MAX_TEXT + 1];
	json_t *o;
	int status = cnnps_status(c, answer, sizeof answer);

	if (status)
		return status;
	o = json_loads(answer, 0, NULL);
	if (!o)
		return PS_EPROTO;
	show_run(o);
	show_workers(o);
	json_decref(o);
	fflush(stdout);
	return PS_OK;
}

/* Off a terminal: once. On one: until the server is gone or the person is satisfied. */
int ctl_top(const struct ctl *ctl, struct err *e)
{
	int terminal = isatty(STDOUT_FILENO);
	struct cnnps *c;
	int status = ctl_connect(ctl, &c, e);

	if (status)
		return status;
	do {
		if (terminal)
			fputs(CLEAR, stdout);
		status = show_once(c);
	} while (terminal && !status && poll(NULL, 0, PERIOD_MS) == 0);
	if (status)
		err_set(e, status, "%s", cnnps_why(c)[0] ? cnnps_why(c) : err_text(status));
	cnnps_close(&c);
	return status;
}
