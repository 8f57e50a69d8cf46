/*
 * info.h - WELCOME as a program of libcnnps sees it. Pure. Thread: any.
 */
#ifndef WORKER_INFO_H
#define WORKER_INFO_H
#include "proto/msg.h"
#include "worker/cnnps.h"

/* Borrows the model's text of `w`. */
struct cnnps_info info_of(const struct msg_welcome *w);

#endif
