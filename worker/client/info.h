/*
 * info.h - converts WELCOME and GRANT to the structs of cnnps.h, and finds the host and process id
 * for HELLO. Thread: any.
 */
#ifndef WORKER_CLIENT_INFO_H
#define WORKER_CLIENT_INFO_H
#include "proto/msg.h"
#include "worker/client/cnnps.h"

/* Returns the information about the run in WELCOME `w`. The result borrows the text of w->model. */
struct cnnps_info info_of(const struct msg_welcome *w);
/* Returns the number of values of a gradient without the running statistics, which are its last
 * values. */
size_t info_trained(const struct cnnps_info *info);
/* Returns the lease of GRANT `g`. `term` is the server's term at the GRANT. */
struct cnnps_lease lease_of(const struct msg_grant *g, uint64_t term);
/* Returns the process id, and writes the host's name in printable ASCII, truncated to `size` - 1
 * bytes. */
uint32_t info_process(char *host, size_t size);

#endif
