/* random_workers.c - see random_workers.h. */
#include "tests/support/random_workers.h"

static uint32_t random_peer(uint32_t i)
{
	return 10 * (i + 1);
}

/* Push a gradient of 1 at one coordinate. If the run has a data set, the coordinate depends on the
 * batch and the epoch; otherwise it is random. */
static void random_push(struct random_workers *k, uint32_t i)
{
	const struct msg_grant *g = &k->grant[i];
	uint32_t at = (uint32_t)rng_below(&k->r, 4), epoch = core_training_epoch(k->f.core);
	struct msg m = fixture_push(k->s[i], fixture_worker(&k->f, i + 1).last_seq + 1);

	m.push.base_version = core_stats(k->f.core)->version;
	if (rng_below(&k->r, 10) && g->kind == GRANT_TRAIN &&
		g->work.count) { /* in nine of ten cases, push a batch of the worker's own grant */
		at = g->work.first + (uint32_t)rng_below(&k->r, g->work.count);
		epoch = g->work.epoch;
	}
	if (k->f.cfg.training.epochs && epoch >= k->f.cfg.training.epochs)
		return;
	if (k->f.cfg.training.epochs)
		fixture_work(&m, epoch, at, 1);
	fixture_slice(&m, (epoch * 4 + at) % FIXTURE_PARAMS, 1, fixture_ones);
	fixture_message(&k->f, random_peer(i), &m);
}

static void random_result(struct random_workers *k, uint32_t i)
{
	const struct msg_grant *g = &k->grant[i];
	struct msg m = {.type = MSG_RESULT};

	m.result = (struct msg_result){.stamp = k->s[i],
		.eval_id = g->eval_id,
		.eval_first = g->eval_first,
		.eval_count = g->eval_count,
		.correct = g->eval_count / 2,
		.loss_sum = 0.25 * g->eval_count};
	fixture_message(&k->f, random_peer(i), &m);
}

static void random_act(struct random_workers *k, uint32_t i)
{
	struct msg m = fixture_resume(k->s[i], fixture_worker(&k->f, i + 1).last_seq, 0);

	switch (rng_below(&k->r, 6)) {
	case 0:
		m.hello.data = core_data(k->f.core)->n_train ? *core_data(k->f.core) : fixture_data;
		fixture_message(&k->f, random_peer(i), &m);
		break;
	case 1:
		fixture_heartbeat(&k->f, random_peer(i) + 1, k->s[i]);
		break;
	case 2:
		random_result(k, i);
		break;
	case 3:
		fixture_lease(&k->f, random_peer(i), k->s[i], k->request[i] += rng_below(&k->r, 2));
		break;
	default:
		random_push(k, i);
	}
}

static void random_receive(struct random_workers *k)
{
	for (uint32_t i = 0; i < RANDOM_WORKERS; i++) {
		const struct msg *m = fixture_sent(&k->f, random_peer(i), MSG_GRANT);

		if (m)
			k->grant[i] = m->grant;
		m = fixture_sent(&k->f, random_peer(i), MSG_WELCOME);
		if (m)
			k->s[i] = m->welcome.stamp;
	}
}

void random_step(struct random_workers *k)
{
	uint64_t dice = rng_below(&k->r, 100);

	if (dice < 6)
		fixture_tick(&k->f, rng_below(&k->r, 400));
	else if (dice < 16 && k->f.saving)
		fixture_saved(&k->f, rng_below(&k->r, 4) ? EVENT_DURABLE : EVENT_SAVE_FAILED);
	else if (dice == 16)
		fixture_restart(&k->f);
	else
		random_act(k, (uint32_t)rng_below(&k->r, RANDOM_WORKERS));
	random_receive(k);
}

void random_join(struct random_workers *k)
{
	for (uint32_t i = 0; i < RANDOM_WORKERS; i++)
		k->s[i] = fixture_join(&k->f, random_peer(i), i ? "" : "anna");
}
