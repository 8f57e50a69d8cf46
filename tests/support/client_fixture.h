/* client_fixture.h - a client of libcnnps with a fake server, for tests of
 * worker/client/cnnps.h. */
#ifndef TESTS_SUPPORT_CLIENT_FIXTURE_H
#define TESTS_SUPPORT_CLIENT_FIXTURE_H
#include <stdatomic.h>
#include "tests/support/client_calls.h"
#include "tests/support/fake_server.h"
#include "common/clock.h"
#include "common/log.h"
#include "worker/client/cnnps.h"

extern struct fake client_server;
extern struct cnnps *client;
extern const float client_ones[FAKE_PARAMS];

/* Start the fake server. client_set_up also connects a client. */
int client_set_up(void **state);
int client_set_up_unconnected(void **state);
int client_tear_down(void **state);
struct cnnps_options client_options(void);
/* Connect a client with the options *o. The connection must succeed. */
void client_connect(struct cnnps_options *o);
/* Push a gradient with the value `value` at every coordinate. The push must return the status
 * `expected`. */
void client_push(float value, int expected);
/* Pull the weights, and check that each of them is `value`. */
void client_expect_weights(float value);

#endif
