/* server.c - see server.h. */
#include "server/server.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "common/assert.h"
#include "common/clock.h"
#include "common/endpoint.h"
#include "common/log.h"
#include "common/mem.h"
#include "server/net/address.h"
#include "server/core/core.h"
#include "server/core/vec.h"
#include "server/device/gpu_store.h"
#include "server/config/memory.h"
#include "server/dispatch.h"
#include "server/monitor/epoch_metrics.h"
#include "server/monitor/page.h"

#define TICK_MS 50
/* minimum number of parameters for which workers exchange tensors from GPU to GPU */
#define GPU_LANE_PARAMS 16384
#define MEMORY_MS       50 /* time between two checks of the memory in use */
/* time between two checks if the memory in use exceeds half of the limit */
#define MEMORY_NEAR_MS 10
/* time within which the clients should close their connections after the end of the run */
#define CLOSE_MS 1000
/* time limit for the last checkpoint of a drain; drain_ms adds more time for a large checkpoint */
#define DRAIN_MS 10000
/* If the server cannot write the last checkpoint, it repeats the attempt for this time, because
 * disk space may become free. */
#define DRAIN_AGAIN_MS 1500
/* time between two attempts to free memory by closing all connections */
#define CLOSE_ALL_MS 2000
#define GAVE_UP      PS_EAGAIN
#define SILENT_MS    30000 /* a connection that was silent for longer is closed (port.h) */
/* minimum time between two snapshots that the server requests for the write-ahead log */
#define REQUEST_MS 100

/* ---- the disk ------------------------------------------------------------------------------ */

/* Called when a group of the log is on disk or has failed. Sends the replies that waited for this
 * group. */
static void on_committed(void *arg)
{
	struct server *s = arg;

	timings_add(&s->timings, TIMING_WAL, wal_stats(s->wal)->newest_seconds);
	if (s->status)
		return;
	router_set_flushed(s->router, wal_flushed_lsn(s->wal));
	router_flush(s->router);
}

/* Requests a snapshot if the log file is large or has failed, because the log begins a new file at
 * a snapshot. */
static void request_snapshot(struct server *s)
{
	const struct event ev = {.kind = EVENT_SAVE};
	uint64_t now = dispatch_now(s);

	if (!s->wal || s->status || checkpointer_busy(s->checkpointer) ||
		!wal_wants_snapshot(s->wal) || now - s->request_ms < REQUEST_MS)
		return;
	s->request_ms = now;
	dispatch_event(s, &ev);
}

/* Returns 1 if the run is ending because of a signal, cnn-ctl or a stop rule. */
static int is_draining(const struct server *s)
{
	return s->draining || core_ending(s->state.core) == PS_ESHUTDOWN;
}

static void on_saved(void *arg, uint64_t generation, int rc)
{
	const struct event ev = {
		.kind = rc ? EVENT_SAVE_FAILED : EVENT_DURABLE, .generation = generation};
	struct server *s = arg;

	if (rc == 0)
		timings_add(&s->timings, TIMING_CHECKPOINT,
			checkpointer_stats(s->checkpointer)->seconds);
	s->unsaved_ms = rc == 0 || !is_draining(s) ? 0
			: s->unsaved_ms            ? s->unsaved_ms
						   : dispatch_now(s);
	if (s->wal && rc == 0) {
		wal_checkpointed(s->wal, generation);
		wal_reserve(s->wal, checkpointer_stats(s->checkpointer)->bytes);
		router_set_flushed(s->router, wal_flushed_lsn(s->wal));
	}
	dispatch_event(s, &ev);
}

/* ---- the end ----------------------------------------------------------------------------- */

/* Returns the time limit of a drain, counted from its beginning. The limit is longer for a large
 * checkpoint. */
static uint64_t drain_ms(const struct server *s)
{
	return DRAIN_MS + disk_wait_allowance_ms(&s->disk);
}

/* Returns 1 if the end of the run needs a deadline. A drain always needs a deadline. A run that has
 * finished needs a deadline only after a write has failed or while a write is overdue. */
static int must_end(const struct server *s)
{
	int failing = s->checkpointer && checkpointer_stats(s->checkpointer)->failing;

	return core_ending(s->state.core) && (failing || s->disk.why[0] || is_draining(s));
}

static void abort_run(struct server *s, int status, const char *why)
{
	int end = core_ending(s->state.core);

	log_error("server", "gave_up", "run=\"%s\" reason=\"%s\"",
		end ? err_text(end) : "unfinished", why);
	s->status = status;
	s->finish_ms = dispatch_now(s);
	uv_stop(&s->loop);
}

/* Stops the loop when the clients that received BYE have closed their connections, or at the
 * deadline. The server keeps reading during this time, because closing a connection with unread
 * bytes would discard the BYE. */
static void check_session_close(struct server *s)
{
	struct router_stats net;
	uint64_t now = dispatch_now(s);

	PS_ASSERT(s->deadline_ms); /* invariant 3 */
	router_stats(s->router, &net);
	int closed =
		net.port.connections == 0 || (net.waiting == 0 && now >= s->finish_ms + CLOSE_MS);
	int written = !history_busy(s->history) && !epoch_export_busy(s->epoch_export);
	uint64_t deadline_ms =
		s->deadline_ms + (epoch_export_busy(s->epoch_export) ? drain_ms(s) : 0);
	if ((closed && written) || now >= deadline_ms)
		uv_stop(&s->loop);
}

/* Returns 1 if a single write has already taken as long as a whole drain may take, so that more
 * time for the drain would not help. */
static int disk_hangs(struct server *s)
{
	return dispatch_now(s) + drain_ms(s) >= s->deadline_ms + DRAIN_AGAIN_MS &&
	       disk_wait_hangs(&s->disk, DRAIN_MS);
}

static void check_deadline(struct server *s)
{
	uint64_t now = dispatch_now(s);
	char why[160];

	if (s->status) {
		check_session_close(s);
		return;
	}
	if (!s->deadline_ms && must_end(s))
		s->deadline_ms = now + drain_ms(s);
	if (s->unsaved_ms && now >= s->unsaved_ms + DRAIN_AGAIN_MS) {
		abort_run(s, PS_EIO, checkpointer_stats(s->checkpointer)->why);
		return;
	}
	if (!s->deadline_ms || (now < s->deadline_ms && !disk_hangs(s)))
		return;
	if (disk_wait_write_ms(&s->disk)) {
		disk_wait_describe(&s->disk, why, sizeof(why));
		abort_run(s, PS_EIO, why);
	} else if (is_draining(s))
		abort_run(s, GAVE_UP, "the last checkpoint took too long");
	else
		abort_run(s, PS_EIO, "the last checkpoint cannot be written");
}

/* ---- memory ------------------------------------------------------------------------------ */

/* Returns the memory limit in bytes. By default this is 80 % of the machine's memory or, if the
 * container has a lower limit, 80 % of this limit. */
static uint64_t memory_limit(const struct options *o)
{
	return o->memory_bytes ? o->memory_bytes : mem_of_machine() / 5 * 4;
}

/* Returns the memory in use after ending the large answers and streams of HTTP, so that clients of
 * HTTP that read slowly cannot make the server close the connections of workers. */
static uint64_t end_large_answers(struct server *s, uint64_t used)
{
	const size_t bytes = http_large_bytes(s->http);

	if (bytes == 0)
		return used;
	http_end_large(s->http);
	mem_trim();
	log_debug(
		"http", "answers_ended", "bytes=%zu reason=\"the server needs the memory\"", bytes);
	return status_rss();
}

/* Closes all connections if the process uses too much memory. libzmq limits the size of a frame and
 * the number of messages, but not the number of frames in a message. A peer whose message never
 * ends can therefore use all memory. Only closing the connection of this peer frees the memory, and
 * libzmq does not report which connection it is. */
static void check_memory(struct server *s, uint64_t used)
{
	uint64_t now = dispatch_now(s);

	/* the process may still hold freed memory: return it to the system */
	if (used > s->memory_bytes) {
		mem_trim();
		used = status_rss();
	}
	if (used > s->memory_bytes)
		used = end_large_answers(s, used);
	if (used <= s->memory_bytes) {
		s->closed_ms = 0;
		return;
	}
	if (s->closed_ms && now < s->closed_ms + CLOSE_ALL_MS)
		return;
	log_warn("server", "memory_short", "rss_bytes=%llu limit_bytes=%llu",
		(unsigned long long)used, (unsigned long long)s->memory_bytes);
	s->closed_ms = now;
	router_close_connections(s->router);
}

static void on_memory_check(uv_timer_t *t)
{
	struct server *s = t->data;
	uint64_t used = status_rss();

	check_memory(s, used);
	int near = used > s->memory_bytes / 2 && !s->closed_ms;
	uv_timer_start(t, on_memory_check, near ? MEMORY_NEAR_MS : MEMORY_MS, 0);
}

/* ---- time and signals -------------------------------------------------------------------- */

static void on_transfer(void *arg, const struct event *ev)
{
	dispatch(arg, ev, NULL);
}

/* Notifies the workers whose replies wait for the disk, because a worker without a reply and
 * without this notice would conclude that the server is lost. */
static void notify_workers(struct server *s)
{
	static const struct msg notice = {.type = MSG_ERROR,
		.error = {.status = PS_EAGAIN,
			.notice = 1,
			.text = "the server waits for its disk (its log and status say why); it "
				"replies to workers, and welcomes new ones, when the disk works "
				"again"}};
	struct worker_view v;

	for (uint32_t i = 0; i < core_config(s->state.core)->sessions.max_workers; i++) {
		core_worker(s->state.core, i, &v);
		if (v.peer && (v.state == SESSION_LIVE || v.state == SESSION_SUSPECT))
			router_send_notice(s->router, v.peer, &notice);
	}
}

/* Returns 1 if a thread of libuv's pool works for this server. */
static int is_busy(const struct server *s)
{
	return (s->checkpointer && checkpointer_busy(s->checkpointer)) ||
	       (s->wal && wal_busy(s->wal)) || (s->auth && auth_busy(s->auth)) ||
	       history_busy(s->history) || epoch_export_busy(s->epoch_export);
}

/* Called for each new line of the history: sends the line to the open pages. */
static void on_line(void *arg, const char *line)
{
	struct server *s = arg;

	if (http_watchers(s->http))
		http_send(s->http, "line", line);
}

static void ask_for_wall(struct server *s)
{
	static const struct msg request = {
		.type = MSG_STATUS, .status = {.reply = STATUS_REQUEST, .text = "show"}};
	uint32_t peer = 0;

	if (http_watchers(s->http))
		peer = wall_choose(&s->wall, s->state.core, dispatch_now(s));
	if (!peer)
		return;
	router_set_lsn(s->router, 0);
	router_send(s->router, peer, &request);
	router_flush(s->router);
}

/* Called once a second, when the rates of the run have been measured: the history takes a sample,
 * and the open pages get the status. */
static void record_history(struct server *s)
{
	struct status now;

	tallies_measure(&s->tallies, s->state.core, s->progress.rate_s, dispatch_now(s));
	dispatch_status(s, &now);
	if (!s->status)
		history_tick(s->history, &now);
	dispatch_show_status(s, &now);
	if (!s->status)
		ask_for_wall(s);
}

static void on_tick(uv_timer_t *t)
{
	struct server *s = t->data;

	if (s->restarts && !s->draining && !s->status && !is_busy(s)) {
		uv_stop(&s->loop);
		return;
	}
	router_receive_pending(s->router);
	disk_wait_tick(&s->disk, s->wal, s->checkpointer, s->committed_lsn, dispatch_now(s));
	dispatch_event(s, &(struct event){.kind = EVENT_TICK, .held_ms = s->disk.held_ms});
	transfers_poll(&s->transfers, s->state.core, s->router, dispatch_now(s), on_transfer, s);
	/* after the end of the run close no lanes: workers need them for their last messages */
	if (!s->status)
		router_check_sessions(s->router, s->state.core, dispatch_now(s));
	if (s->disk.notice_due && !s->status)
		notify_workers(s);
	request_snapshot(s);
	line_budget_tick(&s->lines, dispatch_now(s));
	membership_check(&s->membership, s->state.core);
	warnings_check(&s->warnings, s->state.core, s->status != 0);
	waiting_tick(&s->waiting, s->state.core, dispatch_now(s));
	if (progress_tick(
		    &s->progress, s->state.core, s->status ? NULL : &s->waiting, dispatch_now(s)))
		record_history(s);
	check_deadline(s);
}

static void on_stop_signal(struct server *s, int number)
{
	const struct event ev = {.kind = EVENT_DRAIN};

	/* the run has ended and is saved, so the signal only ends the wait for the clients */
	if (s->status) {
		if (number != SIGUSR1)
			uv_stop(&s->loop);
		return;
	}
	if (s->draining) {
		/* ignore a second SIGUSR1: Slurm can send this warning more than once */
		if (number != SIGUSR1)
			abort_run(s, GAVE_UP, "a second signal");
		return;
	}
	log_info("server", "draining", "signal=%d", number);
	s->draining = 1;
	s->deadline_ms = dispatch_now(s) + drain_ms(s);
	dispatch_event(s, &ev);
}

static void on_server_signal(uv_signal_t *h, int number)
{
	struct server *s = h->data;

	if (number != SIGHUP)
		on_stop_signal(s, number);
	else if (s->auth)
		auth_reload(s->auth);
	else
		log_info("server", "no_keys",
			"reason=\"SIGHUP reads the authorized keys again; "
			"this server has none\"");
}

/* ---- pages ------------------------------------------------------------------------------- */

static void fill_health(const struct server *s, const struct status *now, struct http_page *page)
{
	const char *why = status_degraded(now);
	char text[320];

	/* /healthz needs no token. If the server has a token, the page therefore only says that the
	 * server is degraded, not why */
	snprintf(text, sizeof(text),
		!why                     ? "ok\n"
		: s->options->http_token ? "degraded\n"
					 : "degraded: %s\n",
		why);
	page->code = why ? 503 : 200;
	page->type = "text/plain";
	page->text = strdup(text);
}

static void on_page(void *arg, const char *path, struct http_page *page)
{
	const struct server *s = arg;
	struct status now;

	if (strcmp(path, "/livez") == 0) { /* an answer proves that the loop runs */
		*page = (struct http_page){
			.code = 200, .type = "text/plain", .text = strdup("ok\n")};
		return;
	}
	dispatch_status(s, &now);
	*page = (struct http_page){.code = 200};
	if (strcmp(path, "/") == 0) {
		page->type = "text/html; charset=utf-8";
		page->fixed = page_html(&page->fixed_bytes);
	} else if (strcmp(path, "/healthz") == 0) {
		fill_health(s, &now, page);
	} else if (strcmp(path, "/status") == 0) {
		page->type = "application/json";
		page->text = status_whole_json(&now);
	} else if (strcmp(path, "/metrics") == 0) {
		page->type = "text/plain; version=0.0.4";
		page->text = status_metrics(&now);
	} else if (strcmp(path, "/history") == 0 && s->history) {
		page->type = "application/jsonl";
		page->text = history_text(s->history);
	} else if (strcmp(path, "/history/short") == 0 && s->history) {
		page->type = "application/jsonl";
		page->text = history_short(s->history);
	} else {
		page->code = 0;
	}
}

/* ---- start ------------------------------------------------------------------------------- */

/* With --durability always, opens a write-ahead log that follows the checkpoint on disk; all later
 * events go to this log. Otherwise removes the files of earlier logs. */
static int open_wal(struct server *s, struct err *e)
{
	const struct core_config *cfg = core_config(s->state.core);
	const struct wal_config config = {.loop = &s->loop,
		.dir = s->options->checkpoint_dir,
		.run = cfg->run,
		.term = cfg->term,
		.generation = cfg->generation,
		.max_bytes = s->options->wal_bytes,
		.done = on_committed,
		.arg = s};

	if (!cfg->checkpoint.wal) {
		wal_remove_files(s->options->checkpoint_dir, cfg->generation - 1);
		return PS_OK;
	}
	int rc = wal_new(&s->wal, &config, e);
	if (!rc)
		wal_reserve(s->wal, checkpointer_stats(s->checkpointer)->bytes);
	return rc;
}

static int open_auth(struct server *s, struct err *e)
{
	const struct options *o = s->options;
	const struct auth_config config = {.loop = &s->loop,
		.key_file = o->key,
		.keys_file = o->authorized_keys,
		.max_workers = o->core.sessions.max_workers,
		.sides = o->sides,
		.hellos = ADMISSION_BURST};

	return o->key ? auth_new(&s->auth, &config, e) : PS_OK;
}

/* Returns the reason why workers cannot use memory of their GPUs, or NULL if they can. They cannot
 * use it if the vectors are so short that the CPU computes their checksums, or if the CPU must read
 * all gradients (core_reads_gradients). */
static const char *why_no_gpu_lanes(const struct options *o, const struct core_config *cfg)
{
	if (cfg->n_params < GPU_LANE_PARAMS)
		return "the model is too small";
	return o->gpu && core_reads_gradients(cfg)
		       ? "with these options the server needs gradients in memory of the host"
		       : NULL;
}

/* Opens the router. Must be called after open_auth, because the router uses s->auth. */
static int open_router(struct server *s, struct err *e)
{
	const struct core_config *cfg = &s->options->core;
	struct endpoint at;

	s->labels = labels_new(cfg->sessions.max_workers, &s->lines);
	if (!s->labels)
		return err_set(e, PS_ENOMEM, "no memory for the labels of workers");
	const struct router_config config = {.loop = &s->loop,
		.bind = s->bind,
		.n_params = cfg->n_params,
		.push_window = cfg->sessions.push_window,
		.max_workers = cfg->sessions.max_workers,
		.lines = &s->lines,
		.key_bytes = memory_for_pushes(s->options, memory_limit(s->options)),
		.silent_ms = SILENT_MS,
		.params = s->state.params,
		.pass = {.engine = cfg->engine,
			.squares = core_needs_squares(cfg) ? vec_squares : NULL,
			.trained = cfg->n_params - cfg->n_running},
		.only_exact = cfg->optim.kind == OPTIM_LBFGS,
		.copies = s->copies,
		.gpu = s->options->gpu,
		.gpu_off = why_no_gpu_lanes(s->options, cfg),
		.lane_path = s->options->lane == LANE_TCP ? NULL : s->options->lane_path,
		.lane_fd = s->options->lane_fd,
		.lane_why = &s->options->lane_why,
		.needs_lane = s->options->lane == LANE_SHM,
		.sides = s->options->sides,
		.auth = s->auth,
		.on_message = dispatch_message,
		.on_gone = dispatch_gone,
		.arg = s};

	if (endpoint_parse(s->options->bind, &at))
		return err_set(
			e, PS_EUSAGE, "--bind %.100s: expected tcp://HOST:PORT", s->options->bind);
	address_resolve(&at);
	endpoint_format(&at, s->bind, sizeof(s->bind));
	return router_new(&s->router, &config, e);
}

/* Refuses a bound address that other machines can reach without the required secret: that of --bind
 * needs keys or --insecure, and that of --http needs a token. The options module has already
 * checked the addresses of a host name, but the name may have got other addresses in the
 * meantime. */
static int check_exposure(const struct server *s, struct err *e)
{
	const struct options *o = s->options;
	const char *endpoint = router_endpoint(s->router);
	struct endpoint at;

	if (!o->key && !o->insecure &&
		(endpoint_parse(endpoint, &at) || address_reach(at.host) != ADDRESS_LOOPBACK))
		return err_set(e, PS_EUSAGE, "--bind %.100s: %s is open to the network", o->bind,
			endpoint);
	if (s->http && !o->http_token && !http_is_loopback(s->http))
		return err_set(e, PS_EUSAGE, "--http %.100s: %s is open to the network", o->http,
			http_url(s->http));
	return PS_OK;
}

/* Opens the ports. Messages that arrive before the loop runs wait in libzmq. */
static int open_ports(struct server *s, struct err *e)
{
	int rc = open_auth(s, e);

	if (!rc)
		rc = open_router(s, e);
	if (!rc && s->options->http_token)
		rc = http_read_token(s->options->http_token, s->http_token, e);
	if (!rc && s->options->http)
		rc = http_new(&s->http, &s->loop, s->options->http, on_page, s, e);
	if (!rc && s->options->http_token)
		http_require(s->http, s->http_token);
	return rc ? rc : check_exposure(s, e);
}

static void on_exported(void *arg)
{
	struct server *s = arg;

	if (s->checkpointer)
		checkpointer_release(s->checkpointer);
}

/* Prepares --keep. */
static int open_epoch_export(struct server *s, struct err *e)
{
	const struct options *o = s->options;
	const struct epoch_export_of of = {.dir = o->checkpoint_dir,
		.rule = o->keep,
		.model = &o->model,
		.results = epoch_results_text};

	if (!o->keep.best && !o->keep.every)
		return PS_OK;
	if (epoch_export_new(&s->epoch_export, &s->loop, &of, on_exported, s))
		return err_set(e, PS_ENOMEM, "no memory for --keep");
	return PS_OK;
}

static int save_first(struct server *s, struct err *e)
{
	const struct options *o = s->options;

	if (!o->checkpoint_dir || o->unknown_images)
		return PS_OK;
	if (checkpointer_new(&s->checkpointer, &s->loop, o->checkpoint_dir, on_saved, s))
		return err_set(e, PS_ENOMEM, "no memory for checkpoints");
	checkpointer_keep(s->checkpointer, s->state.sound);
	int rc = checkpointer_write(
		s->checkpointer, s->state.core, core_config(s->state.core)->generation, e);
	return rc ? rc : open_wal(s, e);
}

/* Reads and continues the history of the run. While the server has no checkpointer, for example
 * because the images are not known yet, the history has no file. */
static int open_history(struct server *s, struct err *e)
{
	struct status now;

	progress_init(&s->progress, s->state.core, dispatch_now(s));
	if (tallies_init(&s->tallies, s->state.core))
		return err_set(e, PS_ENOMEM, "no memory for the tallies of workers");
	dispatch_status(s, &now);
	int rc = history_new(&s->history, &s->loop,
		s->checkpointer ? s->options->checkpoint_dir : NULL, &now, s->options,
		s->state.resumed, e);
	if (!rc) {
		history_labels(s->history, s->labels);
		history_listen(s->history, on_line, s);
	}
	return rc;
}

/* Logs that the server has started. Called when the ports are open and the first checkpoint is on
 * disk. */
static void announce(const struct server *s)
{
	const struct options *o = s->options;
	const struct core *c = s->state.core;
	const struct core_config *cfg = core_config(c);

	log_info("server", s->state.resumed ? "resumed" : "new_run",
		"run=%016llx%016llx term=%llu version=%llu model=\"%s\" n_params=%zu",
		(unsigned long long)cfg->run.hi, (unsigned long long)cfg->run.lo,
		(unsigned long long)cfg->term, (unsigned long long)core_stats(c)->version,
		cfg->model, cfg->n_params);
	log_info("server", "threads", "n=%zu", o->n_threads);
	if (history_diverged(s->history))
		log_warn("server", "diverged_before",
			"reason=\"training had diverged; it continues from the newest checkpoint, "
			"with the options of this start: try a lower --lr, --clip-norm or another "
			"--staleness-scaling, or begin a new run in another --checkpoint-dir\"");
	if (s->state.resumed && o->init)
		log_info("server", "init_not_used", "reason=\"the run is resumed\"");
	if (!o->checkpoint_dir)
		log_warn("checkpoint", "off",
			"reason=\"no --checkpoint-dir: a crash of the server loses the run\"");
}

static void warn_few_keys(size_t keys, size_t needed)
{
	if (keys < needed)
		log_warn("auth", "few_keys",
			"keys=%zu needed=%zu reason=\"with fewer keys of workers, --aggregate "
			"withstands less: a key may have most of the workers\"",
			keys, needed);
}

static void announce_ports(const struct server *s)
{
	const struct options *o = s->options;

	if (o->insecure && !o->key)
		log_warn("auth", "off", "reason=\"--insecure: everybody who reaches %s may train\"",
			o->bind);
	if (o->key)
		warn_few_keys(auth_stats(s->auth)->worker_keys, options_keys_needed(&o->core));
	router_log_lanes(s->router);
	log_info("net", "listening", "endpoint=%s", router_endpoint(s->router));
	if (s->http)
		log_info("http", "listening", "url=%s", http_url(s->http));
}

static const int handled_signals[SERVER_SIGNALS] = {SIGTERM, SIGINT, SIGUSR1, SIGHUP};

/* Blocks or unblocks the handled signals. `how`: SIG_BLOCK or SIG_UNBLOCK. */
static void mask_signals(int how)
{
	sigset_t set;

	sigemptyset(&set);
	for (size_t i = 0; i < SERVER_SIGNALS; i++)
		sigaddset(&set, handled_signals[i]);
	pthread_sigmask(how, &set, NULL);
}

void server_hold_signals(void)
{
	mask_signals(SIG_BLOCK);
}

static void start_handles(struct server *s)
{
	for (size_t i = 0; i < SERVER_SIGNALS; i++) {
		uv_signal_init(&s->loop, &s->signal[i]);
		s->signal[i].data = s;
		uv_signal_start(&s->signal[i], on_server_signal, handled_signals[i]);
	}
	mask_signals(SIG_UNBLOCK);
	s->memory_bytes = memory_limit(s->options);
	uv_timer_init(&s->loop, &s->tick);
	s->tick.data = s;
	uv_timer_start(&s->tick, on_tick, TICK_MS, TICK_MS);
	uv_timer_init(&s->loop, &s->memory_check);
	s->memory_check.data = s;
	uv_timer_start(&s->memory_check, on_memory_check, MEMORY_MS, 0);
	uv_update_time(&s->loop);
	progress_init(&s->progress, s->state.core, dispatch_now(s));
	waiting_init(&s->waiting, core_config(s->state.core), router_endpoint(s->router),
		s->auth != NULL);
	membership_init(&s->membership, s->state.core, &s->lines);
	if (core_data_is_fixed(s->state.core))
		membership_log_data(s->state.core);
	transfers_init(&s->transfers, s->state.core);
	s->warnings.classes = s->options->model.classes;
	s->warnings.usual_rate = s->options->usual_rate;
	s->warnings.usual_local_rate = s->options->usual_local_rate;
	warnings_check(&s->warnings, s->state.core, 0);
}

/* Closes the network and all handles. When this function returns, clients see a closed connection
 * and the ports are free, even if a thread of the pool keeps the process alive until a disk
 * answers. */
static void close_network(struct server *s)
{
	if (s->router)
		router_stop(s->router);
	if (s->http)
		http_stop(s->http);
	if (s->tick.data) {
		uv_close((uv_handle_t *)&s->tick, NULL);
		uv_close((uv_handle_t *)&s->memory_check, NULL);
		for (size_t i = 0; i < SERVER_SIGNALS; i++)
			uv_close((uv_handle_t *)&s->signal[i], NULL);
	}
	uv_run(&s->loop, UV_RUN_NOWAIT);
	http_free(&s->http);
	router_free(&s->router);
}

/* Removes the file of the socket of lanes. In the sandbox this is possible only in
 * --checkpoint-dir; elsewhere the file stays, and the next start replaces it. */
static void remove_lane_file(struct server *s)
{
	if (s->lane_file)
		(void)unlink(s->lane_file);
	s->lane_file = NULL;
}

/* Releases the parts of the server that close_network does not release. Must be called after
 * close_network. */
static void release_server(struct server *s)
{
	/* this server still locks the directory, so the socket cannot be that of another server */
	remove_lane_file(s);
	uv_run(&s->loop, UV_RUN_DEFAULT);
	uv_loop_close(&s->loop);
	auth_free(&s->auth);
	checkpointer_free(&s->checkpointer);
	wal_free(&s->wal);
	transfers_release(&s->transfers);
	labels_free(&s->labels);
	history_free(&s->history);
	epoch_export_free(&s->epoch_export);
	tallies_release(&s->tallies);
	pool_free(&s->copies);
	gpu_store_forget(s->options->gpu);
	startup_release(&s->state);
}

/* Allocates the memory of --store cuda:N, which depends on the model. */
static int prepare_store(struct server *s, const struct options *o, struct err *e)
{
	struct param_shared shared;
	int rc = o->gpu ? gpu_store_allocate(
				  o->gpu, o->core.n_params, optim_vectors(o->core.optim.kind), e)
			: PS_OK;

	if (rc || !o->gpu)
		return rc;
	if (param_buffers_shared(s->state.params, &shared))
		gpu_store_share(
			o->gpu, param_buffers_memory(s->state.params), shared.pitch, shared.n);
	return pool_new_in(&s->copies, o->core.n_params, gpu_store_allocate_host,
		       gpu_store_release_host)
		       ? err_set(e, PS_ENOMEM, "no memory for --store")
		       : PS_OK;
}

int server_start(struct server *s, const struct options *o, struct err *e)
{
	memset(s, 0, sizeof(*s));
	s->options = o;
	s->state.lock_fd = -1;
	s->lane_file = o->lane_fd >= 0 ? o->lane_path : NULL;
	s->begin_s = clock_seconds();
	s->begin_cpu_s = clock_thread_seconds();
	if (uv_loop_init(&s->loop) != 0)
		return err_set(e, PS_ENOMEM, "no event loop");
	int rc = startup_open(&s->state, o, e);
	if (!rc) {
		rc = prepare_store(s, o, e);
		if (!rc)
			rc = open_ports(s, e);
		if (rc) {
			remove_lane_file(s);
			startup_undo(&s->state);
		}
	}
	if (!rc)
		rc = startup_core(&s->state, o, e);
	if (!rc)
		rc = open_epoch_export(s, e);
	if (!rc)
		rc = save_first(s, e);
	if (!rc)
		rc = open_history(s, e);
	if (rc) {
		close_network(s);
		release_server(s);
		return rc;
	}
	announce(s);
	announce_ports(s);
	start_handles(s);
	/* the run that this server resumes may have met the rule already */
	dispatch_stop_rule(s);
	router_flush(s->router);
	return PS_OK;
}

void server_run(struct server *s)
{
	uv_run(&s->loop, UV_RUN_DEFAULT);
	log_progress(NULL);
}

/* Writes the HOST:PORT of a URL to `out`. */
static void address_of_url(const char *url, char out[ENDPOINT_TEXT])
{
	const char *at = strstr(url, "://");

	snprintf(out, ENDPOINT_TEXT, "%s", at ? at + 3 : url);
	out[strcspn(out, "/")] = '\0';
}

int server_restarts(
	struct server *s, struct options *o, char bind[ENDPOINT_TEXT], char http[ENDPOINT_TEXT])
{
	if (!s->restarts || s->status || s->draining)
		return 0;
	s->next.new_run = !o->unknown_images;
	snprintf(bind, ENDPOINT_TEXT, "%s", router_endpoint(s->router));
	s->next.bind = bind;
	if (s->http) {
		address_of_url(http_url(s->http), http);
		s->next.http = http;
	}
	log_info("server", "images", "input=%zux%zux%zu classes=%zu", s->next.model.input.c,
		s->next.model.input.h, s->next.model.input.w, s->next.model.classes);
	*o = s->next;
	server_hold_signals();
	close_network(s);
	/* do not remove the file: the process still listens on this socket, and the next server
	 * uses it */
	s->lane_file = NULL;
	release_server(s);
	return 1;
}

int server_stop(struct server *s, int *is_blocked)
{
	struct status now;
	int status = s->status;

	dispatch_status(s, &now);
	char *result = status_result(&now);
	/* close the network first, because printing the result can block on a pipe that nobody
	 * reads */
	close_network(s);
	if (s->options->lane_fd >= 0)
		close(s->options->lane_fd);
	printf("%s\n", result ? result : "{}");
	fflush(stdout);
	free(result);
	*is_blocked = checkpointer_busy(s->checkpointer) || wal_busy(s->wal) ||
		      auth_busy(s->auth) || history_busy(s->history) ||
		      epoch_export_busy(s->epoch_export);
	if (!*is_blocked)
		release_server(s);
	else if (checkpointer_busy(s->checkpointer))
		checkpointer_abandon(s->checkpointer);
	return err_exit_code(status);
}
