/* contact.c - see contact.h. */
#include "worker/client/contact.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "common/endpoint.h"

enum {
	/* the probe starts after this time without an answer; a running server answers sooner */
	PROBE_AFTER_MS = 150,
	PROBE_EVERY_MS = 1000,
	/* silence after which the server counts as hung. Before WELCOME, the worker sends STATUS
	 * after a shorter silence (net.c); a server that runs answers it, so that the silence
	 * ends */
	SILENT_MS = 3000,
};

/* What the worker waits for: the values of reminder.what (common/reminder.h). */
enum { AWAITS_NOTHING, AWAITS_FIRST_CONTACT, AWAITS_RECONNECT, AWAITS_WORK, AWAITS_REPLY };

int contact_init(struct contact *k, const char *server)
{
	memset(k, 0, sizeof(*k));
	return probe_new(&k->probe, server);
}

void contact_release(struct contact *k)
{
	probe_free(&k->probe);
}

void contact_up(struct contact *k)
{
	probe_forget(k->probe);
}

/* ---- the cause and the remedy ---------------------------------------------------------------- */

/* The reason why there is no contact, the remedy, and the server's address. */
struct finding {
	char cause[150], remedy[150];
	struct endpoint server;
};

static void set_text(char *out, size_t size, const char *fmt, ...) PS_PRINTF(3, 4);
static void set_text(char *out, size_t size, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(out, size, fmt, ap);
	va_end(ap);
}

#define CAUSE(...)  set_text(f->cause, sizeof(f->cause), __VA_ARGS__)
#define REMEDY(...) set_text(f->remedy, sizeof(f->remedy), __VA_ARGS__)

static void locate(struct finding *f, const char *server)
{
	if (endpoint_parse(server, &f->server))
		snprintf(f->server.port, sizeof(f->server.port), "PORT");
}

static int is_loopback(const char *host)
{
	return !strncmp(host, "127.", 4) || !strcmp(host, "localhost");
}

static void start_a_server(struct finding *f, const struct contact_state *s)
{
	if (s->welcomed)
		REMEDY("start it again with the same options; the run goes on if "
		       "--checkpoint-dir is one of them");
	else if (is_loopback(f->server.host))
		REMEDY("start one with: cnn-ps --bind tcp://127.0.0.1:%s", f->server.port);
	else
		REMEDY("start one on %.60s with: cnn-ps --bind tcp://0.0.0.0:%s --key SERVER.key",
			f->server.host[0] ? f->server.host : "its host", f->server.port);
}

/* Explains why there is no connection, or describes the peer if it is not a cnn-ps. */
static void explain_probe(
	struct finding *f, const struct contact_state *s, const struct probe_report *r)
{
	REMEDY("check the port in --server");
	switch (r->result) {
	case PROBE_NONE:
		CAUSE("no answer");
		start_a_server(f, s);
		break;
	case PROBE_LOOKUP:
		CAUSE("the lookup of the name %.100s is still running", f->server.host);
		REMEDY("check the name in --server, and DNS");
		break;
	case PROBE_NAME:
		CAUSE("the name %.100s does not resolve (%s)", f->server.host, r->detail);
		REMEDY("check the name in --server, DNS and /etc/hosts");
		break;
	case PROBE_REFUSED:
		CAUSE("connection refused");
		start_a_server(f, s);
		break;
	case PROBE_FAILED:
		CAUSE("no connection (%s)", r->detail);
		REMEDY("check the address in --server and the network");
		break;
	case PROBE_TIMEOUT:
		CAUSE("no answer to connection attempts");
		REMEDY("check the address in --server, that its host runs, and firewalls");
		break;
	case PROBE_SILENT:
		CAUSE("something accepts the connection and sends nothing");
		REMEDY("check the port in --server; a cnn-ps that is stopped does the same");
		break;
	case PROBE_CLOSED:
		CAUSE("something accepts the connection and closes it");
		break;
	case PROBE_HTTP:
		CAUSE("an HTTP server answers");
		REMEDY("give the port of cnn-ps --bind, not that of --http or of another server");
		break;
	case PROBE_FOREIGN:
		CAUSE("another service answers (%s)", r->detail);
		break;
	case PROBE_ZMTP:
		CAUSE("a ZeroMQ socket answers, but it is not cnn-ps");
		break;
	}
}

/* Returns 1 if --server-key may be the key of another server. A server closes the connection if it
 * cannot decrypt the handshake, so a closed connection is a sign of this mistake. */
static int is_key_doubtful(const struct contact_state *s, const struct probe_report *r)
{
	return s->server_key && s->failed_handshakes &&
	       (r->result == PROBE_ZMTP || r->result == PROBE_NONE || r->result == PROBE_LOOKUP);
}

static void explain_connected(struct finding *f, const struct contact_state *s)
{
	if (s->answered && s->silent_ms < SILENT_MS) {
		CAUSE("the server answers, but has not welcomed this worker");
		REMEDY("ask it for the reason: cnn-ctl --server %.100s status", s->server);
	} else if (s->answered || s->welcomed) {
		CAUSE("connected, but the server has been silent for %llu s",
			(unsigned long long)s->silent_ms / 1000);
		REMEDY("it may be stopped or overloaded, or the network may be cut");
	} else {
		CAUSE("a ZeroMQ socket answers, but not as cnn-ps");
		REMEDY("check the port in --server; a cnn-ps that hangs does the same");
	}
}

static void explain(const struct contact *k, const struct contact_state *s, struct finding *f)
{
	struct probe_report r;

	memset(f, 0, sizeof(*f));
	locate(f, s->server);
	probe_read(k->probe, &r);
	if (s->refusal) {
		CAUSE("%.149s", s->refusal); /* the refusal contains the remedy */
	} else if (s->up) {
		explain_connected(f, s);
	} else if (is_key_doubtful(s, &r)) {
		CAUSE("the server closed the connection %llu times during the handshake",
			(unsigned long long)s->failed_handshakes);
		REMEDY("is %s its key?", s->server_key);
	} else {
		explain_probe(f, s, &r);
	}
}

/* ---- lines ----------------------------------------------------------------------------------- */

static void contact_describe_wait(const struct contact *k, const struct contact_state *s,
	uint64_t now_ms, char line[CONTACT_TEXT])
{
	struct finding f;

	if (k->reminder.what == AWAITS_WORK) {
		snprintf(line, CONTACT_TEXT,
			"waiting for work from %.100s for %llu s, without a time limit: it has "
			"none yet, or waits for other workers; see cnn-ctl --server %.100s status",
			s->server, (unsigned long long)(now_ms - k->reminder.since_ms) / 1000,
			s->server);
		return;
	}
	if (k->reminder.what == AWAITS_REPLY) {
		snprintf(line, CONTACT_TEXT, "waiting for %.100s for %llu s: %s", s->server,
			(unsigned long long)(now_ms - k->reminder.since_ms) / 1000, s->notice);
		return;
	}
	explain(k, s, &f);
	snprintf(line, CONTACT_TEXT,
		"waiting for %s %.100s%s for %llu s, gives up in %llu s: %s%s%s",
		s->welcomed ? "the server at" : "a server at", s->server,
		s->welcomed ? " to return" : "", (unsigned long long)s->waiting_ms / 1000,
		(unsigned long long)(s->remaining_ms + 999) / 1000, f.cause,
		f.remedy[0] ? "; " : "", f.remedy);
}

static int awaited(const struct contact_state *s)
{
	if (s->waiting_ms)
		return s->welcomed ? AWAITS_RECONNECT : AWAITS_FIRST_CONTACT;
	if (s->notice)
		return AWAITS_REPLY;
	return s->idle ? AWAITS_WORK : AWAITS_NOTHING;
}

int contact_tick(
	struct contact *k, const struct contact_state *s, uint64_t now_ms, char line[CONTACT_TEXT])
{
	if (s->waiting_ms >= PROBE_AFTER_MS && !s->up && now_ms - k->probed_ms >= PROBE_EVERY_MS) {
		k->probed_ms = now_ms;
		probe_start(k->probe);
	}
	if (!reminder_due(&k->reminder, awaited(s), now_ms - s->waiting_ms, now_ms))
		return 0;
	contact_describe_wait(k, s, now_ms, line);
	return 1;
}

void contact_gave_up(const struct contact *k, const struct contact_state *s, uint64_t ms,
	char line[CONTACT_TEXT])
{
	struct finding f;

	explain(k, s, &f);
	snprintf(line, CONTACT_TEXT, "%.120s: %s %llu ms: %s; %s", s->server,
		s->welcomed ? "contact lost for" : "no contact within", (unsigned long long)ms,
		f.cause, f.remedy);
}
