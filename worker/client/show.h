/*
 * show.h - functions of libcnnps that only cnn-worker uses. The functions send the pictures that
 * the server's page shows.
 *
 * While somebody watches the page, the server asks one worker for pictures every other second, with
 * a STATUS request. A worker may ignore the request; libcnnps ignores it in programs other than
 * cnn-worker.
 */
#ifndef WORKER_CLIENT_SHOW_H
#define WORKER_CLIENT_SHOW_H
#include "worker/client/cnnps.h"

/* text of the STATUS request with which the server asks for pictures */
#define SHOW_REQUEST  "show"
#define SHOW_PAUSE_MS 1000 /* minimum time between two answers with pictures */

/* Returns 1 if the server has asked for pictures since this function last returned 1, and
 * SHOW_PAUSE_MS have passed since then, so that a hostile server does not keep the worker busy. The
 * call takes almost no time. */
int cnnps_show_requested(struct cnnps *c);
/* Sends the pictures as JSON (worker/show.h), in at most WIRE_MAX_TEXT bytes. */
int cnnps_show(struct cnnps *c, const char *json);

#endif
