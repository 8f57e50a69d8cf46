/*
 * screen.h - a full-screen page on the terminal, with ncurses: cnn-ctl top.
 *
 * A page is text with marks. A mark is a byte of enum mark; it changes the attributes of the text
 * after it, and occupies no place on the screen. A page without its marks is plain text. Thread:
 * main; screen_is_open and screen_is_mine: any.
 */
#ifndef WORKER_CTL_SCREEN_H
#define WORKER_CTL_SCREEN_H
#include <stddef.h>

enum mark { MARK_PLAIN = 1, MARK_TITLE, MARK_STRONG, MARK_DIM, MARK_GOOD, MARK_WARN, MARK_BAD };

/* Keys that are not characters. SCREEN_GONE means that the terminal no longer exists. */
enum {
	SCREEN_NONE = 0,
	SCREEN_UP = 256,
	SCREEN_DOWN,
	SCREEN_PAGE_UP,
	SCREEN_PAGE_DOWN,
	SCREEN_HOME,
	SCREEN_END,
	SCREEN_RESIZED,
	SCREEN_GONE
};

/* Takes over the terminal: switches to the alternate screen, reads single keys and hides the
 * cursor. Every exit and every fatal signal restores the terminal. Returns 0 if the terminal
 * ($TERM) cannot do this. */
int screen_open(void);
/* Restores the terminal. A second call has no effect. */
void screen_close(void);
int screen_is_open(void);
/* Gets the size of the terminal in characters. */
void screen_size(size_t *width, size_t *height);
/* Shows a page. Lines that do not fit are cut. */
void screen_show(const char *page);
/* Waits at most `ms` milliseconds for a key. Returns SCREEN_NONE if no key was pressed. */
int screen_key(int ms);
/* Returns 1 if the terminal can show UTF-8. */
int screen_is_utf8(void);
/* Returns 1 if the calling thread is the one that opened the screen. */
int screen_is_mine(void);
/* Removes the marks from a text. */
void screen_unmark(char *text);

#endif
