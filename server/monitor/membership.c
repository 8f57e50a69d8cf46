/* membership.c - see membership.h. */
#include "server/monitor/membership.h"
#include <inttypes.h>
#include <stdlib.h>
#include "common/log.h"
#include "common/mem.h"
#include "server/core/core.h"
#include "server/net/clients.h"

static void remember(struct seen *s, const struct worker_view *v)
{
	s->incarnation = v->incarnation;
	s->state = (int)v->state;
	s->stalled = v->stalled;
}

void crew_init(struct crew *w, const struct core *c)
{
	uint32_t n = core_config(c)->sessions.max_workers;

	w->seen = mem_must(n, sizeof(*w->seen), "log of workers");
	w->short_at = core_stats(c)->steps_short + 1;
	for (uint32_t i = 0; i < n; i++) {
		struct worker_view v;
		core_worker(c, i, &v);
		remember(&w->seen[i], &v);
	}
}

void crew_release(struct crew *w)
{
	free(w->seen);
	w->seen = NULL;
}

static const char *what_happened(const struct seen *before, const struct worker_view *v)
{
	if (v->state == SESSION_LIVE && before->incarnation != v->incarnation)
		return "joined";
	if (v->stalled != before->stalled && v->state == SESSION_LIVE)
		return v->stalled ? "stalled" : "delivers";
	if ((int)v->state == before->state)
		return NULL;
	switch (v->state) {
	case SESSION_LIVE:
		return before->state == SESSION_JOINING ? "joined" : "back";
	case SESSION_SUSPECT:
		return "silent";
	case SESSION_DEAD:
		return "gone";
	default:
		return NULL;
	}
}

/* Steps of sync with fewer gradients than due: the first, and then whenever their number has
 * doubled. */
static void look_at_steps(struct crew *w, const struct core *c)
{
	const struct core_stats *t = core_stats(c);

	if (t->steps_short < w->short_at)
		return;
	w->short_at = 2 * t->steps_short;
	log_warn("sync", "steps_short", "steps=%llu of=%llu sync_workers=%u live=%u",
		(unsigned long long)t->steps_short, (unsigned long long)t->updates,
		core_config(c)->sync.workers, core_live_workers(c));
}

/* Some live workers have another data set than the run: whoever is right, one of them is not. */
static void look_at_data(struct crew *w, const struct core *c)
{
	struct hold_up_view v;

	core_hold_up(c, &v);
	if (v.others > w->others)
		log_warn("server", "data_sets_differ",
			"workers=%u data_set=%016" PRIx64 " of_run=%016" PRIx64
			" reason=\"they get no work: give all the same --data, or the server "
			"--data-id\"",
			v.others, v.other_data, core_data(c)->xxh3);
	w->others = v.others;
}

static void say(const char *event, const struct worker_view *v, const struct label *l)
{
	log_info("worker", event,
		"worker=%u incarnation=%u name=\"%s\" host=\"%s\" pid=%u address=\"%s\" "
		"device=\"%s\" images=%llu",
		v->worker, v->incarnation, v->name, l->host, l->pid, l->address, v->device,
		(unsigned long long)v->images);
}

void crew_look(struct crew *w, const struct core *c, const struct labels *labels)
{
	look_at_steps(w, c);
	look_at_data(w, c);
	for (uint32_t i = 0; i < core_config(c)->sessions.max_workers; i++) {
		struct worker_view v;
		core_worker(c, i, &v);
		const char *event = what_happened(&w->seen[i], &v);
		if (event)
			say(v.excluded ? "excluded" : event, &v, labels_of(labels, v.worker));
		remember(&w->seen[i], &v);
	}
}
