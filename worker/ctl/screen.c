/* screen.c - see screen.h. */
#include "worker/ctl/screen.h"
#include "worker/ctl/draw.h"
#include "worker/ctl/width.h"
#include <curses.h>
#include <langinfo.h>
#include <locale.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <term.h>
#include <termios.h>
#include <unistd.h>

/* The signals that end the program. ncurses itself handles SIGTSTP and SIGWINCH. */
static const int fatal[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGABRT, SIGSEGV, SIGBUS, SIGFPE,
	SIGILL, SIGPIPE, SIGALRM, SIGUSR1, SIGUSR2};

static SCREEN *screen;
static pthread_t owner;
static atomic_int is_open;
/* The state with which the signal handler restores the terminal. A signal handler must not call
 * ncurses. */
static struct termios before;
static int has_modes, has_colours;
static char restore[256];

/* Restores the terminal. The function is async-signal-safe. */
static void restore_now(void)
{
	ssize_t ignored = write(STDOUT_FILENO, restore, strlen(restore));

	(void)ignored;
	if (has_modes)
		tcsetattr(STDIN_FILENO, TCSANOW, &before);
}

static void on_fatal(int number)
{
	if (atomic_exchange(&is_open, 0))
		restore_now();
	signal(number, SIG_DFL);
	raise(number);
}

static void catch_fatal(void)
{
	struct sigaction a, now;

	memset(&a, 0, sizeof(a));
	a.sa_handler = on_fatal;
	a.sa_flags = SA_NODEFER;
	for (size_t i = 0; i < sizeof(fatal) / sizeof(*fatal); i++)
		if (!sigaction(fatal[i], NULL, &now) && now.sa_handler != SIG_IGN)
			sigaction(fatal[i], &a, NULL);
}

static void add_restore(const char *name)
{
	const char *text = tigetstr(name);

	if (text && (intptr_t)text != -1)
		snprintf(restore + strlen(restore), sizeof(restore) - strlen(restore), "%s", text);
}

static void choose_colours(void)
{
	if (!has_colors() || !draw_may_colour())
		return;
	has_colours = 1;
	start_color();
	use_default_colors();
	init_pair(MARK_GOOD, COLOR_GREEN, -1);
	init_pair(MARK_WARN, COLOR_YELLOW, -1);
	init_pair(MARK_BAD, COLOR_RED, -1);
}

/* Returns 1 if the terminal is known and can write at any place. A terminal such as Emacs' shell
 * (TERM=dumb) cannot do this. */
static int can_place_text(void)
{
	int found;

	return setupterm(NULL, STDOUT_FILENO, &found) == OK && tigetstr("cup") != NULL;
}

int screen_open(void)
{
	has_modes = tcgetattr(STDIN_FILENO, &before) == 0;
	setlocale(LC_CTYPE, "");
	screen = can_place_text() ? newterm(NULL, stdout, stdin) : NULL;
	if (!screen)
		return 0;
	for (int i = 0; i < 3; i++)
		add_restore((const char *const[]){"sgr0", "cnorm", "rmcup"}[i]);
	owner = pthread_self();
	atomic_store(&is_open, 1);
	catch_fatal();
	atexit(screen_close);
	cbreak();
	noecho();
	keypad(stdscr, TRUE);
	set_escdelay(25);
	(void)curs_set(0);
	choose_colours();
	return 1;
}

void screen_close(void)
{
	if (!atomic_exchange(&is_open, 0))
		return;
	endwin();
	if (has_modes)
		tcsetattr(STDIN_FILENO, TCSANOW, &before);
}

int screen_is_open(void)
{
	return atomic_load(&is_open);
}

int screen_is_mine(void)
{
	return screen && pthread_equal(owner, pthread_self());
}

int screen_is_utf8(void)
{
	return strcmp(nl_langinfo(CODESET), "UTF-8") == 0;
}

void screen_size(size_t *width, size_t *height)
{
	*width = (size_t)COLS;
	*height = (size_t)LINES;
}

static void set_mark(enum mark m)
{
	static const attr_t attributes[] = {[MARK_TITLE] = A_REVERSE,
		[MARK_STRONG] = A_BOLD,
		[MARK_DIM] = A_DIM,
		[MARK_BAD] = 0};

	if (m < MARK_GOOD)
		(void)attr_set(attributes[m], 0, NULL);
	else
		(void)attr_set(A_NORMAL, has_colours ? (short)m : 0, NULL);
}

void screen_show(const char *page)
{
	const int has_letters = screen_is_utf8();
	int row = 0;
	size_t column = 0, bytes;

	erase();
	for (; *page && row < LINES; page += bytes) {
		size_t width = width_of_character(page, &bytes);

		if (*page == '\n') {
			move(++row, 0);
			column = 0;
		} else if (strchr("\1\2\3\4\5\6\7", *page)) {
			set_mark((enum mark) * page);
		} else if (column + width <= (size_t)COLS) {
			/* without UTF-8 the terminal has none of the characters beyond ASCII */
			if (has_letters || bytes == 1)
				addnstr(page, (int)bytes);
			else
				addstr("?");
			column += width;
		} else {
			column = (size_t)COLS; /* no room for the rest of the line: skip it */
		}
	}
	attrset(A_NORMAL);
	refresh();
}

int screen_key(int ms)
{
	static const struct {
		int key, name;
	} special[] = {{KEY_UP, SCREEN_UP}, {KEY_DOWN, SCREEN_DOWN}, {KEY_PPAGE, SCREEN_PAGE_UP},
		{KEY_NPAGE, SCREEN_PAGE_DOWN}, {KEY_HOME, SCREEN_HOME}, {KEY_END, SCREEN_END},
		{KEY_RESIZE, SCREEN_RESIZED}, {KEY_ENTER, '\n'}, {KEY_BACKSPACE, 127}};

	struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};

	if (!has_modes) { /* standard input is no terminal */
		napms(ms);
		return SCREEN_NONE;
	}
	timeout(ms);
	int key = getch();
	if (key == ERR && poll(&input, 1, 0) > 0 && (input.revents & (POLLHUP | POLLERR)))
		return SCREEN_GONE;
	for (size_t i = 0; i < sizeof(special) / sizeof(*special); i++)
		if (key == special[i].key)
			return special[i].name;
	return key == ERR || key > 255 ? SCREEN_NONE : key;
}

void screen_unmark(char *text)
{
	char *to = text;

	for (; *text; text++)
		if (*text >= '\b' || *text < 0)
			*to++ = *text;
	*to = '\0';
}
