/* crew.c - see crew.h. */
#include "server/crew.h"
#include <stdlib.h>
#include "common/log.h"
#include "common/mem.h"
#include "server/core/core.h"

static void remember(struct seen *s, const struct worker_view *v)
{
	s->incarnation = v->incarnation;
	s->state = (int)v->state;
}

void crew_init(struct crew *w, const struct core *c)
{
	uint32_t n = core_config(c)->max_workers;

	w->seen = mem_must(n, sizeof(*w->seen), "log of workers");
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

void crew_look(struct crew *w, const struct core *c)
{
	for (uint32_t i = 0; i < core_config(c)->max_workers; i++) {
		struct worker_view v;
		core_worker(c, i, &v);
		const char *event = what_happened(&w->seen[i], &v);
		if (event)
			log_info("worker", event,
				"worker=%u incarnation=%u name=\"%s\" device=\"%s\" images=%llu",
				v.worker, v.incarnation, v.name, v.device,
				(unsigned long long)v.images);
		remember(&w->seen[i], &v);
	}
}
