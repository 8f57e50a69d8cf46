/*
 * core_config.h - the configuration of a small core, for unit tests and fuzz targets.
 */
#ifndef TESTS_SUPPORT_CORE_CONFIG_H
#define TESTS_SUPPORT_CORE_CONFIG_H
#include "server/core/config.h"

#define FIXTURE_PARAMS 8u

/* Returns the configuration of a core with 8 weights, plain SGD at rate 1 and no data set. The
 * interval of snapshots is so long that the core takes a snapshot only when an event needs one. */
struct core_config fixture_config(void);
/* Returns the configuration of fixture_config, but with two epochs of training. The 35 images of
 * the data set form 4 batches (10, 10, 10, 5), and an evaluation has 3 portions (3, 3 and 1
 * images). */
struct core_config fixture_training(void);

#endif
