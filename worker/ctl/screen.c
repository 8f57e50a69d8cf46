/* screen.c - see screen.h. What the signal handlers call is async-signal-safe. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <termios.h>
#include <unistd.h>
#include "worker/ctl/screen.h"

/* The alternate screen, without a cursor. */
#define ENTER "\033[?1049h\033[?25l\033[H"
#define LEAVE "\033[?25h\033[?1049l"

/* Signals that end the program, and the one that stops it. */
static const int fatal[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGABRT, SIGSEGV, SIGBUS, SIGFPE,
	SIGILL, SIGPIPE, SIGALRM, SIGUSR1, SIGUSR2};

static struct termios before, keys; /* of standard input; constant once `has_keys` */
static int has_keys;
static atomic_int is_open, quit;

static void say(const char *text)
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
	say(ENTER);
}

void screen_close(void)
{
	if (!atomic_exchange(&is_open, 0))
		return;
	say(LEAVE);
	if (has_keys)
		tcsetattr(STDIN_FILENO, TCSANOW, &before);
}

/* Back to normal, then what the signal does by default. */
static void on_fatal(int number)
{
	screen_close();
	signal(number, SIG_DFL);
	raise(number);
}

static void catch (int number, void (*handler)(int))
{
	struct sigaction a;

	memset(&a, 0, sizeof a);
	a.sa_handler = handler;
	a.sa_flags = SA_NODEFER | SA_RESTART;
	sigaction(number, &a, NULL);
}

/* ^Z: stops in raise, and goes on after SIGCONT. */
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
	keys.c_cc[VMIN] = 0; /* a read never waits */
	keys.c_cc[VTIME] = 0;
	has_keys = 1;
}

void screen_open(void)
{
	find_keys();
	for (size_t i = 0; i < sizeof fatal / sizeof *fatal; i++) {
		struct sigaction now;
		if (!sigaction(fatal[i], NULL, &now) && now.sa_handler != SIG_IGN)
			catch (fatal[i], on_fatal);
	}
	catch (SIGTSTP, on_stop);
	atexit(screen_close);
	enter();
}

int screen_is_open(void)
{
	return atomic_load(&is_open);
}

int screen_quit(void)
{
	struct pollfd key = {.fd = STDIN_FILENO, .events = POLLIN};
	char typed[64];
	ssize_t n;

	if (!has_keys || atomic_load(&quit) || poll(&key, 1, 0) <= 0)
		return atomic_load(&quit);
	n = read(STDIN_FILENO, typed, sizeof typed);
	if ((n > 0 && (memchr(typed, 'q', (size_t)n) || memchr(typed, 'Q', (size_t)n))) ||
		(n <= 0 && (key.revents & (POLLHUP | POLLERR))))
		atomic_store(&quit, 1);
	return atomic_load(&quit);
}
