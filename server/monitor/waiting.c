/* waiting.c - see waiting.h. */
#include "server/monitor/waiting.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "common/endpoint.h"
#include "common/log.h"

/* Returns 1 if `host` stands for all addresses of this machine, so that it is no address to which a
 * worker can connect. */
static int is_wildcard(const char *host)
{
	return !strcmp(host, "0.0.0.0") || !strcmp(host, "*") || !strcmp(host, "::");
}

static void connectable(const char *endpoint, char *out, size_t size)
{
	char name[ENDPOINT_HOST] = "";
	struct endpoint e;

	snprintf(out, size, "%s", endpoint);
	if (endpoint_parse(endpoint, &e) || !is_wildcard(e.host) ||
		gethostname(name, sizeof(name) - 1) || !name[0])
		return;
	memcpy(e.host, name, sizeof(name));
	endpoint_format(&e, out, size);
}

void waiting_init(struct waiting *w, const struct core_config *cfg, const char *endpoint, int keyed)
{
	char address[ENDPOINT_TEXT];

	memset(w, 0, sizeof(*w));
	connectable(endpoint, address, sizeof(address));
	if (cfg->training.epochs == 0)
		snprintf(w->start, sizeof(w->start), "a program with libcnnps and server %s",
			address);
	else
		snprintf(w->start, sizeof(w->start), "cnn-worker --server %s%s", address,
			keyed ? " --key WORKER.key" : "");
}

/* Appends ", 1 more joins ..." if a worker's WELCOME waits for the disk. */
static void append_joining(const struct waiting *w, char *out, size_t size)
{
	size_t used = strlen(out);

	if (w->view.joining)
		snprintf(out + used, size - used, ", %u more %s until a checkpoint is on disk",
			w->view.joining, w->view.joining == 1 ? "joins" : "join");
}

/* Appends a text such as ", 1 more has data set 89ab..., not 0123..." if the data set of the run is
 * not fixed yet. */
static void append_others(const struct waiting *w, char *out, size_t size)
{
	size_t used = strlen(out);

	if (w->view.others)
		snprintf(out + used, size - used,
			", %u more %s data set %016" PRIx64 ", not %016" PRIx64, w->view.others,
			w->view.others == 1 ? "has" : "have", w->view.other_data, w->data);
}

/* Writes a text such as "waiting for workers: 0 of 1 for 12 s". */
static void describe_wait(const struct waiting *w, char *out, size_t size)
{
	const struct hold_up_view *v = &w->view;

	const char *what =
		v->kind == HOLD_UP_RETURN ? "workers to return after the restart" : "workers";
	uint64_t since = w->reminder.since_ms;

	snprintf(out, size, "waiting for %s: %u of %u for %llu s", what, v->live, v->needed,
		(unsigned long long)(w->now_ms - since) / 1000);
	append_joining(w, out, size);
	append_others(w, out, size);
}

/* Logs how long the run has waited, and the time limit of the wait. */
static void log_wait(const struct waiting *w)
{
	char text[WAITING_TEXT], limit[64] = "without a time limit";

	describe_wait(w, text, sizeof(text));
	if (w->view.kind == HOLD_UP_RETURN)
		snprintf(limit, sizeof(limit), "for %llu s more",
			(unsigned long long)(w->view.left_ms + 999) / 1000);
	log_info("server", "waiting", "reason=\"%s, %s; start one with: %s\"", text, limit,
		w->start);
}

void waiting_tick(struct waiting *w, const struct core *c, uint64_t now_ms)
{
	core_hold_up(c, &w->view);
	w->data = core_data(c)->xxh3;
	w->now_ms = now_ms;
	if (reminder_due(&w->reminder, (int)w->view.kind, now_ms, now_ms))
		log_wait(w);
}

int waiting_text(const struct waiting *w, char out[WAITING_TEXT])
{
	size_t used;

	out[0] = '\0';
	if (w->view.kind == HOLD_UP_NONE)
		return 0;
	describe_wait(w, out, WAITING_TEXT);
	used = strlen(out);
	snprintf(out + used, WAITING_TEXT - used, ": %s", w->start);
	return 1;
}
