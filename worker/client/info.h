/*
 * info.h - WELCOME and GRANT as a program of libcnnps sees them, and where that program runs.
 * Thread: any.
 */
#ifndef WORKER_CLIENT_INFO_H
#define WORKER_CLIENT_INFO_H
#include "proto/msg.h"
#include "worker/client/cnnps.h"

/* Borrows the model's text of `w`. */
struct cnnps_info info_of(const struct msg_welcome *w);
/* `term`: of the server that said it. */
struct cnnps_lease lease_of(const struct msg_grant *g, uint64_t term);
/* This process's id, and the name of its host in printable ASCII, cut to `size` - 1 bytes: labels
 * that HELLO carries. */
uint32_t info_process(char *host, size_t size);

#endif
