/* session_ask.c - session.h's requests of the program. */
#include "worker/client/session_impl.h"

static int may_ask(const struct session *s)
{
	if (s->phase == PHASE_END)
		return s->end_status ? s->end_status : PS_ESTATE;
	return s->phase == PHASE_READY && !s->leaving ? PS_OK : PS_EAGAIN;
}

/* The silence that counts is the one after the oldest unanswered request. */
static void note_request(struct session *s, uint64_t now_ms)
{
	if (!session_waits(s))
		s->progress_ms = now_ms;
}

static uint64_t replay_window(const struct session *s)
{
	return s->welcome.replay_window < s->capacity ? s->welcome.replay_window : s->capacity;
}

int session_can_push(const struct session *s)
{
	return s->phase == PHASE_READY && !s->leaving &&
	       s->last_seq - s->freed_seq < replay_window(s);
}

static void open_request(struct request *r)
{
	r->open = 1;
	r->sent = 0;
	r->number++;
}

/* PS_OK: a push may be made now. */
static int may_push(struct session *s)
{
	int rc = may_ask(s);

	s->n_effects = 0;
	return rc == PS_OK && !session_can_push(s) ? PS_EAGAIN : rc;
}

static uint64_t add_push(struct session *s, const struct msg_push *meta, uint64_t now_ms)
{
	uint64_t seq = ++s->last_seq;

	note_request(s, now_ms);
	*session_kept(s, seq) = (struct kept){.base_version = meta->base_version,
		.base_term = meta->base_term,
		.work = meta->work,
		.images = meta->images,
		.loss = meta->loss};
	return seq;
}

int session_push(struct session *s, const struct msg_push *meta, uint64_t *seq, uint64_t now_ms)
{
	int rc = may_push(s);

	if (rc != PS_OK)
		return rc;
	*seq = add_push(s, meta, now_ms);
	session_pump(s);
	return PS_OK;
}

int session_push_pull(
	struct session *s, const struct msg_push *meta, uint64_t *seq, uint64_t now_ms)
{
	int rc = may_push(s);

	if (rc == PS_OK && s->pull.open)
		rc = PS_EAGAIN;
	if (rc != PS_OK)
		return rc;
	*seq = add_push(s, meta, now_ms);
	open_request(&s->pull);
	s->pull_which = WEIGHTS_CURRENT;
	s->pull_with = *seq;
	session_pump(s);
	return PS_OK;
}

static int ask(struct session *s, struct request *r, uint64_t now_ms)
{
	int rc = may_ask(s);

	if (rc == PS_OK && r->open)
		rc = PS_EAGAIN;
	if (rc != PS_OK)
		return rc;
	note_request(s, now_ms);
	open_request(r);
	session_pump(s);
	return PS_OK;
}

int session_pull(struct session *s, enum weights which, uint64_t now_ms)
{
	s->n_effects = 0;
	if (!s->pull.open)
		s->pull_which = which;
	return ask(s, &s->pull, now_ms);
}

int session_lease(struct session *s, uint64_t now_ms)
{
	s->n_effects = 0;
	return ask(s, &s->lease, now_ms);
}

int session_result(struct session *s, const struct msg_result *r, uint64_t now_ms)
{
	s->n_effects = 0;
	if (!s->result.open)
		s->result_msg = *r;
	return ask(s, &s->result, now_ms);
}

void session_bye(struct session *s, uint64_t now_ms)
{
	s->n_effects = 0;
	if (s->phase == PHASE_END || s->leaving)
		return;
	if (!s->welcomed || s->cfg.role != ROLE_WORKER) {
		session_over(s, PS_OK);
		return;
	}
	s->leaving = 1;
	s->leave_ms = now_ms;
	s->pull.open = s->lease.open = 0;
	session_pump(s);
}
