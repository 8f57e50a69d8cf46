/*
 * device.h - functions of libcnnps that only cnn-worker uses, for a device that reads weights and
 * writes gradients by itself, such as a GPU. The device then uses the shared memory of a lane
 * directly, and can compute checksums.
 */
#ifndef WORKER_CLIENT_DEVICE_H
#define WORKER_CLIENT_DEVICE_H
#include "worker/client/cnnps.h"
#include "worker/client/lane.h"

/* Lets a device use the memory of lanes: cnnps_gradient and the pulls then return such memory
 * instead of memory of cnnps_options.allocate, if the device can use it. */
void cnnps_use_device(struct cnnps *c, const struct lane_device *device);
/* Works as cnnps_pull without flags, but leaves the check of the weights to the caller: sets *xxh3
 * to the checksum that the weights must have, or to 0 if the weights are already checked. If *xxh3
 * is not 0, the weights may be in memory that only the device can read. */
int cnnps_pull_unchecked(struct cnnps *c, struct cnnps_pull *pull, uint64_t *xxh3);
/* Reports that weights of cnnps_pull_unchecked have a wrong checksum. */
void cnnps_note_wrong_checksum(struct cnnps *c);
/* Works as cnnps_gradient, but only the device can write the buffer, because the buffer may be in
 * memory of the device. The program must call cnnps_set_checksum, and push all values. */
float *cnnps_device_gradient(struct cnnps *c);
/* Sets the checksum of the values in the buffer of cnnps_gradient, for the next push. */
void cnnps_set_checksum(struct cnnps *c, uint64_t xxh3);
/* Returns 1 if `values`, a buffer of cnnps_device_gradient, is in memory of the device, and the
 * server reads it with another GPU. */
int cnnps_is_apart(const struct cnnps *c, const float *values);
/* Makes the next push also start a pull, as CNNPS_PULL_START does. Both travel in one message, so
 * the pulled weights include the push. */
void cnnps_start_pull_with_push(struct cnnps *c);

#endif
