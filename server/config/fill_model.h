/*
 * fill_model.h - the fields of the core's configuration that follow from the model. The functions
 * are pure, and any thread may call them.
 */
#ifndef SERVER_CONFIG_FILL_MODEL_H
#define SERVER_CONFIG_FILL_MODEL_H
#include "common/model.h"
#include "server/core/config.h"

/* Sets the fields of *c that follow from the model. */
void fill_model(struct core_config *c, const struct model *m);
/* Sets only the fields n_running and running of *c. */
void fill_running(struct core_config *c, const struct model *m);

#endif
