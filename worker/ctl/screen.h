/*
 * screen.h - the terminal while cnn-ctl top owns it: the alternate screen, keys without Enter,
 * and everything as it was before on every way out, signals included.
 *
 * Thread: main; screen_quit: any, one at a time.
 */
#ifndef WORKER_CTL_SCREEN_H
#define WORKER_CTL_SCREEN_H

/* Take the terminal of standard output, and of standard input where it is one in the foreground. */
void screen_open(void);
/* Give it back; nothing happens when it is back already. */
void screen_close(void);
/* Was q typed since screen_open? Does not wait. */
int screen_quit(void);
/* Whether screen_open has it. */
int screen_is_open(void);

#endif
