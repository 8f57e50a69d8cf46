/* cnnps.c - see cnnps.h: the program's side of the border. Every call is one order. */
#include "worker/client/cnnps.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>
#include <zmq.h>
#include "common/clock.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/pool.h"
#include "worker/client/info.h"
#include "worker/client/net.h"

enum { RETRY_MS = 500, SILENCE_MS = 5000 }; /* see struct session_config */
#define TRIES 3 /* pulls whose weights have a wrong checksum, one after the other */

_Static_assert(PS_EUNREACHABLE == CNNPS_EUNREACHABLE && PS_EFENCED == CNNPS_EFENCED &&
		       PS_EAUTH == CNNPS_EAUTH && PS_ESHUTDOWN == CNNPS_ESHUTDOWN &&
		       PS_EDONE == CNNPS_EDONE && PS_EAGAIN == CNNPS_EAGAIN,
	"cnnps.h repeats numbers of common/err.h");
_Static_assert((int)MODE_DOWNPOUR == CNNPS_DOWNPOUR && (int)MODE_SSP == CNNPS_SSP &&
		       (int)MODE_SYNC == CNNPS_SYNC && (int)MODE_SANDBLASTER == CNNPS_SANDBLASTER &&
		       (int)MODE_EASGD == CNNPS_EASGD,
	"cnnps.h repeats numbers of proto/msg.h");

/* Versions of before a crash of the server mean other weights than those of after it. */
enum { PULLS = 16 };
struct pulled {
	uint64_t version, term;
};

struct cnnps {
	struct net *net;
	int observer;
	struct cnnps_info info;
	struct msg_welcome welcome; /* the first */
	char server[256];
	struct pool *pool;
	float *gradient;        /* the program's from the pool, or NULL */
	int lands;              /* weights are to lie in the pool's memory ... */
	float *landing;         /* ... in this, or NULL */
	struct arrival awaited; /* by cnnps_await; or empty */
	zmq_msg_t view;         /* weights that the program looks at */
	struct pulled pulled[PULLS];
	size_t n_pulled;    /* so far; number i is at i % PULLS */
	struct order order; /* the one under way, or the newest */
};

static struct order *next_order(struct cnnps *c, enum order_kind kind)
{
	memset(&c->order, 0, sizeof c->order);
	c->order.kind = kind;
	return &c->order;
}

/* ---- connecting ------------------------------------------------------------------------------ */

static int copy_text(char *to, size_t size, const char *from, const char *what, struct err *e)
{
	if (!from)
		from = "";
	if (strlen(from) >= size)
		return err_set(e, PS_EUSAGE, "%s is longer than %zu bytes", what, size - 1);
	memcpy(to, from, strlen(from) + 1);
	return PS_OK;
}

static uint64_t or_default(uint64_t value, uint64_t def)
{
	return value ? value : def;
}

static int configure(struct net_config *n, const struct cnnps_options *o, struct err *e)
{
	struct session_config *s = &n->session;
	int status;

	*n = (struct net_config){
		.hang_ms = or_default(o->hang_ms, 60000),
		.replay_bytes = or_default(o->replay_bytes, (uint64_t)256 << 20),
		.stop = o->stop,
		.stop_arg = o->stop_arg,
		.report = o->report,
		.report_arg = o->report_arg,
	};
	s->role = o->observer ? ROLE_OBSERVER : ROLE_WORKER;
	s->pid = info_process(s->host, sizeof s->host);
	s->data = (struct data_id){.n_train = o->data.n_train,
		.n_test = o->data.n_test,
		.rows = o->data.rows,
		.cols = o->data.cols,
		.classes = o->data.classes,
		.xxh3 = o->data.xxh3};
	s->first_ms = or_default(o->connect_ms, 30000);
	s->patience_ms = or_default(o->patience_ms, 600000);
	s->retry_ms = RETRY_MS;
	s->silence_ms = SILENCE_MS;
	if (uv_random(NULL, NULL, &s->seed, sizeof s->seed, 0, NULL))
		s->seed = clock_ms();
	if ((status = copy_text(s->name, sizeof s->name, o->name, "name", e)))
		return status;
	return copy_text(s->device, sizeof s->device, o->device, "device", e);
}

static int start(struct cnnps *c, const struct cnnps_options *o, struct err *e)
{
	struct net_config cfg;
	int status = configure(&cfg, o, e);

	if (status || (status = copy_text(c->server, sizeof c->server, o->server, "server", e)))
		return status;
	cfg.server = c->server;
	cfg.key = o->key;
	cfg.server_key = o->server_key;
	c->observer = o->observer;
	c->lands = o->take != NULL;
	if ((status = net_new(&c->net, &cfg, e)))
		return status;
	c->order.kind = ORDER_CONNECT;
	status = net_order(c->net, &c->order);
	if (status)
		return err_set(e, status, "%s", c->order.why);
	c->welcome = c->order.welcome;
	c->info = info_of(&c->welcome);
	if (pool_new_in(&c->pool, c->info.n_params, o->take, o->give))
		return err_set(e, PS_ENOMEM, "no memory for gradients");
	return PS_OK;
}

int cnnps_connect(struct cnnps **out, struct cnnps_options *o)
{
	struct cnnps *c = mem_try(1, sizeof *c);
	struct err e = {0};
	int status = PS_ENOMEM;

	*out = NULL;
	if (c) {
		(void)zmq_msg_init(&c->view);
		status = start(c, o, &e);
	}
	o->why[0] = '\0';
	if (status) {
		snprintf(o->why, sizeof o->why, "%s", e.text[0] ? e.text : err_text(status));
		cnnps_close(&c);
		return status;
	}
	*out = c;
	return PS_OK;
}

const struct cnnps_info *cnnps_info(const struct cnnps *c)
{
	return &c->info;
}

void cnnps_close(struct cnnps **c)
{
	if (!*c)
		return;
	(void)zmq_msg_close(&(*c)->view);
	frames_release(&(*c)->awaited.frames);
	net_free(&(*c)->net);
	if ((*c)->gradient)
		pool_give((*c)->pool, &(*c)->gradient);
	if ((*c)->landing)
		pool_give((*c)->pool, &(*c)->landing);
	pool_free(&(*c)->pool);
	free(*c);
	*c = NULL;
}

/* ---- pulls: weights from a message to the program ----------------------------------------------- */

static void note_pull(struct cnnps *c, const struct arrival *a)
{
	size_t newest = c->n_pulled ? c->n_pulled - 1 : 0;

	if (!c->n_pulled || c->pulled[newest % PULLS].version != a->params.version)
		newest = c->n_pulled++;
	c->pulled[newest % PULLS] = (struct pulled){a->params.version, a->term};
}

static uint64_t term_of_pull(const struct cnnps *c, uint64_t version)
{
	for (size_t i = c->n_pulled; i > 0 && i + PULLS > c->n_pulled; i--)
		if (c->pulled[(i - 1) % PULLS].version == version)
			return c->pulled[(i - 1) % PULLS].term;
	return 0;
}

/* Weights as they came: those that were awaited, or of a pull now. */
static int arrive(struct cnnps *c, enum weights which, struct arrival *to)
{
	struct order *o;
	int status;

	if (which == WEIGHTS_CURRENT && c->awaited.frames.n) {
		arrival_move(to, &c->awaited);
		return PS_OK;
	}
	o = next_order(c, ORDER_PULL);
	o->pull.which = which;
	if (!(status = net_order(c->net, o)))
		arrival_move(to, &o->pull.got);
	return status;
}

/* PS_EPROTO: they are as good as lost. */
static int look_through(struct arrival *a, float *to)
{
	int status = wire_values(&a->frames, &a->params, to);

	if (status)
		log_warn("net", "dropped", "why=\"wrong tensor checksum\"");
	return status;
}

static void put_away(struct cnnps *c)
{
	(void)zmq_msg_close(&c->view);
	(void)zmq_msg_init(&c->view);
}

/* One frame of aligned floats, as the program may have it. */
static int is_whole(struct arrival *a)
{
	return a->params.slices.n == 1 &&
	       (uintptr_t)zmq_msg_data(&a->frames.frame[1]) % sizeof(float) == 0;
}

/* Where the program looks at weights: in its own kind of memory, or in the message that came, or in
 * one of our own. */
static int show(struct cnnps *c, struct arrival *a)
{
	int status;

	if (c->lands && !c->landing)
		c->landing = pool_take(c->pool);
	if (c->landing) {
		status = look_through(a, c->landing);
		return status ? status : pool_send(c->pool, &c->landing, &c->view);
	}
	if (is_whole(a)) {
		status = look_through(a, NULL);
		(void)zmq_msg_move(&c->view, &a->frames.frame[1]);
		return status;
	}
	if (zmq_msg_init_size(&c->view, c->info.n_params * sizeof(float)))
		return PS_ENOMEM;
	return look_through(a, zmq_msg_data(&c->view));
}

/* Weights into `to`, or, if that is NULL, where the program looks at them. */
static int bring(struct cnnps *c, enum weights which, float *to, struct arrival *a)
{
	int status = PS_EPROTO;

	for (int i = 0; i < TRIES && status == PS_EPROTO; i++) {
		if (!to)
			put_away(c);
		if ((status = arrive(c, which, a)))
			return status;
		status = to ? look_through(a, to) : show(c, a);
		frames_release(&a->frames);
	}
	if (status == PS_EPROTO)
		snprintf(c->order.why, sizeof c->order.why,
			"%d times weights came with a wrong checksum: is the memory of this "
			"machine "
			"or of the server's in order?",
			TRIES);
	else if (!status && which == WEIGHTS_CURRENT)
		note_pull(c, a);
	return status;
}

static int pull(struct cnnps *c, float *w, size_t n, uint64_t *version, enum weights which)
{
	struct arrival a;
	int status = n == c->info.n_params ? bring(c, which, w, &a) : PS_EUSAGE;

	if (!status && version)
		*version = a.params.version;
	return status;
}

int cnnps_pull(struct cnnps *c, float *w, size_t n, uint64_t *version)
{
	return pull(c, w, n, version, WEIGHTS_CURRENT);
}

int cnnps_view(struct cnnps *c, struct cnnps_weights *w)
{
	struct arrival a;
	int status = bring(c, WEIGHTS_CURRENT, NULL, &a);

	if (!status)
		*w = (struct cnnps_weights){.w = zmq_msg_data(&c->view),
			.version = a.params.version,
			.term = a.term,
			.elastic = a.params.elastic};
	return status;
}

int cnnps_await(struct cnnps *c)
{
	return c->awaited.frames.n ? PS_OK : arrive(c, WEIGHTS_CURRENT, &c->awaited);
}

int cnnps_prefetch(struct cnnps *c)
{
	return net_order(c->net, next_order(c, ORDER_PREFETCH));
}

int cnnps_pull_eval(struct cnnps *c, float *w, size_t n, uint64_t *version)
{
	return pull(c, w, n, version, WEIGHTS_EVAL);
}

/* ---- pushes ------------------------------------------------------------------------------------- */

float *cnnps_gradient(struct cnnps *c)
{
	if (!c->gradient)
		c->gradient = pool_take(c->pool);
	return c->gradient;
}

/* The bytes of every sending of this push: copied, or taken over, once, here. */
static int take_tensor(struct cnnps *c, struct order *o, const float *g, uint64_t offset, size_t n)
{
	struct slices *s = &o->push.meta.slices;

	s->n = 1;
	s->slice[0] = (struct slice){.offset = offset, .count = n, .encoding = ENCODING_F32};
	if (g == c->gradient && n == c->info.n_params)
		return pool_send(c->pool, &c->gradient, &o->push.tensor);
	if (zmq_msg_init_size(&o->push.tensor, n * sizeof(*g)))
		return PS_ENOMEM;
	memcpy(zmq_msg_data(&o->push.tensor), g, n * sizeof(*g));
	return PS_OK;
}

static int push(struct cnnps *c, uint64_t offset, const float *g, size_t n, uint64_t version,
	const struct cnnps_work *work, int then_pull)
{
	struct order *o = next_order(c, ORDER_PUSH);
	int status;

	if (c->observer || n < 1 || offset > c->info.n_params || n > c->info.n_params - offset)
		return PS_EUSAGE;
	o->push.then_pull = then_pull;
	o->pull.which = WEIGHTS_CURRENT;
	o->push.meta.base_version = version;
	o->push.meta.base_term = term_of_pull(c, version);
	if (work) {
		o->push.meta.work = (struct work){work->epoch, work->first, work->count};
		o->push.meta.images = work->images;
		o->push.meta.loss = work->loss;
	}
	if ((status = take_tensor(c, o, g, offset, n)))
		return status;
	status = net_order(c->net, o);
	zmq_msg_close(&o->push.tensor); /* empty if it was taken over */
	return status;
}

int cnnps_push(struct cnnps *c, const float *g, size_t n, uint64_t version)
{
	return cnnps_push_work(c, g, n, version, NULL);
}

int cnnps_push_work(
	struct cnnps *c, const float *g, size_t n, uint64_t version, const struct cnnps_work *work)
{
	return n == c->info.n_params ? push(c, 0, g, n, version, work, 0) : PS_EUSAGE;
}

int cnnps_push_view(struct cnnps *c, const float *g, size_t n, uint64_t version,
	const struct cnnps_work *work, struct cnnps_weights *w)
{
	int then_pull = !c->awaited.frames.n, status;

	if (n != c->info.n_params)
		return PS_EUSAGE;
	put_away(c);
	if ((status = push(c, 0, g, n, version, work, then_pull)))
		return status;
	if (then_pull)
		arrival_move(&c->awaited, &c->order.pull.got);
	return cnnps_view(c, w);
}

int cnnps_push_slice(struct cnnps *c, uint64_t offset, const float *g, size_t n, uint64_t version)
{
	return push(c, offset, g, n, version, NULL, 0);
}

/* ---- the other calls ---------------------------------------------------------------------------- */

void cnnps_alive(struct cnnps *c)
{
	net_alive(c->net);
}

int cnnps_lease(struct cnnps *c, struct cnnps_lease *lease)
{
	struct order *o = next_order(c, ORDER_LEASE);
	int status;

	if (c->observer)
		return PS_EUSAGE;
	if ((status = net_order(c->net, o)))
		return status;
	*lease = lease_of(&o->lease.grant, o->lease.term);
	return PS_OK;
}

int cnnps_result(
	struct cnnps *c, const struct cnnps_lease *lease, uint32_t correct, double loss_sum)
{
	struct order *o = next_order(c, ORDER_RESULT);

	if (c->observer || lease->kind != CNNPS_EVAL)
		return PS_EUSAGE;
	o->result = (struct msg_result){.eval_id = lease->eval_id,
		.eval_first = lease->first,
		.eval_count = lease->count,
		.correct = correct,
		.loss_sum = loss_sum};
	return net_order(c->net, o);
}

int cnnps_flush(struct cnnps *c, int durable, uint32_t timeout_ms)
{
	struct order *o = next_order(c, ORDER_FLUSH);

	o->durable = durable;
	o->deadline_ms = clock_ms() + timeout_ms;
	return net_order(c->net, o);
}

int cnnps_status(struct cnnps *c, char *json, size_t size)
{
	struct order *o = next_order(c, ORDER_STATUS);

	o->report.json = json;
	o->report.size = size;
	return net_order(c->net, o);
}

int cnnps_checkpoint(struct cnnps *c, uint64_t *generation)
{
	struct order *o = next_order(c, ORDER_ADMIN);
	int status;

	o->admin.verb = ADMIN_CHECKPOINT;
	status = net_order(c->net, o);
	if (!status && generation)
		*generation = o->admin.generation;
	return status;
}

int cnnps_drain(struct cnnps *c)
{
	struct order *o = next_order(c, ORDER_ADMIN);
	int status;

	o->admin.verb = ADMIN_DRAIN;
	status = net_order(c->net, o);
	return status == PS_ESHUTDOWN || status == PS_EDONE ? PS_OK : status; /* that was quick */
}

int cnnps_log_level(struct cnnps *c, const char *level)
{
	struct order *o = next_order(c, ORDER_ADMIN);

	o->admin.verb = ADMIN_LOG_LEVEL;
	for (int i = LOG_ERROR; i <= LOG_DEBUG; i++)
		if (!strcmp(level, log_level_name((enum log_level)i)))
			o->admin.level = (enum wire_log_level)(i + LOG_LEVEL_ERROR);
	return o->admin.level ? net_order(c->net, o) : PS_EUSAGE;
}

void cnnps_stats(const struct cnnps *c, struct cnnps_stats *s)
{
	net_stats(c->net, s);
}

const char *cnnps_why(const struct cnnps *c)
{
	return c->order.why;
}

const char *cnnps_strerror(int status)
{
	return err_text(status);
}
