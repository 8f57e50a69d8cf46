/* watchers.c - see watchers.h. */
#include "server/monitor/watchers.h"

/* Its own place, else the one that was asked from longest ago; a free one counts as never. */
static size_t place_for(const struct watchers *w, uint32_t peer)
{
	size_t best = 0;

	for (size_t i = 0; i < MAX_WATCHERS; i++) {
		if (w->watcher[i].peer == peer)
			return i;
		if (w->watcher[i].asked_ms < w->watcher[best].asked_ms)
			best = i;
	}
	return best;
}

void watchers_add(struct watchers *w, uint32_t peer, uint64_t now_ms)
{
	size_t i = place_for(w, peer);

	w->watcher[i].peer = peer;
	w->watcher[i].asked = 0;
	w->watcher[i].asked_ms = now_ms;
}

int watchers_asked(struct watchers *w, uint32_t peer, uint64_t now_ms)
{
	size_t i = place_for(w, peer);

	if (w->watcher[i].peer != peer)
		return 0;
	w->watcher[i].asked = 1;
	w->watcher[i].asked_ms = now_ms;
	return 1;
}

void watchers_drop(struct watchers *w, uint32_t peer)
{
	for (size_t i = 0; i < MAX_WATCHERS; i++)
		if (w->watcher[i].peer == peer) {
			w->watcher[i].peer = 0;
			w->watcher[i].asked_ms = 0;
		}
}

uint32_t watchers_peer(const struct watchers *w, size_t i, uint64_t now_ms)
{
	int lately = w->watcher[i].asked && now_ms - w->watcher[i].asked_ms <= WATCHER_MS;

	return lately ? w->watcher[i].peer : 0;
}
