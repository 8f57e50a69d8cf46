/*
 * images.h - --input auto: the images of the first worker decide the input of the model.
 *
 * Before a worker has joined, the server runs with a model that fits no images, so that it can
 * answer cnn-ctl and receive a HELLO. During this time the server writes no checkpoint. A resumed
 * run takes the input of its model from the checkpoint. As long as no push was accepted, the input
 * may change: if a worker with other images joins and no other worker is left, server.c starts the
 * server again with other options. Such a start closes all connections. Therefore the workers of a
 * key can cause only IMAGES_CHANGES such starts. With --data-id, only workers with that data set
 * can cause such a start. Only the main thread may call these functions.
 */
#ifndef SERVER_CONFIG_IMAGES_H
#define SERVER_CONFIG_IMAGES_H
#include "server/config/options.h"

/* Sets the model of *o for the images of the newest checkpoint in the checkpoint directory, or for
 * unknown images if there is no checkpoint. Does nothing without --input auto. Returns PS_EUSAGE if
 * the model does not fit the checkpoint's images. */
int images_begin(struct options *o, struct err *e) PS_MUST_CHECK;
/* Returns 1 if a worker with the images of `d` would change the model. */
int images_differ(const struct options *o, const struct data_id *d);
/* Sets the model of *o for the images of the worker that sent HELLO `h`, and counts a change for
 * its key. Returns PS_EWRONGDATA if the data set is not that of --data-id, if the key has used up
 * its changes, if the worker names no shape, if the model does not fit the shape, or if the memory
 * would not suffice. On failure *o is unchanged. */
int images_take(struct options *o, const struct msg_hello *h, uint64_t memory_bytes,
	struct err *e) PS_MUST_CHECK;

#endif
