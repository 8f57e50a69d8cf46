/* node_server.c - the server of the simulator: the real core in a shell of virtual sockets and a
 * virtual disk. */
#include <stdlib.h>
#include <math.h>
#include <string.h>
#include "tests/sim/sim.h"

static size_t total(const size_t size[IMAGE_SECTIONS])
{
	size_t n = 0;

	for (int i = 0; i < IMAGE_SECTIONS; i++)
		n += size[i];
	return n;
}

static int load(struct sim *s, const struct core_config *cfg, struct core **out)
{
	const unsigned char *data[IMAGE_SECTIONS], *at = s->disk.image;
	const char *why = "";

	for (int i = 0; i < IMAGE_SECTIONS; i++) {
		data[i] = at;
		at += s->disk.size[i];
	}
	if (image_read(s->server.memory, s->server.weights[0], cfg, data, s->disk.size, out,
		    &why) == 0)
		return 1;
	sim_violation(s, "a good image was refused: %s", why);
	return 0;
}

static void write_image(struct sim *s, unsigned char *out, size_t size[IMAGE_SECTIONS])
{
	for (int i = 0; i < IMAGE_SECTIONS; i++) {
		size[i] = image_size(s->server.core, (enum image_section)i);
		image_write(s->server.core, (enum image_section)i, out);
		out += size[i];
	}
}

static void commit(struct sim *s)
{
	struct sim_server *v = &s->server;

	memcpy(s->disk.image, v->saving, total(v->saving_size));
	memcpy(s->disk.size, v->saving_size, sizeof(v->saving_size));
	s->disk.generation = v->saving_generation;
}

void server_start(struct sim *s)
{
	struct sim_server *v = &s->server;

	v->life = ++s->lives;
	v->saving_generation = 0;
	s->cfg.epoch = ++v->epoch;
	s->cfg.generation = s->disk.generation + 1;
	if (s->disk.generation == 0) {
		memset(v->weights[0], 0, sizeof(v->weights[0]));
		v->core = core_init(v->memory, &s->cfg, v->weights[0]);
	} else if (!load(s, &s->cfg, &v->core)) {
		return;
	}
	/* the epoch is on disk before anybody can speak to us */
	write_image(s, s->disk.image, s->disk.size);
	s->disk.generation = s->cfg.generation;
	sim_trace(s, "server starts epoch=%llu version=%llu", (unsigned long long)v->epoch,
		(unsigned long long)core_stats(v->core)->version);
	net_at(&s->net, s->net.now_ms,
		(struct item){.what = HAPPEN_TICK, .node = SIM_SERVER, .life = v->life});
	for (uint32_t node = 1; node <= s->n_workers; node++)
		if (s->tell_lost_links || net_chance(&s->net, 300))
			worker_relink(s, node);
}

void server_crash(struct sim *s)
{
	struct sim_server *v = &s->server;

	if (!v->core || v->finished)
		return;
	sim_trace(
		s, "server crashes version=%llu", (unsigned long long)core_stats(v->core)->version);
	/* the rename may have been done with nobody told */
	if (v->saving_generation && !v->written && !v->save_will_fail && net_chance(&s->net, 500))
		commit(s);
	v->core = NULL;
	v->life = 0;
	s->crashes++;
	net_at(&s->net, s->net.now_ms + 50 + net_below(&s->net, 1500),
		(struct item){.what = HAPPEN_START, .node = SIM_SERVER});
}

static void snapshot(struct sim *s, uint64_t generation)
{
	struct sim_server *v = &s->server;

	if (v->saving_generation)
		sim_violation(s, "two snapshots at once");
	write_image(s, v->saving, v->saving_size);
	v->saving_generation = generation;
	v->written = 0;
	v->save_will_fail = s->net.now_ms < s->faults_end_ms && net_chance(&s->net, s->save_fails);
	net_at(&s->net, s->net.now_ms + 1 + net_below(&s->net, s->save_ms),
		(struct item){.what = HAPPEN_SAVED, .node = SIM_SERVER, .life = v->life});
}

/* The disk is done; the loop hears of it a little later, as from a thread pool. */
void server_saved(struct sim *s, const struct item *it)
{
	struct sim_server *v = &s->server;
	struct event ev = {.kind = EVENT_DURABLE, .generation = v->saving_generation};

	if (!v->written) {
		if (!v->save_will_fail)
			commit(s);
		v->written = 1;
		net_at(&s->net, s->net.now_ms + net_below(&s->net, 5), *it);
		return;
	}
	if (v->save_will_fail)
		ev.kind = EVENT_SAVE_FAILED;
	v->saving_generation = 0;
	server_event(s, &ev);
}

static const char *const names[MSG_TYPES] = {"?", "HELLO", "WELCOME", "PULL", "PARAMS", "PUSH",
	"ACK", "LEASE", "GRANT", "RESULT", "BEAT", "BYE", "STATUS", "ADMIN", "ERROR"};

static void send(struct sim *s, const struct effect *e)
{
	uint32_t node = worker_of_link(s, e->peer);
	struct msg m;

	if (e->msg.type == MSG_ACK)
		sim_trace(s, "server -> %u ACK seq=%llu verdict=%d reject=%d dup=%u durable=%llu",
			node, (unsigned long long)e->msg.ack.seq, e->msg.ack.verdict,
			e->msg.ack.reject, e->msg.ack.duplicate,
			(unsigned long long)e->msg.ack.durable_seq);
	else
		sim_trace(s, "server -> %u %s status=%d", node, names[e->msg.type],
			e->msg.type == MSG_ERROR ? e->msg.error.status : 0);
	if (!node)
		return;
	if (e->msg.type == MSG_PARAMS) { /* the values are looked up when they are needed */
		m.type = MSG_PARAMS;
		m.params.request = e->msg.params.request;
		m.params.version = e->msg.params.version;
		m.params.which = e->msg.params.which;
		m.params.slices.n = 0;
		net_send(&s->net, node, 0,
			(struct item){
				.node = node, .life = s->worker[node - 1].life, .link = e->peer},
			&m);
		return;
	}
	net_send(&s->net, node, 0,
		(struct item){.node = node, .life = s->worker[node - 1].life, .link = e->peer},
		&e->msg);
}

/* The weights as the workers may pull them in this step. */
static void remember(struct sim *s)
{
	const struct core *c = s->server.core;
	uint64_t version = core_stats(c)->version;
	struct sim_version *v = sim_version(s, s->cfg.epoch, version);

	if (s->cfg.optim.kind != OPTIM_LBFGS || (v->version == version && v->epoch == s->cfg.epoch))
		return;
	v->version = version;
	v->epoch = s->cfg.epoch;
	memcpy(v->w, core_weights(c), s->cfg.n_params * sizeof(float));
}

void server_event(struct sim *s, const struct event *ev)
{
	uint32_t gone[64];
	size_t n_gone = 0;

	struct sim_server *v = &s->server;

	if (!v->core)
		return;
	core_lend(v->core, v->weights[core_weights(v->core) == v->weights[0]]);
	core_step(v->core, ev, s->net.now_ms);
	remember(s);
	for (size_t i = 0; core_effect(s->server.core, i); i++) {
		const struct effect *e = core_effect(s->server.core, i);

		switch (e->kind) {
		case EFFECT_SEND:
			if (!worker_of_link(s, e->peer) && n_gone < 64)
				gone[n_gone++] = e->peer;
			send(s, e);
			break;
		case EFFECT_SNAPSHOT:
			snapshot(s, e->generation);
			break;
		case EFFECT_FINISH:
			sim_trace(s, "server finishes status=%d", e->status);
			s->server.finished = 1;
			break;
		case EFFECT_EPOCH:
		case EFFECT_STATUS:
			break;
		}
	}
	while (n_gone && ev->kind != EVENT_PEER_GONE)
		server_event(s, &(struct event){.kind = EVENT_PEER_GONE, .peer = gone[--n_gone]});
}

/* ---- verdict ----------------------------------------------------------------------------------
 */

static void ledger_gradient(struct sim *s, const float *w)
{
	for (uint32_t i = 0; i < s->n_coordinates; i++) {
		int once = w[i] == -1.0f, never = w[i] == 0.0f;

		if (!once && !never)
			sim_violation(s, "push %u was applied %g times", i, (double)-w[i]);
		else if (s->fate[i] == FATE_MUST && !once)
			sim_violation(s, "push %u is lost", i);
		else if (s->fate[i] == FATE_REJECTED && !never)
			sim_violation(s, "push %u was applied though rejected", i);
	}
}

static void images_ledger(struct sim *s, const struct core *c)
{
	for (uint32_t e = 0; e < s->cfg.epochs; e++)
		if (core_epoch(c, e)->images != s->n_train || core_epoch(c, e)->eval_done != 7)
			sim_violation(s, "epoch %u has %llu images of %u, %u evaluated of 7", e,
				(unsigned long long)core_epoch(c, e)->images, s->n_train,
				core_epoch(c, e)->eval_done);
}

static void batch_ledger(struct sim *s, const struct core *c)
{
	const float *w = core_weights(c);

	for (uint32_t i = 0; i < s->cfg.n_params; i++)
		if (w[i] != -1.0f)
			sim_violation(s, "batch %u was counted %g times", i, (double)-w[i]);
}

/* As a run without faults ends. */
static void serial_ledger(struct sim *s, const struct core *c)
{
	const float *w = core_weights(c);
	float expected[SIM_PORTIONS];

	memcpy(s->server.weights[1], w, s->cfg.n_params * sizeof(float));
	serial_run(s, s->server.saving, expected);
	w = s->server.weights[1];
	for (uint32_t i = 0; i < s->cfg.n_params; i++)
		if (!(fabs((double)w[i] - (double)expected[i]) <= 2e-4 * (1 + fabs((double)w[i]))))
			sim_violation(s, "weight %u is %.9g; without faults it is %.9g", i,
				(double)w[i], (double)expected[i]);
}

void server_verdict(struct sim *s)
{
	struct core *c = NULL;

	if (!load(s, &s->cfg, &c))
		return;
	if (s->training)
		images_ledger(s, c);
	if (s->cfg.optim.kind == OPTIM_LBFGS)
		serial_ledger(s, c);
	else if (s->training)
		batch_ledger(s, c);
	else
		ledger_gradient(s, core_weights(c));
}
