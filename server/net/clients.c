/* clients.c - see clients.h. */
#include "server/net/clients.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/log.h"
#include "common/mem.h"
#include "common/plain.h"
#include "server/net/line_budget.h"

#define PRICE_US    (1000000 / ADMISSION_BURST)
#define IPV4_MAPPED "::ffff:"
/* size of a buffer for "HOST pid 4294967295" or "a host at ADDRESS" */
#define PLACE (WIRE_MAX_HOST + 20)

/* ---- admission ------------------------------------------------------------------------------ */

int admission_ask(struct admission *a, uint64_t now_ms)
{
	uint64_t passed_ms = now_ms - a->now_ms;

	a->now_ms = now_ms;
	if (passed_ms >= 1000 || a->spent_us <= passed_ms * 1000)
		a->spent_us = 0;
	else
		a->spent_us -= passed_ms * 1000;
	if (a->spent_us + PRICE_US > 1000000) {
		a->turned_away++;
		return 0;
	}
	a->spent_us += PRICE_US;
	return 1;
}

/* ---- labels --------------------------------------------------------------------------------- */

static const struct label none;

/* This struct describes a process that has sent HELLO. */
struct process {
	uint32_t peer; /* connection of the HELLO */
	/* worker id and incarnation in the WELCOME of this process; 0: it has got no WELCOME yet */
	uint32_t worker, incarnation;
	int fenced; /* 1 if the log has reported the fencing of this process */
	struct label label;
};

/* This struct describes the newest process of a worker id. */
struct slot {
	uint32_t fenced; /* newest incarnation of this worker id whose fencing was logged */
	struct label label;
};

struct labels {
	uint32_t max_workers;
	struct line_budget *lines;
	struct slot *slot;       /* slot[i]: worker id i + 1 */
	struct process *process; /* ring of the processes that sent the newest HELLOs */
	size_t ring, n;          /* ring: size of the ring; n: number of HELLOs noted so far */
};

struct labels *labels_new(uint32_t max_workers, struct line_budget *lines)
{
	struct labels *l = mem_try(1, sizeof(*l));

	if (!l)
		return NULL;
	l->max_workers = max_workers;
	l->lines = lines;
	l->ring = 2 * (size_t)max_workers + 64;
	l->slot = mem_try(max_workers, sizeof(*l->slot));
	l->process = mem_try(l->ring, sizeof(*l->process));
	if (!l->slot || !l->process)
		labels_free(&l);
	return l;
}

void labels_free(struct labels **l)
{
	if (!*l)
		return;
	free((*l)->slot);
	free((*l)->process);
	free(*l);
	*l = NULL;
}

/* Returns process number `i`, counted from the newest process, which is number 0. Returns NULL if
 * the ring has no process with this number. */
static struct process *newest(const struct labels *l, size_t i)
{
	size_t known = l->n < l->ring ? l->n : l->ring;

	return i < known ? &l->process[(l->n - 1 - i) % l->ring] : NULL;
}

void labels_hello(struct labels *l, uint32_t peer, const struct msg_hello *m, const char *address)
{
	struct process *p = &l->process[l->n++ % l->ring];
	size_t mapped = strlen(IPV4_MAPPED);

	if (strncmp(address, IPV4_MAPPED, mapped) == 0)
		address += mapped;
	*p = (struct process){.peer = peer, .label.pid = m->pid};
	p->label.wire = m->wire == ENCODING_BF16 ? ENCODING_BF16 : ENCODING_F32;
	memcpy(p->label.host, m->host, sizeof(p->label.host));
	snprintf(p->label.address, sizeof(p->label.address), "%s", address);
}

void labels_join(struct labels *l, uint32_t peer, uint32_t worker, uint32_t incarnation)
{
	struct process *p;

	if (worker == 0 || worker > l->max_workers)
		return;
	for (size_t i = 0; (p = newest(l, i)) != NULL; i++) {
		if (p->peer != peer)
			continue;
		p->worker = worker;
		p->incarnation = incarnation;
		l->slot[worker - 1].label = p->label;
		return;
	}
	l->slot[worker - 1].label = none;
}

void labels_restore(struct labels *l, uint32_t worker, const char *host)
{
	char plain[WIRE_MAX_HOST + 1];

	if (worker == 0 || worker > l->max_workers || strlen(host) > WIRE_MAX_HOST)
		return;
	snprintf(plain, sizeof(plain), "%s", host);
	plain_text(plain, 0);
	if (strcmp(plain, host) == 0)
		memcpy(l->slot[worker - 1].label.host, plain, sizeof(plain));
}

const struct label *labels_of(const struct labels *l, uint32_t worker)
{
	return l && worker >= 1 && worker <= l->max_workers ? &l->slot[worker - 1].label : &none;
}

/* ---- fencing --------------------------------------------------------------------------------- */

/* Finds a process by its worker id and incarnation. If the process has no WELCOME yet, finds it by
 * the connection of its HELLO. */
static struct process *find_process(
	const struct labels *l, uint32_t peer, uint32_t worker, uint32_t incarnation)
{
	struct process *p;

	for (size_t i = 0; (p = newest(l, i)) != NULL; i++)
		if (p->worker == worker && p->incarnation == incarnation)
			return p;
	for (size_t i = 0; (p = newest(l, i)) != NULL; i++)
		if (p->peer == peer)
			return p->worker ? NULL : p;
	return NULL;
}

/* Writes the known parts of the label as the text that follows "runs on" in an error message. */
static const char *place_text(const struct label *label, char *text, size_t size)
{
	if (label->host[0] && label->pid)
		snprintf(text, size, "%s pid %u", label->host, label->pid);
	else if (label->address[0])
		snprintf(text, size, "a host at %s", label->address);
	else
		snprintf(text, size, "a host unknown to the server");
	return text;
}

static void log_fenced(uint32_t worker, uint32_t incarnation, const char *name,
	const struct label *old, const struct label *new)
{
	log_warn("worker", "fenced",
		"worker=%u incarnation=%u name=\"%s\" host=\"%s\" pid=%u address=\"%s\" "
		"new_host=\"%s\" new_pid=%u new_address=\"%s\" reason=\"%s\"",
		worker, incarnation, name, old->host, old->pid, old->address, new->host, new->pid,
		new->address,
		name[0] ? "a newer process has the same --name: give each worker its own or none"
			: "its slot was free after a silence");
}

/* Returns 1 if the log does not contain the fencing of this process yet. `p` is the entry of the
 * process, or NULL if it has none. */
static int is_news(struct labels *l, struct process *p, uint32_t worker, uint32_t incarnation)
{
	struct slot *slot = &l->slot[worker - 1];
	int news = p ? !p->fenced : incarnation > slot->fenced;

	if (p)
		p->fenced = 1;
	if (incarnation > slot->fenced)
		slot->fenced = incarnation;
	return news;
}

void labels_fenced(struct labels *l, uint32_t peer, uint32_t worker, uint32_t incarnation,
	const char *name, char text[LABEL_FENCED])
{
	struct process *p = find_process(l, peer, worker, incarnation);
	const struct label *old = p ? &p->label : &none, *new = labels_of(l, worker);
	char one[PLACE], other[PLACE];

	/* from now on find_process finds this entry even if the HELLO is repeated on another
	 * connection */
	if (p && !p->worker) {
		p->worker = worker;
		p->incarnation = incarnation;
	}

	if (worker >= 1 && worker <= l->max_workers && is_news(l, p, worker, incarnation) &&
		line_budget_take(l->lines, worker))
		log_fenced(worker, incarnation, name, old, new);
	place_text(old, one, sizeof(one));
	place_text(new, other, sizeof(other));
	if (name[0])
		snprintf(text, LABEL_FENCED,
			"another process took over --name \"%s\": this one runs on %s, the new "
			"one on %s; give each worker its own --name or none",
			name, one, other);
	else
		snprintf(text, LABEL_FENCED,
			"worker %u was silent, and the server gave its slot to another process: "
			"this one runs on %s, the new one on %s",
			worker, one, other);
}

/* ---- observers ------------------------------------------------------------------------------ */

/* Returns the index of the entry of `peer`. If `peer` has no entry, returns a free entry, or the
 * entry with the oldest request if no entry is free. In a free entry, request_ms is 0, so it is the
 * oldest one. */
static size_t entry_for(const struct observers *o, uint32_t peer)
{
	size_t best = 0;

	for (size_t i = 0; i < MAX_OBSERVERS; i++) {
		if (o->entry[i].peer == peer)
			return i;
		if (o->entry[i].request_ms < o->entry[best].request_ms)
			best = i;
	}
	return best;
}

void observers_add(struct observers *o, uint32_t peer, uint64_t now_ms)
{
	size_t i = entry_for(o, peer);

	o->entry[i].peer = peer;
	o->entry[i].requested = 0;
	o->entry[i].request_ms = now_ms;
}

int observers_request(struct observers *o, uint32_t peer, uint32_t max_text, uint64_t now_ms)
{
	size_t i = entry_for(o, peer);

	if (o->entry[i].peer != peer)
		return 0;
	o->entry[i].requested = 1;
	o->entry[i].max_text = max_text;
	o->entry[i].request_ms = now_ms;
	return 1;
}

void observers_drop(struct observers *o, uint32_t peer)
{
	for (size_t i = 0; i < MAX_OBSERVERS; i++)
		if (o->entry[i].peer == peer) {
			o->entry[i].peer = 0;
			o->entry[i].request_ms = 0;
		}
}

uint32_t observers_recent(const struct observers *o, size_t i, uint64_t now_ms, uint32_t *max_text)
{
	int recent = o->entry[i].requested && now_ms - o->entry[i].request_ms <= OBSERVER_RECENT_MS;

	*max_text = o->entry[i].max_text;
	return recent ? o->entry[i].peer : 0;
}
