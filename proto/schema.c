/* schema.c - see schema.h. Only this file includes the code that is generated from cnnps.proto. */
#include "proto/schema.h"
#include <stdalign.h>
#include "cnnps.pb-c.h"
#include "proto/lane.h"

#define ARENA_ALIGN alignof(max_align_t)
#define ANY32       UINT32_MAX
#define ANY64       UINT64_MAX

#define ROW(kind_, number_, type, member, min_, max_, inner_)                                      \
	{                                                                                          \
		.kind = (kind_), .number = (number_), .offset = offsetof(type, member),            \
		.size = sizeof(((type *)0)->member), .min = (min_), .max = (max_),                 \
		.inner = (inner_), .why = #member " is out of range"                               \
	}
#define NUMBER(number, type, member, min, max)                                                     \
	ROW(WIRE_NUMBER, number, type, member, min, max, NULL)
#define REAL(number, member)          ROW(WIRE_REAL, number, struct msg, member, 0, 0, NULL)
#define CODE(number, member, min)     ROW(WIRE_CODE, number, struct msg, member, min, ANY32, NULL)
#define LINE(number, member)          ROW(WIRE_LINE, number, struct msg, member, 0, 0, NULL)
#define TEXT(number, member, max)     ROW(WIRE_TEXT, number, struct msg, member, 0, max, NULL)
#define SLICES(number, member)        ROW(WIRE_SLICES, number, struct msg, member, 0, 0, slice)
#define INNER(number, member, rows)   ROW(WIRE_INNER, number, struct msg, member, 0, 0, rows)
#define MSG(number, member, min, max) NUMBER(number, struct msg, member, min, max)
#define OWN(kind_, number_, value)                                                                 \
	{                                                                                          \
		.kind = (kind_), .number = (number_), .max = (value)                               \
	}
#define END                                                                                        \
	{                                                                                          \
		.kind = WIRE_END                                                                   \
	}

static const struct wire_field stamp[] = {
	NUMBER(1, struct stamp, run.hi, 0, ANY64),
	NUMBER(2, struct stamp, run.lo, 0, ANY64),
	NUMBER(3, struct stamp, term, 0, ANY64),
	NUMBER(4, struct stamp, worker, 0, WIRE_MAX_WORKERS),
	NUMBER(5, struct stamp, incarnation, 0, ANY32),
	END,
};

static const struct wire_field data_id[] = {
	NUMBER(1, struct data_id, n_train, 0, WIRE_MAX_IMAGES),
	NUMBER(2, struct data_id, n_test, 0, WIRE_MAX_IMAGES),
	NUMBER(3, struct data_id, rows, 0, ANY32),
	NUMBER(4, struct data_id, cols, 0, ANY32),
	NUMBER(5, struct data_id, classes, 0, ANY32),
	NUMBER(6, struct data_id, xxh3, 0, ANY64),
	NUMBER(7, struct data_id, channels, 0, ANY32),
	END,
};

static const struct wire_field work[] = {
	NUMBER(1, struct work, epoch, 0, WIRE_MAX_EPOCHS - 1),
	NUMBER(2, struct work, first, 0, WIRE_MAX_BATCHES),
	NUMBER(3, struct work, count, 0, WIRE_MAX_BATCHES),
	END,
};

static const struct wire_field slice[] = {
	NUMBER(1, struct slice, offset, 0, WIRE_MAX_PARAMS),
	NUMBER(2, struct slice, count, 1, WIRE_MAX_PARAMS),
	NUMBER(3, struct slice, encoding, ENCODING_F32, ENCODING_BF16),
	NUMBER(4, struct slice, xxh3, 0, ANY64),
	END,
};

static const struct wire_field hello[] = {
	OWN(WIRE_OWN_NUMBER, HELLO_PROTOCOL, WIRE_PROTOCOL),
	MSG(2, hello.role, ROLE_WORKER, ROLE_OBSERVER),
	LINE(3, hello.name),
	LINE(4, hello.device),
	INNER(5, hello.data, data_id),
	INNER(6, hello.resume, stamp),
	MSG(7, hello.last_seq, 0, WIRE_MAX_SEQ),
	MSG(8, hello.durable_seq, 0, WIRE_MAX_SEQ),
	LINE(9, hello.host),
	MSG(10, hello.pid, 0, ANY32),
	OWN(WIRE_OWN_NUMBER, HELLO_OLDEST, WIRE_OLDEST_PROTOCOL),
	OWN(WIRE_OWN_TEXT, HELLO_REQUIRES, 0),
	LINE(13, hello.owner),
	LINE(14, hello.metrics),
	TEXT(15, hello.tensors, WIRE_MAX_TENSORS),
	MSG(16, hello.wire, ENCODING_NONE, ENCODING_BF16),
	END,
};

static const struct wire_field welcome[] = {
	INNER(1, welcome.stamp, stamp),
	MSG(2, welcome.last_seq, 0, WIRE_MAX_SEQ),
	MSG(3, welcome.durable_seq, 0, WIRE_MAX_SEQ),
	LINE(4, welcome.model),
	MSG(5, welcome.model_fingerprint, 0, ANY64),
	MSG(6, welcome.n_params, 1, WIRE_MAX_PARAMS),
	MSG(7, welcome.seed, 0, ANY64),
	MSG(8, welcome.batch, 1, WIRE_MAX_IMAGES),
	MSG(9, welcome.epochs, 0, WIRE_MAX_EPOCHS),
	MSG(10, welcome.push_window, 1, WIRE_MAX_WINDOW),
	MSG(11, welcome.replay_window, 1, WIRE_MAX_WINDOW),
	MSG(12, welcome.heartbeat_ms, 1, ANY32),
	MSG(13, welcome.dead_ms, 1, ANY32),
	MSG(14, welcome.session_ttl_ms, 1, ANY32),
	MSG(15, welcome.mode, MODE_DOWNPOUR, MODE_EASGD),
	MSG(16, welcome.n_push, 1, WIRE_MAX_BATCHES),
	MSG(17, welcome.n_fetch, 1, WIRE_MAX_BATCHES),
	MSG(18, welcome.push_sum, 0, 1),
	MSG(19, welcome.prefetch, 0, 1),
	REAL(20, welcome.local_rate),
	REAL(21, welcome.momentum),
	OWN(WIRE_OWN_NUMBER, WELCOME_PROTOCOL, WIRE_PROTOCOL),
	OWN(WIRE_OWN_NUMBER, WELCOME_OLDEST, WIRE_OLDEST_PROTOCOL),
	OWN(WIRE_OWN_TEXT, WELCOME_REQUIRES, 0),
	LINE(25, welcome.lane_path),
	MSG(26, welcome.lane_secret_hi, 0, ANY64),
	MSG(27, welcome.lane_secret_lo, 0, ANY64),
	MSG(28, welcome.lane_ticket, 0, ANY64),
	MSG(29, welcome.validate, 0, WIRE_MAX_IMAGES),
	TEXT(30, welcome.tensors, WIRE_MAX_TENSORS),
	MSG(31, welcome.wire, ENCODING_NONE, ENCODING_BF16),
	MSG(32, welcome.lane_gpu, 0, 1),
	MSG(33, welcome.connections, 0, WIRE_MAX_CONNECTIONS),
	MSG(34, welcome.side_secret_hi, 0, ANY64),
	MSG(35, welcome.side_secret_lo, 0, ANY64),
	MSG(36, welcome.lane_ring, 0, 1),
	END,
};

static const struct wire_field pull[] = {
	INNER(1, pull.stamp, stamp),
	MSG(2, pull.request, 0, ANY64),
	MSG(3, pull.which, WEIGHTS_CURRENT, WEIGHTS_EVAL),
	END,
};

/* The rows of the fields of an ACK, as a message of its own and inside PARAMS. If PARAMS has no
 * ACK, all of these fields are zero. */
#define ACK_ROWS(type, of, min_verdict)                                                            \
	NUMBER(1, type, of(seq), 0, WIRE_MAX_SEQ),                                                 \
		NUMBER(2, type, of(verdict), min_verdict, VERDICT_REJECTED),                       \
		NUMBER(3, type, of(reject), REJECT_NONE, REJECT_REASONS - 1),                      \
		NUMBER(4, type, of(duplicate), 0, 1), NUMBER(5, type, of(version), 0, ANY64),      \
		NUMBER(6, type, of(durable_seq), 0, WIRE_MAX_SEQ),                                 \
		NUMBER(7, type, of(term), 0, ANY64), NUMBER(8, type, of(superseded), 0, 1),        \
		NUMBER(9, type, of(code), 0, ANY64)
#define OF_MSG(member)   ack.member
#define OF_INNER(member) member

static const struct wire_field ack[] = {
	ACK_ROWS(struct msg, OF_MSG, VERDICT_OK),
	END,
};

static const struct wire_field inner_ack[] = {
	ACK_ROWS(struct msg_ack, OF_INNER, VERDICT_NONE),
	END,
};

static const struct wire_field params[] = {
	MSG(PARAMS_REQUEST, params.request, 0, ANY64),
	MSG(2, params.version, 0, ANY64),
	MSG(3, params.which, WEIGHTS_CURRENT, WEIGHTS_EVAL),
	SLICES(4, params.slices),
	INNER(5, params.ack, inner_ack),
	REAL(6, params.elastic),
	MSG(PARAMS_LANE_HOLD, params.lane_hold, 0, LANE_HOLDS),
	MSG(PARAMS_LANE_TICKET, params.lane_ticket, 0, ANY64),
	MSG(PARAMS_LANE_BUFFER, params.lane_buffer, 0, ANY32),
	MSG(PARAMS_PARTS, params.parts, 0, WIRE_MAX_CONNECTIONS),
	END,
};

static const struct wire_field push[] = {
	INNER(1, push.stamp, stamp),
	MSG(PUSH_SEQ, push.seq, 0, WIRE_MAX_SEQ),
	MSG(3, push.base_version, 0, ANY64),
	INNER(4, push.work, work),
	MSG(5, push.images, 0, WIRE_MAX_IMAGES),
	REAL(6, push.loss),
	SLICES(7, push.slices),
	MSG(8, push.verdict, VERDICT_NONE, VERDICT_REJECTED),
	MSG(9, push.reject, REJECT_NONE, REJECT_REASONS - 1),
	MSG(10, push.base_term, 0, ANY64),
	MSG(11, push.pull, 0, ANY64),
	MSG(12, push.chunks, 0, WIRE_MAX_CHUNKS),
	MSG(13, push.superseded, 0, 1),
	MSG(14, push.grant_first, 0, WIRE_MAX_BATCHES),
	MSG(15, push.grant_count, 0, WIRE_MAX_BATCHES),
	MSG(16, push.grant_code, 0, ANY64),
	MSG(17, push.code, 0, ANY64),
	MSG(PUSH_LANE_SLOT, push.lane_slot, 0, ANY32),
	MSG(PUSH_LANE_COUNT, push.lane_count, 0, WIRE_MAX_PARAMS),
	END,
};

static const struct wire_field lease[] = {
	INNER(1, lease.stamp, stamp),
	MSG(2, lease.request, 0, ANY64),
	END,
};

static const struct wire_field grant[] = {
	MSG(1, grant.request, 0, ANY64),
	MSG(2, grant.kind, GRANT_TRAIN, GRANT_EVAL),
	INNER(3, grant.work, work),
	MSG(4, grant.eval_first, 0, WIRE_MAX_IMAGES),
	MSG(5, grant.eval_count, 0, WIRE_MAX_IMAGES),
	MSG(6, grant.eval_id, 0, ANY64),
	MSG(7, grant.exact, 0, 1),
	MSG(8, grant.version, 0, ANY64),
	MSG(9, grant.code, 0, ANY64),
	END,
};

static const struct wire_field result[] = {
	INNER(1, result.stamp, stamp),
	MSG(2, result.eval_id, 0, ANY64),
	MSG(3, result.eval_first, 0, WIRE_MAX_IMAGES),
	MSG(4, result.eval_count, 0, WIRE_MAX_IMAGES),
	MSG(5, result.correct, 0, WIRE_MAX_IMAGES),
	REAL(6, result.loss_sum),
	MSG(7, result.code, 0, ANY64),
	REAL(8, result.metric_sum[0]),
	REAL(9, result.metric_sum[1]),
	REAL(10, result.metric_sum[2]),
	REAL(11, result.metric_sum[3]),
	END,
};

static const struct wire_field heartbeat[] = {
	INNER(1, heartbeat.stamp, stamp),
	MSG(2, heartbeat.last_seq, 0, WIRE_MAX_SEQ),
	MSG(3, heartbeat.durable_seq, 0, WIRE_MAX_SEQ),
	MSG(4, heartbeat.time.compute_us, 0, ANY64),
	MSG(5, heartbeat.time.weights_us, 0, ANY64),
	MSG(6, heartbeat.time.push_us, 0, ANY64),
	MSG(7, heartbeat.time.lease_us, 0, ANY64),
	MSG(8, heartbeat.time.copy_us, 0, ANY64),
	END,
};

static const struct wire_field bye[] = {
	INNER(1, bye.stamp, stamp),
	CODE(2, bye.status, 0),
	END,
};

static const struct wire_field status[] = {
	MSG(1, status.reply, STATUS_REQUEST, STATUS_REPLY),
	TEXT(2, status.text, WIRE_MAX_TEXT),
	MSG(3, status.first, 0, ANY32),
	MSG(4, status.max_text, 0, ANY32),
	END,
};

static const struct wire_field admin[] = {
	MSG(1, admin.verb, ADMIN_CHECKPOINT, ADMIN_RELEASE),
	MSG(2, admin.reply, 0, 1),
	MSG(3, admin.generation, 0, ANY64),
	MSG(4, admin.level, LOG_LEVEL_NONE, LOG_LEVEL_DEBUG),
	LINE(5, admin.worker),
	END,
};

static const struct wire_field error[] = {
	CODE(1, error.status, 1),
	MSG(2, error.expected, 0, WIRE_MAX_SEQ),
	TEXT(3, error.text, WIRE_MAX_TEXT),
	MSG(4, error.notice, 0, 1),
	END,
};

/* Returns 1 if [first, first + count) lies in [0, limit). The caller has checked that `first` and
 * `count` are each at most `limit`. */
static int inside(uint64_t first, uint64_t count, uint64_t limit)
{
	return first + count <= limit;
}

/* Returns NULL if the decision is valid, and an error text if it is not. Only a decision with
 * VERDICT_REJECTED has a reason and may be superseded. */
static const char *check_decision(enum verdict verdict, enum reject reject, uint32_t superseded)
{
	if ((verdict == VERDICT_REJECTED) != (reject != REJECT_NONE))
		return "verdict and reject contradict each other";
	return superseded && verdict != VERDICT_REJECTED ? "superseded, but not rejected" : NULL;
}

static const char *rule_welcome(const struct msg *m)
{
	const struct msg_welcome *w = &m->welcome;

	if (w->replay_window < w->push_window)
		return "replay_window is smaller than push_window";
	if (!(w->local_rate >= 0 && w->local_rate <= 1e6) ||
		!(w->momentum >= 0 && w->momentum <= 1))
		return "welcome.local_rate or welcome.momentum is out of range";
	return w->heartbeat_ms < w->dead_ms ? NULL : "heartbeat_ms is not smaller than dead_ms";
}

static const char *rule_push(const struct msg *m)
{
	const struct msg_push *p = &m->push;

	if (!inside(p->work.first, p->work.count, WIRE_MAX_BATCHES))
		return "push.work is out of range";
	if (p->chunks > p->slices.n)
		return "push.chunks is more than its slices";
	for (uint32_t i = 0; p->lane_slot && i < p->slices.n; i++)
		if (p->slices.slice[i].encoding != ENCODING_F32)
			return "values in shared memory are not float32";
	return check_decision(p->verdict, p->reject, p->superseded);
}

static const char *rule_params(const struct msg *m)
{
	const struct msg_ack *a = &m->params.ack;

	if (!(m->params.elastic >= 0 && m->params.elastic <= 1))
		return "params.elastic is out of range";
	if ((a->verdict == VERDICT_NONE) != (a->seq == 0))
		return "params.ack has no seq, or no verdict";
	return check_decision(a->verdict, a->reject, a->superseded);
}

static const char *rule_ack(const struct msg *m)
{
	return check_decision(m->ack.verdict, m->ack.reject, m->ack.superseded);
}

static const char *rule_grant(const struct msg *m)
{
	const struct msg_grant *g = &m->grant;

	if (!inside(g->work.first, g->work.count, WIRE_MAX_BATCHES))
		return "grant.work is out of range";
	if (!inside(g->eval_first, g->eval_count, WIRE_MAX_IMAGES))
		return "grant.eval is out of range";
	uint32_t granted = g->kind == GRANT_TRAIN ? g->work.count : g->eval_count;
	return granted > 0 ? NULL : "grant without batches and images";
}

static const char *rule_result(const struct msg *m)
{
	const struct msg_result *r = &m->result;

	if (!inside(r->eval_first, r->eval_count, WIRE_MAX_IMAGES))
		return "result.eval is out of range";
	return r->correct <= r->eval_count ? NULL : "result.correct exceeds result.eval_count";
}

static const char *rule_admin(const struct msg *m)
{
	int sets_level = m->admin.verb == ADMIN_LOG_LEVEL;
	int releases = m->admin.verb == ADMIN_RELEASE;

	if (sets_level != (m->admin.level != LOG_LEVEL_NONE))
		return "verb and level contradict each other";
	return releases == (m->admin.worker[0] != '\0') ? NULL
							: "verb and worker contradict each other";
}

const struct wire_message wire_messages[MSG_TYPES] = {
	[MSG_HELLO] = {hello, NULL},
	[MSG_WELCOME] = {welcome, rule_welcome},
	[MSG_PULL] = {pull, NULL},
	[MSG_PARAMS] = {params, rule_params},
	[MSG_PUSH] = {push, rule_push},
	[MSG_ACK] = {ack, rule_ack},
	[MSG_LEASE] = {lease, NULL},
	[MSG_GRANT] = {grant, rule_grant},
	[MSG_RESULT] = {result, rule_result},
	[MSG_HEARTBEAT] = {heartbeat, NULL},
	[MSG_BYE] = {bye, NULL},
	[MSG_STATUS] = {status, NULL},
	[MSG_ADMIN] = {admin, rule_admin},
	[MSG_ERROR] = {error, NULL},
};

/* ---- protobuf-c ------------------------------------------------------------------------------ */

const ProtobufCMessageDescriptor *wire_descriptor(unsigned type)
{
	const ProtobufCFieldDescriptor *field = wire_field_of(&cnnps__message__descriptor, type);

	return field ? field->descriptor : NULL;
}

const ProtobufCFieldDescriptor *wire_field_of(
	const ProtobufCMessageDescriptor *message, unsigned number)
{
	/* the fields are sorted by number, so a message without gaps has field n at n - 1 */
	if (number - 1 < message->n_fields && message->fields[number - 1].id == number)
		return &message->fields[number - 1];
	return protobuf_c_message_descriptor_get_field(message, number);
}

const ProtobufCFieldDescriptor *wire_find(
	const ProtobufCMessage *message, const struct wire_field *row)
{
	return wire_field_of(message->descriptor, row->number);
}

void *wire_alloc(struct wire_arena *a, size_t size)
{
	size_t left = a->size - a->used;

	if (size > left)
		return NULL;
	void *p = a->memory + a->used;
	size_t rounded = (size + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN;
	a->used += rounded < left ? rounded : left;
	return p;
}
