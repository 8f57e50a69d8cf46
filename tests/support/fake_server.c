/* fake_server.c - see fake_server.h. */
#include "tests/support/fake_server.h"

static struct stamp fake_stamp(const struct fake *f)
{
	return (struct stamp){.run = {1, 2}, .term = f->term, .worker = 1, .incarnation = 1};
}

static void fake_send(struct fake *f, uint32_t peer, const struct msg *m)
{
	struct frames out;
	unsigned char *values;

	if (f->how.garbage) {
		frames_init(&out);
		zmq_msg_init_size(&out.frame[out.n++], 9);
		memset(zmq_msg_data(&out.frame[0]), 0xff, 9);
		if (wire_send(f->socket, peer, &out))
			frames_release(&out);
	}
	if (wire_encode(m, &out))
		return;
	if (m->type == MSG_PARAMS && f->how.damaged_pulls > 0) {
		f->how.damaged_pulls--;
		values = zmq_msg_data(&out.frame[out.n - 1]);
		values[0] ^= 1;
	}
	if (wire_send(f->socket, peer, &out))
		frames_release(&out);
}

static uint64_t fake_durable(const struct fake *f)
{
	return f->how.not_durable ? 0 : f->seen.last_seq;
}

static void fake_welcome(struct fake *f, uint32_t peer)
{
	struct msg m = {.type = MSG_WELCOME};

	m.welcome = (struct msg_welcome){.stamp = fake_stamp(f),
		.last_seq = f->seen.last_seq,
		.durable_seq = fake_durable(f),
		.model_fingerprint = 3,
		.n_params = FAKE_PARAMS,
		.seed = 4,
		.batch = 5,
		.epochs = f->how.epochs,
		.push_window = f->how.push_window,
		.replay_window = f->how.replay_window,
		.heartbeat_ms = 100,
		.dead_ms = 2000,
		.session_ttl_ms = 60000,
		.mode = f->how.mode,
		.n_push = f->how.n_push,
		.n_fetch = f->how.n_fetch,
		.push_sum = f->how.push_sum,
		.prefetch = f->how.prefetch,
		.validate = f->how.validate,
		.wire = f->how.only_fp32 ? ENCODING_NONE : f->seen.hello.wire,
		.local_rate = f->how.local_rate,
		.momentum = f->how.momentum};
	snprintf(m.welcome.model, sizeof(m.welcome.model), "%s", f->how.model);
	if (f->seen.hello.role == ROLE_OBSERVER)
		m.welcome.stamp.worker = m.welcome.stamp.incarnation = 0;
	fake_send(f, peer, &m);
}

/* Send the weights, which are the start weights minus the sum of all pushes. If `ack` is not NULL,
 * the PARAMS also contains this ACK. */
static void fake_pull(struct fake *f, uint32_t peer, uint64_t request, enum weights which,
	const struct msg_ack *ack)
{
	struct msg m = {.type = MSG_PARAMS};
	float w[FAKE_PARAMS];

	f->seen.pulls++;
	if (f->how.mute_pulls)
		return;
	for (int i = 0; i < FAKE_PARAMS; i++)
		w[i] = f->how.start[i] - f->seen.sum[i];
	m.params.request = request;
	m.params.version = f->seen.last_seq;
	m.params.elastic = f->how.elastic / (1 + f->seen.pulls % 3);
	m.params.which = which;
	if (ack)
		m.params.ack = *ack;
	m.params.slices.n = 1;
	m.params.slices.slice[0] = (struct slice){
		.offset = 0, .count = FAKE_PARAMS, .encoding = ENCODING_F32, .data = w};
	if (f->how.two_slices) {
		m.params.slices.n = 2;
		m.params.slices.slice[0].count = 2;
		m.params.slices.slice[1] = (struct slice){.offset = 2,
			.count = FAKE_PARAMS - 2,
			.encoding = ENCODING_F32,
			.data = w + 2};
	}
	if (which == WEIGHTS_CURRENT && f->seen.hello.wire == ENCODING_BF16)
		for (uint32_t i = 0; i < m.params.slices.n; i++)
			m.params.slices.slice[i].encoding = ENCODING_BF16;
	fake_send(f, peer, &m);
}

static void fake_apply(struct fake_seen *s, const struct msg_push *p)
{
	const struct slice *slice = &p->slices.slice[0];
	struct fake_push *made = &s->made[(p->seq - 1) % FAKE_PUSHES];

	*made = (struct fake_push){.base_version = p->base_version,
		.base_term = p->base_term,
		.work = p->work,
		.images = p->images,
		.loss = p->loss,
		.pulls = s->pulls,
		.requested = p->pull != 0};
	for (uint64_t i = 0; i < slice->count; i++) {
		s->sum[slice->offset + i] += slice->data[i];
		made->g[slice->offset + i] = slice->data[i];
	}
	s->last_seq = p->seq;
}

static void fake_push(struct fake *f, uint32_t peer, const struct msg_push *p)
{
	struct fake_seen *s = &f->seen;
	const struct slice *slice = &p->slices.slice[0];
	struct msg m = {.type = MSG_ACK};

	s->seq[s->pushes % FAKE_PUSHES] = p->seq;
	s->hash[s->pushes++ % FAKE_PUSHES] = slice->xxh3;
	s->push = *p;
	if (f->how.mute_pushes || p->seq > s->last_seq + 1)
		return;
	m.ack.duplicate = p->seq <= s->last_seq;
	if (!m.ack.duplicate)
		fake_apply(s, p);
	m.ack.seq = p->seq;
	m.ack.term = f->term;
	m.ack.verdict = f->how.reject ? VERDICT_REJECTED : VERDICT_OK;
	m.ack.reject = (enum reject)f->how.reject;
	m.ack.superseded = (uint32_t)f->how.superseded;
	m.ack.version = s->last_seq;
	m.ack.durable_seq = fake_durable(f);
	int joins = f->how.joined_acks && p->pull;
	if (!f->how.mute_acks && !joins)
		fake_send(f, peer, &m);
	if (p->pull)
		fake_pull(f, peer, p->pull, WEIGHTS_CURRENT, joins ? &m.ack : NULL);
}

static void fake_lease(struct fake *f, uint32_t peer, const struct msg_lease *l)
{
	struct msg grant = {.type = MSG_GRANT};
	struct msg bye = {.type = MSG_BYE, .bye = {.stamp = fake_stamp(f), .status = f->how.bye}};

	grant.grant.request = l->request;
	grant.grant.kind = f->seen.leases % 2 ? GRANT_TRAIN : GRANT_EVAL;
	if (grant.grant.kind == GRANT_TRAIN)
		grant.grant.work = (struct work){.epoch = 1, .first = 20, .count = 3};
	else {
		grant.grant.eval_first = 50;
		grant.grant.eval_count = 25;
		grant.grant.eval_id = 9;
	}
	if (f->how.n_grants && l->request > f->how.n_grants)
		bye.bye.status = PS_EDONE;
	else if (f->how.n_grants) {
		grant.grant = f->how.grants[l->request - 1];
		grant.grant.request = l->request;
	}
	if (bye.bye.status)
		fake_send(f, peer, &bye);
	else if (!f->how.mute_leases)
		fake_send(f, peer, &grant);
	if (f->seen.leases == f->how.mute_leases_after)
		f->how.mute_leases = 1;
}

static void fake_heartbeat(struct fake *f, uint32_t peer)
{
	struct msg m = {.type = MSG_HEARTBEAT};

	m.heartbeat = (struct msg_heartbeat){.stamp = fake_stamp(f),
		.last_seq = f->seen.last_seq,
		.durable_seq = fake_durable(f)};
	fake_send(f, peer, &m);
}

static void fake_error(struct fake *f, uint32_t peer, int status)
{
	struct msg m = {.type = MSG_ERROR};

	m.error.status = status;
	m.error.text = f->how.controls ? "\033]0;x\007 a\u202eb\xc2\x9b"
					 "2J\u00e9"
				       : "the fake server says so";
	fake_send(f, peer, &m);
}

static void fake_answer(struct fake *f, uint32_t peer, const struct msg *m)
{
	struct fake_seen *s = &f->seen;
	struct msg reply = {.type = m->type};

	switch (m->type) {
	case MSG_HELLO:
		s->hellos++;
		s->hello = m->hello;
		if (!f->how.status)
			fake_welcome(f, peer);
		break;
	case MSG_PULL:
		fake_pull(f, peer, m->pull.request, m->pull.which, NULL);
		break;
	case MSG_PUSH:
		fake_push(f, peer, &m->push);
		break;
	case MSG_LEASE:
		s->leases++;
		fake_lease(f, peer, &m->lease);
		break;
	case MSG_RESULT:
		s->results++;
		s->result = m->result;
		break;
	case MSG_HEARTBEAT:
		s->heartbeats++;
		s->time = m->heartbeat.time;
		fake_heartbeat(f, peer);
		break;
	case MSG_STATUS:
		reply.status.reply = 1;
		reply.status.text = FAKE_JSON;
		fake_send(f, peer, &reply);
		break;
	case MSG_ADMIN:
		reply.admin.verb = m->admin.verb;
		reply.admin.reply = 1;
		reply.admin.generation = 12;
		if (f->how.refuse_admin)
			fake_error(f, peer, PS_EUSAGE);
		else
			fake_send(f, peer, &reply);
		break;
	case MSG_BYE:
		s->byes++;
		reply.bye.stamp = fake_stamp(f);
		fake_send(f, peer, &reply);
		break;
	default:
		break;
	}
	if (f->how.status)
		fake_error(f, peer, f->how.status);
}

/* ---- the thread ----------------------------------------------------------------------------- */

static void fake_bind(struct fake *f, const char *url)
{
	int linger = 0;
	size_t size = sizeof(f->url);

	f->socket = zmq_socket(f->context, ZMQ_ROUTER);
	zmq_setsockopt(f->socket, ZMQ_LINGER, &linger, sizeof(linger));
	/* retry: the port of the previous socket may stay busy for a moment */
	for (int i = 0; zmq_bind(f->socket, url) && i < 100; i++)
		zmq_poll(NULL, 0, 20);
	zmq_getsockopt(f->socket, ZMQ_LAST_ENDPOINT, f->url, &size);
}

static void fake_come_back(struct fake *f)
{
	char url[sizeof(f->url)];

	memcpy(url, f->url, sizeof(url));
	zmq_close(f->socket);
	if (f->forget) {
		f->term++;
		f->seen.last_seq = 0;
		memset(f->seen.sum, 0, sizeof(f->seen.sum));
	}
	fake_bind(f, url);
	f->hang_up = 0;
}

static void fake_take_all(struct fake *f)
{
	struct frames in;
	struct msg m;
	uint32_t peer;

	while (wire_recv(f->socket, &peer, &in) == 1) {
		const char *why = "";

		if (wire_decode(f->wire, &in, &m, &why))
			fail_msg("the library sent what is no message: %s", why);
		fake_answer(f, peer, &m);
		frames_release(&in);
	}
}

static void *fake_run(void *arg)
{
	struct fake *f = arg;
	int stop = 0;

	while (!stop) {
		zmq_pollitem_t item = {.socket = f->socket, .events = ZMQ_POLLIN};

		zmq_poll(&item, 1, 5);
		pthread_mutex_lock(&f->mutex);
		if (f->hang_up)
			fake_come_back(f);
		else
			fake_take_all(f);
		stop = f->stop;
		pthread_cond_broadcast(&f->changed);
		pthread_mutex_unlock(&f->mutex);
	}
	zmq_close(f->socket);
	return NULL;
}

/* ---- the test's side ------------------------------------------------------------------------ */

void fake_start(struct fake *f)
{
	memset(f, 0, sizeof(*f));
	f->term = 1;
	f->how = (struct fake_how){.push_window = 8,
		.replay_window = 16,
		.model = "vector:6",
		.epochs = 2,
		.mode = MODE_DOWNPOUR,
		.n_push = 1,
		.n_fetch = 1};
	f->context = zmq_ctx_new();
	assert_int_equal(wire_new(&f->wire, FAKE_PARAMS), 0);
	fake_bind(f, "tcp://127.0.0.1:*");
	assert_string_not_equal(f->url, "");
	pthread_mutex_init(&f->mutex, NULL);
	pthread_cond_init(&f->changed, NULL);
	assert_int_equal(pthread_create(&f->thread, NULL, fake_run, f), 0);
}

void fake_stop(struct fake *f)
{
	pthread_mutex_lock(&f->mutex);
	f->stop = 1;
	pthread_mutex_unlock(&f->mutex);
	pthread_join(f->thread, NULL);
	zmq_ctx_term(f->context);
	wire_free(&f->wire);
	pthread_cond_destroy(&f->changed);
	pthread_mutex_destroy(&f->mutex);
}

int fake_happens(struct fake *f, int (*enough)(const struct fake *), int seconds)
{
	struct timespec deadline;
	int late = 0;

	clock_gettime(CLOCK_REALTIME, &deadline);
	deadline.tv_sec += seconds;
	pthread_mutex_lock(&f->mutex);
	while (!enough(f) && !late)
		late = pthread_cond_timedwait(&f->changed, &f->mutex, &deadline);
	pthread_mutex_unlock(&f->mutex);
	return !late;
}

void fake_wait(struct fake *f, int (*enough)(const struct fake *), const char *what)
{
	if (!fake_happens(f, enough, 20))
		fail_msg("waited in vain for %s", what);
}

int fake_has_pull(const struct fake *f)
{
	return f->seen.pulls >= 1;
}

void fake_set(struct fake *f, int *how, int value)
{
	pthread_mutex_lock(&f->mutex);
	*how = value;
	pthread_mutex_unlock(&f->mutex);
}

void fake_behave(struct fake *f, struct fake_how how)
{
	pthread_mutex_lock(&f->mutex);
	f->how = how;
	pthread_mutex_unlock(&f->mutex);
}

struct fake_seen fake_read_seen(struct fake *f)
{
	struct fake_seen seen;

	pthread_mutex_lock(&f->mutex);
	seen = f->seen;
	pthread_mutex_unlock(&f->mutex);
	return seen;
}

static int fake_is_back(const struct fake *f)
{
	return !f->hang_up;
}

void fake_hang_up(struct fake *f, int forget)
{
	pthread_mutex_lock(&f->mutex);
	f->hang_up = 1;
	f->forget = forget;
	pthread_mutex_unlock(&f->mutex);
	fake_wait(f, fake_is_back, "the fake server to bind again");
}
