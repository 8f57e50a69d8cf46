/*
 * serial.c - computes the reference for a run of L-BFGS: one worker, no network, no faults, the
 * portions in order. The loss of portion i depends only on the weight w of its coordinate: k (w -
 * t)^2 / 2 + (w - t)^4 / 10. Each portion has its own target t and its own curvature k.
 */
#include <stdlib.h>
#include <string.h>
#include "common/mem.h"
#include "tests/sim/sim.h"

static double target(uint32_t i)
{
	return (double)(i * 7 % 5) / 4 - 0.5;
}

static double curvature(uint32_t i)
{
	return 1 + (double)(i * 3 % 8);
}

double serial_loss(uint32_t i, float w)
{
	double x = (double)w - target(i);

	return curvature(i) * x * x / 2 + x * x * x * x / 10;
}

float serial_gradient(uint32_t i, float w)
{
	double x = (double)w - target(i);

	return (float)(curvature(i) * x + 4 * x * x * x / 10);
}

static const struct msg *answer_of_type(const struct core *c, enum msg_type type)
{
	const struct effect *e;

	for (size_t i = 0; (e = core_effect(c, i)); i++)
		if (e->kind == EFFECT_SEND && e->msg.type == type)
			return &e->msg;
	return NULL;
}

static const struct msg *step_message(struct core *c, const struct msg *m, enum msg_type type)
{
	const struct event ev = {.kind = EVENT_MESSAGE, .peer = 1, .msg = m};

	core_step(c, &ev, 1);
	return answer_of_type(c, type);
}

static void push_one_portion(
	struct sim *s, struct core *c, struct stamp stamp, const struct msg_grant *g, uint64_t seq)
{
	uint32_t i = g->work.first;
	float value = serial_gradient(i, core_weights(c)[i]);
	static struct msg m;

	m.type = MSG_PUSH;
	m.push = (struct msg_push){.stamp = stamp,
		.seq = seq,
		.base_version = g->version,
		.base_term = stamp.term,
		.work = {g->work.epoch, i, 1},
		.images = sim_images(s, i, 1),
		.loss = (float)serial_loss(i, core_weights(c)[i])};
	m.push.slices.n = 1;
	m.push.slices.slice[0] = (struct slice){.offset = i, .count = 1, .data = &value};
	(void)step_message(c, &m, MSG_ACK);
}

static void evaluate_portion(struct core *c, struct stamp stamp, const struct msg_grant *g)
{
	const struct msg m = {.type = MSG_RESULT,
		.result = {.stamp = stamp,
			.eval_id = g->eval_id,
			.eval_first = g->eval_first,
			.eval_count = g->eval_count}};

	(void)step_message(c, &m, MSG_ACK);
}

void serial_run(struct sim *s, float w[SIM_PORTIONS])
{
	struct core_config cfg = s->cfg;
	const struct data_id data = {
		.n_train = s->n_train, .n_test = 7, .rows = 1, .cols = 1, .classes = 2, .xxh3 = 1};
	struct msg hello = {.type = MSG_HELLO, .hello = {.role = ROLE_WORKER, .data = data}};
	struct msg lease = {.type = MSG_LEASE};
	uint64_t seq = 0;

	cfg.durable = 0;
	cfg.engine = cfg.engine ? &s->serial_engine.engine : NULL;
	cfg.leases.min_workers = cfg.leases.max_batches = 1;
	memset(w, 0, SIM_PORTIONS * sizeof(*w));
	memset(s->server.spare, 0, cfg.n_params * sizeof(float));
	void *memory = mem_must(core_bytes(&cfg), 1, "the serial run");
	struct core *c = core_init(memory, &cfg, s->server.spare);
	lease.lease.stamp = step_message(c, &hello, MSG_WELCOME)->welcome.stamp;
	for (uint64_t request = 1; request < 1000000; request++) {
		lease.lease.request = request;
		const struct msg *m = step_message(c, &lease, MSG_GRANT);
		if (!m)
			break; /* the run is over */
		const struct msg_grant g = m->grant;
		if (g.kind == GRANT_EVAL)
			evaluate_portion(c, lease.lease.stamp, &g);
		else
			push_one_portion(s, c, lease.lease.stamp, &g, ++seq);
	}
	memcpy(w, core_weights(c), cfg.n_params * sizeof(float));
	free(memory);
}
