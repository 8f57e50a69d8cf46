/* core_fixture.c - see core_fixture.h. */
#include "tests/support/core_fixture.h"

const struct data_id fixture_data = {
	.n_train = 35, .n_test = 7, .rows = 2, .cols = 3, .classes = 10, .xxh3 = 99};
const float fixture_ones[FIXTURE_PARAMS] = {1, 1, 1, 1, 1, 1, 1, 1};

/* ---- life cycle ----------------------------------------------------------------------------- */

size_t fixture_bytes(const struct core_config *cfg)
{
	return core_bytes(cfg) + (cfg->n_params * sizeof(float) + 63) / 64 * 64;
}

void *fixture_memory(const struct core_config *cfg)
{
	size_t n = fixture_bytes(cfg);
	void *memory = aligned_alloc(64, n);

	assert_non_null(memory);
	memset(memory, 0xa5, n);
	return memory;
}

float *fixture_weights(void *memory, const struct core_config *cfg)
{
	return (float *)(void *)((char *)memory + core_bytes(cfg));
}

void fixture_open(struct core_fixture *f, struct core_config cfg)
{
	*f = (struct core_fixture){.cfg = cfg, .now_ms = 1000, .memory = fixture_memory(&cfg)};
	memset(fixture_weights(f->memory, &cfg), 0, cfg.n_params * sizeof(float));
	f->core = core_init(f->memory, &f->cfg, fixture_weights(f->memory, &cfg));
}

void fixture_close(struct core_fixture *f)
{
	free(f->memory);
	f->memory = f->core = NULL;
}

void fixture_set_weight(struct core_fixture *f, size_t i, float value)
{
	f->core->store.weights[i] = value;
	f->values.core = NULL;
}

/* ---- steps and effects ---------------------------------------------------------------------- */

static void fixture_watch(struct core_fixture *f)
{
	for (size_t i = 0; core_effect(f->core, i); i++) {
		const struct effect *e = core_effect(f->core, i);

		if (e->kind == EFFECT_SEND || e->kind == EFFECT_STATUS)
			assert_int_not_equal(e->peer, 0);
		if (e->kind != EFFECT_SNAPSHOT)
			continue;
		assert_int_equal(f->saving, 0);
		assert_true(e->generation > 0);
		f->saving = e->generation;
	}
	const char *broken = core_broken_invariant(&f->values, f->core);
	if (broken)
		fail_msg("%s", broken);
}

void fixture_step(struct core_fixture *f, const struct event *ev)
{
	struct event event = *ev;
	uint64_t version = core_stats(f->core)->version;

	event.next_buffer = f->next_buffer;
	event.defers = core_config(f->core)->device && core_config(f->core)->device->defers;
	core_step(f->core, &event, f->now_ms);
	assert_int_equal(core_new_versions(f->core), core_stats(f->core)->version - version);
	if (f->twin)
		core_step(f->twin, ev, f->now_ms);
	fixture_watch(f);
}

void fixture_message(struct core_fixture *f, uint32_t peer, const struct msg *m)
{
	fixture_step(f, &(struct event){.kind = EVENT_MESSAGE, .peer = peer, .msg = m});
}

void fixture_tick(struct core_fixture *f, uint64_t ms)
{
	f->now_ms += ms;
	fixture_step(f, &(struct event){.kind = EVENT_TICK});
}

void fixture_gone(struct core_fixture *f, uint32_t peer)
{
	fixture_step(f, &(struct event){.kind = EVENT_PEER_GONE, .peer = peer});
}

void fixture_saved(struct core_fixture *f, enum event_kind kind)
{
	uint64_t generation = f->saving;

	assert_int_not_equal(generation, 0);
	f->saving = 0;
	fixture_step(f, &(struct event){.kind = kind, .generation = generation});
}

void fixture_durable(struct core_fixture *f)
{
	fixture_saved(f, EVENT_DURABLE);
}

size_t fixture_count(const struct core_fixture *f, enum effect_kind kind)
{
	size_t n = 0;

	for (size_t i = 0; core_effect(f->core, i); i++)
		n += core_effect(f->core, i)->kind == kind;
	return n;
}

const struct effect *fixture_effect(const struct core_fixture *f, enum effect_kind kind)
{
	for (size_t i = 0; core_effect(f->core, i); i++)
		if (core_effect(f->core, i)->kind == kind)
			return core_effect(f->core, i);
	return NULL;
}

const struct msg *fixture_sent(const struct core_fixture *f, uint32_t peer, enum msg_type type)
{
	for (size_t i = 0; core_effect(f->core, i); i++) {
		const struct effect *e = core_effect(f->core, i);

		if (e->kind == EFFECT_SEND && e->peer == peer && e->msg.type == type)
			return &e->msg;
	}
	return NULL;
}

void fixture_refused(const struct core_fixture *f, uint32_t peer, int status)
{
	const struct msg *m = fixture_sent(f, peer, MSG_ERROR);

	assert_int_equal(fixture_count(f, EFFECT_SEND), 1);
	assert_non_null(m);
	assert_int_equal(m->error.status, status);
	assert_non_null(m->error.text);
}

void fixture_silent(const struct core_fixture *f)
{
	assert_int_equal(fixture_count(f, EFFECT_FINISH), 0);
	assert_int_equal(fixture_count(f, EFFECT_SEND), 0);
}

struct worker_view fixture_worker(const struct core_fixture *f, uint32_t id)
{
	struct worker_view v;

	core_worker(f->core, id - 1, &v);
	return v;
}

/* ---- messages of a worker ------------------------------------------------------------------- */

struct msg fixture_hello(const char *name)
{
	struct msg m = {.type = MSG_HELLO};

	m.hello = (struct msg_hello){.role = ROLE_WORKER, .device = "cpu", .data = fixture_data};
	memcpy(m.hello.name, name, strlen(name));
	return m;
}

struct msg fixture_resume(struct stamp s, uint64_t last_seq, uint64_t durable_seq)
{
	struct msg m = fixture_hello("");

	m.hello.resume = s;
	m.hello.last_seq = last_seq;
	m.hello.durable_seq = durable_seq;
	return m;
}

struct stamp fixture_join(struct core_fixture *f, uint32_t peer, const char *name)
{
	struct msg m = fixture_hello(name);

	fixture_message(f, peer, &m);
	for (int i = 0; i < 2 && !fixture_sent(f, peer, MSG_WELCOME); i++)
		fixture_durable(f);
	assert_non_null(fixture_sent(f, peer, MSG_WELCOME));
	return fixture_sent(f, peer, MSG_WELCOME)->welcome.stamp;
}

struct stamp fixture_come_back(
	struct core_fixture *f, uint32_t peer, struct stamp s, uint64_t last_seq)
{
	struct msg m = fixture_resume(s, last_seq, 0);

	fixture_message(f, peer, &m);
	assert_non_null(fixture_sent(f, peer, MSG_WELCOME));
	return fixture_sent(f, peer, MSG_WELCOME)->welcome.stamp;
}

struct msg fixture_push(struct stamp s, uint64_t seq)
{
	struct msg m = {.type = MSG_PUSH};

	m.push = (struct msg_push){.stamp = s, .seq = seq, .loss = 0.5f};
	return m;
}

void fixture_slice(struct msg *m, uint64_t offset, uint64_t count, const float *g)
{
	m->push.slices.slice[m->push.slices.n++] = (struct slice){
		.offset = offset, .count = count, .encoding = ENCODING_F32, .data = g};
}

struct msg fixture_push_ones(struct stamp s, uint64_t seq)
{
	struct msg m = fixture_push(s, seq);

	fixture_slice(&m, 0, FIXTURE_PARAMS, fixture_ones);
	return m;
}

void fixture_work(struct msg *m, uint32_t epoch, uint32_t first, uint32_t count)
{
	uint32_t to = (first + count) * 10 < 35 ? (first + count) * 10 : 35;

	m->push.work = (struct work){epoch, first, count};
	m->push.images = to - first * 10;
}

struct msg_ack fixture_acked(struct core_fixture *f, uint32_t peer, const struct msg *m)
{
	enum msg_type type = m->push.pull ? MSG_PARAMS : MSG_ACK;

	fixture_message(f, peer, m);
	const struct msg *answer = fixture_sent(f, peer, type);
	assert_non_null(answer);
	assert_null(fixture_sent(f, peer, type == MSG_ACK ? MSG_PARAMS : MSG_ACK));
	const struct msg_ack ack = type == MSG_ACK ? answer->ack : answer->params.ack;
	assert_int_equal(ack.seq, m->push.seq);
	return ack;
}

void fixture_applied(struct core_fixture *f, uint32_t peer, const struct msg *m)
{
	struct msg_ack a = fixture_acked(f, peer, m);

	assert_int_equal(a.reject, REJECT_NONE);
	assert_int_equal(a.verdict, VERDICT_OK);
	assert_int_equal(a.duplicate, 0);
}

void fixture_apply_ones(struct core_fixture *f, struct stamp s, uint64_t seq)
{
	struct msg m = fixture_push_ones(s, seq);

	fixture_applied(f, 9, &m);
}

void fixture_rejected(struct core_fixture *f, uint32_t peer, const struct msg *m, enum reject why)
{
	struct msg_ack a = fixture_acked(f, peer, m);

	assert_int_equal(a.reject, why);
	assert_int_equal(a.verdict, VERDICT_REJECTED);
	assert_int_equal(a.duplicate, 0);
}

void fixture_lease(struct core_fixture *f, uint32_t peer, struct stamp s, uint64_t request)
{
	struct msg m = {.type = MSG_LEASE};

	m.lease = (struct msg_lease){.stamp = s, .request = request};
	fixture_message(f, peer, &m);
}

void fixture_heartbeat(struct core_fixture *f, uint32_t peer, struct stamp s)
{
	struct msg m = {.type = MSG_HEARTBEAT};

	m.heartbeat.stamp = s;
	fixture_message(f, peer, &m);
}

void fixture_pull(struct core_fixture *f, uint32_t peer, struct stamp s, enum weights which)
{
	struct msg m = {.type = MSG_PULL};

	m.pull = (struct msg_pull){.stamp = s, .request = 42, .which = which};
	fixture_message(f, peer, &m);
}

void fixture_bye(struct core_fixture *f, uint32_t peer, struct stamp s)
{
	struct msg m = {.type = MSG_BYE};

	m.bye.stamp = s;
	fixture_message(f, peer, &m);
}

void fixture_drain(struct core_fixture *f)
{
	fixture_step(f, &(struct event){.kind = EVENT_DRAIN});
}

void fixture_meet_rule(struct core_fixture *f)
{
	fixture_step(f, &(struct event){.kind = EVENT_DRAIN, .rule_met = 1});
}

void fixture_admin(struct core_fixture *f, uint32_t peer, enum admin_verb verb)
{
	struct msg m = {.type = MSG_ADMIN, .admin = {.verb = verb}};

	fixture_message(f, peer, &m);
}

const struct msg_grant *fixture_granted(const struct core_fixture *f, uint32_t peer)
{
	const struct msg *m = fixture_sent(f, peer, MSG_GRANT);

	return m ? &m->grant : NULL;
}

struct msg_grant fixture_grant(
	struct core_fixture *f, uint32_t peer, struct stamp s, uint64_t request)
{
	fixture_lease(f, peer, s, request);
	assert_non_null(fixture_granted(f, peer));
	assert_int_equal(fixture_granted(f, peer)->request, request);
	return *fixture_granted(f, peer);
}

struct msg_grant fixture_train(
	struct core_fixture *f, uint32_t peer, struct stamp s, uint64_t request)
{
	struct msg_grant g = fixture_grant(f, peer, s, request);

	assert_int_equal(g.kind, GRANT_TRAIN);
	return g;
}

void assert_work(const struct msg_grant *g, uint32_t epoch, uint32_t first, uint32_t count)
{
	assert_int_equal(g->work.epoch, epoch);
	assert_int_equal(g->work.first, first);
	assert_int_equal(g->work.count, count);
}

struct msg fixture_batch(
	struct stamp s, uint64_t seq, uint32_t epoch, uint32_t first, uint32_t count)
{
	struct msg m = fixture_push_ones(s, seq);

	fixture_work(&m, epoch, first, count);
	return m;
}

struct core_snapshot fixture_save(const struct core_fixture *f)
{
	struct core_snapshot snapshot;

	for (int i = 0; i < SNAPSHOT_SECTIONS; i++) {
		snapshot.size[i] = snapshot_size(f->core, (enum snapshot_section)i);
		snapshot.data[i] = malloc(snapshot.size[i] + 1);
		assert_non_null(snapshot.data[i]);
		(void)snapshot_encode(f->core, (enum snapshot_section)i, snapshot.data[i],
			snapshot.size[i], NULL);
	}
	return snapshot;
}

void fixture_drop(struct core_snapshot *snapshot)
{
	for (int i = 0; i < SNAPSHOT_SECTIONS; i++)
		free(snapshot->data[i]);
}

int fixture_read(struct core_fixture *f, struct core_config cfg,
	const struct core_snapshot *snapshot, const char **why)
{
	const unsigned char *data[SNAPSHOT_SECTIONS];

	memcpy(data, snapshot->data, sizeof(data));
	*f = (struct core_fixture){.cfg = cfg, .now_ms = 1000, .memory = fixture_memory(&cfg)};
	return snapshot_decode(f->memory, fixture_weights(f->memory, &cfg), &f->cfg, data,
		snapshot->size, &f->core, why);
}

void fixture_load(
	struct core_fixture *f, struct core_config cfg, const struct core_snapshot *snapshot)
{
	const char *why = NULL;

	cfg.term++;
	cfg.generation += 1000;
	assert_int_equal(fixture_read(f, cfg, snapshot, &why), PS_OK);
	assert_non_null(f->core);
}

void fixture_restart(struct core_fixture *f)
{
	struct core_snapshot snapshot = fixture_save(f);
	struct core_config cfg = f->cfg;

	fixture_close(f);
	fixture_load(f, cfg, &snapshot);
	fixture_drop(&snapshot);
}

struct stamp fixture_open_with_pushes(struct core_fixture *f, struct core_config cfg, uint64_t n)
{
	struct stamp s;

	fixture_open(f, cfg);
	s = fixture_join(f, 9, "");
	for (uint64_t seq = 1; seq <= n; seq++)
		fixture_apply_ones(f, s, seq);
	return s;
}
