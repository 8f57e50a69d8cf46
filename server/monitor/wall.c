/* wall.c - see wall.h. */
#include "server/monitor/wall.h"
#include <jansson.h>
#include "server/core/core.h"

uint32_t wall_choose(struct wall *w, const struct core *c, uint64_t now_ms)
{
	const uint32_t slots = core_config(c)->sessions.max_workers;

	if (now_ms < w->request_ms + WALL_MS || core_config(c)->training.epochs == 0)
		return 0;
	for (uint32_t i = 0; i < slots; i++) {
		struct worker_view v;

		core_worker(c, (w->next + i) % slots, &v);
		if (v.state != SESSION_LIVE || v.stalled || v.excluded || !v.peer)
			continue;
		w->next = (w->next + i + 1) % slots;
		w->request_ms = now_ms;
		return w->peer = v.peer;
	}
	return 0;
}

char *wall_take(struct wall *w, uint32_t peer, const struct msg_status *answer)
{
	if (!peer || peer != w->peer)
		return NULL;
	w->peer = 0;
	json_t *o = json_loads(answer->text, JSON_REJECT_DUPLICATES, NULL);
	int is_sound =
		json_is_object(o) && json_array_size(json_object_get(o, "images")) <= WALL_IMAGES;
	char *line = is_sound ? json_dumps(o, JSON_COMPACT | JSON_REAL_PRECISION(4)) : NULL;
	json_decref(o);
	return line;
}
