/* sides.c - see sides.h. */
#include "worker/client/sides.h"
#include <stdio.h>
#include <string.h>
#include "common/assert.h"
#include "common/log.h"

#define ACCEPT_MS 2000 /* time limit of the wait for the server's answers to the greetings */
/* Pause after the first failure. Each further failure doubles the pause, up to MAX_PAUSE_MS. Once
 * the side connections have worked for MAX_PAUSE_MS, the next pause is PAUSE_MS again */
#define PAUSE_MS     1000
#define MAX_PAUSE_MS 60000

void sides_init(struct sides *s, struct link *link, struct outbox *out, uint32_t requested)
{
	*s = (struct sides){.link = link, .out = out, .requested = requested};
	frames_init(&s->params);
}

static void forget_part(struct side_connection *c)
{
	if (c->has_part)
		(void)zmq_msg_close(&c->part);
	c->has_part = 0;
}

static void forget_params(struct sides *s)
{
	frames_release(&s->params);
	s->parts = 0;
	for (size_t i = 0; i < s->n; i++)
		forget_part(&s->side[i]);
}

int sides_drop(struct sides *s)
{
	int used = 0;

	forget_params(s);
	for (size_t i = 0; i < s->n; i++) {
		used |= s->side[i].greeted;
		link_close_side(&s->side[i].socket, &s->side[i].monitor);
	}
	s->n = 0;
	s->is_open = 0;
	outbox_use_sides(s->out, NULL, 0);
	return used;
}

void sides_on_welcome(struct sides *s, const struct msg_welcome *w)
{
	uint32_t max = w->connections < s->requested ? w->connections : s->requested;

	(void)sides_drop(s);
	s->offered = max > 1 && w->n_params * sizeof(float) >= SIDE_MIN_BYTES ? max - 1 : 0;
	s->max_frame = wire_max_frame(w->n_params);
	s->greeting = (struct side_greeting){
		.secret_hi = w->side_secret_hi, .secret_lo = w->side_secret_lo};
	if (s->requested > 1 && max < s->requested)
		log_info("net", "fewer_connections",
			"requested=%u permitted=%u reason=\"--connections of the server\"",
			s->requested, max > 1 ? max : 1);
}

static int lose_sides(struct sides *s, const char *why, uint64_t now_ms)
{
	int worked = s->is_open && now_ms - s->since_ms >= MAX_PAUSE_MS;

	s->pause_ms = worked || !s->pause_ms ? PAUSE_MS : 2 * s->pause_ms;
	if (s->pause_ms > MAX_PAUSE_MS)
		s->pause_ms = MAX_PAUSE_MS;
	s->until_ms = now_ms + s->pause_ms;
	log_info("net", "one_connection", "reason=\"%s\" pause_ms=%llu", why,
		(unsigned long long)s->pause_ms);
	return sides_drop(s);
}

void sides_tick(struct sides *s, uint64_t now_ms)
{
	if (!s->offered || s->n || now_ms < s->until_ms)
		return;
	s->n = s->offered;
	s->offered = 0;
	s->since_ms = now_ms;
	memset(s->side, 0, sizeof(s->side));
	for (size_t i = 0; i < s->n; i++)
		s->side[i].fd = -1;
	for (size_t i = 0; i < s->n; i++)
		if (link_open_side(
			    s->link, s->max_frame, &s->side[i].socket, &s->side[i].monitor)) {
			(void)lose_sides(s, "no ZeroMQ socket", now_ms);
			return;
		}
}

/* Sends the greeting of side connection `i` as soon as libzmq accepts it. */
static void greet_server(struct sides *s, size_t i)
{
	struct side_connection *c = &s->side[i];
	struct side_greeting greeting = s->greeting;
	struct frames f;

	if (c->greeted)
		return;
	frames_init(&f);
	greeting.number = (uint32_t)i + 1;
	if (side_encode_greeting(&greeting, &f.frame[0]))
		return;
	f.n = 1;
	c->greeted = wire_send(c->socket, 0, &f) == PS_OK;
	frames_release(&f);
}

/* Handles a message of side connection `i`. Returns 0 if a server may not send such a message. */
static int take_side_message(struct sides *s, size_t i, struct frames *f)
{
	struct side_connection *c = &s->side[i];
	struct side_mark mark;

	if (side_is_receipt(f, &mark)) {
		if (mark.number)
			outbox_confirm(s->out, &mark);
		else
			c->accepted = mark.part == i + 1;
		return mark.number || c->accepted;
	}
	if (!side_is_part(f, &mark) || mark.part != i + 1)
		return 0;
	forget_part(c); /* drop an older part, whose PARAMS did not arrive */
	c->has_part = 1;
	c->request = mark.number;
	(void)zmq_msg_init(&c->part);
	(void)zmq_msg_move(&c->part, &f->frame[1]);
	return 1;
}

/* Returns NULL, or why side connection `i` is lost. */
static const char *poll_side(struct sides *s, size_t i)
{
	struct side_connection *c = &s->side[i];
	enum link_event event;
	struct frames f;
	int got;

	greet_server(s, i);
	while ((got = wire_recv(c->socket, NULL, &f)) != 0 && got != PS_ENET) {
		int sound = got == 1 && take_side_message(s, i, &f);

		frames_release(&f);
		if (!sound)
			return "the server refuses them";
	}
	while ((event = link_side_event(c->monitor, &c->fd)) != LINK_NONE)
		if (event != LINK_UP && event != LINK_OTHER)
			return "one of them is closed";
	return NULL;
}

static int all_accepted(const struct sides *s)
{
	for (size_t i = 0; i < s->n; i++)
		if (!s->side[i].accepted)
			return 0;
	return s->n > 0;
}

/* Does the work of sides_poll. */
static int poll_all(struct sides *s, uint64_t now_ms)
{
	void *socket[MAX_SIDES] = {NULL};

	for (size_t i = 0; i < s->n; i++) {
		const char *why = poll_side(s, i);

		if (why)
			return lose_sides(s, why, now_ms);
		socket[i] = s->side[i].socket;
	}
	if (s->is_open || !s->n)
		return 0;
	if (all_accepted(s)) {
		s->is_open = 1;
		outbox_use_sides(s->out, socket, s->n);
		log_info("net", "connections", "n=%zu", s->n + 1);
	} else if (now_ms - s->since_ms >= ACCEPT_MS) {
		return lose_sides(s, "the server does not answer them", now_ms);
	}
	return 0;
}

int sides_poll(struct sides *s, uint64_t now_ms)
{
	int lost = poll_all(s, now_ms);

	PS_ASSERT(s->out->n_sides == (s->is_open ? s->n : 0)); /* invariant 1 */
	PS_ASSERT(!s->is_open || all_accepted(s));
	return lost;
}

void sides_hold(struct sides *s, struct frames *f, uint64_t parts, uint64_t request)
{
	frames_release(&s->params);
	s->parts = 0;
	if (parts < 2 || parts > s->n + 1) {
		/* outdated: the session has sent HELLO since this PARAMS, and pulls again */
		frames_release(f);
		return;
	}
	frames_move(&s->params, f);
	s->parts = parts;
	s->request = request;
}

/* Returns the bytes of all parts of the PARAMS, or 0 if some have not arrived. */
static size_t bytes_of_parts(struct sides *s)
{
	size_t bytes = s->parts ? zmq_msg_size(&s->params.frame[1]) : 0;

	for (size_t i = 0; i + 1 < s->parts; i++) {
		struct side_connection *c = &s->side[i];

		if (!c->has_part || c->request != s->request)
			return 0;
		bytes += zmq_msg_size(&c->part);
	}
	return bytes;
}

/* Copies the bytes of a frame to *at, and moves *at past the copy. */
static void append_bytes(char **at, zmq_msg_t *part)
{
	memcpy(*at, zmq_msg_data(part), zmq_msg_size(part));
	*at += zmq_msg_size(part);
}

int sides_take(struct sides *s, size_t max_bytes, struct frames *f)
{
	size_t bytes = bytes_of_parts(s);
	zmq_msg_t whole;

	if (!bytes)
		return 0;
	if (bytes > max_bytes || zmq_msg_init_size(&whole, bytes)) {
		forget_params(s);
		return 0;
	}
	char *at = zmq_msg_data(&whole);
	append_bytes(&at, &s->params.frame[1]);
	for (size_t i = 0; i + 1 < s->parts; i++)
		append_bytes(&at, &s->side[i].part);
	frames_init(f);
	frames_move(f, &s->params);
	(void)zmq_msg_move(&f->frame[1], &whole);
	(void)zmq_msg_close(&whole);
	forget_params(s);
	return 1;
}

uint64_t sides_bytes_moved(const struct sides *s)
{
	uint64_t moved = 0;

	for (size_t i = 0; i < s->n; i++)
		moved += link_side_moved(s->side[i].fd);
	return moved;
}
