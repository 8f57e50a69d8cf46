/*
 * cnnps_lab.h - a program of libcnnps and its fake server, for the tests of worker/client/cnnps.h.
 *
 * A header with bodies, for one test program is one file. Thread: the test's.
 */
#ifndef TESTS_UNIT_CNNPS_LAB_H
#define TESTS_UNIT_CNNPS_LAB_H
#include "tests/unit/fake_server.h"
#include <stdatomic.h>
#include "common/clock.h"
#include "common/log.h"
#include "worker/client/cnnps.h"

static struct fake fake;
static struct cnnps *client;
static const float ones[FAKE_PARAMS] = {1, 1, 1, 1, 1, 1};

static inline struct cnnps_options options(void)
{
	return (struct cnnps_options){
		.server = fake.url, .connect_timeout_ms = 10000, .device = "test"};
}

static inline void connect_or_fail(struct cnnps_options *o)
{
	if (cnnps_connect(&client, o))
		fail_msg("%s", o->why);
}

static inline int set_up(void **state)
{
	struct cnnps_options o;

	(void)state;
	log_set_level(LOG_ERROR);
	fake_start(&fake);
	o = options();
	connect_or_fail(&o);
	return 0;
}

static inline int set_up_unconnected(void **state)
{
	(void)state;
	log_set_level(LOG_ERROR);
	fake_start(&fake);
	return 0;
}

static inline int tear_down(void **state)
{
	(void)state;
	cnnps_close(&client);
	fake_stop(&fake);
	return 0;
}

static inline void push(float value, int expected)
{
	float g[FAKE_PARAMS];

	for (int i = 0; i < FAKE_PARAMS; i++)
		g[i] = value;
	assert_int_equal(cnnps_push(client, g, FAKE_PARAMS, 0), expected);
}

static inline void weights_are(float value)
{
	float w[FAKE_PARAMS];

	assert_int_equal(cnnps_pull(client, w, FAKE_PARAMS, NULL), 0);
	for (int i = 0; i < FAKE_PARAMS; i++)
		assert_true(w[i] == value);
}

#define CONNECTED(test)   cmocka_unit_test_setup_teardown(test, set_up, tear_down)
#define UNCONNECTED(test) cmocka_unit_test_setup_teardown(test, set_up_unconnected, tear_down)

#endif
