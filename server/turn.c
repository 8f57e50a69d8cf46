/* turn.c - see turn.h. */
#include "server/turn.h"
#include <stdlib.h>
#include "common/log.h"
#include "server/core/core.h"

#define FAREWELL_MS 2000 /* for workers to be told BYE */

uint64_t turn_now(struct server *s)
{
	return awake_ms(&s->awake, clock_ms(), AWAKE_JUDGE_MS);
}

void turn_look(const struct server *s, struct status *out)
{
	*out = (struct status){.core = s->state.core,
		.progress = &s->progress,
		.saver = s->saver ? saver_stats(s->saver) : NULL,
		.commit = s->commit ? commit_stats(s->commit) : NULL,
		.now_ms = s->finish_ms ? s->finish_ms : s->awake.now_ms,
		.rss_bytes = status_rss(),
		.turned_away = s->admission.turned_away,
		.ending = s->status};
	router_stats(s->router, &out->net);
	if (s->auth)
		out->auth = *auth_stats(s->auth);
}

static void send_status(struct server *s, uint32_t peer)
{
	struct status now;

	turn_look(s, &now);
	char *text = status_json(&now);
	const struct msg m = {
		.type = MSG_STATUS, .status = {.reply = STATUS_REPLY, .text = text ? text : "{}"}};
	router_hold(s->router, 0);
	router_send(s->router, peer, &m);
	free(text);
}

static void finish(struct server *s, int status)
{
	s->status = status;
	s->finish_ms = turn_now(s);
	s->deadline_ms = s->finish_ms + FAREWELL_MS;
	log_info("server", "finished", "reason=\"%s\"", err_text(status));
	router_reach(s->router, UINT64_MAX); /* the last checkpoint holds everything */
}

/* A BEAT says what checkpoints hold; everything else waits for the journal. */
static void send_msg(struct server *s, const struct effect *e)
{
	int held = s->commit && !s->status && e->msg.type != MSG_BEAT;

	router_hold(s->router, held ? s->bound : 0);
	router_send(s->router, e->peer, &e->msg);
	if (held && s->bound > commit_reached(s->commit))
		commit_start(s->commit);
}

static void carry_out(struct server *s, const struct effect *e)
{
	progress_effect(&s->progress, s->state.core, e, turn_now(s));
	switch (e->kind) {
	case EFFECT_SEND:
		send_msg(s, e);
		break;
	case EFFECT_SNAPSHOT:
		saver_start(s->saver, s->state.core, e->generation);
		if (s->commit)
			commit_rotate(s->commit, e->generation);
		break;
	case EFFECT_STATUS:
		send_status(s, e->peer);
		break;
	case EFFECT_EPOCH:
		break; /* progress has seen it */
	case EFFECT_FINISH:
		finish(s, e->status);
		break;
	}
}

void turn(struct server *s, const struct event *ev, struct frames *f)
{
	struct core *c = s->state.core;
	uint64_t now = turn_now(s), version = core_stats(c)->version, position = 0;
	const struct effect *e;

	if (s->commit && !s->status)
		position = commit_event(s->commit, ev, now, f);
	versions_lend(s->state.versions, c);
	core_step(c, ev, now);
	versions_follow(s->state.versions, c);
	if (position && commit_binds(c, version))
		s->bound = position;
	for (size_t i = 0; (e = core_effect(c, i)) != NULL; i++)
		carry_out(s, e);
}

int turn_is_flooded(const struct server *s, const struct msg *m)
{
	const struct core_config *cfg = core_config(s->state.core);
	size_t pushes = (size_t)cfg->push_window * (core_live_workers(s->state.core) + 1);

	return s->commit && m->type == MSG_PUSH &&
	       commit_waiting(s->commit) >
		       pushes * (cfg->n_params * sizeof(float) + WIRE_MAX_HEADER);
}
