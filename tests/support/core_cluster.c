/* core_cluster.c - see core_cluster.h. */
#include "tests/support/core_cluster.h"

uint32_t cluster_images(const struct cluster *k, uint32_t first, uint32_t count)
{
	uint32_t from = first * k->f.cfg.training.batch_size,
		 to = from + count * k->f.cfg.training.batch_size;

	return (to < k->data.n_train ? to : k->data.n_train) - from;
}

void cluster_join(struct cluster *k, uint32_t i)
{
	struct cluster_worker *h = &k->worker[i];
	struct msg m = fixture_hello("");

	*h = (struct cluster_worker){.peer = 100 + 10 * i};
	m.hello.data = k->data;
	fixture_message(&k->f, h->peer, &m);
	for (int try = 0; try < 2 && !fixture_sent(&k->f, h->peer, MSG_WELCOME); try++)
		fixture_durable(&k->f);
	assert_non_null(fixture_sent(&k->f, h->peer, MSG_WELCOME));
	h->s = fixture_sent(&k->f, h->peer, MSG_WELCOME)->welcome.stamp;
}

void cluster_open(struct cluster *k, struct core_config cfg, uint32_t n, uint32_t n_train,
	cluster_gradient_fn *fn)
{
	*k = (struct cluster){.n = n, .data = fixture_data, .fn = fn};
	cfg.sessions.max_workers = CLUSTER_WORKERS;
	k->data.n_train = n_train;
	fixture_open(&k->f, cfg);
	for (uint32_t i = 0; i < n; i++)
		cluster_join(k, i);
}

void cluster_receive(struct cluster *k)
{
	for (uint32_t i = 0; i < k->n; i++) {
		struct cluster_worker *h = &k->worker[i];
		const struct msg *m = fixture_sent(&k->f, h->peer, MSG_GRANT);

		if (!m || m->grant.request != h->request)
			continue;
		h->grant = m->grant;
		h->version = core_stats(k->f.core)->version;
		h->term = h->s.term;
		core_fetch_weights(k->f.core);
		memcpy(h->w, core_weights(k->f.core), k->f.cfg.n_params * sizeof(float));
	}
}

int cluster_request(struct cluster *k, uint32_t i)
{
	struct cluster_worker *h = &k->worker[i];

	h->grant.work.count = 0;
	fixture_lease(&k->f, h->peer, h->s, ++h->request);
	cluster_receive(k);
	return h->grant.kind == GRANT_TRAIN && h->grant.work.count > 0;
}

void cluster_granted(struct cluster *k, uint32_t i, uint32_t first, uint32_t count)
{
	const struct msg_grant *g = &k->worker[i].grant;

	assert_int_equal(g->request, k->worker[i].request);
	assert_int_equal(g->kind, GRANT_TRAIN);
	assert_int_equal(g->work.first, first);
	assert_int_equal(g->work.count, count);
}

struct msg cluster_gradient(struct cluster *k, uint32_t i, float *g)
{
	struct cluster_worker *h = &k->worker[i];
	struct msg m = fixture_push(h->s, h->seq + 1);
	const struct work *work = &h->grant.work;
	double sum[CLUSTER_PARAMS] = {0}, loss = 0;

	m.push.work = *work;
	m.push.images = cluster_images(k, work->first, work->count);
	m.push.base_version = h->version;
	m.push.base_term = h->term;
	for (uint32_t b = work->first; b < work->first + work->count; b++) {
		double one[CLUSTER_PARAMS] = {0}, part = cluster_images(k, b, 1);

		loss += part * k->fn(b, h->w, one);
		for (size_t j = 0; j < k->f.cfg.n_params; j++)
			sum[j] += part * one[j];
	}
	for (size_t j = 0; j < k->f.cfg.n_params; j++)
		g[j] = (float)(sum[j] / m.push.images);
	m.push.loss = (float)(loss / m.push.images);
	fixture_slice(&m, 0, k->f.cfg.n_params, g);
	return m;
}

enum reject cluster_push(struct cluster *k, uint32_t i)
{
	float g[CLUSTER_PARAMS];
	struct msg m = cluster_gradient(k, i, g);
	struct msg_ack a = fixture_acked(&k->f, k->worker[i].peer, &m);

	k->worker[i].seq++;
	k->worker[i].grant.work.count = 0;
	cluster_receive(k);
	return a.reject;
}

void cluster_evaluate(struct cluster *k, uint32_t i)
{
	struct cluster_worker *h = &k->worker[i];
	struct msg m = {.type = MSG_RESULT};

	m.result = (struct msg_result){.stamp = h->s,
		.eval_id = h->grant.eval_id,
		.eval_first = h->grant.eval_first,
		.eval_count = h->grant.eval_count};
	fixture_message(&k->f, h->peer, &m);
	h->grant = (struct msg_grant){.request = h->request};
	int goes_on =
		fixture_count(&k->f, EFFECT_EVALUATED) && !fixture_count(&k->f, EFFECT_FINISH);
	cluster_receive(k);
	if (goes_on) { /* make a tick after an evaluation, as server/dispatch.c does */
		fixture_tick(&k->f, 0);
		cluster_receive(k);
	}
}

int cluster_act(struct cluster *k, uint32_t i)
{
	struct cluster_worker *h = &k->worker[i];

	if (h->grant.kind == GRANT_EVAL)
		cluster_evaluate(k, i);
	else if (h->grant.work.count)
		cluster_push(k, i);
	else if (h->grant.request == h->request)
		cluster_request(k, i);
	else
		return 0; /* the worker can send nothing, because it waits for an answer */
	return 1;
}

void cluster_run(struct cluster *k, uint32_t n, struct rng *r)
{
	for (int i = 0; i < 1000000; i++) {
		cluster_act(k, r ? (uint32_t)rng_below(r, n) : 0);
		if (fixture_count(&k->f, EFFECT_FINISH))
			return;
	}
	fail_msg("the run does not end");
}

void cluster_restart(struct cluster *k, uint32_t n)
{
	fixture_restart(&k->f);
	for (uint32_t i = 0; i < n; i++) {
		struct cluster_worker *h = &k->worker[i];
		struct msg m = fixture_resume(h->s, h->seq, h->seq);

		m.hello.data = k->data;
		fixture_message(&k->f, h->peer, &m);
		assert_non_null(fixture_sent(&k->f, h->peer, MSG_WELCOME));
		h->s = fixture_sent(&k->f, h->peer, MSG_WELCOME)->welcome.stamp;
		cluster_receive(k);
		if (h->grant.request == h->request)
			continue;
		/* repeat the request that has no answer yet */
		fixture_lease(&k->f, h->peer, h->s, h->request);
		cluster_receive(k);
	}
}

void cluster_close(struct cluster *k)
{
	fixture_close(&k->f);
}

double cluster_ones(uint32_t i, const float *w, double *g)
{
	(void)i;
	(void)w;
	for (size_t j = 0; j < FIXTURE_PARAMS; j++)
		g[j] = 1;
	return 0.5;
}

double cluster_bowl(uint32_t i, const float *w, double *g)
{
	double loss = 0;

	for (size_t j = 0; j < FIXTURE_PARAMS; j++) {
		double k = 1 + (double)((i * 5 + j * 3) % 7);
		double x = (double)w[j] - ((double)((i * 3 + j * 7) % 11) / 5 - 1);

		g[j] = k * x;
		loss += k * x * x / 2;
	}
	return loss;
}
