/* cnnps.c - see cnnps.h. A call that needs the server passes a request to net_request (net.h). */
#include "worker/client/cnnps.h"
#include "worker/client/device.h"
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>
#include <zmq.h>
#include "common/clock.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/pool.h"
#include "common/version.h"
#include "proto/bf16.h"
#include "proto/lane.h"
#include "worker/client/feedback.h"
#include "worker/client/info.h"
#include "worker/client/net.h"
#include "worker/client/pages.h"
#include "worker/client/show.h"

/* values for retry_ms and silence_ms of struct session_config */
enum { RETRY_MS = 500, SILENCE_MS = 5000 };
/* cnnps_pull fails after this number of pulls in a row whose weights had a wrong checksum */
#define TRIES 3

#define X(name, value, exit_code, text)                                                            \
	_Static_assert((int)CNNPS_##name == (value), "cnnps.h repeats the numbers of "             \
						     "common/err.h");
PS_STATUS_MAP(X)
#undef X
_Static_assert((int)CNNPS_LOG_ERROR == (int)LOG_ERROR && (int)CNNPS_LOG_DEBUG == (int)LOG_DEBUG,
	"cnnps.h repeats the numbers of common/log.h");
_Static_assert((int)MODE_DOWNPOUR == CNNPS_DOWNPOUR && (int)MODE_SSP == CNNPS_SSP &&
		       (int)MODE_SYNC == CNNPS_SYNC && (int)MODE_SANDBLASTER == CNNPS_SANDBLASTER &&
		       (int)MODE_EASGD == CNNPS_EASGD,
	"cnnps.h repeats numbers of proto/msg.h");
_Static_assert((int)CNNPS_LANE_AUTO == LANE_AUTO && (int)CNNPS_LANE_TCP == LANE_TCP &&
		       (int)CNNPS_LANE_SHM == LANE_SHM,
	"cnnps.h repeats numbers of proto/lane.h");

/* The library stores the version and the term of this number of newest pulls, and adds the term to
 * each push. The version alone is not enough, because a server may reuse version numbers after a
 * crash; its term is then a new one. */
enum { PULLS = 16 };
struct pulled {
	uint64_t version, term;
};

struct cnnps {
	struct net *net; /* NULL if cnnps_connect failed */
	int status;      /* status of the newest call */
	int observer;
	struct cnnps_info info;
	struct msg_welcome welcome; /* the first WELCOME */
	char server[256];
	char *tensors; /* a copy of cnnps_options.tensors */
	struct pool *pool;
	struct feedback feedback; /* the error feedback for gradients in bfloat16 */
	/* the buffer that cnnps_gradient has lent to the program, or NULL */
	float *gradient;
	/* the slot in which `gradient` is; empty if it is not in shared memory */
	struct lane_slot slot;
	int has_staging; /* 1 if the library copies received weights to `staging` */
	float *staging;  /* a buffer of `pool`; NULL until it is allocated */
	int has_device;  /* 1 after cnnps_use_device */
	struct lane_device device;
	uint64_t gradient_xxh3; /* checksum of `gradient` from cnnps_set_checksum; 0: unknown */
	int starts_pull;        /* 1 after cnnps_start_pull_with_push, until the next push */
	/* if it is not NULL, set_view sets *unchecked and leaves the check of the weights to the
	 * program */
	uint64_t *unchecked;
	struct arrival awaited; /* the weights that CNNPS_PULL_WAIT has received, or empty */
	zmq_msg_t view;         /* weights lent to the program */
	struct pulled pulled[PULLS];
	/* number of all pulls so far; pulled[i % PULLS] has pull number i */
	size_t n_pulled;
	struct request request; /* the newest request */
};

/* Notes that a call of the program begins. From now on the time counts as TIME_COPY, except while
 * the call waits for the server. */
static void begin_call(struct cnnps *c)
{
	if (c->net)
		net_spend_on(c->net, TIME_COPY);
}

/* Notes that a call ends. The time until the next call counts as TIME_COMPUTE. Returns `rc`. */
static int done(struct cnnps *c, int rc)
{
	if (c->net)
		net_spend_on(c->net, TIME_COMPUTE);
	c->status = rc;
	return rc;
}

/* Refuses a call because of a wrong argument of the program. */
static int refuse(struct cnnps *c, const char *why)
{
	snprintf(c->request.why, sizeof(c->request.why), "%s", why);
	return PS_EUSAGE;
}

/* ---- structs of the program: each begins with its size --------------------------------------- */

/* Maximum number of bytes by which a struct of a newer library may be longer than ours. */
enum { MAX_NEWER = 4096 };

/* The size of each struct in the first header that gave it a field `size`: no program has a shorter
 * struct. Never change one of these values. If a field is appended to a struct whose value is its
 * sizeof, write the offset of this field instead. Append a field at the offset that was the sizeof
 * before, and not in the padding at the end, because an older program may have anything in this
 * padding. */
enum {
	FIRST_OPTIONS = offsetof(struct cnnps_options, lane),
	FIRST_LEASE = sizeof(struct cnnps_lease),
	FIRST_PULL = sizeof(struct cnnps_pull),
	FIRST_PUSH = sizeof(struct cnnps_push),
	FIRST_EVALUATION = sizeof(struct cnnps_evaluation),
	FIRST_STATS = offsetof(struct cnnps_stats, compute_us)
};

/* Returns the size of a struct of the program, which is its first field. */
static size_t struct_size(const void *from)
{
	size_t n;

	memcpy(&n, from, sizeof(n));
	return n;
}

/* Returns 1 if a program may have given `n` as the size of a struct that has `size` bytes in this
 * library, and that had `first` bytes in its first header. */
static int is_size(size_t n, size_t first, size_t size)
{
	return n >= first && n <= size + MAX_NEWER && n % _Alignof(size_t) == 0;
}

/* Returns 1 if all bytes of a struct after the `size` bytes that this library has are zero. */
static int is_tail_zero(const void *from, size_t size)
{
	const unsigned char *bytes = from;

	for (size_t n = struct_size(from); n > size; n--)
		if (bytes[n - 1])
			return 0;
	return 1;
}

/* Copies a struct of the program to `to`. A program that was built with an older library may have a
 * shorter struct, and the fields that it lacks are zero. A program that was built with a newer
 * library may have a longer struct; the fields that this library does not have must be zero. */
static int read_struct(
	struct cnnps *c, void *to, size_t first, size_t size, const void *from, const char *name)
{
	char *why = c->request.why;
	size_t room = sizeof(c->request.why), n = from ? struct_size(from) : 0;

	if (!from) {
		snprintf(why, room, "struct %s: the pointer is NULL", name);
		return PS_EUSAGE;
	}
	if (!is_size(n, first, size)) {
		snprintf(why, room, "struct %s: its size is %zu; set it to sizeof(struct %s)", name,
			n, name);
		return PS_EUSAGE;
	}
	if (!is_tail_zero(from, size)) {
		snprintf(why, room,
			"struct %s: libcnnps %s has only the first %zu of its %zu bytes; the "
			"fields "
			"after them must be zero",
			name, PS_VERSION, size, n);
		return PS_EUSAGE;
	}
	memset(to, 0, size);
	memcpy(to, from, n < size ? n : size);
	return PS_OK;
}
#define READ_STRUCT(c, to, from, name, first) read_struct(c, to, first, sizeof(*(to)), from, #name)

/* Copies to the program's struct all fields that this struct has, except the field `size`. The
 * argument `size` is the number of bytes of `from`. */
static void write_struct(void *to, const void *from, size_t size)
{
	size_t n = struct_size(to) < size ? struct_size(to) : size;

	memcpy((unsigned char *)to + sizeof(n), (const unsigned char *)from + sizeof(n),
		n - sizeof(n));
}

/* ---- requests -------------------------------------------------------------------------------- */

static struct request *new_request(struct cnnps *c, enum request_kind kind)
{
	memset(&c->request, 0, sizeof(c->request));
	c->request.kind = kind;
	return &c->request;
}

/* Returns the part of the program's time to which the wait for a request belongs. The wait of a
 * push that becomes a pull counts as TIME_WEIGHTS (net.c). */
static enum time_part part_of_wait(enum request_kind kind)
{
	if (kind == REQUEST_PULL || kind == REQUEST_PREFETCH)
		return TIME_WEIGHTS;
	return kind == REQUEST_LEASE ? TIME_LEASE : TIME_PUSH;
}

static int run_request(struct cnnps *c, struct request *o)
{
	if (!c->net)
		return refuse(c, "this connection was never made");
	net_spend_on(c->net, part_of_wait(o->kind));
	int rc = net_request(c->net, o);
	net_spend_on(c->net, TIME_COPY);
	return rc;
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

static int set_metrics(char text[METRICS_TEXT], const char *metrics, struct err *e)
{
	struct metric_names names;

	if (!metric_names_parse(&names, metrics ? metrics : ""))
		return err_set(e, PS_EUSAGE,
			"metrics \"%.60s\": expected none, or accuracy and up to %d other names of "
			"a-z, 0-9 and _, with commas between them",
			metrics, MAX_METRICS);
	metric_names_text(&names, text);
	return PS_OK;
}

static int copy_tensors(struct cnnps *c, const char *tensors, struct err *e)
{
	if (!tensors)
		return PS_OK;
	if (strnlen(tensors, WIRE_MAX_TENSORS + 1) > WIRE_MAX_TENSORS)
		return err_set(e, PS_EUSAGE, "tensors has more than %u bytes", WIRE_MAX_TENSORS);
	c->tensors = strdup(tensors);
	return c->tensors ? PS_OK : err_set(e, PS_ENOMEM, "no memory for the list of tensors");
}

static int configure(struct net_config *n, const struct cnnps_options *o, struct err *e)
{
	struct session_config *s = &n->session;
	int rc;

	if (o->lane > CNNPS_LANE_SHM)
		return err_set(e, PS_EUSAGE, "`lane` is %u: expected a CNNPS_LANE_*", o->lane);
	if (o->wire > CNNPS_WIRE_BF16)
		return err_set(e, PS_EUSAGE, "`wire` is %u: expected a CNNPS_WIRE_*", o->wire);
	if (o->connections > WIRE_MAX_CONNECTIONS)
		return err_set(e, PS_EUSAGE, "`connections` is %llu: expected 0 to %u",
			(unsigned long long)o->connections, WIRE_MAX_CONNECTIONS);
	if (o->log_level > CNNPS_LOG_DEBUG)
		return err_set(
			e, PS_EUSAGE, "`log_level` is %u: expected a CNNPS_LOG_*", o->log_level);
	if (!o->allocate != !o->release)
		return err_set(e, PS_EUSAGE, "set both `allocate` and `release`, or neither");
	*n = (struct net_config){
		.batch_timeout_ms = or_default(o->batch_timeout_ms, CNNPS_BATCH_TIMEOUT_MS),
		.replay_bytes = or_default(o->replay_bytes, (uint64_t)CNNPS_REPLAY_MIB << 20),
		.stop = o->stop,
		.stop_arg = o->stop_arg,
		.report = o->report,
		.report_arg = o->report_arg,
		.lane = o->lane,
		.connections = o->connections ? (uint32_t)o->connections : 1,
	};
	s->role = o->observer ? ROLE_OBSERVER : ROLE_WORKER;
	if (o->wire == CNNPS_WIRE_BF16 && o->lane == CNNPS_LANE_SHM)
		return err_set(e, PS_EUSAGE,
			"bf16 has no effect in shared memory: use --lane auto or --wire fp32");
	if (o->wire == CNNPS_WIRE_BF16 && !o->observer)
		s->wire = ENCODING_BF16;
	s->pid = info_process(s->host, sizeof(s->host));
	s->data = (struct data_id){.n_train = o->data.n_train,
		.n_test = o->data.n_test,
		.rows = o->data.rows,
		.cols = o->data.cols,
		.classes = o->data.classes,
		.xxh3 = o->data.xxh3,
		.channels = o->data.channels};
	s->connect_timeout_ms = or_default(o->connect_timeout_ms, CNNPS_CONNECT_TIMEOUT_MS);
	s->disconnect_timeout_ms =
		or_default(o->disconnect_timeout_ms, CNNPS_DISCONNECT_TIMEOUT_MS);
	s->retry_ms = RETRY_MS;
	s->silence_ms = SILENCE_MS;
	if (uv_random(NULL, NULL, &s->seed, sizeof(s->seed), 0, NULL))
		s->seed = clock_ms();
	if ((rc = copy_text(s->name, sizeof(s->name), o->name, "name", e)) ||
		(rc = set_metrics(s->metrics, o->metrics, e)))
		return rc;
	return copy_text(s->device, sizeof(s->device), o->device, "device", e);
}

static int connect_session(struct cnnps *c, const struct cnnps_options *o, struct err *e)
{
	struct net_config cfg;
	int rc = configure(&cfg, o, e);

	if (rc || (rc = copy_text(c->server, sizeof(c->server), o->server, "server", e)) ||
		(rc = copy_tensors(c, o->tensors, e)))
		return rc;
	cfg.session.tensors = c->tensors;
	cfg.server = c->server;
	cfg.key = o->key;
	cfg.server_key = o->server_key;
	c->observer = o->observer;
	c->has_staging = o->allocate != NULL;
	if ((rc = net_new(&c->net, &cfg, e)))
		return rc;
	c->request.kind = REQUEST_CONNECT;
	rc = net_request(c->net, &c->request);
	if (rc)
		return err_set(e, rc, "%s", c->request.why);
	c->welcome = c->request.welcome;
	c->info = info_of(&c->welcome);
	if (c->info.validate && !o->observer && !o->validates)
		return err_set(e, PS_EUSAGE,
			"the run holds back %u training images (--validate): set `validates` if "
			"this program evaluates them, or begin a run without --validate",
			c->info.validate);
	if (pool_new_in(&c->pool, c->info.n_params, o->allocate, o->release) ||
		(cfg.session.wire == ENCODING_BF16 &&
			feedback_init(&c->feedback, c->info.n_params, info_trained(&c->info))))
		return err_set(e, PS_ENOMEM, "no memory for gradients");
	return PS_OK;
}

static void set_log(const struct cnnps_options *o)
{
	if (!o->log || o->log_level > CNNPS_LOG_DEBUG)
		return;
	log_set_sink(o->log, o->log_arg);
	log_set_level((enum log_level)o->log_level);
}

/* Releases everything that `c` owns, but not `c` itself. */
static void disconnect(struct cnnps *c)
{
	(void)zmq_msg_close(&c->view);
	(void)zmq_msg_init(&c->view);
	frames_release(&c->awaited.frames);
	net_free(&c->net);
	if (c->slot.lane)
		lane_return(&c->slot);
	else if (c->gradient)
		pool_release(c->pool, &c->gradient);
	c->gradient = NULL;
	if (c->staging)
		pool_release(c->pool, &c->staging);
	pool_free(&c->pool);
	feedback_release(&c->feedback);
	free(c->tensors);
	c->tensors = NULL;
}

int cnnps_connect(struct cnnps **out, const struct cnnps_options *options)
{
	struct cnnps *c;
	struct cnnps_options o;
	struct err e = {0};
	int rc;

	if (!out)
		return PS_EUSAGE;
	*out = c = mem_try(1, sizeof(*c));
	if (!c)
		return PS_ENOMEM;
	(void)zmq_msg_init(&c->view);
	if ((rc = READ_STRUCT(c, &o, options, cnnps_options, FIRST_OPTIONS)))
		return done(c, rc);
	set_log(&o);
	if ((rc = connect_session(c, &o, &e))) {
		disconnect(c);
		snprintf(c->request.why, sizeof(c->request.why), "%s", e.text);
	}
	return done(c, rc);
}

const struct cnnps_info *cnnps_info(const struct cnnps *c)
{
	return c ? &c->info : NULL;
}

void cnnps_close(struct cnnps **c)
{
	if (!c || !*c)
		return;
	disconnect(*c);
	(void)zmq_msg_close(&(*c)->view);
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

/* Returns the term of the newest pull of `version`, or 0 if it is unknown. */
static uint64_t term_of_pull(const struct cnnps *c, uint64_t version)
{
	for (size_t i = c->n_pulled; i > 0 && i + PULLS > c->n_pulled; i--)
		if (c->pulled[(i - 1) % PULLS].version == version)
			return c->pulled[(i - 1) % PULLS].term;
	return 0;
}

/* Gets weights that are not verified yet. These are the weights that CNNPS_PULL_WAIT has received,
 * or those of a new pull if there are none. */
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
	if (!(rc = run_request(c, o)))
		arrival_move(to, &o->pull.got);
	return rc;
}

void cnnps_note_wrong_checksum(struct cnnps *c)
{
	net_note_garbage(c->net, "wrong tensor checksum");
}

/* Verifies weights and, unless `to` is NULL, copies them to `to`. PS_EPROTO: the checksum is wrong,
 * and the caller should pull again. */
static int verify_weights(struct cnnps *c, struct arrival *a, float *to)
{
	int rc = wire_values(&a->frames, &a->params, to);

	if (rc)
		cnnps_note_wrong_checksum(c);
	return rc;
}

static void release_view(struct cnnps *c)
{
	(void)zmq_msg_close(&c->view);
	(void)zmq_msg_init(&c->view);
}

/* Returns 1 if the weights are one frame of aligned floats, which the program can use in place. */
static int is_one_frame(struct arrival *a)
{
	return a->params.slices.n == 1 && a->params.slices.slice[0].encoding == ENCODING_F32 &&
	       (uintptr_t)zmq_msg_data(&a->frames.frame[1]) % sizeof(float) == 0;
}

/* Verifies the weights of `a`, which have moved to c->view. If c->unchecked is not NULL, sets
 * *c->unchecked instead, and the program verifies the weights. */
static int check_view(struct cnnps *c, const struct arrival *a)
{
	const struct slice *s = &a->params.slices.slice[0];

	if (c->unchecked && s->xxh3) {
		*c->unchecked = s->xxh3;
		return PS_OK;
	}
	if (wire_checksum(zmq_msg_data(&c->view), s->count) == s->xxh3)
		return PS_OK;
	cnnps_note_wrong_checksum(c);
	return PS_EPROTO;
}

/* Moves weights from memory of the device to memory of the host. */
static int fetch_weights(struct cnnps *c, struct arrival *a)
{
	if (!is_one_frame(a) || !lane_on_device(c->has_device ? &c->device : NULL,
					zmq_msg_data(&a->frames.frame[1])))
		return PS_OK;
	return lane_fetch(&c->device, &a->frames.frame[1]);
}

/* Verifies weights and makes them c->view. If a device can use the memory of the lane, the view
 * lies there. Else the view lies in a buffer of the pool if the program has set options.allocate,
 * or if the weights need a conversion. In all other cases, the view is the received message if this
 * is one aligned frame, and a new message if it is not. */
static int set_view(struct cnnps *c, struct arrival *a)
{
	const struct slice *s = &a->params.slices.slice[0];
	int rc;

	if (c->unchecked && s->xxh3 && is_one_frame(a) &&
		lane_on_device(
			c->has_device ? &c->device : NULL, zmq_msg_data(&a->frames.frame[1]))) {
		(void)zmq_msg_move(&c->view, &a->frames.frame[1]);
		*c->unchecked = s->xxh3;
		return PS_OK;
	}
	if ((rc = fetch_weights(c, a)))
		return rc;
	if (c->has_device && is_one_frame(a) &&
		net_pin(c->net, zmq_msg_data(&a->frames.frame[1]))) {
		(void)zmq_msg_move(&c->view, &a->frames.frame[1]);
		return check_view(c, a);
	}
	if ((c->has_staging || (c->feedback.error && !is_one_frame(a))) && !c->staging)
		c->staging = pool_acquire(c->pool);
	if (c->staging) {
		rc = verify_weights(c, a, c->staging);
		return rc ? rc : pool_send(c->pool, &c->staging, &c->view);
	}
	if (is_one_frame(a)) {
		rc = verify_weights(c, a, NULL);
		(void)zmq_msg_move(&c->view, &a->frames.frame[1]);
		return rc;
	}
	if (zmq_msg_init_size(&c->view, c->info.n_params * sizeof(float)))
		return PS_ENOMEM;
	return verify_weights(c, a, zmq_msg_data(&c->view));
}

/* Pulls into `to`, or into c->view if `to` is NULL. */
static int pull_verified(struct cnnps *c, enum weights which, float *to, struct arrival *a)
{
	int rc = PS_EPROTO;

	for (int i = 0; i < TRIES && rc == PS_EPROTO; i++) {
		if (!to)
			release_view(c);
		if ((rc = await_weights(c, which, a)))
			return rc;
		rc = to ? fetch_weights(c, a) : PS_OK;
		if (!rc)
			rc = to ? verify_weights(c, a, to) : set_view(c, a);
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

/* Pulls weights and writes the results to *p. */
static int pull_weights(struct cnnps *c, struct cnnps_pull *p)
{
	struct arrival a;
	int is_eval = p->flags == CNNPS_PULL_EVAL, rc;

	if (is_eval && !p->into)
		return refuse(c, "CNNPS_PULL_EVAL needs `into`");
	rc = pull_verified(c, is_eval ? WEIGHTS_EVAL : WEIGHTS_CURRENT, p->into, &a);
	if (rc)
		return rc;
	p->weights = p->into ? p->into : zmq_msg_data(&c->view);
	p->version = a.params.version;
	p->term = a.term;
	p->elastic = a.params.elastic;
	return PS_OK;
}

int cnnps_pull(struct cnnps *c, struct cnnps_pull *pull)
{
	struct cnnps_pull p;
	int rc;

	if (!c)
		return PS_EUSAGE;
	rc = READ_STRUCT(c, &p, pull, cnnps_pull, FIRST_PULL);
	begin_call(c);
	if (rc)
		return done(c, rc);
	switch (p.flags) {
	case CNNPS_PULL_START:
		return done(c, run_request(c, new_request(c, REQUEST_PREFETCH)));
	case CNNPS_PULL_WAIT:
		return done(c, c->awaited.frames.n
				       ? PS_OK
				       : await_weights(c, WEIGHTS_CURRENT, &c->awaited));
	case 0:
	case CNNPS_PULL_EVAL:
		if (!(rc = pull_weights(c, &p)))
			write_struct(pull, &p, sizeof(p));
		return done(c, rc);
	default:
		return done(c, refuse(c, "the flags of a pull are 0 or one CNNPS_PULL_*"));
	}
}

int cnnps_pull_unchecked(struct cnnps *c, struct cnnps_pull *pull, uint64_t *xxh3)
{
	*xxh3 = 0;
	c->unchecked = xxh3;
	int rc = cnnps_pull(c, pull);
	c->unchecked = NULL;
	return rc;
}

/* ---- pushes ---------------------------------------------------------------------------------- */

void cnnps_use_device(struct cnnps *c, const struct lane_device *device)
{
	c->has_device = 1;
	c->device = *device;
	net_use_device(c->net, device);
}

void cnnps_set_checksum(struct cnnps *c, uint64_t xxh3)
{
	c->gradient_xxh3 = xxh3;
}

int cnnps_is_apart(const struct cnnps *c, const float *values)
{
	return net_is_apart(c->net, values);
}

void cnnps_start_pull_with_push(struct cnnps *c)
{
	c->starts_pull = 1;
}

/* Takes a slot of the lane, in which the program can compute a gradient. */
static int take_lane_slot(struct cnnps *c, int on_device)
{
	if ((c->has_staging && !c->has_device) || !net_take_slot(c->net, &c->slot, on_device))
		return 0;
	if (!c->has_staging || net_pin(c->net, c->slot.values))
		return 1;
	lane_return(&c->slot);
	return 0;
}

static float *take_gradient(struct cnnps *c, int on_device)
{
	if (c->gradient || !c->pool)
		return c->gradient;
	c->gradient_xxh3 = 0;
	if ((on_device && take_lane_slot(c, 1)) || take_lane_slot(c, 0))
		c->gradient = c->slot.values;
	else
		c->gradient = pool_acquire(c->pool);
	return c->gradient;
}

float *cnnps_gradient(struct cnnps *c)
{
	return c ? take_gradient(c, 0) : NULL;
}

float *cnnps_device_gradient(struct cnnps *c)
{
	return take_gradient(c, !c->feedback.error);
}

static int send_slot(struct cnnps *c, struct request *o)
{
	int rc = lane_send(&c->slot, c->info.n_params, &o->push.tensor);

	if (!rc)
		c->gradient = NULL;
	return rc;
}

/* Makes the tensor of a push in bfloat16, with the values at `g`. */
static int make_bf16(struct cnnps *c, struct request *o, const float *g)
{
	struct slice *s = &o->push.meta.slices.slice[0];

	if (zmq_msg_init_size(&o->push.tensor, s->count * BF16_BYTES))
		return PS_ENOMEM;
	s->encoding = ENCODING_BF16;
	feedback_round(&c->feedback, g, s->offset, s->count, zmq_msg_data(&o->push.tensor));
	return PS_OK;
}

/* Makes the tensor of a push, which all transmissions of the push share. The tensor is a copy of
 * `g`, or the buffer of cnnps_gradient itself. */
static int make_tensor(
	struct cnnps *c, struct request *o, const float *g, uint64_t offset, size_t n)
{
	struct slices *s = &o->push.meta.slices;
	int is_lent = g == c->gradient && n == c->info.n_params;
	struct lane_slot slot;

	s->n = 1;
	s->slice[0] = (struct slice){.offset = offset, .count = n, .encoding = ENCODING_F32};
	if (is_lent && c->slot.lane) {
		if (!feedback_add(&c->feedback, c->gradient, offset, n))
			s->slice[0].xxh3 = c->gradient_xxh3;
		return send_slot(c, o);
	}
	if (is_lent && !c->has_staging && !c->feedback.error)
		return pool_send(c->pool, &c->gradient, &o->push.tensor);
	/* copy the values, because the program may use its buffer again after this call */
	if (net_take_slot(c->net, &slot, 0)) {
		struct chunk copy;

		wire_copy_chunk(slot.values, g, n, &copy, NULL);
		/* if feedback_add has changed the values, `copy.xxh3` is not their checksum; the
		 * first transmission then computes it */
		if (!feedback_add(&c->feedback, slot.values, offset, n))
			s->slice[0].xxh3 = copy.xxh3;
		int rc = lane_send(&slot, n, &o->push.tensor);
		if (rc)
			lane_return(&slot);
		return rc;
	}
	if (c->feedback.error)
		return make_bf16(c, o, g);
	if (is_lent)
		return pool_send(c->pool, &c->gradient, &o->push.tensor);
	if (zmq_msg_init_size(&o->push.tensor, n * sizeof(*g)))
		return PS_ENOMEM;
	memcpy(zmq_msg_data(&o->push.tensor), g, n * sizeof(*g));
	return PS_OK;
}

/* Returns 1 if the range [first, first + count) ends at `max` or before. */
static int ends_by(uint64_t first, uint64_t count, uint64_t max)
{
	return first + count <= max;
}

/* Makes a push and, if `then_pull` is 1, a pull after the push. */
static int push_values(struct cnnps *c, const struct cnnps_push *p, int then_pull)
{
	struct request *o = new_request(c, REQUEST_PUSH);
	size_t n = p->count || p->offset ? p->count : c->info.n_params;
	int starts_pull = c->starts_pull, rc;

	c->starts_pull = 0;
	if (c->observer)
		return refuse(c, "an observer cannot push");
	if (!p->gradient)
		return refuse(c, "`gradient` of a push is NULL");
	if (n < 1 || p->offset > c->info.n_params || n > c->info.n_params - p->offset)
		return refuse(c, "the pushed values lie outside the parameters");
	if (!ends_by(p->work.first, p->work.count, WIRE_MAX_BATCHES) ||
		p->work.images > WIRE_MAX_IMAGES)
		return refuse(c, "`work` of a push is out of range");
	o->push.then_pull = then_pull;
	o->push.starts_pull = starts_pull;
	o->pull.which = WEIGHTS_CURRENT;
	o->push.meta.base_version = p->version;
	o->push.meta.base_term = term_of_pull(c, p->version);
	o->push.meta.work = (struct work){p->work.epoch, p->work.first, p->work.count};
	o->push.meta.images = p->work.images;
	o->push.meta.loss = p->work.loss;
	if ((rc = make_tensor(c, o, p->gradient, p->offset, n)))
		return rc;
	rc = run_request(c, o);
	zmq_msg_close(&o->push.tensor); /* without effect if net_request took over the tensor */
	return rc;
}

static int push_then_pull(struct cnnps *c, const struct cnnps_push *p)
{
	int then_pull = !c->awaited.frames.n, rc;
	struct cnnps_pull then;

	if ((rc = READ_STRUCT(c, &then, p->then, cnnps_pull, FIRST_PULL)))
		return rc;
	if (then.flags)
		return refuse(c, "a pull after a push has no flags");
	if (!then.into)
		release_view(c);
	if ((rc = push_values(c, p, then_pull)))
		return rc;
	if (then_pull)
		arrival_move(&c->awaited, &c->request.pull.got);
	if (!(rc = pull_weights(c, &then)))
		write_struct(p->then, &then, sizeof(then));
	return rc;
}

int cnnps_push(struct cnnps *c, const struct cnnps_push *push)
{
	struct cnnps_push p;
	int rc;

	if (!c)
		return PS_EUSAGE;
	rc = READ_STRUCT(c, &p, push, cnnps_push, FIRST_PUSH);
	begin_call(c);
	if (!rc)
		rc = p.then ? push_then_pull(c, &p) : push_values(c, &p, 0);
	return done(c, rc);
}

/* ---- the other calls ------------------------------------------------------------------------- */

void cnnps_alive(struct cnnps *c)
{
	if (c && c->net)
		net_alive(c->net);
}

int cnnps_show_requested(struct cnnps *c)
{
	return c->net && net_show_requested(c->net);
}

int cnnps_show(struct cnnps *c, const char *json)
{
	struct request *o = new_request(c, REQUEST_SHOW);

	o->show = json;
	return done(c, run_request(c, o));
}

int cnnps_lease(struct cnnps *c, struct cnnps_lease *lease)
{
	struct request *o;
	struct cnnps_lease got;
	int rc;

	if (!c)
		return PS_EUSAGE;
	rc = READ_STRUCT(c, &got, lease, cnnps_lease, FIRST_LEASE);
	begin_call(c);
	if (rc)
		return done(c, rc);
	o = new_request(c, REQUEST_LEASE);
	rc = c->observer ? refuse(c, "an observer gets no lease") : run_request(c, o);
	if (!rc) {
		got = lease_of(&o->lease.grant, o->lease.term);
		write_struct(lease, &got, sizeof(got));
	}
	return done(c, rc);
}

/* Returns 1 if a metric is not finite although the loss is finite. The caller refuses such a
 * result, because it is an error of the program and no sign that training has diverged. */
static int has_false_metric(const struct cnnps_evaluation *e)
{
	int is_finite = 1;

	for (size_t m = 0; m < sizeof(e->metric_sum) / sizeof(e->metric_sum[0]); m++)
		is_finite &= isfinite(e->metric_sum[m]) != 0;
	return isfinite(e->loss_sum) && !is_finite;
}

int cnnps_result(
	struct cnnps *c, const struct cnnps_lease *lease, const struct cnnps_evaluation *evaluation)
{
	struct request *o;
	struct cnnps_lease l;
	struct cnnps_evaluation e;
	int rc;

	if (!c)
		return PS_EUSAGE;
	rc = READ_STRUCT(c, &l, lease, cnnps_lease, FIRST_LEASE);
	begin_call(c);
	rc = rc ? rc : READ_STRUCT(c, &e, evaluation, cnnps_evaluation, FIRST_EVALUATION);
	if (rc)
		return done(c, rc);
	o = new_request(c, REQUEST_RESULT);
	if (c->observer || l.kind != CNNPS_EVAL)
		return done(c, refuse(c, "only an EVAL lease has a result"));
	if (!ends_by(l.first, l.count, WIRE_MAX_IMAGES) || e.correct > l.count)
		return done(c, refuse(c, "`correct` is more than the images of the lease, or these "
					 "are out of range"));
	if (has_false_metric(&e))
		return done(c, refuse(c, "a value of `metric_sum` is not finite"));
	o->result = (struct msg_result){.eval_id = l.eval_id,
		.eval_first = l.first,
		.eval_count = l.count,
		.correct = e.correct,
		.loss_sum = e.loss_sum};
	memcpy(o->result.metric_sum, e.metric_sum, sizeof(e.metric_sum));
	return done(c, run_request(c, o));
}

int cnnps_flush(struct cnnps *c, int durable, uint32_t timeout_ms)
{
	struct request *o;

	if (!c)
		return PS_EUSAGE;
	o = new_request(c, REQUEST_FLUSH);
	begin_call(c);
	o->durable = durable;
	o->deadline_ms = clock_ms() + timeout_ms;
	return done(c, run_request(c, o));
}

int cnnps_status_page(struct cnnps *c, uint32_t first, char *json, size_t size)
{
	struct request *o;

	if (!c)
		return PS_EUSAGE;
	o = new_request(c, REQUEST_STATUS);
	if (!json || !size)
		return done(c, refuse(c, "`json` has no room for the status"));
	o->report.json = json;
	o->report.size = size;
	o->report.first = first;
	return done(c, run_request(c, o));
}

int cnnps_status(struct cnnps *c, char *json, size_t size)
{
	return cnnps_status_page(c, 0, json, size);
}

int cnnps_checkpoint(struct cnnps *c, uint64_t *generation)
{
	struct request *o;
	int rc;

	if (!c)
		return PS_EUSAGE;
	o = new_request(c, REQUEST_ADMIN);
	o->admin.verb = ADMIN_CHECKPOINT;
	rc = run_request(c, o);
	if (!rc && generation)
		*generation = o->admin.generation;
	return done(c, rc);
}

int cnnps_drain(struct cnnps *c)
{
	struct request *o;
	int rc;

	if (!c)
		return PS_EUSAGE;
	o = new_request(c, REQUEST_ADMIN);
	o->admin.verb = ADMIN_DRAIN;
	rc = run_request(c, o);
	if (rc == PS_ESHUTDOWN || rc == PS_EDONE)
		rc = PS_OK; /* the server ended before it answered */
	return done(c, rc);
}

int cnnps_log_level(struct cnnps *c, const char *level)
{
	struct request *o;

	if (!c)
		return PS_EUSAGE;
	o = new_request(c, REQUEST_ADMIN);
	o->admin.verb = ADMIN_LOG_LEVEL;
	for (int i = LOG_ERROR; level && i <= LOG_DEBUG; i++)
		if (!strcmp(level, log_level_name((enum log_level)i)))
			o->admin.level = (enum wire_log_level)(i + LOG_LEVEL_ERROR);
	return done(
		c, o->admin.level ? run_request(c, o) : refuse(c, "the level is " LOG_LEVEL_NAMES));
}

int cnnps_release(struct cnnps *c, const char *worker)
{
	struct request *o;

	if (!c)
		return PS_EUSAGE;
	o = new_request(c, REQUEST_ADMIN);
	o->admin.verb = ADMIN_RELEASE;
	if (!worker || !worker[0] || strlen(worker) >= sizeof(o->admin.worker))
		return done(c, refuse(c, "the name or key of the worker has 1 to 63 bytes"));
	memcpy(o->admin.worker, worker, strlen(worker));
	return done(c, run_request(c, o));
}

int cnnps_stats(const struct cnnps *c, struct cnnps_stats *s)
{
	struct cnnps_stats now = {0};

	if (!c || !s || !c->net || !is_size(struct_size(s), FIRST_STATS, sizeof(now)) ||
		!is_tail_zero(s, sizeof(now)))
		return PS_EUSAGE;
	net_stats(c->net, &now);
	write_struct(s, &now, sizeof(now));
	return PS_OK;
}

const char *cnnps_error(const struct cnnps *c)
{
	if (!c)
		return err_text(PS_ENOMEM);
	if (!c->status)
		return "";
	return c->request.why[0] ? c->request.why : err_text(c->status);
}

const char *cnnps_strerror(int rc)
{
	return err_text(rc);
}

const char *cnnps_version(void)
{
	return PS_VERSION;
}
