/* lane_setup.c - see lane_setup.h. */
#include "worker/client/lane_setup.h"
#include <stdio.h>
#include "common/log.h"
#include "proto/lane.h"

#define LANE_MS 2000 /* time limit of the wait for the answer from the server's Unix socket */
/* the reason why a WELCOME has no path of a socket */
#define NO_OFFER "the server offers none (--lane tcp, no socket, or a release without lanes)"

void lane_setup_init(
	struct lane_setup *s, enum cnnps_lane choice, const char *server, struct outbox *out)
{
	*s = (struct lane_setup){.choice = choice, .server = server, .out = out};
}

void lane_setup_drop(struct lane_setup *s)
{
	s->out->lane = NULL;
	lane_close(&s->lane);
}

int lane_setup_waits(const struct lane_setup *s)
{
	return s->lane && !lane_is_open(s->lane);
}

/* Logs why the worker has no lane, once for each process of the server, because each new connection
 * to it can fail to get a lane for the same reason. */
static void log_reason(struct lane_setup *s, const char *why)
{
	if (!s->has_logged)
		log_info("lane", "tcp", "reason=\"%s\"", why);
	s->has_logged = 1;
}

void lane_setup_received(struct lane_setup *s)
{
	s->received++;
	lane_ring_received(s->lane, s->received);
}

void lane_setup_note_welcome(struct lane_setup *s, const struct msg_welcome *w)
{
	s->received = lane_received(w->lane_secret_lo);
	lane_ring_received(s->lane, s->received);
}

static int on_lane_failed(struct lane_setup *s, const char *why, struct err *e)
{
	lane_setup_drop(s);
	if (s->choice == CNNPS_LANE_SHM)
		return err_set(e, PS_EUSAGE, "no shared memory with the server: %s", why);
	log_reason(s, why);
	return PS_OK;
}

static void offer_device(const struct lane_setup *s)
{
	if (s->has_gpu && s->device && s->device->share && lane_is_open(s->lane) &&
		!lane_offer(s->lane, s->device))
		log_info("lane", "no_gpu", "reason=\"the GPU has no memory that can be shared\"");
}

void lane_setup_use_device(struct lane_setup *s, const struct lane_device *device)
{
	s->device = device;
	offer_device(s);
}

/* Reads the server's answer to the offer of memory of the device. If the server refuses the offer,
 * the device uses the memory of the host that the lane has. */
static void poll_offer(const struct lane_setup *s)
{
	struct err why;
	int rc = lane_is_open(s->lane) ? lane_poll_offer(s->lane, &why) : PS_EAGAIN;

	if (rc == PS_OK)
		log_info("lane", "gpu", "server=%s", s->server);
	else if (rc != PS_EAGAIN)
		log_info("lane", "no_gpu", "reason=\"%s\"", why.text);
}

int lane_setup_poll(struct lane_setup *s, uint64_t now_ms, struct err *e)
{
	struct err why;

	poll_offer(s);
	if (!lane_setup_waits(s))
		return PS_OK;
	int rc = lane_poll(s->lane, &why);
	if (rc == PS_OK) {
		s->out->lane = s->lane;
		s->has_logged = 0;
		lane_ring_received(s->lane, s->received);
		log_info("lane", "open", "server=%s", s->server);
		offer_device(s);
	} else if (rc != PS_EAGAIN) {
		return on_lane_failed(s, why.text, e);
	} else if (now_ms - s->requested_ms >= LANE_MS) {
		return on_lane_failed(s, "the server does not answer on its socket", e);
	}
	return PS_OK;
}

/* Connects to the socket of WELCOME `w`. */
static int open_lane(struct lane_setup *s, const struct msg_welcome *w, struct err *e)
{
	struct err why;
	char text[sizeof(why.text) + 64];
	int rc = lane_open(&s->lane, w, &why);

	if (!rc)
		return PS_OK;
	snprintf(text, sizeof(text), "%s%s", why.text,
		rc == PS_EUNREACHABLE ? "; is the server on another host?" : "");
	return on_lane_failed(s, text, e);
}

int lane_setup_welcome(
	struct lane_setup *s, const struct msg_welcome *w, uint64_t now_ms, struct err *e)
{
	if (s->choice == CNNPS_LANE_TCP)
		return PS_OK;
	if (lane_is_open(s->lane) && s->term == w->stamp.term && !lane_is_lost(s->lane)) {
		lane_resynchronised(s->lane, w->lane_ticket);
		return PS_OK;
	}
	lane_setup_drop(s);
	if (s->term != w->stamp.term)
		s->has_logged = 0;
	s->term = w->stamp.term;
	s->requested_ms = now_ms;
	s->has_gpu = (int)w->lane_gpu;
	return w->lane_path[0] ? open_lane(s, w, e) : on_lane_failed(s, NO_OFFER, e);
}

int lane_setup_tick(struct lane_setup *s, uint64_t now_ms, struct err *e)
{
	int rc = lane_setup_poll(s, now_ms, e);

	if (s->lane && lane_is_lost(s->lane)) {
		log_info("lane", "lost", "server=%s", s->server);
		lane_setup_drop(s);
	}
	return rc;
}
