/* weights.c - see cnnps.h: weights on their way from a message to the program. */
#include <stdio.h>
#include "common/log.h"
#include "worker/client/cnnps_impl.h"

#define TRIES 3 /* pulls whose weights have a wrong checksum, one after the other */

static void note_pull(struct cnnps *c, const struct arrival *a)
{
	size_t newest = c->n_pulled ? c->n_pulled - 1 : 0;

	if (!c->n_pulled || c->pulled[newest % PULLS].version != a->params.version)
		newest = c->n_pulled++;
	c->pulled[newest % PULLS] = (struct pulled){a->params.version, a->term};
}

uint64_t cnnps_term_of(const struct cnnps *c, uint64_t version)
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
	o = cnnps_order(c, ORDER_PULL);
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

void cnnps_put_away(struct cnnps *c)
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
			cnnps_put_away(c);
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
	return net_order(c->net, cnnps_order(c, ORDER_PREFETCH));
}

int cnnps_pull_eval(struct cnnps *c, float *w, size_t n, uint64_t *version)
{
	return pull(c, w, n, version, WEIGHTS_EVAL);
}
