/*
 * pages.h - a function of libcnnps that only cnn-ctl uses. The function requests the status of the
 * workers for which the reply to a STATUS request had no room.
 */
#ifndef WORKER_CLIENT_PAGES_H
#define WORKER_CLIENT_PAGES_H
#include <stddef.h>
#include <stdint.h>
#include "worker/client/cnnps.h"

/* Requests the status like cnnps_status, but the JSON has only the fields "workers" (the workers
 * from number `first` on) and "workers_left_out". A server of an older release sends its whole
 * status instead. */
int cnnps_status_page(struct cnnps *c, uint32_t first, char *json, size_t size);

#endif
