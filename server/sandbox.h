/*
 * sandbox.h - takes away the rights that the process does not need, before it starts its first
 * other thread.
 *
 * If a peer took over the server through a defect, this peer could start no program, open no file
 * except those of the options and of the libraries, and change no file outside --checkpoint-dir. A
 * rule of Landlock for a directory holds for everything beneath it, so the process can read all
 * files beneath the directories of the keys.
 * The sandbox consists of four mechanisms of Linux:
 *
 * - no_new_privs: a program that the process starts cannot get more rights than the process;
 * - capabilities: the process keeps none, except CAP_NET_BIND_SERVICE for a port below 1024, and
 *   CAP_DAC_OVERRIDE if the files of the options can be opened only with root's right to open every
 *   file;
 * - Landlock: the files that the process may open (sandbox.c lists them);
 * - seccomp: a list of allowed system calls. A call that starts a program or traces a process ends
 *   the server; any other call that is not on the list fails with EPERM. The list also limits
 *   arguments: no memory becomes executable, and the process can use only those kinds of sockets
 *   and those requests to devices that the server needs (test_server_sandbox.c).
 */
#ifndef SERVER_SANDBOX_H
#define SERVER_SANDBOX_H
#include "common/err.h"
#include "server/config/options.h"

/*
 * Enters the sandbox that --sandbox demands, and logs one line about it. Before it enters the
 * sandbox, the function creates what the process cannot create inside. It creates --checkpoint-dir,
 * because a rule of Landlock needs a directory that exists, and sets o->made_checkpoint_dir to 1 if
 * the directory was missing. It listens on the socket of lanes, and sets o->lane_fd; the caller
 * removes the file of the socket. Returns PS_EUSAGE if the directory cannot be created, or if a
 * mechanism is missing with --sandbox require. The main thread must call this function before any
 * other thread starts.
 */
int sandbox_enter(struct options *o, struct err *e) PS_MUST_CHECK;

#endif
