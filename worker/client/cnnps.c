/* cnnps.c - see cnnps.h. Every call is one request of net.h. */
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
#define TRIES 3                             /* maximum of consecutive pulls with a wrong checksum */

_Static_assert(PS_EUNREACHABLE == CNNPS_EUNREACHABLE && PS_EFENCED == CNNPS_EFENCED &&
		       PS_EAUTH == CNNPS_EAUTH && PS_ESHUTDOWN == CNNPS_ESHUTDOWN &&
		       PS_EDONE == CNNPS_EDONE && PS_EAGAIN == CNNPS_EAGAIN,
	"cnnps.h repeats numbers of common/err.h");
_Static_assert((int)MODE_DOWNPOUR == CNNPS_DOWNPOUR && (int)MODE_SSP == CNNPS_SSP &&
		       (int)MODE_SYNC == CNNPS_SYNC && (int)MODE_SANDBLASTER == CNNPS_SANDBLASTER &&
		       (int)MODE_EASGD == CNNPS_EASGD,
	"cnnps.h repeats numbers of proto/msg.h");

/* The term of each pulled version: after a crash the server may reuse a version number. */
enum { PULLS = 16 };
struct pulled {
	uint64_t version, term;
};

struct cnnps {
	struct net *net;
	int observer;
	struct cnnps_info info;
	struct msg_welcome welcome; /* the first WELCOME */
	char server[256];
	struct pool *pool;
	float *gradient;        /* lent to the program, or NULL */
	int has_staging;        /* copy received weights to memory from options.take ... */
	float *staging;         /* ... at this address; NULL: not allocated yet */
	struct arrival awaited; /* weights of cnnps_await, or empty */
	zmq_msg_t view;         /* weights lent to the program */
	struct pulled pulled[PULLS];
	size_t n_pulled;        /* in total; number i is at i % PULLS */
	struct request request; /* the newest request */
};

static struct request *new_request(struct cnnps *c, enum request_kind kind)
{
	memset(&c->request, 0, sizeof(c->request));
	c->request.kind = kind;
	return &c->request;
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
	int rc;

	*n = (struct net_config){
		.batch_timeout_ms = or_default(o->batch_timeout_ms, 60000),
		.replay_bytes = or_default(o->replay_bytes, (uint64_t)256 << 20),
		.stop = o->stop,
		.stop_arg = o->stop_arg,
		.report = o->report,
		.report_arg = o->report_arg,
	};
	s->role = o->observer ? ROLE_OBSERVER : ROLE_WORKER;
	s->pid = info_process(s->host, sizeof(s->host));
	s->data = (struct data_id){.n_train = o->data.n_train,
		.n_test = o->data.n_test,
		.rows = o->data.rows,
		.cols = o->data.cols,
		.classes = o->data.classes,
		.xxh3 = o->data.xxh3,
		.channels = o->data.channels};
	s->connect_timeout_ms = or_default(o->connect_timeout_ms, 30000);
	s->disconnect_timeout_ms = or_default(o->disconnect_timeout_ms, 600000);
	s->retry_ms = RETRY_MS;
	s->silence_ms = SILENCE_MS;
	if (uv_random(NULL, NULL, &s->seed, sizeof(s->seed), 0, NULL))
		s->seed = clock_ms();
	if ((rc = copy_text(s->name, sizeof(s->name), o->name, "name", e)))
		return rc;
	return copy_text(s->device, sizeof(s->device), o->device, "device", e);
}

static int connect_session(struct cnnps *c, const struct cnnps_options *o, struct err *e)
{
	struct net_config cfg;
	int rc = configure(&cfg, o, e);

	if (rc || (rc = copy_text(c->server, sizeof(c->server), o->server, "server", e)))
		return rc;
	cfg.server = c->server;
	cfg.key = o->key;
	cfg.server_key = o->server_key;
	c->observer = o->observer;
	c->has_staging = o->take != NULL;
	if ((rc = net_new(&c->net, &cfg, e)))
		return rc;
	c->request.kind = REQUEST_CONNECT;
	rc = net_request(c->net, &c->request);
	if (rc)
		return err_set(e, rc, "%s", c->request.why);
	c->welcome = c->request.welcome;
	c->info = info_of(&c->welcome);
	if (pool_new_in(&c->pool, c->info.n_params, o->take, o->give))
		return err_set(e, PS_ENOMEM, "no memory for gradients");
	return PS_OK;
}

int cnnps_connect(struct cnnps **out, struct cnnps_options *o)
{
	struct cnnps *c = mem_try(1, sizeof(*c));
	struct err e = {0};
	int rc = PS_ENOMEM;

	*out = NULL;
	if (c) {
		(void)zmq_msg_init(&c->view);
		rc = connect_session(c, o, &e);
	}
	o->why[0] = '\0';
	if (rc) {
		snprintf(o->why, sizeof(o->why), "%s", e.text[0] ? e.text : err_text(rc));
		cnnps_close(&c);
		return rc;
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
	if ((*c)->staging)
		pool_give((*c)->pool, &(*c)->staging);
	pool_free(&(*c)->pool);
	free(*c);
	*c = NULL;
}

/* ---- pulls: weights from a message to the program -------------------------------------------- */

static void note_pull(struct cnnps *c, const struct arrival *a)
{
	size_t newest = c->n_pulled ? c->n_pulled - 1 : 0;

	if (!c->n_pulled || c->pulled[newest % PULLS].version != a->params.version)
		newest = c->n_pulled++;
	c->pulled[newest % PULLS] = (struct pulled){a->params.version, a->term};
}

/* The term of the newest pull of `version`; 0: unknown. */
static uint64_t term_of_pull(const struct cnnps *c, uint64_t version)
{
	for (size_t i = c->n_pulled; i > 0 && i + PULLS > c->n_pulled; i--)
		if (c->pulled[(i - 1) % PULLS].version == version)
			return c->pulled[(i - 1) % PULLS].term;
	return 0;
}

/* Get unverified weights: those of cnnps_await, or else of a new pull. */
static int await_weights(struct cnnps *c, enum weights which, struct arrival *to)
{
	struct request *o;
	int rc;

	if (which == WEIGHTS_CURRENT && c->awaited.frames.n) {
		arrival_move(to, &c->awaited);
		return PS_OK;
	}
	o = new_request(c, REQUEST_PULL);
	o->pull.which = which;
	if (!(rc = net_request(c->net, o)))
		arrival_move(to, &o->pull.got);
	return rc;
}

/* Verify weights and copy them to `to` unless it is NULL. PS_EPROTO: wrong checksum; pull again. */
static int verify_weights(struct arrival *a, float *to)
{
	int rc = wire_values(&a->frames, &a->params, to);

	if (rc)
		log_warn("net", "dropped", "why=\"wrong tensor checksum\"");
	return rc;
}

static void release_view(struct cnnps *c)
{
	(void)zmq_msg_close(&c->view);
	(void)zmq_msg_init(&c->view);
}

/* 1 if the weights are one frame of aligned floats, which the program can use in place. */
static int is_one_frame(struct arrival *a)
{
	return a->params.slices.n == 1 &&
	       (uintptr_t)zmq_msg_data(&a->frames.frame[1]) % sizeof(float) == 0;
}

/* Verify weights and make them c->view. Their place is memory from options.take, or else the
 * received message, or else a new message. */
static int set_view(struct cnnps *c, struct arrival *a)
{
	int rc;

	if (c->has_staging && !c->staging)
		c->staging = pool_take(c->pool);
	if (c->staging) {
		rc = verify_weights(a, c->staging);
		return rc ? rc : pool_send(c->pool, &c->staging, &c->view);
	}
	if (is_one_frame(a)) {
		rc = verify_weights(a, NULL);
		(void)zmq_msg_move(&c->view, &a->frames.frame[1]);
		return rc;
	}
	if (zmq_msg_init_size(&c->view, c->info.n_params * sizeof(float)))
		return PS_ENOMEM;
	return verify_weights(a, zmq_msg_data(&c->view));
}

/* Pull into `to`, or into c->view if `to` is NULL. */
static int pull_verified(struct cnnps *c, enum weights which, float *to, struct arrival *a)
{
	int rc = PS_EPROTO;

	for (int i = 0; i < TRIES && rc == PS_EPROTO; i++) {
		if (!to)
			release_view(c);
		if ((rc = await_weights(c, which, a)))
			return rc;
		rc = to ? verify_weights(a, to) : set_view(c, a);
		frames_release(&a->frames);
	}
	if (rc == PS_EPROTO)
		snprintf(c->request.why, sizeof(c->request.why),
			"the weights had a wrong checksum %d times: check the memory of this "
			"machine and of the server's",
			TRIES);
	else if (!rc && which == WEIGHTS_CURRENT)
		note_pull(c, a);
	return rc;
}

static int pull_into(struct cnnps *c, float *w, size_t n, uint64_t *version, enum weights which)
{
	struct arrival a;
	int rc = n == c->info.n_params ? pull_verified(c, which, w, &a) : PS_EUSAGE;

	if (!rc && version)
		*version = a.params.version;
	return rc;
}

int cnnps_pull(struct cnnps *c, float *w, size_t n, uint64_t *version)
{
	return pull_into(c, w, n, version, WEIGHTS_CURRENT);
}

int cnnps_view(struct cnnps *c, struct cnnps_weights *w)
{
	struct arrival a;
	int rc = pull_verified(c, WEIGHTS_CURRENT, NULL, &a);

	if (!rc)
		*w = (struct cnnps_weights){.w = zmq_msg_data(&c->view),
			.version = a.params.version,
			.term = a.term,
			.elastic = a.params.elastic};
	return rc;
}

int cnnps_await(struct cnnps *c)
{
	return c->awaited.frames.n ? PS_OK : await_weights(c, WEIGHTS_CURRENT, &c->awaited);
}

int cnnps_prefetch(struct cnnps *c)
{
	return net_request(c->net, new_request(c, REQUEST_PREFETCH));
}

int cnnps_pull_eval(struct cnnps *c, float *w, size_t n, uint64_t *version)
{
	return pull_into(c, w, n, version, WEIGHTS_EVAL);
}

/* ---- pushes ---------------------------------------------------------------------------------- */

float *cnnps_gradient(struct cnnps *c)
{
	if (!c->gradient)
		c->gradient = pool_take(c->pool);
	return c->gradient;
}

/* Make the tensor of a push, which all transmissions share. It is a copy of `g`, or the buffer of
 * cnnps_gradient itself. */
static int make_tensor(
	struct cnnps *c, struct request *o, const float *g, uint64_t offset, size_t n)
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

static int push_slice(struct cnnps *c, uint64_t offset, const float *g, size_t n, uint64_t version,
	const struct cnnps_work *work, int then_pull)
{
	struct request *o = new_request(c, REQUEST_PUSH);
	int rc;

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
	if ((rc = make_tensor(c, o, g, offset, n)))
		return rc;
	rc = net_request(c->net, o);
	zmq_msg_close(&o->push.tensor); /* empty if net_request took it over */
	return rc;
}

int cnnps_push(struct cnnps *c, const float *g, size_t n, uint64_t version)
{
	return cnnps_push_work(c, g, n, version, NULL);
}

int cnnps_push_work(
	struct cnnps *c, const float *g, size_t n, uint64_t version, const struct cnnps_work *work)
{
	return n == c->info.n_params ? push_slice(c, 0, g, n, version, work, 0) : PS_EUSAGE;
}

int cnnps_push_view(struct cnnps *c, const float *g, size_t n, uint64_t version,
	const struct cnnps_work *work, struct cnnps_weights *w)
{
	int then_pull = !c->awaited.frames.n, rc;

	if (n != c->info.n_params)
		return PS_EUSAGE;
	release_view(c);
	if ((rc = push_slice(c, 0, g, n, version, work, then_pull)))
		return rc;
	if (then_pull)
		arrival_move(&c->awaited, &c->request.pull.got);
	return cnnps_view(c, w);
}

int cnnps_push_slice(struct cnnps *c, uint64_t offset, const float *g, size_t n, uint64_t version)
{
	return push_slice(c, offset, g, n, version, NULL, 0);
}

/* ---- the other calls ------------------------------------------------------------------------- */

void cnnps_alive(struct cnnps *c)
{
	net_alive(c->net);
}

int cnnps_lease(struct cnnps *c, struct cnnps_lease *lease)
{
	struct request *o = new_request(c, REQUEST_LEASE);
	int rc;

	if (c->observer)
		return PS_EUSAGE;
	if ((rc = net_request(c->net, o)))
		return rc;
	*lease = lease_of(&o->lease.grant, o->lease.term);
	return PS_OK;
}

int cnnps_result(
	struct cnnps *c, const struct cnnps_lease *lease, uint32_t correct, double loss_sum)
{
	struct request *o = new_request(c, REQUEST_RESULT);

	if (c->observer || lease->kind != CNNPS_EVAL)
		return PS_EUSAGE;
	o->result = (struct msg_result){.eval_id = lease->eval_id,
		.eval_first = lease->first,
		.eval_count = lease->count,
		.correct = correct,
		.loss_sum = loss_sum};
	return net_request(c->net, o);
}

int cnnps_flush(struct cnnps *c, int durable, uint32_t timeout_ms)
{
	struct request *o = new_request(c, REQUEST_FLUSH);

	o->durable = durable;
	o->deadline_ms = clock_ms() + timeout_ms;
	return net_request(c->net, o);
}

int cnnps_status(struct cnnps *c, char *json, size_t size)
{
	struct request *o = new_request(c, REQUEST_STATUS);

	o->report.json = json;
	o->report.size = size;
	return net_request(c->net, o);
}

int cnnps_checkpoint(struct cnnps *c, uint64_t *generation)
{
	struct request *o = new_request(c, REQUEST_ADMIN);
	int rc;

	o->admin.verb = ADMIN_CHECKPOINT;
	rc = net_request(c->net, o);
	if (!rc && generation)
		*generation = o->admin.generation;
	return rc;
}

int cnnps_drain(struct cnnps *c)
{
	struct request *o = new_request(c, REQUEST_ADMIN);
	int rc;

	o->admin.verb = ADMIN_DRAIN;
	rc = net_request(c->net, o);
	return rc == PS_ESHUTDOWN || rc == PS_EDONE ? PS_OK
						    : rc; /* the server ended before it answered */
}

int cnnps_log_level(struct cnnps *c, const char *level)
{
	struct request *o = new_request(c, REQUEST_ADMIN);

	o->admin.verb = ADMIN_LOG_LEVEL;
	for (int i = LOG_ERROR; i <= LOG_DEBUG; i++)
		if (!strcmp(level, log_level_name((enum log_level)i)))
			o->admin.level = (enum wire_log_level)(i + LOG_LEVEL_ERROR);
	return o->admin.level ? net_request(c->net, o) : PS_EUSAGE;
}

void cnnps_stats(const struct cnnps *c, struct cnnps_stats *s)
{
	net_stats(c->net, s);
}

const char *cnnps_why(const struct cnnps *c)
{
	return c->request.why;
}

const char *cnnps_strerror(int rc)
{
	return err_text(rc);
}
