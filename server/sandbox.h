/*
 * sandbox.h - takes away the rights that the process does not need, before its first thread starts.
 *
 * A peer that took over the server through a defect could then start no program, open no file but
 * those of the options and of the libraries, and change no file outside --checkpoint-dir. Four
 * mechanisms of Linux:
 *
 * - no_new_privs: no program that the process would start gets more rights;
 * - capabilities: none, except CAP_NET_BIND_SERVICE for a port below 1024, and CAP_DAC_OVERRIDE if
 *   only root's right to every file opens the files of the options;
 * - Landlock: the files that the process may open (sandbox.c lists them);
 * - seccomp: a list of allowed system calls. Starting a program and tracing a process end the
 *   server; any other call fails with EPERM.
 */
#ifndef SERVER_SANDBOX_H
#define SERVER_SANDBOX_H
#include "common/err.h"
#include "server/config/options.h"

/*
 * Enters the sandbox that --sandbox demands, and logs one line about it. Creates --checkpoint-dir,
 * because a rule needs a directory that exists, and sets o->made_checkpoint_dir. PS_EUSAGE:
 * --sandbox require, and a mechanism is missing, or the directory cannot be created. Thread: main,
 * before any other thread starts.
 */
int sandbox_enter(struct options *o, struct err *e) PS_MUST_CHECK;

#endif
