/* dispatch.c - see dispatch.h. */
#include "server/dispatch.h"
#include "server/config/images.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/assert.h"
#include "common/keys.h"
#include "common/log.h"
#include "common/reminder.h"
#include "server/core/core.h"
#include "server/core/view.h"

/* after the end of the run, the time within which all clients should have received BYE */
#define SESSION_CLOSE_MS 2000

/* ---- effects out ---------------------------------------------------------------------------- */

uint64_t dispatch_now(struct server *s)
{
	return awake_ms(&s->awake, clock_ms(), AWAKE_DECIDE_MS);
}

/* Returns for how many seconds the loop's thread has not run. Waits for threads and for a GPU
 * inside a step of the core do not count, because they belong to the step. The function computes
 * the result from the processor time of the thread. libuv could measure how long the loop waits for
 * events, but would need one more system call in each iteration. */
static double idle_seconds(const struct server *s, const struct status *now)
{
	double unused = now->total_s - (clock_thread_seconds() - s->begin_cpu_s);

	return fmax(0, fmin(unused, now->total_s - now->apply_s - now->net.verify_s));
}

void dispatch_status(const struct server *s, struct status *out)
{
	*out = (struct status){.core = s->state.core,
		.progress = &s->progress,
		.labels = s->labels,
		.warnings = &s->warnings,
		.tallies = &s->tallies,
		.timings = &s->timings,
		.waiting = &s->waiting,
		.checkpointer = s->checkpointer ? checkpointer_stats(s->checkpointer) : NULL,
		.wal = s->wal ? wal_stats(s->wal) : NULL,
		.disk = &s->disk,
		.apply_s = s->apply_s,
		.total_s = clock_seconds() - s->begin_s,
		.now_ms = s->finish_ms ? s->finish_ms : s->awake.now_ms,
		.rss_bytes = status_rss(),
		.turned_away = s->admission.turned_away,
		.ending = s->status,
		.stop_reason = s->stops ? s->stop_reason : NULL};
	router_stats(s->router, &out->net);
	out->idle_s = idle_seconds(s, out);
	if (s->auth)
		out->auth = *auth_stats(s->auth);
}

/* Sends BYE to an observer. The core sends BYE to the workers. */
static void send_bye(struct server *s, uint32_t peer)
{
	const struct core_config *cfg = core_config(s->state.core);
	const struct msg bye = {.type = MSG_BYE,
		.bye = {.stamp = {.run = cfg->run, .term = cfg->term}, .status = s->status}};

	router_send(s->router, peer, &bye);
}

/* Sends `text` to `peer` in a STATUS, and frees `text`. */
static void send_status_text(struct server *s, uint32_t peer, char *text)
{
	const struct msg m = {
		.type = MSG_STATUS, .status = {.reply = STATUS_REPLY, .text = text ? text : "{}"}};

	router_set_lsn(s->router, 0);
	router_send(s->router, peer, &m);
	free(text);
}

/* Sends the state of the workers from number `first` on. A client requests this state if the STATUS
 * that it received had no room for these workers. */
static void send_workers(struct server *s, uint32_t peer, const struct msg_status *m)
{
	struct status now;

	dispatch_status(s, &now);
	send_status_text(
		s, peer, status_workers_json(&now, m->first, status_max_text(m->max_text)));
}

/* Sends the status to `peer`, whose newest request had this `max_text`. */
static void send_status(struct server *s, uint32_t peer, uint32_t max_text)
{
	struct status now;

	dispatch_status(s, &now);
	send_status_text(s, peer, status_json(&now, status_max_text(max_text)));
	if (observers_request(&s->observers, peer, max_text, dispatch_now(s)) && s->status)
		send_bye(s, peer);
}

/* Sends the last status and BYE to the recent observers, so that they do not report a lost server
 * at the end of the run. */
static void send_last_status(struct server *s)
{
	for (size_t i = 0; i < MAX_OBSERVERS; i++) {
		uint32_t max_text, peer;

		peer = observers_recent(&s->observers, i, s->finish_ms, &max_text);
		if (peer)
			send_status(s, peer, max_text);
	}
}

void dispatch_show_status(struct server *s, const struct status *now)
{
	char *text = http_watchers(s->http) ? status_whole_json(now) : NULL;

	if (text)
		http_send(s->http, "status", text);
	free(text);
}

static void run_finish(struct server *s, int status)
{
	struct status now;

	s->status = status;
	s->finish_ms = dispatch_now(s);
	s->deadline_ms = s->finish_ms + SESSION_CLOSE_MS;
	router_run_ended(s->router);
	warnings_check(&s->warnings, s->state.core, 1);
	log_info("server", "finished", "reason=\"%s\"", err_text(status));
	if (progress_end(&s->progress, s->state.core, s->finish_ms))
		tallies_measure(&s->tallies, s->state.core, s->progress.rate_s, s->finish_ms);
	dispatch_status(s, &now);
	history_end(s->history, &now);
	dispatch_show_status(s, &now);
	/* all replies may leave, because the last checkpoint contains all events */
	router_set_flushed(s->router, UINT64_MAX);
	send_last_status(s);
}

/* Writes the --name of a worker to `name`. If the server has keys, the core appends the start of
 * the worker's key to the name, and this function removes it again. */
static void name_of_worker(const struct server *s, uint32_t worker, char *name, size_t size)
{
	struct worker_view v;

	core_worker(s->state.core, worker - 1, &v);
	snprintf(name, size, "%s", v.name);
	/* The core's name ends in "@" and the first KEY_SHORT characters of the key. The key may
	 * contain "@" too, so the code finds the end of the name by the fixed number of key
	 * characters. */
	if (s->auth && strlen(name) > KEY_SHORT)
		name[strlen(name) - KEY_SHORT - 1] = '\0';
}

/* Sends a fenced process the ERROR that refuses it. The text of the ERROR names this process and
 * the process that has taken its slot. */
static void send_fenced(struct server *s, const struct effect *e)
{
	char name[WIRE_MAX_NAME + 1], text[LABEL_FENCED];
	struct msg m = e->msg;

	name_of_worker(s, e->worker, name, sizeof(name));
	labels_fenced(s->labels, e->peer, e->worker, e->incarnation, name, text);
	m.error.text = text;
	router_send(s->router, e->peer, &m);
}

static void send_msg(struct server *s, const struct effect *e)
{
	int held = s->wal && !s->status && e->durable_first;

	router_set_lsn(s->router, held ? s->committed_lsn : 0);
	if (e->fenced)
		send_fenced(s, e);
	else
		router_send(s->router, e->peer, &e->msg);
}

/* Makes all later replies that report decisions wait until the write-ahead log is flushed up to
 * `lsn`, because these replies can report the event with this LSN. The function begins the flush
 * even if no reply waits yet, because the next reply will wait for the flush. If the flush began
 * only with that reply, disk_wait.c would until then report a slow disk, because a committed event
 * would not be on disk. */
static void commit(struct server *s, uint64_t lsn)
{
	s->committed_lsn = lsn;
	wal_flush(s->wal);
}

static void note_effect(struct server *s, const struct effect *e)
{
	struct status now;

	dispatch_status(s, &now);
	history_effect(s->history, &now, e);
}

/* Begins to write the files of --keep for an evaluated epoch. Until they are written, the server
 * writes no checkpoint that says that the epoch is evaluated: a server that starts from such a
 * checkpoint has neither these weights nor a reason to evaluate the epoch again, so the files would
 * be missing. */
static void export_epoch(struct server *s)
{
	if (!s->epoch_export)
		return;
	epoch_export_evaluated(s->epoch_export, s->state.core);
	if (s->checkpointer && epoch_export_busy(s->epoch_export))
		checkpointer_hold(s->checkpointer);
}

/* Carries out effect `e`. `lsn` is the log sequence number of the event that caused the effect, or
 * 0 if there is no log. */
static void carry_out(struct server *s, const struct effect *e, uint64_t lsn)
{
	switch (e->kind) {
	case EFFECT_COMMIT:
		if (lsn)
			commit(s, lsn);
		break;
	case EFFECT_SEND:
		send_msg(s, e);
		break;
	case EFFECT_HELLO:
		labels_join(s->labels, e->peer, e->worker, e->incarnation);
		if (s->auth)
			auth_assign(s->auth, e->peer, e->worker, e->incarnation);
		break;
	case EFFECT_SNAPSHOT:
		checkpointer_start(s->checkpointer, s->state.core, e->generation);
		if (s->wal)
			wal_rotate(s->wal, e->generation);
		break;
	case EFFECT_STATUS:
		send_status(s, e->peer, e->max_text);
		break;
	case EFFECT_DATA_FIXED:
		membership_log_data(s->state.core);
		break;
	case EFFECT_BEGIN:
	case EFFECT_EPOCH_BEGUN:
	case EFFECT_TRAINED:
	case EFFECT_EVALUATED:
		progress_effect(&s->progress, s->state.core, e, dispatch_now(s));
		if (e->kind == EFFECT_EVALUATED) {
			note_effect(s, e);
			export_epoch(s);
		}
		break;
	case EFFECT_DISPUTED:
		membership_log_dispute(e);
		note_effect(s, e);
		break;
	case EFFECT_RELEASED:
		log_info("server", "release", "worker=\"%s\"", e->msg.admin.worker);
		break;
	case EFFECT_WORKER:
		membership_log(&s->membership, e, s->state.core, s->labels);
		note_effect(s, e);
		break;
	case EFFECT_FINISH:
		run_finish(s, e->status);
		break;
	}
}

void dispatch(struct server *s, const struct event *ev, struct frames *f)
{
	struct core *c = s->state.core;
	struct event event = *ev;
	uint64_t now = dispatch_now(s), lsn = 0;
	const struct effect *e;
	int evaluated = 0;

	PS_ASSERT(!s->dispatching); /* invariant 2 */
	s->dispatching = 1;
	if (s->wal && !s->status)
		lsn = wal_append(s->wal, ev, now, f,
			ev->kind == EVENT_MESSAGE ? router_sender_key(s->router) : "");
	double begin = clock_seconds();
	event.next_buffer = param_buffers_next(s->state.params);
	event.defers = param_buffers_defer(s->state.params);
	core_decide(c, &event, now);
	param_buffers_after_step(s->state.params);
	double took = clock_seconds() - begin;
	s->apply_s += took;
	timings_add(&s->timings, TIMING_APPLY, took);
	for (size_t i = 0; (e = core_effect(c, i)) != NULL; i++) {
		carry_out(s, e, lsn);
		evaluated |= e->kind == EFFECT_EVALUATED;
	}
	s->dispatching = 0;
	if (evaluated)
		dispatch_stop_rule(s);
	/* an additional tick: an evaluation that had to wait for the end of this one begins at
	 * once */
	if (evaluated && !s->status)
		dispatch(s, &(struct event){.kind = EVENT_TICK, .held_ms = s->disk.held_ms}, NULL);
}

void dispatch_stop_rule(struct server *s)
{
	const struct event ev = {.kind = EVENT_DRAIN, .rule_met = 1};

	if (s->stops || s->draining || s->status || core_ending(s->state.core) ||
		!stop_rule_is_met(&s->options->stop, s->state.core, s->stop_reason))
		return;
	s->stops = 1;
	log_info("train", "stops", "reason=\"%s\"", s->stop_reason);
	dispatch(s, &ev, NULL);
}

/* ---- events in ----------------------------------------------------------------------------- */

/* Sets the log level. Logs the change of the level even if this line would appear neither at the
 * old level nor at the new one. */
static void set_log_level(enum log_level level)
{
	const char *from = log_level_name(log_get_level());

	log_set_level(LOG_INFO);
	log_info("server", "log_level", "from=%s to=%s", from, log_level_name(level));
	log_set_level(level);
}

/* Answers a request to read or change the log level. The core gets no event for this request,
 * because the program's log belongs to the shell. */
static void on_log_level(struct server *s, uint32_t peer, const struct msg *m)
{
	struct msg answer = *m;

	set_log_level((enum log_level)(m->admin.level - LOG_LEVEL_ERROR));
	answer.admin.reply = 1;
	router_set_lsn(s->router, 0);
	router_send(s->router, peer, &answer);
}

/* Returns how many pushes of a sender with `workers` live workers may wait for the disk: twice
 * push_window for each worker, or one push if the sender has no live worker. A correct
 * worker has at most push_window pushes without an answer. If the server refuses these because it
 * lacks an earlier push, the worker sends them again while they still wait. */
static size_t max_waiting_pushes(const struct server *s, uint32_t workers)
{
	return workers ? 2 * (size_t)core_config(s->state.core)->sessions.push_window * workers : 1;
}

/* Returns 1 if the messages of the sender of this event that wait for the disk exceed the sender's
 * share, or if the message is a push, the sender has no live or suspect worker, and more bytes wait
 * than full push windows of all live workers and of one more would have. The server then drops the
 * message. A correct sender sends the message again, as if the network had lost it. */
static int is_flooded(const struct server *s, const struct event *ev, struct frames *f)
{
	const struct core *c = s->state.core;
	const struct core_config *cfg = core_config(c);
	const char *key = router_sender_key(s->router);
	int is_push = ev->msg->type == MSG_PUSH;
	uint32_t workers = is_push ? core_workers_of(c, key, ev->peer) : 0;
	size_t window = (size_t)cfg->sessions.push_window *
			(cfg->n_params * sizeof(float) + WIRE_MAX_HEADER);

	return wal_share_is_used(s->wal, ev, f, key, max_waiting_pushes(s, workers)) ||
	       (is_push && !workers &&
		       wal_pending_bytes(s->wal) > window * (core_live_workers(c) + 1));
}

/* Counts a message of `peer` that the server drops because too much waits for the disk. Logs the
 * number of such messages, at growing intervals while messages are dropped. */
static void note_flood(struct server *s, uint32_t peer)
{
	uint64_t now = dispatch_now(s);

	router_note_dropped(s->router);
	if (s->flood.dropped == 0)
		s->flood.since_ms = now;
	s->flood.dropped++;
	if (reminder_due(&s->flood.reminder, 1, s->flood.since_ms, now))
		log_warn("server", "drops",
			"messages=%llu peer=%08x key=\"%.*s\" reason=\"too many messages of one "
			"sender wait for the disk\"",
			(unsigned long long)s->flood.dropped, peer, KEY_SHORT,
			router_sender_key(s->router));
}

/* Returns 0 if the server must drop this HELLO, which its sender repeats later. */
static int admit_hello(struct server *s, uint32_t peer, const struct msg_hello *m)
{
	if (m->role == ROLE_OBSERVER)
		observers_add(&s->observers, peer, dispatch_now(s));
	if (m->role != ROLE_WORKER)
		return 1;
	if (!admission_ask(&s->admission, uv_now(&s->loop))) {
		router_note_dropped(s->router);
		return 0;
	}
	labels_hello(s->labels, peer, m, router_address(s->router));
	return 1;
}

/* Returns the number of keys other than `owner` that have more than `n` of the slots. */
static uint32_t count_larger_keys(
	const struct server *s, uint32_t slots, const char *owner, uint32_t n)
{
	const char *taken[WIRE_MAX_WORKERS];
	uint32_t used = 0, keys = 0;
	struct worker_view v;

	for (uint32_t i = 0; i < slots; i++) {
		uint32_t before = 0;

		core_worker(s->state.core, i, &v);
		if (v.state == SESSION_FREE || v.state == SESSION_DEAD ||
			strcmp(v.owner, owner) == 0)
			continue;
		for (uint32_t k = 0; k < used; k++)
			before += strcmp(taken[k], v.owner) == 0;
		taken[used++] = v.owner;
		keys += before == n;
	}
	return keys;
}

/* Returns 1 if one more worker with this key would exceed the key's share of the slots. If the
 * slots cannot be divided evenly among the keys, the N slots that are left over go to N of the
 * keys, one to each. Returns 0 if the worker already has a slot. */
static int is_over_share(const struct server *s, uint32_t peer, const struct msg_hello *m)
{
	uint32_t slots = core_config(s->state.core)->sessions.max_workers, used;

	if (!s->auth || m->role != ROLE_WORKER || !core_needs_slot(s->state.core, peer, m, &used))
		return 0;
	uint32_t even = auth_even_share(s->auth, slots), share = auth_share(s->auth, slots);

	if (used < even || even == 0 || share == even)
		return used >= share;
	return used > even ||
	       count_larger_keys(s, slots, m->owner, even) >= auth_left_over(s->auth, slots);
}

static void refuse_share(struct server *s, uint32_t peer)
{
	const struct msg refusal = {.type = MSG_ERROR,
		.error = {.status = PS_EFULL,
			.text = "all worker slots of your key are taken: each worker's key on the "
				"server's list has an equal share of --max-workers"}};

	router_set_lsn(s->router, 0);
	router_send(s->router, peer, &refusal);
}

/* With --input auto, the images of a worker can decide the input of the model. Returns 1 if the
 * server restarts with the images of this worker, or refuses the worker; the caller must then not
 * pass the HELLO to the core. */
static int take_images(struct server *s, uint32_t peer, const struct msg_hello *m)
{
	struct msg refusal = {.type = MSG_ERROR};
	struct err e;

	if (s->restarts && m->role == ROLE_WORKER)
		return 1; /* drop this HELLO: the worker sends it again to the restarted server */
	if (!s->options->auto_input || m->role != ROLE_WORKER || s->draining ||
		!images_differ(s->options, &m->data) || !core_is_blank(s->state.core))
		return 0;
	s->next = *s->options;
	if (!images_take(&s->next, m, s->memory_bytes, &e)) {
		s->restarts = 1;
		return 1;
	}
	refusal.error.status = PS_EWRONGDATA;
	refusal.error.text = e.text;
	router_set_lsn(s->router, 0);
	router_send(s->router, peer, &refusal);
	return 1;
}

/* Sends to all open monitoring pages what a worker predicts for the test images that the page shows
 * (wall.h). */
static void on_show(struct server *s, uint32_t peer, const struct msg_status *m)
{
	char *line = http_watchers(s->http) ? wall_take(&s->wall, peer, m) : NULL;

	if (line)
		http_send(s->http, "wall", line);
	free(line);
}

void dispatch_message(void *arg, uint32_t peer, const struct msg *m, struct frames *f)
{
	const struct event ev = {.kind = EVENT_MESSAGE, .peer = peer, .msg = m};
	struct server *s = arg;
	uint32_t requester;

	/* Invariant 1 of server.h. A server without a checkpointer writes no term to disk, so the
	 * invariant does not apply. */
	PS_ASSERT(!s->checkpointer || s->state.written_term == core_config(s->state.core)->term);
	if (m->type == MSG_HELLO && !admit_hello(s, peer, &m->hello))
		return;
	if (m->type == MSG_HELLO && is_over_share(s, peer, &m->hello)) {
		refuse_share(s, peer);
		return;
	}
	if (m->type == MSG_HELLO && take_images(s, peer, &m->hello))
		return;
	if (m->type == MSG_STATUS && m->status.reply) {
		on_show(s, peer, &m->status);
		return;
	}
	if (m->type == MSG_STATUS && m->status.first) {
		send_workers(s, peer, &m->status);
		return;
	}
	if (s->wal && !s->status && is_flooded(s, &ev, f)) {
		note_flood(s, peer);
		return;
	}
	if (m->type == MSG_ADMIN && m->admin.verb == ADMIN_LOG_LEVEL) {
		on_log_level(s, peer, m);
		return;
	}
	double begin = clock_seconds();
	dispatch(s, &ev, f);
	if (core_dropped(s->state.core))
		router_note_dropped(s->router);
	if (m->type == MSG_PULL || m->type == MSG_PUSH)
		timings_add(&s->timings, m->type == MSG_PULL ? TIMING_PULL : TIMING_PUSH,
			clock_seconds() - begin);
	requester = core_requester(s->state.core);
	if (requester)
		transfers_note(&s->transfers, requester, peer, f);
}

void dispatch_gone(void *arg, uint32_t peer)
{
	const struct event ev = {.kind = EVENT_PEER_GONE, .peer = peer};
	struct server *s = arg;

	observers_drop(&s->observers, peer);
	dispatch(s, &ev, NULL);
}

void dispatch_event(struct server *s, const struct event *ev)
{
	dispatch(s, ev, NULL);
	router_flush(s->router);
}
