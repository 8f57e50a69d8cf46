/* top.c - see ctl.h: cnn-ctl top shows the server's status, once or on a screen that it refreshes
 * every second. */
#include "worker/ctl/ctl.h"
#include <locale.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>
#include "common/clock.h"
#include "common/log.h"
#include "common/number_text.h"
#include "common/plain.h"
#include "proto/msg.h"
#include "worker/ctl/screen.h"
#include "worker/ctl/table.h"
#include "worker/ctl/width.h"

#define PERIOD_MS 1000
#define AWAY_MS   2500 /* a server that has not answered for this time counts as away */
/* a screen waits without a time limit for a server that is away */
#define NO_LIMIT_MS INT32_MAX
#define BLANKS      3   /* number of blanks between two items of a line */
#define SAMPLES     240 /* number of samples in a sparkline, one per second */
#define LABEL       11  /* number of characters before a sparkline */
#define VALUE       14  /* number of characters after a sparkline */
/* rows for the titles, one worker, the line "workers N to M", and the keys */
#define MIN_ROWS 4
/* special values for a number of decimals, which is usually 0, 1, 2 or more */
#define LOSS    (-1) /* the value is a loss */
#define UNKNOWN (-2) /* the present value is not known */
#define RATE    (-3) /* the value is a rate */

/* How the server's main thread has divided a time, in percent of this time. */
struct server_shares {
	double apply, verify; /* processing messages and updates; decoding and checksums */
	double idle;          /* < 0: the shares are not known */
};

/* The newest values of one number in the status, one value per second. */
struct series {
	double value[SAMPLES];
	size_t n; /* number of all values so far */
};

struct top {
	struct cnnps *c;
	json_t *status; /* the newest status, owned; NULL: there is none yet */
	struct series rate, loss, accuracy, test_loss;
	struct server_shares server; /* those of the last second */
	struct table_view table;
	int typing, helps;   /* typing: 1: the user types a filter; helps: 1: the help is shown */
	size_t help_first;   /* number of the first line of the help that the screen shows */
	struct err error;    /* error of the newest request that failed */
	char wait[1024];     /* the reason why the server does not answer; "": it answers */
	int waits;           /* 1: a request for the status is under way */
	uint64_t request_ms; /* time at which the request began */
	time_t answered;     /* time at which the newest status arrived */
	int is_away;         /* 1: the server takes long to answer, and `status` says so */
};

/* 1: the user has quit. Any thread may read this variable. */
static atomic_int has_quit;

static double status_number(const json_t *o, const char *key)
{
	return json_number_value(json_object_get(o, key));
}

static const char *status_text(const json_t *o, const char *key)
{
	const char *t = json_string_value(json_object_get(o, key));

	return t ? t : "-";
}

/* ---- lines of items -------------------------------------------------------------------------- */

/* A text that is written item by item, with line breaks and the marks of screen.h. */
struct page {
	FILE *out;
	size_t columns, rows; /* size of the terminal; 0: no limit */
	size_t column, row;   /* position of the next item */
};

static void end_line(struct page *s)
{
	fputc('\n', s->out);
	s->column = 0;
	s->row++;
}

/* Prints an item on the current line, or on the next line if it does not fit there. */
static void put_item(struct page *s, enum mark mark, const char *fmt, ...) PS_PRINTF(3, 4);
static void put_item(struct page *s, enum mark mark, const char *fmt, ...)
{
	char item[512];
	size_t n, gap = s->column ? BLANKS : 0;
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(item, sizeof(item), fmt, ap);
	va_end(ap);
	plain_text(item, 0);
	n = width_of(item);
	if (s->columns && gap && s->column + gap + n > s->columns) {
		end_line(s);
		gap = 0;
	}
	fprintf(s->out, "%*s%c", (int)gap, "", mark);
	for (const char *at = item; *at;) { /* a long item continues in the next line */
		size_t bytes, columns = width_of_character(at, &bytes);

		if (s->columns && s->column + gap + columns > s->columns) {
			end_line(s);
			gap = 0;
		}
		fwrite(at, 1, bytes, s->out);
		s->column += columns;
		at += bytes;
	}
	fputc(MARK_PLAIN, s->out);
	s->column += gap;
}

/* Prints a text on the current line. If the text is too long for this line, continues on the next
 * lines. */
static void put_words(struct page *s, const char *text)
{
	while (*text) {
		size_t n = strcspn(text, " ");

		if (s->columns && s->column && s->column + 1 + n > s->columns)
			end_line(s);
		s->column += (size_t)fprintf(s->out, "%s%.*s", s->column ? " " : "", (int)n, text);
		text += n + strspn(text + n, " ");
	}
}

/* Shows "label value unit", with a dash as the value if the status has none. */
static void show_value(struct page *s, const json_t *o, const char *label, const char *key,
	double factor, int decimals, const char *unit)
{
	if (json_is_number(json_object_get(o, key)))
		put_item(s, MARK_PLAIN, "%s %.*f%s", label, decimals,
			status_number(o, key) * factor, unit);
	else
		put_item(s, MARK_PLAIN, "%s -", label);
}

/* Shows the rejected pushes and why, such as "rejected 7 (5 stale, 2 norm)". */
static void show_rejected(struct page *s, json_t *counters)
{
	char why[256] = "";
	const char *reason;
	size_t at = 0;
	json_t *v;

	json_object_foreach(json_object_get(counters, "rejected_for"), reason, v)
	{
		if (at < sizeof(why))
			at += (size_t)snprintf(why + at, sizeof(why) - at, "%s%.0f %s",
				at ? ", " : " (", json_number_value(v), reason);
	}
	put_item(s, MARK_PLAIN, "rejected %.0f%s%s", status_number(counters, "rejected"), why,
		at ? ")" : "");
}

/* Shows a loss, with a dash if the status has none. */
static void show_loss(struct page *s, const json_t *o, const char *label, const char *key)
{
	char text[NUMBER_TEXT];

	put_item(s, MARK_PLAIN, "%s %s", label,
		json_is_number(json_object_get(o, key))
			? number_text_loss(status_number(o, key), text)
			: "-");
}

/* Returns 1 if an epoch is evaluated, and the run does not measure accuracy. */
static int has_only_loss(const json_t *o)
{
	return json_is_number(json_object_get(o, "test_loss")) &&
	       !json_is_number(json_object_get(o, "accuracy"));
}

/* Returns 1 if the run has images. A run of vector:N has none, so it has no epochs and no
 * accuracy. */
static int has_images(const json_t *o)
{
	return status_number(o, "epochs") > 0;
}

static void show_state(struct page *s, const json_t *o, int is_away)
{
	put_item(s, is_away ? MARK_BAD : MARK_STRONG, "%s", status_text(o, "state"));
	if (has_images(o))
		put_item(s, MARK_PLAIN, "epoch %.0f of %.0f", status_number(o, "training_epoch"),
			status_number(o, "epochs"));
}

/* Returns 1 if the server evaluates the epochs on training images that it holds back. */
static int is_validated(const json_t *o)
{
	return status_number(json_object_get(o, "data"), "validate") > 0;
}

/* Shows the images/s or, without images, the updates/s. */
static void show_rate(struct page *s, const json_t *o)
{
	const char *key = has_images(o) ? "images_per_s" : "updates_per_s";
	char text[NUMBER_TEXT];

	put_item(s, MARK_PLAIN, "%s %s", has_images(o) ? "images/s" : "updates/s",
		json_is_number(json_object_get(o, key))
			? number_text_rate(status_number(o, key), text)
			: "-");
}

/* Shows the loss, and the accuracy or the test loss. */
static void show_result(struct page *s, const json_t *o)
{
	show_loss(s, status_number(o, "updates") > 0 ? o : NULL, "loss", "loss");
	if (!has_images(o))
		return;
	if (has_only_loss(o))
		show_loss(s, o, is_validated(o) ? "validation loss" : "test loss", "test_loss");
	else
		show_value(s, o, is_validated(o) ? "validation accuracy" : "accuracy", "accuracy",
			100, 2, " %");
}

static void show_time_left(struct page *s, const json_t *o)
{
	char text[NUMBER_TEXT];

	put_item(s, MARK_PLAIN, "ETA %s",
		json_is_number(json_object_get(o, "eta_s"))
			? number_text_time(status_number(o, "eta_s"), text)
			: "-");
}

static void show_run(struct page *s, const json_t *o, int is_away)
{
	json_t *c = json_object_get(o, "counters"), *v;
	const char *name;

	show_state(s, o, is_away);
	put_item(s, MARK_PLAIN, "model %s", status_text(o, "model"));
	put_item(s, MARK_PLAIN, "optimizer %s", status_text(o, "optimizer"));
	if (json_is_string(json_object_get(o, "degraded")))
		put_item(s, MARK_BAD, "DEGRADED: %s", status_text(o, "degraded"));
	end_line(s);
	if (has_images(o))
		show_value(s, o, "images", "images", 1, 0, "");
	show_rate(s, o);
	show_result(s, o);
	json_object_foreach(json_object_get(o, "metrics"), name, v)
	{
		if (json_is_number(v))
			put_item(s, MARK_PLAIN, "%s %.6g", name, json_number_value(v));
		else
			put_item(s, MARK_PLAIN, "%s -", name);
	}
	if (has_images(o) || status_number(o, "max_updates") > 0)
		show_time_left(s, o);
	end_line(s);
	show_value(s, o, "updates", "updates", 1, 0, "");
	show_value(s, o, "staleness", "staleness_mean", 1, 2, "");
	show_value(s, c, "duplicates", "duplicates", 1, 0, "");
	show_rejected(s, c);
	show_value(s, c, "refusals", "refusals", 1, 0, "");
	show_value(s, o, "memory", "rss_bytes", 1.0 / (1 << 20), 0, " MiB");
	end_line(s);
}

/* ---- sparklines ------------------------------------------------------------------------------ */

static void note_sample(struct series *s, const json_t *o, const char *key)
{
	const json_t *value = json_object_get(o, key);

	if (json_is_number(value))
		s->value[s->n++ % SAMPLES] = json_number_value(value);
}

/* Shows the newest values in `width` characters. The scale goes from the least to the greatest of
 * these values. */
static void put_spark(FILE *f, const struct series *s, size_t width)
{
	static const char *const blocks[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
	static const char *const plain[] = {"_", ".", ",", "-", "=", "+", "*", "#"};
	const int utf8 = screen_is_utf8();
	size_t n = s->n < SAMPLES ? s->n : SAMPLES;
	double low = INFINITY, high = -INFINITY;

	n = n < width ? n : width;
	for (size_t i = s->n - n; i < s->n; i++) {
		low = fmin(low, s->value[i % SAMPLES]);
		high = fmax(high, s->value[i % SAMPLES]);
	}
	fprintf(f, "%*s", (int)(width - n), "");
	for (size_t i = s->n - n; i < s->n; i++) {
		double part = high > low ? (s->value[i % SAMPLES] - low) / (high - low) : 0.5;

		fputs((utf8 ? blocks : plain)[(int)(part * 7.999)], f);
	}
}

static void show_spark(struct page *s, const char *label, const struct series *of, double factor,
	int decimals, const char *unit)
{
	char text[NUMBER_TEXT];

	if (s->columns < LABEL + VALUE + 10 || !of->n)
		return;
	fprintf(s->out, "%-*s", LABEL, label);
	put_spark(s->out, of, s->columns - LABEL - VALUE);
	double last = factor * of->value[(of->n - 1) % SAMPLES];
	if (decimals == UNKNOWN)
		fputs(" -", s->out);
	else if (decimals == LOSS)
		fprintf(s->out, " %s", number_text_loss(last, text));
	else if (decimals == RATE)
		fprintf(s->out, " %s", number_text_rate(last, text));
	else
		fprintf(s->out, " %.*f%s", decimals, last, unit);
	end_line(s);
}

/* Returns by how much a part of the server's time has grown between two statuses, in percent of
 * `total`: a whole number from 0 to `max`. */
static double share_of(
	const json_t *before, const json_t *now, const char *part, double total, double max)
{
	double seconds = status_number(now, part) - status_number(before, part);

	return fmax(0, fmin(max, round(100 * seconds / total)));
}

/* Returns how the server has divided the time between two statuses or, if `before` is NULL, the
 * time since its start. The server counts the parts at different moments, so their sum may exceed
 * the total; the function limits it to 100. */
static struct server_shares shares_of_server(const json_t *before, const json_t *now)
{
	const json_t *a = json_object_get(before, "time"), *b = json_object_get(now, "time");
	double total = status_number(b, "total") - status_number(a, "total");
	struct server_shares s = {.idle = -1};

	if (total <= 0)
		return s;
	s.apply = share_of(a, b, "apply", total, 100);
	s.verify = share_of(a, b, "verify", total, 100 - s.apply);
	s.idle = share_of(a, b, "idle", total, 100 - s.apply - s.verify);
	return s;
}

/* Shows the shares of the server's time. `label` says of which time. */
static void show_server(struct page *s, const struct server_shares *of, const char *label)
{
	if (of->idle < 0)
		return;
	put_item(s, MARK_PLAIN, "%s: apply %.0f %%", label, of->apply);
	put_item(s, MARK_PLAIN, "verify %.0f %%", of->verify);
	put_item(s, of->idle < 10 ? MARK_WARN : MARK_PLAIN, "idle %.0f %%", of->idle);
	end_line(s);
}

/* ---- the status ------------------------------------------------------------------------------ */

/* Gets a new status, which replaces the old one on success. */
static int fetch_status(struct top *t)
{
	json_t *now = NULL;

	t->request_ms = clock_ms();
	t->waits = 1;
	int rc = ctl_fetch_status(t->c, &now, &t->error);
	t->waits = t->is_away = 0;
	if (!now)
		return rc ? rc : PS_EPROTO;
	if (t->status)
		t->server = shares_of_server(t->status, now);
	note_sample(&t->rate, now, has_images(now) ? "images_per_s" : "updates_per_s");
	if (status_number(now, "updates") > 0)
		note_sample(&t->loss, now, "loss");
	note_sample(&t->accuracy, now, "accuracy");
	if (has_only_loss(now))
		note_sample(&t->test_loss, now, "test_loss");
	json_decref(t->status);
	t->status = now;
	t->wait[0] = '\0';
	t->answered = (time_t)(log_wall_ms() / 1000);
	return PS_OK;
}

/* Changes the status of a server that is away or has ended, so that no old value looks like a
 * present one. `state` describes the server. */
static void drop_present(json_t *o, const char *state)
{
	json_t *worker;
	size_t i;

	json_object_set_new(o, "state", json_string(state));
	for (size_t k = 0; k < 4; k++)
		json_object_del(o, (const char *const[]){
					   "images_per_s", "updates_per_s", "eta_s", "waiting"}[k]);
	json_array_foreach(json_object_get(o, "workers"), i, worker)
	{
		json_object_set_new(worker, "state", json_string("-"));
		for (size_t k = 0; k < 3; k++)
			json_object_del(worker,
				(const char *const[]){"images_per_s", "silent_ms", "time"}[k]);
	}
}

/* Shows that the server is away. */
static void mark_away(struct top *t)
{
	struct tm at;
	char clock[16] = "", text[64];

	if (localtime_r(&t->answered, &at))
		strftime(clock, sizeof(clock), "%H:%M:%S", &at);
	snprintf(text, sizeof(text), "server away since %s", clock);
	drop_present(t->status, text);
	t->server.idle = -1;
	t->is_away = 1;
}

/* Returns one word for the end of the run. Returns NULL if the run has not ended, or if its end is
 * unknown. */
static const char *ending(const json_t *o, int rc)
{
	const char *word = json_string_value(json_object_get(o, "ending"));

	if (word)
		return word;
	return rc == PS_EDONE       ? "done"
	       : rc == PS_ESHUTDOWN ? "drained"
	       : rc == PS_EDIVERGED ? "diverged"
				    : NULL;
}

static const char help[] =
	"cnn-ctl top shows the status of a run and refreshes it every second.\n"
	"\n"
	"  < >     sort by the column to the left or right; r: in the other direction\n"
	"  /       filter: workers whose name, host, device, state or address has a text;\n"
	"          Enter ends it, Esc removes it\n"
	"  arrows, PgUp, PgDn, Home, End   scroll the workers; h ?: this page; q: quit\n"
	"\n"
	"  validation accuracy or loss: measured on the images that --validate holds back\n"
	"  server    shares of its time: apply: messages and updates; verify: checksums\n"
	"  images/s  images of the worker that counted in the last second\n"
	"  compute   share of the worker's time; copy: copies and checksums; pull, ack,\n"
	"            work: waits for weights, for acknowledgements and for work\n"
	"  stale     mean number of updates between a pull and the gradient's update\n"
	"  silent    seconds since its last message\n"
	"  pushes    pushes that the server has decided; durable: those that are on disk\n"
	"  wire      format of its gradients and weights; address: where it connects from\n"
	"  again     pushes that came again, and counted once; rejected: rejected pushes;\n"
	"            refused: messages; these three since the server's start\n"
	"\n";

static void draw_help(const struct top *t, struct page *s)
{
	for (const char *at = help; *at; at += strcspn(at, "\n") + 1) {
		char line[128];

		snprintf(line, sizeof(line), "%.*s", (int)strcspn(at, "\n"), at);
		if (strlen(line) <= s->columns)
			fputs(line, s->out);
		else
			put_words(s, line);
		end_line(s);
	}
	put_words(s,
		t->table.n_hidden ? "No room for:" : "All columns are shown. + marks a cut text.");
	if (t->table.n_hidden) {
		put_words(s, t->table.hidden);
		end_line(s);
		put_words(s, "To see one of them, sort by it. + marks a cut text: cnn-ctl status "
			     "has all.");
	}
	end_line(s);
	end_line(s);
}

/* Shows the part of the help for which the terminal has room. */
static void show_help(struct top *t, struct page *s)
{
	struct page all = {.columns = s->columns};
	char *text = NULL;
	size_t n;

	all.out = open_memstream(&text, &n);
	if (!all.out)
		return;
	draw_help(t, &all);
	if (fclose(all.out) || !text)
		return;
	size_t rows = s->rows > 1 ? s->rows - 1 : 1, last = all.row > rows ? all.row - rows : 0;
	if (t->help_first > last)
		t->help_first = last;
	const char *at = text;
	for (size_t i = 0; i < t->help_first; i++)
		at += strcspn(at, "\n") + 1;
	for (size_t i = 0; i < rows && *at; i++, at += strcspn(at, "\n") + 1)
		fprintf(s->out, "%.*s\n", (int)strcspn(at, "\n"), at);
	fputs(last ? "arrows: scroll  other keys: back" : "any key: back", s->out);
	free(text);
}

/* ---- pages ----------------------------------------------------------------------------------- */

static void show_waiting(struct page *s, const json_t *o)
{
	if (!json_is_string(json_object_get(o, "waiting")))
		return;
	put_item(s, MARK_WARN, "%s", status_text(o, "waiting"));
	end_line(s);
}

/* Shows a line for each worker in quarantine, at most three. */
static void show_quarantine(struct page *s, const json_t *o)
{
	const json_t *list = json_object_get(o, "quarantine"), *v;
	size_t i, n = json_array_size(list);

	json_array_foreach(list, i, v)
	{
		const char *name = json_string_value(json_object_get(v, "name"));

		if (i < 3)
			put_item(s, MARK_BAD, "in quarantine: %s, excluded %.0f times",
				name ? name : status_text(v, "key"),
				status_number(v, "exclusions"));
		else
			put_item(s, MARK_BAD, "and %zu more: see cnn-ctl status", n - i);
		end_line(s);
		if (i == 3)
			break;
	}
}

/* Shows the workers in the remaining rows, except the last `below` rows. */
static void show_workers(struct page *s, const json_t *o, struct table_view *v, size_t below)
{
	const json_t *list = json_object_get(o, "workers");
	size_t used = s->row + 1 + below, rows = s->rows > used ? s->rows - used : 1, n;
	double left_out = status_number(o, "workers_left_out");

	v->has_no_images = !has_images(o);
	v->has_no_disk = !json_is_object(json_object_get(o, "checkpoint"));
	n = table_print(s->out, list, s->columns, s->rows ? rows : 0, v);
	if (s->rows && n > rows)
		fprintf(s->out, "%cworkers %zu to %zu of %zu%c", MARK_DIM, v->first + 1,
			v->first + rows, n, MARK_PLAIN);
	if (left_out > 0)
		fprintf(s->out, "%c  and %.0f more, for which the status has no room%c", MARK_DIM,
			left_out, MARK_PLAIN);
	if ((s->rows && n > rows) || left_out > 0)
		fputc('\n', s->out);
}

/* Prints the whole status as lines, without a screen. */
static int print_status(const json_t *o)
{
	const struct server_shares server = shares_of_server(NULL, o);
	struct page s = {0};
	struct table_view all = {0};
	struct winsize size;
	char *text = NULL;
	size_t n;

	s.out = open_memstream(&text, &n);
	if (!s.out)
		return PS_ENOMEM;
	if (isatty(STDOUT_FILENO) && !ioctl(STDOUT_FILENO, TIOCGWINSZ, &size))
		s.columns = size.ws_col;
	show_run(&s, o, 0);
	show_server(&s, &server, "server since its start");
	end_line(&s);
	if (json_is_string(json_object_get(o, "waiting"))) {
		show_waiting(&s, o);
		end_line(&s);
	}
	show_quarantine(&s, o);
	show_workers(&s, o, &all, 0);
	if (all.n_hidden) {
		put_words(&s, "No room for:");
		put_words(&s, all.hidden);
		end_line(&s);
	}
	if (fclose(s.out) || !text)
		return PS_ENOMEM;
	screen_unmark(text);
	fputs(text, stdout);
	free(text);
	return PS_OK;
}

/* Prints one line: the most important keys, the filter, the column by which the table is sorted, if
 * it fits, and the number of hidden columns. The number always fits into 40 columns, because a long
 * filter is cut. The help shows all keys. */
static void draw_keys(const struct table_view *v, size_t columns, FILE *f)
{
	static const char keys[] = "q quit  h help  / filter";
	char filter[FILTER_TEXT + 4] = "", sort[64], hidden[64] = "", brief[64] = "";

	if (v->n_hidden) {
		snprintf(hidden, sizeof(hidden), "  %zu columns hidden: h", v->n_hidden);
		snprintf(brief, sizeof(brief), "  %zu hidden", v->n_hidden);
	}
	if (v->filter[0])
		snprintf(filter, sizeof(filter), ": %s", v->filter);
	size_t used = strlen(keys) + strlen(brief), room = columns > used ? columns - used : 0;
	if (strlen(filter) > room) {
		filter[room] = '\0';
		if (room)
			filter[room - 1] = '+';
	}
	used += strlen(filter);
	snprintf(sort, sizeof(sort), "  < > sort: %s%s", table_sort_title(v),
		v->reverse ? " reversed" : "");
	if (used + strlen(sort) > columns)
		sort[0] = '\0';
	used += strlen(sort) + strlen(hidden) - strlen(brief);
	fprintf(f, "%c%s%s%s%s%c", MARK_DIM, keys, filter, sort, used <= columns ? hidden : brief,
		MARK_PLAIN);
}

static void draw_footer(const struct top *t, size_t columns, FILE *f)
{
	if (t->typing)
		fprintf(f, "filter: %s_", t->table.filter);
	else if (t->wait[0])
		fprintf(f, "%c%s%c", MARK_WARN, t->wait, MARK_PLAIN);
	else
		draw_keys(&t->table, columns, f);
}

static void draw_head(const struct top *t, struct page *s)
{
	const int held_back = is_validated(t->status);

	show_run(s, t->status, t->is_away);
	show_server(s, &t->server, "server");
	if (s->rows >= 20) {
		show_spark(s, has_images(t->status) ? "images/s" : "updates/s", &t->rate, 1,
			t->is_away ? UNKNOWN : RATE, "");
		show_spark(s, "loss", &t->loss, 1, LOSS, "");
		show_spark(s, held_back ? "validation" : "accuracy", &t->accuracy, 100, 2, " %");
		show_spark(s, held_back ? "validation" : "test loss", &t->test_loss, 1, LOSS, "");
	}
	show_waiting(s, t->status);
	show_quarantine(s, t->status);
	end_line(s);
}

/* Draws the most important values of the run, for a small terminal. */
static void draw_short_head(const struct top *t, struct page *s)
{
	const json_t *o = t->status;

	show_state(s, o, t->is_away);
	show_rate(s, o);
	show_result(s, o);
	if (json_is_string(json_object_get(o, "degraded")))
		put_item(s, MARK_BAD, "DEGRADED");
	end_line(s);
	if (json_array_size(json_object_get(o, "workers")) == 0)
		show_waiting(s, o);
}

/* Returns 1 if the terminal has room for all lines about the run, and for MIN_ROWS lines below
 * them. */
static int head_fits(const struct top *t, const struct page *s)
{
	struct page trial = {.columns = s->columns, .rows = s->rows};
	char *text = NULL;
	size_t n;

	trial.out = open_memstream(&text, &n);
	if (!trial.out)
		return 1;
	draw_head(t, &trial);
	fclose(trial.out);
	free(text);
	return trial.row + MIN_ROWS <= s->rows;
}

static void draw_status(struct top *t, struct page *s)
{
	if (head_fits(t, s))
		draw_head(t, s);
	else
		draw_short_head(t, s);
	show_workers(s, t->status, &t->table, 2);
}

static void draw_page(struct top *t)
{
	struct page s = {0};
	char *text = NULL;
	size_t n;

	screen_size(&s.columns, &s.rows);
	s.out = open_memstream(&text, &n);
	if (!s.out)
		return;
	if (t->helps)
		show_help(t, &s);
	else if (t->status)
		draw_status(t, &s);
	if (!t->helps)
		draw_footer(t, s.columns, s.out);
	if (!fclose(s.out) && text)
		screen_show(text);
	free(text);
}

/* ---- keys ------------------------------------------------------------------------------------ */

static void edit_filter(struct top *t, int key)
{
	char *text = t->table.filter;
	size_t n = strlen(text);

	t->typing = key != '\n' && key != '\r' && key != 27;
	if (key == 27)
		text[0] = '\0';
	else if ((key == 127 || key == '\b') && n) {
		while (n > 1 && ((unsigned char)text[n - 1] & 0xc0) == 0x80)
			n--; /* the first byte of a UTF-8 character is not of this kind */
		text[n - 1] = '\0';
	} else if (key >= ' ' && key < SCREEN_UP && key != 127 && n + 1 < sizeof(t->table.filter)) {
		text[n] = (char)key;
		text[n + 1] = '\0';
	}
}

/* Changes *first, the number of the first line that the screen shows, as the key demands. Returns 0
 * if the key does not scroll. The function that draws the page limits *first to the last line. */
static int scroll(size_t *first, int key)
{
	size_t columns, rows;

	screen_size(&columns, &rows);
	size_t page = rows / 2;
	if (key == SCREEN_UP)
		*first -= *first > 0;
	else if (key == SCREEN_DOWN)
		++*first;
	else if (key == SCREEN_PAGE_UP)
		*first -= *first < page ? *first : page;
	else if (key == SCREEN_PAGE_DOWN)
		*first += page;
	else if (key == SCREEN_HOME)
		*first = 0;
	else if (key == SCREEN_END)
		*first = SIZE_MAX / 2;
	else
		return 0;
	return 1;
}

static void toggle_help(struct top *t, int key)
{
	if (t->helps && scroll(&t->help_first, key))
		return;
	t->helps = !t->helps && key != SCREEN_RESIZED;
	t->help_first = 0;
}

static void on_key(struct top *t, int key)
{
	const int may_quit = !t->typing && !t->helps; /* on the help page, q is "any key" */

	if (key == SCREEN_GONE || (may_quit && (key == 'q' || key == 'Q')))
		atomic_store(&has_quit, 1);
	else if (t->typing)
		edit_filter(t, key);
	else if (t->helps || key == 'h' || key == '?')
		toggle_help(t, key);
	else if (key == '<' || key == '>')
		table_sort_by(&t->table, key == '>' ? 1 : -1);
	else if (key == 'r')
		t->table.reverse = !t->table.reverse;
	else if (key == '/')
		t->typing = 1;
	else if (key == 27)
		t->table.filter[0] = '\0';
	else
		(void)scroll(&t->table.first, key);
}

/* Handles keys for `ms` milliseconds. After each key, the function redraws the screen. */
static void handle_keys(struct top *t, int ms)
{
	uint64_t end = clock_ms() + (uint64_t)ms;
	int key;

	do {
		uint64_t now = clock_ms();

		key = screen_key(now < end ? (int)(end - now) : 0);
		if (key) {
			on_key(t, key);
			draw_page(t);
		}
	} while (!atomic_load(&has_quit) && (key || clock_ms() < end));
}

/* ---- the command ----------------------------------------------------------------------------- */

/* Returns nonzero when the user quits, so that a wait for the server ends (`stop` of
 * cnnps_options). During the wait, the function handles keys and shows that the server is away. Any
 * thread may call this function. */
static int stop(void *arg)
{
	struct top *t = arg;

	if (!screen_is_open() || !screen_is_mine())
		return atomic_load(&has_quit);
	handle_keys(t, 0);
	if (t->status && t->waits && !t->is_away && clock_ms() - t->request_ms >= AWAY_MS) {
		mark_away(t);
		draw_page(t);
	}
	return atomic_load(&has_quit);
}

/* Removes "gives up in N s" from the reason of a wait, because top does not give up. */
static void drop_limit(char *text)
{
	char *limit = strstr(text, ", gives up in "), *cause = limit ? strchr(limit, ':') : NULL;

	if (cause)
		memmove(limit, cause, strlen(cause) + 1);
}

/* Shows why a call waits for the server: at the bottom of the screen or, before the screen is open,
 * as a line on stderr. */
static void on_wait(void *arg, const char *line)
{
	struct top *t = arg;

	if (!screen_is_open()) {
		ctl_say("waiting", PS_OK, line);
		return;
	}
	if (!screen_is_mine())
		return;
	snprintf(t->wait, sizeof(t->wait), "%s", line);
	drop_limit(t->wait);
	plain_text(t->wait, 0);
	draw_page(t);
}

/* Prints the result of the run, such as "training done: accuracy 97.90 %, 3 epochs, ...". */
static void print_end(const json_t *o, const char *how)
{
	const char *name;
	char text[NUMBER_TEXT];
	json_t *v;

	fputs("training ", stdout);
	ctl_print_plain(how);
	putchar(':');
	if (json_is_number(json_object_get(o, "accuracy")))
		printf(" %saccuracy %.2f %%,", is_validated(o) ? "validation " : "",
			100 * status_number(o, "accuracy"));
	json_object_foreach(json_object_get(o, "metrics"), name, v)
	{
		if (!json_is_number(v))
			continue;
		putchar(' ');
		ctl_print_plain(name);
		printf(" %.6g,", json_number_value(v));
	}
	if (has_only_loss(o))
		printf(" %s loss %s,", is_validated(o) ? "validation" : "test",
			number_text_loss(status_number(o, "test_loss"), text));
	if (status_number(o, "updates") > 0)
		printf(" loss %s,", number_text_loss(status_number(o, "loss"), text));
	printf(" %.0f updates, %.0f images, %.0f s since the server's start\n",
		status_number(o, "updates"), status_number(o, "images"),
		status_number(o, "uptime_s"));
}

/* Prints the last status on the normal terminal, and the result below it. */
static int print_result(json_t *o, const char *how, struct err *e)
{
	const char *early = json_string_value(json_object_get(o, "stop_reason"));
	int good = !strcmp(how, "done") || !strcmp(how, "drained");

	drop_present(o, how);
	int rc = print_status(o);

	putchar('\n');
	print_end(o, how);
	if (early && good) {
		fputs("ended early: ", stdout);
		ctl_print_plain(early);
		putchar('\n');
	}
	if (rc || good)
		return rc;
	return err_set(e, PS_EDIVERGED, "training ended: %s", how);
}

/* Refreshes the screen until the user quits or the run ends. If the server is away, the screen says
 * so until the server is back. */
static int run_screen(struct top *t, struct err *e)
{
	int rc;

	while (!(rc = fetch_status(t)) && !ending(t->status, 0) && !atomic_load(&has_quit)) {
		draw_page(t);
		handle_keys(t, PERIOD_MS);
	}
	screen_close();
	const char *how = ending(t->status, rc);
	if (atomic_load(&has_quit))
		return PS_OK;
	if (t->status && how)
		return print_result(t->status, how, e);
	return err_set(e, rc, "%s", t->error.text);
}

static int print_compact(const json_t *o)
{
	if (ctl_print_json(o, JSON_COMPACT | JSON_REAL_PRECISION(9), ""))
		return PS_ENOMEM;
	putchar('\n');
	return fflush(stdout) ? PS_EIO : PS_OK;
}

/* Prints the status once, or each second until the run ends. */
static int run_lines(struct top *t, const struct ctl *ctl, struct err *e)
{
	int rc;

	while (!(rc = fetch_status(t))) {
		rc = ctl->json ? print_compact(t->status) : print_status(t->status);
		if (rc)
			return err_set(e, rc, "cannot write to standard output");
		if (ctl->once || !ctl->json || ending(t->status, 0))
			return PS_OK;
		(void)usleep(PERIOD_MS * 1000);
	}
	return ending(t->status, rc) ? PS_OK : err_set(e, rc, "%s", t->error.text);
}

/* Connects to the server. The function blocks the signals whose handlers draw the screen, so that
 * the threads of libcnnps do not receive them. */
static int connect_quietly(struct top *t, const struct ctl *ctl, int on_screen, struct err *e)
{
	sigset_t drawing, before;

	sigemptyset(&drawing);
	sigaddset(&drawing, SIGTSTP);
	sigaddset(&drawing, SIGWINCH);
	pthread_sigmask(SIG_BLOCK, &drawing, &before);
	int rc = ctl_connect_with(
		ctl, stop, on_wait, t, on_screen ? NO_LIMIT_MS : ctl->connect_timeout_ms, &t->c, e);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return rc;
}

int ctl_top(const struct ctl *ctl, struct err *e)
{
	struct top t = {.server.idle = -1};
	int on_screen = !ctl->once && !ctl->json && isatty(STDOUT_FILENO);

	setlocale(LC_CTYPE, "");
	int rc = connect_quietly(&t, ctl, on_screen, e);
	if (rc)
		return rc;
	if (on_screen && screen_open())
		rc = run_screen(&t, e);
	else
		rc = run_lines(&t, ctl, e);
	json_decref(t.status);
	cnnps_close(&t.c);
	return rc;
}
