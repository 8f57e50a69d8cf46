/*
 * hostile.c - runs with hostile workers (`sim --hostile`). Each worker has a key. One or two more
 * workers, with keys of their own, are hostile. A hostile worker has the whole state of the
 * server, for example worker ids, incarnations, terms and the work under way, but no secret of the
 * server. It sends any message that a server decodes, and follows no rule of the protocol.
 *
 * The verdicts on the honest workers are those of other runs, with four additions: the server
 * accepts a push of a hostile worker only if it has granted the batches to this worker; no honest
 * worker is fenced, outvoted or in quarantine because of a hostile one; the worker id of one key
 * never goes to another key; and the run ends as diverged only if most of the keys are bad or, with
 * fewer than three keys, if most of the workers are bad. A hostile worker may deliver any values
 * for batches that it was granted, so the simulator does not check the coordinates of these
 * batches.
 */
#include <math.h>
#include <string.h>
#include "proto/wire.h"
#include "server/core/core_state.h"
#include "server/core/workers.h"
#include "tests/sim/sim.h"

/* in a run without a data set, hostile workers push only to the last OWN_COORDINATES coordinates,
 * which no honest worker changes */
#define OWN_COORDINATES 64u

/* ---- random choices -------------------------------------------------------------------------- */

static uint64_t below(struct sim *s, uint64_t bound)
{
	return rng_below(&s->hostile_rng, bound);
}

static int hostile_chance(struct sim *s, uint32_t per_mille)
{
	return below(s, 1000) < per_mille;
}

/* Returns a number near `n`, or any number. */
static uint64_t number_near(struct sim *s, uint64_t n)
{
	switch (below(s, 6)) {
	case 0:
		return rng_next(&s->hostile_rng);
	case 1:
		return UINT64_MAX;
	case 2:
		return 0;
	case 3:
		return n + below(s, 4);
	default:
		return n;
	}
}

static double wild(struct sim *s)
{
	static const double value[] = {
		0, -1, 1, 1e-30, 1e15, -1e30, 1e38, (double)NAN, (double)INFINITY};

	return value[below(s, sizeof(value) / sizeof(value[0]))];
}

/* ---- messages -------------------------------------------------------------------------------- */

/* Returns 1 if a server that receives this message decodes it. */
static int is_decoded(struct sim *s, const struct msg *m)
{
	static struct msg decoded;
	struct frames f;

	frames_init(&f);
	int rc = wire_encode(m, &f);
	if (!rc)
		rc = wire_decode(s->wire, &f, &decoded, NULL);
	frames_release(&f);
	return rc == PS_OK;
}

/* Sends a message, unless the server would not decode it. */
static void transmit(struct sim *s, uint32_t node, uint32_t link, const struct msg *m)
{
	if (!link || !is_decoded(s, m))
		return;
	s->hostile_messages++;
	sim_trace(s, "hostile %u sends type=%d", node, m->type);
	net_send(&s->net, node, 1,
		&(struct item){.node = SIM_SERVER,
			.from = node,
			.process = s->server.process,
			.link = link},
		m);
}

static void retain_message(struct hostile_session *h, const struct msg *m)
{
	struct msg *to = &h->retained[h->n_retained++ % HOSTILE_RETAINED];

	to->type = m->type;
	if (m->type == MSG_RESULT)
		to->result = m->result;
	else
		memcpy(&to->push, &m->push,
			(size_t)((const char *)&m->push.slices.slice[m->push.slices.n] -
				 (const char *)&m->push));
}

static struct msg *any_retained(struct sim *s, struct hostile_session *h)
{
	uint32_t n = h->n_retained < HOSTILE_RETAINED ? h->n_retained : HOSTILE_RETAINED;

	return n ? &h->retained[below(s, n)] : NULL;
}

static struct msg hostile_hello(struct sim *s)
{
	struct msg m;

	memset(&m.hello, 0, sizeof(m.hello));
	m.type = MSG_HELLO;
	m.hello.role = ROLE_WORKER;
	m.hello.tensors = s->tensors;
	if (s->training)
		m.hello.data = (struct data_id){.n_train = s->n_train,
			.n_test = 7,
			.rows = 1,
			.cols = 1,
			.classes = 2,
			.xxh3 = 1};
	return m;
}

/* Opens connections for this session and says HELLO as a new process. */
static void hostile_join(struct sim *s, uint32_t node, struct hostile_session *h)
{
	struct msg m = hostile_hello(s);

	if (s->hostile[node - SIM_FIRST_HOSTILE].kind == HOSTILE_REJOINER)
		m.hello.name[0] = 'r'; /* without a name, each process would have another slot */
	h->link = (uint32_t)++s->links;
	h->heartbeat = (uint32_t)++s->links;
	h->only_heartbeats = 0;
	h->request = 0;
	h->grant.request = 0;
	h->wait_until_ms = s->net.now_ms + 200;
	h->joins++;
	transmit(s, node, h->link, &m);
}

static void hostile_resume(struct sim *s, uint32_t node, struct hostile_session *h, uint64_t claim)
{
	struct msg m = hostile_hello(s);

	m.hello.resume = h->stamp;
	m.hello.last_seq = claim;
	h->wait_until_ms = s->net.now_ms + 200;
	transmit(s, node, h->link, &m);
}

static void hostile_heartbeat(struct sim *s, uint32_t node, const struct hostile_session *h)
{
	struct msg m = {.type = MSG_HEARTBEAT};

	m.heartbeat.stamp = h->stamp;
	transmit(s, node, h->heartbeat, &m);
}

static void hostile_lease(struct sim *s, uint32_t node, struct hostile_session *h)
{
	struct msg m = {.type = MSG_LEASE};

	m.lease.stamp = h->stamp;
	m.lease.request = ++h->request;
	transmit(s, node, h->link, &m);
}

static void hostile_pull(struct sim *s, uint32_t node, const struct hostile_session *h)
{
	struct msg m = {.type = MSG_PULL};

	m.pull.stamp = h->stamp;
	m.pull.request = 1;
	m.pull.which = WEIGHTS_CURRENT;
	transmit(s, node, h->link, &m);
}

/* Makes a push of the batches `work`. The values of the push are only at the coordinates of the
 * batches, so that the ledgers of the honest workers stay exact. */
static struct msg *hostile_push_of(
	struct sim *s, struct hostile *o, struct hostile_session *h, struct work work, double value)
{
	static struct msg m;
	uint32_t per_epoch = hostile_batches(s),
		 first = sim_first_batch(s) + work.epoch * per_epoch + work.first;
	uint32_t count = work.count;

	if (!s->training) {
		work = (struct work){0};
		first = SIM_COORDINATES - OWN_COORDINATES;
		count = 1;
	}
	memset(&m.push, 0, offsetof(struct msg_push, slices));
	m.type = MSG_PUSH;
	m.push.stamp = h->stamp;
	m.push.seq = h->seq + 1;
	m.push.base_version = h->version;
	m.push.base_term = h->version_term;
	m.push.work = work;
	m.push.grant_first = h->grant.work.first;
	m.push.grant_count = h->grant.work.count;
	m.push.grant_code = h->grant.code;
	m.push.slices.n = 0;
	for (uint32_t i = 0; i < SIM_PORTIONS; i++)
		o->value[i] = (float)value;
	if (s->training && work.first < per_epoch && work.count <= per_epoch - work.first)
		m.push.images = sim_images(s, work.first, work.count);
	if (count <= SIM_PORTIONS && first < s->cfg.n_params && count <= s->cfg.n_params - first &&
		count)
		m.push.slices.slice[m.push.slices.n++] = (struct slice){.offset = first,
			.count = count,
			.encoding = ENCODING_F32,
			.data = o->value};
	return &m;
}

static void hostile_send_push(
	struct sim *s, uint32_t node, struct hostile_session *h, struct msg *m)
{
	retain_message(h, m);
	h->seq = m->push.seq;
	transmit(s, node, h->link, m);
}

static struct msg hostile_result(struct hostile_session *h, uint32_t correct, double loss)
{
	struct msg m = {.type = MSG_RESULT};

	m.result = (struct msg_result){.stamp = h->stamp,
		.eval_id = h->grant.eval_id,
		.eval_first = h->grant.eval_first,
		.eval_count = h->grant.eval_count,
		.correct = correct,
		.loss_sum = loss,
		.metric_sum = {h->grant.eval_count},
		.code = h->grant.code};
	return m;
}

/* ---- answers --------------------------------------------------------------------------------- */

static void forget(struct hostile_session *h, uint64_t until_ms)
{
	h->stamp = (struct stamp){.worker = 0};
	h->link = h->heartbeat = 0;
	h->wait_until_ms = until_ms;
}

static void on_hostile_error(
	struct sim *s, uint32_t node, struct hostile_session *h, const struct msg_error *e)
{
	switch (e->status) {
	case PS_EGAP:
		h->seq = e->expected - 1;
		break;
	case PS_ETERM:
	case PS_ESTATE:
		if (h->stamp.worker)
			hostile_resume(s, node, h, h->seq);
		break;
	case PS_EAGAIN:
		break;
	default:
		forget(h, s->net.now_ms + 500 + below(s, 2000));
	}
}

static void on_hostile_ack(struct hostile_session *h, const struct msg_ack *a)
{
	for (uint32_t i = 0; i < HOSTILE_RETAINED && i < h->n_retained; i++) {
		struct msg_push *p = &h->retained[i].push;

		if (h->retained[i].type != MSG_PUSH || p->seq != a->seq)
			continue;
		p->verdict = a->verdict;
		p->reject = a->reject;
		p->superseded = a->superseded;
		p->code = a->code;
	}
}

static void on_hostile_message(
	struct sim *s, uint32_t node, struct hostile_session *h, const struct msg *m)
{
	switch (m->type) {
	case MSG_WELCOME:
		h->old_stamp = h->stamp;
		h->stamp = m->welcome.stamp;
		h->seq = m->welcome.last_seq;
		h->wait_until_ms = 0;
		break;
	case MSG_GRANT:
		h->grant = m->grant;
		break;
	case MSG_PARAMS:
		h->version = m->params.version;
		h->version_term = h->stamp.term;
		if (m->params.ack.seq)
			on_hostile_ack(h, &m->params.ack);
		break;
	case MSG_ACK:
		on_hostile_ack(h, &m->ack);
		break;
	case MSG_ERROR:
		on_hostile_error(s, node, h, &m->error);
		break;
	case MSG_BYE:
		forget(h, s->net.now_ms + 500);
		break;
	default:
		break;
	}
}

/* ---- the seven kinds of hostile workers ------------------------------------------------------ */

/* Returns any work of the run, which may be granted to another worker. */
static struct work any_work(struct sim *s)
{
	const struct core *c = s->server.core;
	uint32_t n = c && c->leases.n_batches ? c->leases.n_batches : 1;
	struct work w = {.epoch = c ? c->leases.epoch : 0,
		.first = (uint32_t)below(s, n),
		.count = 1 + (uint32_t)below(s, 2)};

	if (hostile_chance(s, 200))
		w.epoch += (uint32_t)below(s, 2);
	return w;
}

static void forge(struct sim *s, uint32_t node, struct hostile *o, struct hostile_session *h)
{
	struct msg *m = hostile_push_of(s, o, h, any_work(s), hostile_chance(s, 500) ? 1 : 0);
	struct msg r;

	m->push.base_version =
		number_near(s, s->server.core ? core_stats(s->server.core)->version : 0);
	m->push.base_term = hostile_chance(s, 800) ? s->cfg.term : number_near(s, s->cfg.term);
	if (hostile_chance(s, 500)) {
		m->push.verdict = hostile_chance(s, 700) ? VERDICT_OK : VERDICT_REJECTED;
		m->push.code = rng_next(&s->hostile_rng);
	}
	if (hostile_chance(s, 300))
		m->push.grant_code = rng_next(&s->hostile_rng);
	m->push.grant_first = m->push.work.first;
	m->push.grant_count = m->push.work.count;
	if (hostile_chance(s, 100))
		m->push.seq += below(s, 3);
	hostile_send_push(s, node, h, m);
	r = hostile_result(h, 0, 0);
	r.result.eval_id = s->server.core ? s->server.core->leases.epoch : 1;
	r.result.eval_first = s->cfg.leases.eval_images * (uint32_t)below(s, 3);
	r.result.eval_count = 1 + (uint32_t)below(s, 7);
	/* nearly the true loss, because two equal false results would become the result of the
	 * evaluation */
	r.result.loss_sum = r.result.eval_count;
	transmit(s, node, h->link, &r);
}

/* Returns the stamp of a worker slot, as an observer could guess it. */
static struct stamp stamp_of_slot(struct sim *s, uint32_t i)
{
	const struct core *c = s->server.core;

	return (struct stamp){.run = s->cfg.run,
		.term = hostile_chance(s, 700) ? s->cfg.term : s->cfg.term - 1,
		.worker = i + 1,
		.incarnation = c ? c->worker[i].session.incarnation + (uint32_t)below(s, 2) : 1};
}

static void steal(struct sim *s, uint32_t node, struct hostile *o, struct hostile_session *h)
{
	struct msg m = hostile_hello(s), *p;
	struct stamp other = stamp_of_slot(s, (uint32_t)below(s, SIM_SLOTS));
	struct hostile_session fake = *h;

	fake.stamp = other;
	switch (below(s, 6)) {
	case 0:
		m.hello.resume = other;
		m.hello.last_seq = number_near(s, 3);
		m.hello.durable_seq = hostile_chance(s, 500) ? 0 : below(s, 4);
		transmit(s, node, hostile_chance(s, 500) ? h->link : (uint32_t)++s->links, &m);
		break;
	case 1: /* the name of an honest worker */
		m.hello.name[0] = (char)('a' + 1 + below(s, SIM_WORKERS));
		h->link = (uint32_t)++s->links;
		h->request = 0;
		transmit(s, node, h->link, &m);
		break;
	case 2:
		p = hostile_push_of(s, o, &fake, any_work(s), 1);
		p->push.seq = s->server.core
				      ? s->server.core->worker[other.worker - 1].ledger.last_seq + 1
				      : 1;
		transmit(s, node, h->link, p);
		break;
	case 3:
		m = (struct msg){.type = MSG_BYE};
		m.bye.stamp = other;
		transmit(s, node, h->link, &m);
		break;
	case 4:
		fake.request = number_near(s, 5);
		hostile_lease(s, node, &fake);
		break;
	default:
		fake.heartbeat = h->link;
		hostile_heartbeat(s, node, &fake);
	}
}

/* Delivers the work of the newest grant: a gradient of `value` with the loss `loss`, or a result.
 * Returns 0 if the session has no grant to deliver. */
static int deliver_work(struct sim *s, uint32_t node, struct hostile *o, struct hostile_session *h,
	double value, float loss)
{
	struct msg_grant *g = &h->grant;
	struct msg *m;

	if (!g->request || !s->training)
		return 0;
	if (g->kind == GRANT_EVAL) {
		struct msg r = hostile_result(h,
			o == s->hostile && hostile_chance(s, 500) ? g->eval_count : 1,
			o == s->hostile && hostile_chance(s, 300) ? 1e300 : g->eval_count);

		retain_message(h, &r);
		transmit(s, node, h->link, &r);
		g->request = 0;
		return 1;
	}
	/* in these modes the values of one push also change the coordinates of other workers */
	if ((s->mode == SIM_LBFGS || s->mode == SIM_EASGD) && isfinite(value) && isfinite(loss))
		return 0;
	struct work w = {g->work.epoch, g->work.first, g->exact ? g->work.count : 1};
	m = hostile_push_of(s, o, h, w, value);
	m->push.loss = loss;
	hostile_send_push(s, node, h, m);
	g->work.first += w.count;
	g->work.count -= w.count;
	if (!g->work.count)
		g->request = 0;
	return 1;
}

static void send_poison(struct sim *s, uint32_t node, struct hostile *o, struct hostile_session *h)
{
	double value = wild(s), loss = hostile_chance(s, 800) ? 0 : wild(s);

	if (s->mode == SIM_LBFGS || s->mode == SIM_EASGD)
		value = loss = (double)NAN;
	if (!s->training) {
		struct msg *m = hostile_push_of(s, o, h, (struct work){0}, value);

		m->push.loss = (float)loss;
		hostile_send_push(s, node, h, m);
		return;
	}
	if (!deliver_work(s, node, o, h, value, (float)loss)) {
		hostile_pull(s, node, h);
		hostile_lease(s, node, h);
	}
}

static void hostile_replay(
	struct sim *s, uint32_t node, struct hostile *o, struct hostile_session *h)
{
	struct msg *m = any_retained(s, h);

	if (hostile_chance(s, 400) || !m) {
		if (!s->training)
			hostile_send_push(
				s, node, h, hostile_push_of(s, o, h, (struct work){0}, 1));
		else if (!deliver_work(s, node, o, h, 1, 0)) {
			hostile_pull(s, node, h);
			hostile_lease(s, node, h);
		}
		return;
	}
	if (m->type == MSG_RESULT) {
		m->result.stamp = h->stamp;
		transmit(s, node, h->link, m);
		return;
	}
	m->push.stamp = hostile_chance(s, 900) ? h->stamp : h->old_stamp;
	if (hostile_chance(s, 500))
		m->push.seq = h->seq + 1;
	if (hostile_chance(s, 300))
		m->push.base_version = h->version;
	if (hostile_chance(s, 200))
		m->push.verdict = VERDICT_OK;
	if (m->push.seq == h->seq + 1)
		h->seq++;
	transmit(s, node, h->link, m);
	if (hostile_chance(s, 100))
		hostile_resume(s, node, h, h->seq + below(s, 50));
}

static void hoard(struct sim *s, uint32_t node, struct hostile_session *h)
{
	if (h->only_heartbeats)
		return;
	hostile_lease(s, node, h);
	if (hostile_chance(s, 300))
		hostile_pull(s, node, h);
	if (!hostile_chance(s, 200))
		return;
	/* close the connection after the request, and continue with heartbeats on the other one */
	server_event(s, &(struct event){.kind = EVENT_PEER_GONE, .peer = h->link});
	h->link = 0;
	h->only_heartbeats = 1;
}

static void join_again(struct sim *s, uint32_t node, struct hostile_session *h)
{
	if (h->request) {
		hostile_join(s, node, h);
		return;
	}
	hostile_lease(s, node, h);
	h->wait_until_ms = s->net.now_ms + 100 + below(s, 2000);
}

/* Returns a version for which the server rejects a gradient. This is a version that no server has
 * had. In modes that count only gradients of the current version, it can also be an old version. */
static uint64_t stale_version(struct sim *s)
{
	int exact = s->mode == SIM_SYNC || s->mode == SIM_SANDBLASTER;
	int begun = s->server.core && core_stats(s->server.core)->version > 0;

	return exact && begun && hostile_chance(s, 300) ? 0 : 1ull << 40;
}

/* Requests work, and delivers for it, slowly, gradients that the server rejects as stale. The
 * deliveries keep the server from ending the grant, and the work is never done. */
static void stall(struct sim *s, uint32_t node, struct hostile *o, struct hostile_session *h)
{
	struct msg_grant *g = &h->grant;
	struct work w = {g->work.epoch, g->work.first, g->exact ? g->work.count : 1};

	h->wait_until_ms = s->net.now_ms + 100 + below(s, 1500);
	if (s->training && !g->request) {
		hostile_lease(s, node, h);
		return;
	}
	if (g->kind == GRANT_EVAL) {
		g->request = 0;
		return;
	}
	struct msg *m = hostile_push_of(s, o, h, w, 1);
	m->push.base_version = stale_version(s);
	m->push.base_term = s->cfg.term;
	hostile_send_push(s, node, h, m);
	g->work.first += w.count;
	g->work.count -= w.count;
	if (!g->work.count)
		g->request = 0;
}

/* ---- events ---------------------------------------------------------------------------------- */

static void act_as_hostile(
	struct sim *s, uint32_t node, struct hostile *o, struct hostile_session *h)
{
	if (!h->stamp.worker || (!h->link && !h->only_heartbeats)) {
		/* a new session gets new leases, which delays the run: workers of other kinds join
		 * only a few times */
		if (s->net.now_ms >= h->wait_until_ms &&
			(h->joins < 6 || o->kind == HOSTILE_REJOINER))
			hostile_join(s, node, h);
		return;
	}
	hostile_heartbeat(s, node, h);
	if (s->net.now_ms < h->wait_until_ms)
		return;
	switch (o->kind) {
	case HOSTILE_FORGER:
		forge(s, node, o, h);
		break;
	case HOSTILE_THIEF:
		steal(s, node, o, h);
		break;
	case HOSTILE_POISONER:
		send_poison(s, node, o, h);
		break;
	case HOSTILE_REPLAYER:
		hostile_replay(s, node, o, h);
		break;
	case HOSTILE_HOARDER:
		hoard(s, node, h);
		break;
	case HOSTILE_STALLER:
		stall(s, node, o, h);
		break;
	case HOSTILE_REJOINER:
		join_again(s, node, h);
		break;
	case HOSTILE_KINDS:
		break;
	}
}

void hostile_happen(struct sim *s, const struct item *it)
{
	struct hostile *o = &s->hostile[it->node - SIM_FIRST_HOSTILE];
	uint32_t n = o->kind == HOSTILE_HOARDER ? HOSTILE_SESSIONS : 1;

	if (it->what == HAPPEN_MESSAGE) {
		for (uint32_t i = 0; i < n; i++)
			if (hostile_has_link(&o->session[i], it->link))
				on_hostile_message(s, it->node, &o->session[i], it->msg);
		return;
	}
	if (it->what != HAPPEN_TICK)
		return;
	for (uint32_t i = 0; i < n; i++)
		act_as_hostile(s, it->node, o, &o->session[i]);
	net_at(&s->net, s->net.now_ms + 20 + below(s, 60),
		&(struct item){.what = HAPPEN_TICK, .node = it->node});
}

void hostile_begin(struct sim *s)
{
	s->hostile_rng = rng_seed(s->seed, RNG_SIM, 5);
	s->hostile_messages = s->hostile_accepted = 0;
	memset(s->foreign_batch, 0, sizeof(s->foreign_batch));
	for (uint32_t i = 0; i < s->n_hostile; i++) {
		struct hostile *o = &s->hostile[i];

		memset(o->granted, 0, sizeof(o->granted));
		for (uint32_t k = 0; k < HOSTILE_SESSIONS; k++) {
			struct hostile_session *h = &o->session[k];

			forget(h, 0);
			h->seq = h->request = h->version = h->version_term = 0;
			h->grant = (struct msg_grant){0};
			h->old_stamp = h->stamp;
			h->n_retained = h->joins = 0;
			h->only_heartbeats = 0;
		}
		net_at(&s->net, below(s, 1500),
			&(struct item){.what = HAPPEN_TICK, .node = SIM_FIRST_HOSTILE + i});
	}
}

/* ---- the server's shell ---------------------------------------------------------------------- */

static void send_refusal(struct sim *s, uint32_t link, int status, const char *why)
{
	struct msg m;

	m.type = MSG_ERROR;
	m.error = (struct msg_error){.status = status, .text = why};
	sim_send(s, link, &m);
}

static uint32_t key_node(const struct sim *s, uint32_t node)
{
	return node > SIM_WORKERS && node <= SIM_WORKERS + SIM_TWINS ? s->worker[node - 1].key
								     : node;
}

/* Returns 1 if a slot for this worker would exceed its key's share of the slots. server/dispatch.c
 * makes the same check. */
static int is_over_key_share(struct sim *s, uint32_t peer, const struct msg_hello *m)
{
	uint32_t keys = s->n_workers + s->n_hostile, share = (SIM_SLOTS + keys - 1) / keys,
		 used = 0;
	int resumes = (m->resume.run.hi | m->resume.run.lo) != 0;
	struct worker_view v;

	for (uint32_t i = 0; i < SIM_SLOTS; i++) {
		core_worker(s->server.core, i, &v);
		if (v.state == SESSION_FREE || v.state == SESSION_DEAD ||
			strcmp(v.owner, m->owner) != 0)
			continue;
		if (resumes ? v.worker == m->resume.worker
			    : v.peer == peer || (m->name[0] && strcmp(v.name, m->name) == 0))
			return 0;
		used++;
	}
	return used >= share;
}

int hostile_admit(struct sim *s, struct item *it)
{
	char key[KEY_TEXT];
	const char *why;

	if (!s->n_hostile)
		return 1;
	hostile_key(key, key_node(s, it->from));
	int rc = roles_check(s->roles, KEY_WORKER, it->link, key, it->msg, &why);
	if (rc) {
		/* a late message of a process that has ended is checked with the key of the next
		 * process of its node, so it may be refused; no process waits for the answer */
		int honest = !hostile_is(it->from) && worker_of_link(s, it->link) == it->from;

		if (honest && !s->disk.broken)
			sim_violation(s, "honest worker %u is refused: %s", it->from, why);
		send_refusal(s, it->link, rc, why);
		return 0;
	}
	if (it->msg->type != MSG_HELLO)
		return 1;
	memcpy(it->msg->hello.owner, key, KEY_TEXT);
	if (!is_over_key_share(s, it->link, &it->msg->hello))
		return 1;
	send_refusal(s, it->link, PS_EFULL, "");
	return 0;
}
