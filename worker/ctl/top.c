/* top.c - see ctl.h: cnn-ctl top shows the server's status on a terminal. This file has the
 * terminal's modes, the table of workers, and the screen around it. */
#include "worker/ctl/ctl.h"
#include <errno.h>
#include <jansson.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>
#include "common/plain.h"
#include "common/utf8.h"
#include "proto/msg.h"

/* ---- the terminal: alternate screen and keys, restored on every exit ------------------------- */

/* The signal handlers call only async-signal-safe functions. */

/* Escape sequences: enter the alternate screen and hide the cursor; and the reverse. */
#define ENTER "\033[?1049h\033[?25l\033[H"
#define LEAVE "\033[?25h\033[?1049l"

/* Signals that end the program, and the one that stops it. */
static const int fatal[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGABRT, SIGSEGV, SIGBUS, SIGFPE,
	SIGILL, SIGPIPE, SIGALRM, SIGUSR1, SIGUSR2};

static struct termios before, keys; /* modes of standard input; constant when has_keys is 1 */
static int has_keys;
static atomic_int is_open, has_quit;

static void write_terminal(const char *text)
{
	ssize_t ignored = write(STDOUT_FILENO, text, strlen(text));

	(void)ignored;
}

static void enter(void)
{
	if (atomic_exchange(&is_open, 1))
		return;
	if (has_keys)
		tcsetattr(STDIN_FILENO, TCSANOW, &keys);
	write_terminal(ENTER);
}

/* Restore the terminal. A second call has no effect. */
static void screen_close(void)
{
	if (!atomic_exchange(&is_open, 0))
		return;
	write_terminal(LEAVE);
	if (has_keys)
		tcsetattr(STDIN_FILENO, TCSANOW, &before);
}

/* Restores the terminal, then restores the default action of the signal. */
static void on_fatal(int number)
{
	screen_close();
	signal(number, SIG_DFL);
	raise(number);
}

static void catch (int number, void (*handler)(int))
{
	struct sigaction a;

	memset(&a, 0, sizeof(a));
	a.sa_handler = handler;
	a.sa_flags = SA_NODEFER | SA_RESTART;
	sigaction(number, &a, NULL);
}

/* Handle ^Z: raise stops the process; it continues here after SIGCONT. */
static void on_stop(int number)
{
	int saved = errno;

	screen_close();
	signal(number, SIG_DFL);
	raise(number);
	catch (number, on_stop);
	enter();
	errno = saved;
}

/* A background process must not change the terminal: it would be stopped. */
static void find_keys(void)
{
	if (!isatty(STDIN_FILENO) || tcgetpgrp(STDIN_FILENO) != getpgrp() ||
		tcgetattr(STDIN_FILENO, &before))
		return;
	keys = before;
	keys.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
	keys.c_cc[VMIN] = 0; /* a read never blocks */
	keys.c_cc[VTIME] = 0;
	has_keys = 1;
}

/* Take over the terminal of standard output, and that of standard input if the process is in its
 * foreground. */
static void screen_open(void)
{
	find_keys();
	for (size_t i = 0; i < sizeof(fatal) / sizeof(*fatal); i++) {
		struct sigaction now;

		if (!sigaction(fatal[i], NULL, &now) && now.sa_handler != SIG_IGN)
			catch (fatal[i], on_fatal);
	}
	catch (SIGTSTP, on_stop);
	atexit(screen_close);
	enter();
}

/* 1 if the alternate screen is in use. */
static int screen_is_open(void)
{
	return atomic_load(&is_open);
}

/* 1 if the user has typed q since screen_open. Does not block. */
static int screen_quit(void)
{
	struct pollfd key = {.fd = STDIN_FILENO, .events = POLLIN};
	char typed[64];
	ssize_t n;

	if (!has_keys || atomic_load(&has_quit) || poll(&key, 1, 0) <= 0)
		return atomic_load(&has_quit);
	n = read(STDIN_FILENO, typed, sizeof(typed));
	if ((n > 0 && (memchr(typed, 'q', (size_t)n) || memchr(typed, 'Q', (size_t)n))) ||
		(n <= 0 && (key.revents & (POLLHUP | POLLERR))))
		atomic_store(&has_quit, 1);
	return atomic_load(&has_quit);
}

/* ---- the table of workers -------------------------------------------------------------------- */

#define GAP       2 /* blanks between columns */
#define MAX_CELL  128
#define MAX_TEXT  24 /* maximum width of a text column, characters */
#define FAIR_TEXT 12 /* text columns shrink to this width before the address column goes */
#define MIN_TEXT  8
#define N_COLUMNS (sizeof(columns_of) / sizeof(columns_of[0]))

static const struct column {
	const char *title, *key;
	int number;   /* right-aligned, never truncated */
	int leave;    /* order in which columns go, 4 and 5 after texts have shrunk; 0: never */
	int shortens; /* may shrink to MIN_TEXT */
} columns_of[] = {
	{"worker", "worker", 1, 0, 0},
	{"state", "state", 0, 0, 0},
	{"name", "name", 0, 0, 1},
	{"host", "host", 0, 0, 1},
	{"pid", "pid", 1, 0, 0},
	{"address", "address", 0, 4, 0},
	{"device", "device", 0, 3, 1},
	{"images", "images", 1, 5, 0},
	{"pushes", "last_seq", 1, 2, 0},
	{"durable", "durable_seq", 1, 1, 0},
	{"silent ms", "silent_ms", 1, 0, 0},
};

struct table {
	const json_t *list;
	size_t rows;
	size_t width[N_COLUMNS]; /* 0: not shown */
};

/* The length in characters, not bytes. */
static size_t length(const char *text)
{
	const uint8_t *p = (const uint8_t *)text, *end = p + strlen(text);
	size_t n = 0;

	for (; p < end; n++) {
		size_t bytes = utf8_length(p, end);

		p += bytes ? bytes : 1;
	}
	return n;
}

/* A worker's value as text: "-" for none. */
static const char *cell(const json_t *worker, const struct column *c, char text[MAX_CELL])
{
	const json_t *value = json_object_get(worker, c->key);

	if (json_is_number(value))
		snprintf(text, MAX_CELL, "%.0f", json_number_value(value));
	else if (json_is_string(value) && json_string_value(value)[0])
		snprintf(text, MAX_CELL, "%s", json_string_value(value));
	else
		snprintf(text, MAX_CELL, "-");
	plain_text(text, 0);
	return text;
}

static void natural_widths(struct table *t)
{
	for (size_t c = 0; c < N_COLUMNS; c++) {
		t->width[c] = strlen(columns_of[c].title);
		for (size_t i = 0; i < t->rows; i++) {
			char text[MAX_CELL];
			size_t n = length(cell(json_array_get(t->list, i), &columns_of[c], text));

			if (columns_of[c].shortens && n > MAX_TEXT)
				n = MAX_TEXT;
			if (n > t->width[c])
				t->width[c] = n;
		}
	}
}

static size_t total_width(const struct table *t)
{
	size_t n = 0;

	for (size_t c = 0; c < N_COLUMNS; c++)
		n += t->width[c] ? t->width[c] + GAP : 0;
	return n - GAP; /* without a GAP after the last column; the first column is always shown */
}

static void leave_out(struct table *t, int number)
{
	for (size_t c = 0; c < N_COLUMNS; c++)
		if (columns_of[c].leave == number)
			t->width[c] = 0;
}

/* Shrink the widest text column by one character. 0: none is wider than `min`. */
static int shorten(struct table *t, size_t min)
{
	size_t widest = 0;

	for (size_t c = 0; c < N_COLUMNS; c++)
		if (columns_of[c].shortens &&
			(!columns_of[widest].shortens || t->width[c] > t->width[widest]))
			widest = c;
	if (!columns_of[widest].shortens || t->width[widest] <= min)
		return 0;
	t->width[widest]--;
	return 1;
}

static void fit_columns(struct table *t, size_t columns)
{
	natural_widths(t);
	if (!columns)
		return;
	for (int number = 1; number <= 3 && total_width(t) > columns; number++)
		leave_out(t, number);
	while (total_width(t) > columns && shorten(t, FAIR_TEXT))
		continue;
	if (total_width(t) > columns)
		leave_out(t, 4);
	while (total_width(t) > columns && shorten(t, MIN_TEXT))
		continue;
	if (total_width(t) > columns)
		leave_out(t, 5);
}

/* Print `text` in `width` characters; a truncated text ends in '+'. */
static void put_cell(const char *text, size_t width, int right)
{
	const uint8_t *p = (const uint8_t *)text, *end = p + strlen(text);
	size_t n = length(text), shown = n > width ? width - 1 : n;

	if (right && n < width)
		printf("%*s", (int)(width - n), "");
	for (size_t i = 0; i < shown; i++) {
		size_t bytes = utf8_length(p, end);

		bytes = bytes ? bytes : 1;
		fwrite(p, 1, bytes, stdout);
		p += bytes;
	}
	if (n > width)
		putchar('+');
	if (!right && n < width)
		printf("%*s", (int)(width - n), "");
}

/* Print the row of a worker; NULL: the titles. */
static void put_row(const struct table *t, const json_t *worker)
{
	char text[MAX_CELL];
	int first = 1;

	for (size_t c = 0; c < N_COLUMNS; c++) {
		const struct column *of = &columns_of[c];

		if (!t->width[c])
			continue;
		printf("%*s", first ? 0 : GAP, "");
		put_cell(worker ? cell(worker, of, text) : of->title, t->width[c], of->number);
		first = 0;
	}
	putchar('\n');
}

/* Print `list` ("workers" of STATUS) on stdout: a line of titles and at most `rows` lines of at
 * most `columns` characters; 0: no limit. If the table is too wide, the least important columns go
 * first, then long names shrink. */
static void show_table(const json_t *list, size_t columns, size_t rows)
{
	struct table t = {.list = list, .rows = json_array_size(list)};
	size_t n = t.rows;

	if (rows && t.rows > rows)
		t.rows = rows;
	fit_columns(&t, columns);
	put_row(&t, NULL);
	for (size_t i = 0; i < t.rows; i++)
		put_row(&t, json_array_get(list, i));
	if (n > t.rows)
		printf("and %zu more\n", n - t.rows);
}

/* ---- the screen ------------------------------------------------------------------------------ */

#define PERIOD_MS 1000
#define KEY_MS    50 /* between two checks for a key */
#define CLEAR     "\033[H\033[J"
#define BLANKS    3 /* between two items of a line */

/* The state of the screen's layout. */
struct layout {
	size_t columns, rows; /* of the terminal; 0: no limit */
	size_t column, row;   /* position of the next item */
};

static double number_of(const json_t *o, const char *key)
{
	return json_number_value(json_object_get(o, key));
}

static const char *text_of(const json_t *o, const char *key)
{
	const char *t = json_string_value(json_object_get(o, key));

	return t ? t : "-";
}

static void end_line(struct layout *s)
{
	putchar('\n');
	s->column = 0;
	s->row++;
}

/* Print an item on this line, or on the next one if this one is too short. */
static void put_item(struct layout *s, const char *fmt, ...) PS_PRINTF(2, 3);
static void put_item(struct layout *s, const char *fmt, ...)
{
	char item[512];
	size_t n, gap = s->column ? BLANKS : 0;
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(item, sizeof(item), fmt, ap);
	va_end(ap);
	plain_text(item, 0);
	n = strlen(item);
	if (s->columns && gap && s->column + gap + n > s->columns) {
		end_line(s);
		gap = 0;
	}
	printf("%*s%s", (int)gap, "", item);
	s->column += gap + n;
	for (; s->columns && s->column > s->columns; s->column -= s->columns)
		s->row++; /* the terminal wraps it */
}

/* Show "label value unit", with a dash if the status has no such value. */
static void show_value(struct layout *s, const json_t *o, const char *label, const char *key,
	double factor, int decimals, const char *unit)
{
	if (json_is_number(json_object_get(o, key)))
		put_item(s, "%s %.*f%s", label, decimals, number_of(o, key) * factor, unit);
	else
		put_item(s, "%s -", label);
}

static void show_run(struct layout *s, const json_t *o)
{
	const json_t *c = json_object_get(o, "counters");
	const char *name;
	json_t *v;

	put_item(s, "%s", text_of(o, "state"));
	put_item(s, "epoch %.0f of %.0f", number_of(o, "training_epoch"), number_of(o, "epochs"));
	put_item(s, "model %s", text_of(o, "model"));
	put_item(s, "optimizer %s", text_of(o, "optimizer"));
	if (json_is_string(json_object_get(o, "degraded")))
		put_item(s, "DEGRADED: %s", text_of(o, "degraded"));
	end_line(s);
	show_value(s, o, "images", "images", 1, 0, "");
	show_value(s, o, "images/s", "images_per_s", 1, 0, "");
	show_value(s, o, "loss", "loss", 1, 4, "");
	show_value(s, o, "accuracy", "accuracy", 100, 2, " %");
	json_object_foreach(json_object_get(o, "metrics"), name, v)
		put_item(s, "%s %.6g", name, json_number_value(v));
	show_value(s, o, "ETA", "eta_s", 1, 0, " s");
	end_line(s);
	show_value(s, o, "updates", "updates", 1, 0, "");
	show_value(s, o, "staleness", "staleness_mean", 1, 2, "");
	show_value(s, c, "duplicates", "duplicates", 1, 0, "");
	show_value(s, c, "rejected", "rejected", 1, 0, "");
	show_value(s, c, "refusals", "refusals", 1, 0, "");
	show_value(s, o, "memory", "rss_bytes", 1.0 / (1 << 20), 0, " MiB");
	end_line(s);
	end_line(s);
}

/* The size of the terminal; zeros if standard output is not a terminal. */
static struct layout terminal_size(void)
{
	struct winsize size;

	if (!isatty(STDOUT_FILENO) || ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0)
		return (struct layout){.columns = 0};
	return (struct layout){.columns = size.ws_col, .rows = size.ws_row};
}

/* Show the workers in the remaining rows. Three rows are for the titles, "and N more" and the
 * cursor. */
static void show_workers(const struct layout *s, const json_t *list)
{
	size_t used = s->row + 3;
	size_t rows = s->rows > used ? s->rows - used : 1;

	show_table(list, s->columns, s->rows ? rows : 0);
}

/* Get a new status; on success it replaces *o, which the caller owns. */
static int fetch_status(struct cnnps *c, json_t **o)
{
	char answer[WIRE_MAX_TEXT + 1];
	int rc = cnnps_status(c, answer, sizeof(answer));
	json_t *now = rc ? NULL : json_loads(answer, 0, NULL);

	if (!now)
		return rc ? rc : PS_EPROTO;
	json_decref(*o);
	*o = now;
	return PS_OK;
}

/* Show the whole status. The caller prints `below` more rows. */
static void show_all(const json_t *o, size_t below)
{
	struct layout s = terminal_size();

	show_run(&s, o);
	if (json_is_string(json_object_get(o, "waiting"))) {
		put_item(&s, "%s", text_of(o, "waiting"));
		end_line(&s);
		end_line(&s);
	}
	s.row += below;
	show_workers(&s, json_object_get(o, "workers"));
}

/* ---- the end ------------------------------------------------------------------------------- */

/* Print the result: "training done: accuracy 97.90 %, 3 epochs, ..." */
static void show_end(const json_t *o, const char *how)
{
	printf("training %s:", how);
	if (json_is_number(json_object_get(o, "accuracy")))
		printf(" accuracy %.2f %%,", 100 * number_of(o, "accuracy"));
	printf(" loss %.4f, %.0f updates, %.0f images, %.0f s\n", number_of(o, "loss"),
		number_of(o, "updates"), number_of(o, "images"), number_of(o, "uptime_s"));
}

/* How the run ended, in one word; NULL: it is running, or the end is unknown. */
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

/* Print the last screen on the normal terminal, and the result below it. */
static int show_result(const json_t *o, const char *how, struct err *e)
{
	show_all(o, 2);
	putchar('\n');
	show_end(o, how);
	if (!strcmp(how, "done") || !strcmp(how, "drained"))
		return PS_OK;
	return err_set(e, PS_EDIVERGED, "training ended: %s", how);
}

/* ---- the command ----------------------------------------------------------------------------- */

static int stop(void *arg)
{
	(void)arg;
	return screen_quit();
}

/* Show the reason of a wait below the last screen, or as a line before the first screen. */
static void show_wait(void *arg, const char *line)
{
	char safe[1024];

	(void)arg;
	snprintf(safe, sizeof(safe), "%s", line);
	plain_text(safe, 0);
	if (screen_is_open())
		fprintf(stdout, "\r\033[J%s", safe);
	else
		ctl_say("waiting", PS_OK, line);
	fflush(stdout);
}

static void wait_for_key(void)
{
	for (int ms = 0; ms < PERIOD_MS && !screen_quit(); ms += KEY_MS)
		(void)poll(NULL, 0, KEY_MS);
}

/* Refresh the screen until the user types q, the run ends, or the server is lost. */
static int refresh(struct cnnps *c, json_t **o)
{
	int rc;

	while (!(rc = fetch_status(c, o)) && !ending(*o, 0) && !screen_quit()) {
		fputs(CLEAR, stdout);
		show_all(*o, 2);
		fputs("\nq quits   ", stdout);
		fflush(stdout);
		wait_for_key();
	}
	return rc;
}

static int run_top(struct cnnps *c, struct err *e)
{
	static char frame[1 << 16]; /* buffer for one write per screen, to avoid flicker */
	json_t *o = NULL;
	const char *how;
	int rc;

	setvbuf(stdout, frame, _IOFBF, sizeof(frame));
	screen_open();
	rc = refresh(c, &o);
	screen_close();
	how = ending(o, rc);
	if (screen_quit())
		rc = PS_OK;
	else if (o && how)
		rc = show_result(o, how, e);
	else
		err_set(e, rc, "%s", cnnps_error(c));
	json_decref(o);
	return rc;
}

static int show_once(struct cnnps *c, struct err *e)
{
	json_t *o = NULL;
	int rc = fetch_status(c, &o);

	if (rc)
		return err_set(e, rc, "%s", cnnps_error(c));
	show_all(o, 2);
	json_decref(o);
	return PS_OK;
}

/* If standard output is not a terminal, print the status once, as lines. */
int ctl_top(const struct ctl *ctl, struct err *e)
{
	struct cnnps *c;
	int rc = ctl_connect_with(ctl, stop, show_wait, &c, e);

	if (rc)
		return rc;
	rc = isatty(STDOUT_FILENO) ? run_top(c, e) : show_once(c, e);
	cnnps_close(&c);
	return rc;
}
