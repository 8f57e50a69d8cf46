/* client_fixture.c - see client_fixture.h. */
#include "tests/support/client_fixture.h"

struct fake client_server;
struct cnnps *client;
const float client_ones[FAKE_PARAMS] = {1, 1, 1, 1, 1, 1};

struct cnnps_options client_options(void)
{
	return (struct cnnps_options){.size = sizeof(struct cnnps_options),
		.server = client_server.url,
		.connect_timeout_ms = 10000,
		.device = "test"};
}

void client_connect(struct cnnps_options *o)
{
	if (cnnps_connect(&client, o))
		fail_msg("%s", cnnps_error(client));
}

int client_set_up(void **state)
{
	struct cnnps_options o;

	(void)state;
	log_set_level(LOG_ERROR);
	fake_start(&client_server);
	o = client_options();
	client_connect(&o);
	return 0;
}

int client_set_up_unconnected(void **state)
{
	(void)state;
	log_set_level(LOG_ERROR);
	fake_start(&client_server);
	return 0;
}

int client_tear_down(void **state)
{
	(void)state;
	cnnps_close(&client);
	fake_stop(&client_server);
	return 0;
}

void client_push(float value, int expected)
{
	float g[FAKE_PARAMS];

	for (int i = 0; i < FAKE_PARAMS; i++)
		g[i] = value;
	assert_int_equal(client_push_all(client, g, 0), expected);
}

void client_expect_weights(float value)
{
	float w[FAKE_PARAMS];

	assert_int_equal(client_pull_all(client, w, NULL), 0);
	for (int i = 0; i < FAKE_PARAMS; i++)
		assert_true(w[i] == value);
}
