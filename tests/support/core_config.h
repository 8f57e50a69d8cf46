/*
 * core_config.h - the configuration of a small core, for unit tests and fuzz targets.
 */
#ifndef TESTS_SUPPORT_CORE_CONFIG_H
#define TESTS_SUPPORT_CORE_CONFIG_H
#include "server/core/config.h"

#define FIXTURE_PARAMS 8u

/* Zero weights, plain SGD at rate 1, no data set. The core takes a snapshot only when an event
 * needs it, not at intervals. */
struct core_config fixture_config(void);
/* As fixture_config, for two epochs of 35 images in 4 batches (10, 10, 10, 5), evaluated in 3
 * portions (3, 3, 1). */
struct core_config fixture_training(void);

#endif
