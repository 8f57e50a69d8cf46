/*
 * store_double.h - a store module that computes on the CPU, for tests without a GPU. This module
 * compiles the formulas of the CUDA module (server/device/step.h). The number of a device selects
 * how the device behaves.
 */
#ifndef TESTS_DEVICE_STORE_DOUBLE_H
#define TESTS_DEVICE_STORE_DOUBLE_H
#include "server/device/module.h"

#define STORE_DOUBLE_OWN     1 /* this device reports memory of other processes as its own memory */
#define STORE_DOUBLE_FULL    2 /* this device has no memory */
#define STORE_DOUBLE_FAILS   3 /* this device fails after STORE_DOUBLE_UPDATES updates */
#define STORE_DOUBLE_NARROW  4 /* this device has no memory for `keep` */
#define STORE_DOUBLE_SLOW    5 /* the function `kept` takes STORE_DOUBLE_KEPT_MS milliseconds */
#define STORE_DOUBLE_LOSES   6 /* the function `kept` of this device fails */
#define MAX_STORE_DOUBLE     6 /* the highest device number */
#define STORE_DOUBLE_UPDATES 20
#define STORE_DOUBLE_KEPT_MS 1500

const struct store_module *cnnps_store_module(void);
/* While `holds` is 1, `kept` of all devices of this process waits before it copies. */
void store_double_hold(int holds);

#endif
