/* top.c - see ctl.h: the server's status as a screen. */
#include <jansson.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include "proto/msg.h"
#include "worker/ctl/ctl.h"
#include "worker/ctl/screen.h"
#include "worker/ctl/table.h"

#define PERIOD_MS 1000
#define KEY_MS    50 /* until a key is noticed */
#define CLEAR     "\033[H\033[J"
#define BLANKS    3 /* between two items of a line */

/* What is on it so far. */
struct screen {
	size_t columns, rows; /* of the terminal; 0: no limit */
	size_t column, row;   /* where the next item goes */
};

static double number(const json_t *o, const char *key)
{
	return json_number_value(json_object_get(o, key));
}

static const char *text(const json_t *o, const char *key)
{
	const char *t = json_string_value(json_object_get(o, key));

	return t ? t : "-";
}

static void end_line(struct screen *s)
{
	putchar('\n');
	s->column = 0;
	s->row++;
}

/* One item more on this line, or on the next where it does not fit. */
static void put(struct screen *s, const char *fmt, ...) PS_PRINTF(2, 3);
static void put(struct screen *s, const char *fmt, ...)
{
	char item[512];
	size_t n, gap = s->column ? BLANKS : 0;
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(item, sizeof item, fmt, ap);
	va_end(ap);
	n = strlen(item);
	if (s->columns && gap && s->column + gap + n > s->columns) {
		end_line(s);
		gap = 0;
	}
	printf("%*s%s", (int)gap, "", item);
	s->column += gap + n;
	for (; s->columns && s->column > s->columns; s->column -= s->columns)
		s->row++; /* the terminal has wrapped it */
}

/* "label value unit", or a dash while the server does not know the value. */
static void show(struct screen *s, const json_t *o, const char *label, const char *key,
	double factor, int decimals, const char *unit)
{
	if (json_is_number(json_object_get(o, key)))
		put(s, "%s %.*f%s", label, decimals, number(o, key) * factor, unit);
	else
		put(s, "%s -", label);
}

static void show_run(struct screen *s, const json_t *o)
{
	const json_t *c = json_object_get(o, "counters");

	put(s, "%s", text(o, "state"));
	put(s, "epoch %.0f of %.0f", number(o, "training_epoch"), number(o, "epochs"));
	put(s, "model %s", text(o, "model"));
	put(s, "optimizer %s", text(o, "optimizer"));
	if (json_is_string(json_object_get(o, "degraded")))
		put(s, "DEGRADED: %s", text(o, "degraded"));
	end_line(s);
	show(s, o, "images", "images", 1, 0, "");
	show(s, o, "images/s", "images_per_s", 1, 0, "");
	show(s, o, "loss", "loss", 1, 4, "");
	show(s, o, "accuracy", "accuracy", 100, 2, " %");
	show(s, o, "ETA", "eta_s", 1, 0, " s");
	end_line(s);
	show(s, o, "updates", "updates", 1, 0, "");
	show(s, o, "staleness", "staleness_mean", 1, 2, "");
	show(s, c, "duplicates", "duplicates", 1, 0, "");
	show(s, c, "rejected", "rejected", 1, 0, "");
	show(s, c, "refusals", "refusals", 1, 0, "");
	show(s, o, "memory", "rss_bytes", 1.0 / (1 << 20), 0, " MiB");
	end_line(s);
	end_line(s);
}

/* Of the terminal; zeros off one. */
static struct screen measure(void)
{
	struct winsize size;

	if (!isatty(STDOUT_FILENO) || ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0)
		return (struct screen){.columns = 0};
	return (struct screen){.columns = size.ws_col, .rows = size.ws_row};
}

/* The rest of the rows: less the titles, "and N more", and the line of the cursor. */
static void show_workers(const struct screen *s, const json_t *list)
{
	size_t used = s->row + 3;
	size_t rows = s->rows > used ? s->rows - used : 1;

	ctl_table(list, s->columns, s->rows ? rows : 0);
}

/* A status into *o, which is the caller's; what it held before goes when there is a new one. */
static int ask(struct cnnps *c, json_t **o)
{
	char answer[WIRE_MAX_TEXT + 1];
	int status = cnnps_status(c, answer, sizeof answer);
	json_t *now = status ? NULL : json_loads(answer, 0, NULL);

	if (!now)
		return status ? status : PS_EPROTO;
	json_decref(*o);
	*o = now;
	return PS_OK;
}

/* `below`: rows that the caller writes after it. */
static void show_all(const json_t *o, size_t below)
{
	struct screen s = measure();

	show_run(&s, o);
	if (json_is_string(json_object_get(o, "waiting"))) {
		put(&s, "%s", text(o, "waiting"));
		end_line(&s);
		end_line(&s);
	}
	s.row += below;
	show_workers(&s, json_object_get(o, "workers"));
}

/* ---- the end ------------------------------------------------------------------------------- */

/* "training done: accuracy 97.90 %, 3 epochs, ..." */
static void show_end(const json_t *o, const char *how)
{
	printf("training %s:", how);
	if (json_is_number(json_object_get(o, "accuracy")))
		printf(" accuracy %.2f %%,", 100 * number(o, "accuracy"));
	printf(" loss %.4f, %.0f updates, %.0f images, %.0f s\n", number(o, "loss"),
		number(o, "updates"), number(o, "images"), number(o, "uptime_s"));
}

/* How the run ended, in a word, or NULL: it has not, as far as that is known. */
static const char *ending(const json_t *o, int status)
{
	const char *word = json_string_value(json_object_get(o, "ending"));

	if (word)
		return word;
	return status == PS_EDONE       ? "done"
	       : status == PS_ESHUTDOWN ? "drained"
	       : status == PS_EDIVERGED ? "diverged"
					: NULL;
}

/* The last screen stays, with the end below it. */
static int finish(const json_t *o, const char *how, struct err *e)
{
	show_all(o, 2);
	putchar('\n');
	show_end(o, how);
	if (!strcmp(how, "done") || !strcmp(how, "drained"))
		return PS_OK;
	return err_set(e, PS_EDIVERGED, "training ended: %s", how);
}

/* ---- the terminal -------------------------------------------------------------------------- */

static int stop(void *arg)
{
	(void)arg;
	return screen_quit();
}

/* Below the last screen, wrapped. Before there is one: a line of its own. */
static void report(void *arg, const char *line)
{
	(void)arg;
	if (screen_is_open())
		fprintf(stdout, "\r\033[J%s", line);
	else
		ctl_say("waiting", PS_OK, line);
	fflush(stdout);
}

static void rest(void)
{
	for (int ms = 0; ms < PERIOD_MS && !screen_quit(); ms += KEY_MS)
		(void)poll(NULL, 0, KEY_MS);
}

/* Until q, the end of the run, or the loss of the server. */
static int watch(struct cnnps *c, json_t **o)
{
	int status;

	while (!(status = ask(c, o)) && !ending(*o, 0) && !screen_quit()) {
		fputs(CLEAR, stdout);
		show_all(*o, 2);
		fputs("\nq quits   ", stdout);
		fflush(stdout);
		rest();
	}
	return status;
}

static int top(struct cnnps *c, struct err *e)
{
	static char frame[1 << 16]; /* a screen is one write: nothing flickers */
	json_t *o = NULL;
	const char *how;
	int status;

	setvbuf(stdout, frame, _IOFBF, sizeof frame);
	screen_open();
	status = watch(c, &o);
	screen_close();
	how = ending(o, status);
	if (screen_quit())
		status = PS_OK;
	else if (o && how)
		status = finish(o, how, e);
	else
		err_set(e, status, "%s", cnnps_why(c)[0] ? cnnps_why(c) : err_text(status));
	json_decref(o);
	return status;
}

static int show_once(struct cnnps *c, struct err *e)
{
	json_t *o = NULL;
	int status = ask(c, &o);

	if (status)
		return err_set(e, status, "%s", cnnps_why(c)[0] ? cnnps_why(c) : err_text(status));
	show_all(o, 2);
	json_decref(o);
	return PS_OK;
}

/* Off a terminal: one screen, as lines. */
int ctl_top(const struct ctl *ctl, struct err *e)
{
	struct cnnps *c;
	int status = ctl_connect_with(ctl, stop, report, &c, e);

	if (status)
		return status;
	status = isatty(STDOUT_FILENO) ? top(c, e) : show_once(c, e);
	cnnps_close(&c);
	return status;
}
