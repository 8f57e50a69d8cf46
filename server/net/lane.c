/* lane.c - see lane.h. */
#include "server/net/lane.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>
#include "common/assert.h"
#include "common/keys.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/share.h"
#include "proto/lane.h"
#include "server/device/gpu_store.h"
#include "server/net/lane_ring.h"
#include "server/net/line_budget.h"
#include "server/net/port.h"

/* the server closes a connection that has sent no greeting within this time, in ms */
#define GREETING_MS 5000
#define RETRY_MS    1000 /* time between a failed accept and the next attempt */
#define MAX_GUESTS  32   /* maximum number of connections that have not sent a greeting */
/* maximum number of slots of a lane; a worker usually retains fewer pushes */
#define MAX_SLOTS 256u
/* maximum bytes of the slots of a lane; a page takes memory only after a process has written to
 * it */
#define SLOTS_BYTES ((uint64_t)512 << 20)
#define BELLS       64  /* maximum number of eventfds whose events the server reads at once */
#define RECENT      256 /* size of the table of recent peers */

/* This struct describes a buffer of weights that a worker reads. */
struct hold {
	void *buffer; /* the buffer; NULL if this entry is free, or if `on_gpu` is 1 */
	int on_gpu;   /* 1: this entry is in use for weights in the memory of the worker's GPU */
	uint64_t ticket;
};

/* This struct describes a connection of the Unix socket. */
struct guest {
	uv_poll_t poll;
	int fd;
	uint64_t since_ms;
	struct lanes *lanes;
	/* the lane that the connection has opened; NULL: it has sent no greeting yet */
	struct lane *lane;
	struct guest *next;
};

/* This struct is the lane of one worker slot. */
struct lane {
	uint32_t incarnation, peer;
	/* 1: the secret was sent to the worker, and no connection has used it yet */
	int has_secret;
	uint64_t secret_hi, secret_lo;
	struct guest *guest; /* the connection of the lane; NULL if the lane is not open */
	char *memory;        /* the memory of the worker's pushes, which the server only reads */
	char *gpu;           /* memory of the worker's GPU; NULL: none */
	int has_offered;     /* 1: the worker has sent an offer of memory of its GPU */
	struct lane_gpu_offer offer; /* the layout of `gpu` */
	uint64_t ticket;             /* the newest ticket */
	struct hold hold[LANE_HOLDS];
	struct lane_ring ring;
	/* the public key of connection `peer`, from its first message over TCP after WELCOME; "":
	 * it has none, or no such message has arrived */
	char key[KEY_TEXT];
	struct port_refusals refusals; /* the refused messages of the ring */
	int is_queued;                 /* 1: the lane is in the queue of lanes with messages */
	struct lane *next;             /* the next lane in this queue */
};

struct lanes {
	struct lanes_config cfg;
	struct param_shared weights;
	uint64_t slots, slot_pitch;
	int is_stopped; /* 1: after lanes_stop */
	uv_poll_t listener;
	uv_timer_t timer;
	struct lane *lane; /* array with a lane for each worker slot */
	struct guest *guests;
	size_t n_guests; /* number of guests that have sent no greeting */
	/* an epoll instance that watches the eventfds of all rings, by edges; -1: no lane can have
	 * rings */
	int bells;
	uv_poll_t bells_poll;
	struct lane *first, *last; /* the queue of lanes whose rings may have messages */
	/* the worker ids of recent peers, or 0. An entry is right if the lane has the same peer */
	uint16_t recent[RECENT];
	struct lanes_stats stats;
};

static uint32_t worker_of(const struct lanes *l, const struct lane *lane)
{
	return (uint32_t)(lane - l->lane) + 1;
}

/* Returns 1 if the log may get one more line about `lane`. */
static int may_log(const struct lanes *l, const struct lane *lane)
{
	return line_budget_take(l->cfg.lines, worker_of(l, lane));
}

static size_t memory_bytes(const struct lanes *l)
{
	return LANE_PAGE + l->slots * l->slot_pitch;
}

/* ---- buffers that workers read --------------------------------------------------------------- */

static int is_in_use(const struct hold *h)
{
	return h->buffer || h->on_gpu;
}

static void end_hold(struct lanes *l, struct hold *h)
{
	h->on_gpu = 0;
	param_buffers_drop(l->cfg.params, &h->buffer);
}

/* Takes back each buffer that the worker has read, or whose PARAMS message was lost. The worker
 * itself writes the number (`seen`) that shows which buffers it has read, so a wrong number harms
 * only this worker. */
static void reap(struct lanes *l, struct lane *lane)
{
	struct lane_control *control = (struct lane_control *)(void *)lane->memory;
	uint64_t seen = atomic_load(&control->seen);

	for (size_t i = 0; i < LANE_HOLDS; i++) {
		struct hold *h = &lane->hold[i];

		if (is_in_use(h) && seen >= h->ticket &&
			atomic_load(&control->held[i]) != h->ticket)
			end_hold(l, h);
	}
}

static void drop_holds(struct lanes *l, struct lane *lane)
{
	for (size_t i = 0; i < LANE_HOLDS; i++)
		end_hold(l, &lane->hold[i]);
}

/* ---- rings ----------------------------------------------------------------------------------- */

/* Adds the lane to the queue of lanes whose rings may have messages. */
static void queue_lane(struct lanes *l, struct lane *lane)
{
	if (lane->is_queued)
		return;
	lane->is_queued = 1;
	lane->next = NULL;
	if (l->last)
		l->last->next = lane;
	else
		l->first = lane;
	l->last = lane;
}

static struct lane *unqueue_lane(struct lanes *l)
{
	struct lane *lane = l->first;

	if (!lane)
		return NULL;
	PS_ASSERT(lane->is_queued);
	lane->is_queued = 0;
	l->first = lane->next;
	if (!l->first)
		l->last = NULL;
	return lane;
}

/* Lets the router read the ring of the lane. */
static void read_ring(struct lanes *l, struct lane *lane)
{
	if (!lane->ring.memory)
		return;
	ring_wake(&lane->ring.in);
	queue_lane(l, lane);
	l->cfg.on_ring(l->cfg.arg);
}

/* Called when workers have written to the eventfds of their rings. */
static void on_bells(uv_poll_t *poll, int status, int events)
{
	struct lanes *l = poll->data;
	struct epoll_event event[BELLS];

	(void)status;
	(void)events;
	int n = epoll_wait(l->bells, event, BELLS, 0);
	for (int i = 0; i < n; i++)
		read_ring(l, &l->lane[event[i].data.u32]);
}

/* The server never reads the eventfd (lane_ring.h), so only its edges are events. */
static int watch_bell(struct lanes *l, const struct lane *lane)
{
	struct epoll_event event = {
		.events = EPOLLIN | EPOLLET, .data.u32 = worker_of(l, lane) - 1};

	return epoll_ctl(l->bells, EPOLL_CTL_ADD, lane->ring.bell, &event) == 0;
}

static void close_lane_ring(struct lanes *l, struct lane *lane)
{
	if (!lane->ring.memory)
		return;
	/* the worker may keep the eventfd open, so closing it would not end the events */
	(void)epoll_ctl(l->bells, EPOLL_CTL_DEL, lane->ring.bell, NULL);
	lane_ring_close(&lane->ring);
}

/* ---- connections of the Unix socket ---------------------------------------------------------- */

static void on_closed(uv_handle_t *h)
{
	free(h->data);
}

static void remove_guest(struct guest *g)
{
	struct lanes *l = g->lanes;
	struct guest **at = &l->guests;

	while (*at != g)
		at = &(*at)->next;
	*at = g->next;
	if (!g->lane) {
		PS_ASSERT(l->n_guests > 0);
		l->n_guests--;
	}
	/* libuv requires that the handle is closed before its descriptor */
	uv_close((uv_handle_t *)&g->poll, on_closed);
	close(g->fd);
}

static void close_gpu(struct lanes *l, struct lane *lane)
{
	if (!lane->gpu)
		return;
	gpu_store_drop(l->cfg.gpu, lane->gpu, lane->offer.bytes);
	lane->gpu = NULL;
	l->stats.gpus--;
	gpu_store_defer(l->cfg.gpu, l->stats.gpus > 0);
}

static void close_lane(struct lanes *l, struct lane *lane, const char *why)
{
	if (!lane->guest)
		return;
	if (may_log(l, lane))
		log_info("lane", "closed", "worker=%u reason=\"%s\"", worker_of(l, lane), why);
	drop_holds(l, lane);
	close_gpu(l, lane);
	lane->has_offered = 0;
	close_lane_ring(l, lane);
	(void)munmap(lane->memory, memory_bytes(l));
	lane->memory = NULL;
	remove_guest(lane->guest);
	lane->guest = NULL;
	l->stats.open--;
}

static void close_descriptors(const int *fds, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (fds[i] >= 0)
			close(fds[i]);
}

/* Makes the rings of the lane. Sets fds to the descriptors that the worker gets. */
static int open_ring(struct lanes *l, struct lane *lane, int *fds)
{
	if (lane_ring_open(&lane->ring, fds))
		return PS_EIO;
	if (watch_bell(l, lane))
		return PS_OK;
	lane_ring_close(&lane->ring);
	return PS_EIO;
}

/* Makes the memory for the worker's pushes and, if the worker asks for them, the rings, and answers
 * the greeting. Returns 0 if it could not make the memory or send the answer. */
static int open_memory(struct lanes *l, struct lane *lane, int socket, int has_ring)
{
	const struct lane_layout layout = {.magic = LANE_MAGIC,
		.n_params = l->cfg.n_params,
		.buffers = l->weights.n,
		.buffer_pitch = l->weights.pitch,
		.slots = l->slots,
		.slot_pitch = l->slot_pitch,
		.ticket = lane->ticket};
	int fds[LANE_RING_FDS] = {l->weights.fd, -1, -1, -1, -1};
	const size_t n = has_ring ? LANE_RING_FDS : LANE_FDS;

	if (share_new("cnn-ps pushes", memory_bytes(l), &fds[1]))
		return 0;
	lane->memory = share_map(fds[1], memory_bytes(l), 0);
	int sent = lane->memory && !(has_ring && open_ring(l, lane, fds + LANE_FDS)) &&
		   share_send(socket, &layout, sizeof(layout), fds, n) == PS_OK;
	close_descriptors(fds + 1, n - 1);
	if (!sent && lane->memory) {
		close_lane_ring(l, lane);
		(void)munmap(lane->memory, memory_bytes(l));
		lane->memory = NULL;
	}
	return sent;
}

static int asks_for_ring(const struct lanes *l, const struct lane_greeting *g)
{
	return g->magic == LANE_RING_MAGIC && l->bells >= 0;
}

/* Returns the lane that greeting `g` opens, or NULL if its worker, incarnation or secret is
 * wrong. */
static struct lane *lane_of(struct lanes *l, const struct lane_greeting *g)
{
	if ((g->magic != LANE_MAGIC && !asks_for_ring(l, g)) || g->worker < 1 ||
		g->worker > l->cfg.max_workers)
		return NULL;
	struct lane *lane = &l->lane[g->worker - 1];
	/* the time of the comparison does not depend on the secret */
	uint64_t differs = (g->secret_hi ^ lane->secret_hi) | (g->secret_lo ^ lane->secret_lo);
	return lane->has_secret && g->incarnation == lane->incarnation && !differs ? lane : NULL;
}

/* Returns 1 if the worker of `lane` holds a buffer of weights. */
static int holds_weights(const struct lane *lane)
{
	for (size_t i = 0; i < LANE_HOLDS; i++)
		if (is_in_use(&lane->hold[i]))
			return 1;
	return 0;
}

/* Reads the greeting of `g` and opens its lane. Returns 0 if the caller must close the
 * connection. */
static int greet(struct guest *g)
{
	struct lanes *l = g->lanes;
	struct lane_greeting greeting;
	int rc = share_receive(g->fd, &greeting, sizeof(greeting), NULL, 0);

	if (rc == PS_EAGAIN)
		return 1;
	struct lane *lane = rc ? NULL : lane_of(l, &greeting);
	if (!lane) {
		l->stats.refused += rc != PS_EUNREACHABLE;
		log_debug("lane", "refused", "reason=\"%s\"", rc ? err_text(rc) : "wrong secret");
		return 0;
	}
	lane->has_secret = 0;
	close_lane(l, lane, "the worker opened it again");
	PS_ASSERT(!lane->guest && !lane->memory); /* invariant 2 */
	PS_ASSERT(!holds_weights(lane));          /* invariant 3 */
	if (!open_memory(l, lane, g->fd, asks_for_ring(l, &greeting))) {
		if (may_log(l, lane))
			log_warn("lane", "failed", "worker=%u reason=\"no shared memory\"",
				greeting.worker);
		return 0;
	}
	memset(lane->hold, 0, sizeof(lane->hold));
	lane->guest = g;
	g->lane = lane;
	l->n_guests--;
	l->stats.open++;
	read_ring(l, lane);
	if (may_log(l, lane))
		log_info("lane", "open", "worker=%u slots=%llu", greeting.worker,
			(unsigned long long)l->slots);
	return 1;
}

/* ---- memory of a worker's GPU ---------------------------------------------------------------- */

static int is_sound_offer(const struct lanes *l, const struct lane_gpu_offer *o)
{
	const uint64_t bytes = l->cfg.n_params * sizeof(float);

	return o->magic == LANE_GPU_MAGIC && o->slots >= 1 && o->slots <= LANE_GPU_SLOTS &&
	       o->pitch >= bytes && o->pitch < bytes + LANE_PAGE &&
	       o->pitch % LANE_GPU_ALIGN == 0 && o->bytes / o->pitch >= o->slots + LANE_HOLDS;
}

static int accept_gpu(struct lanes *l, struct lane *lane, int fd, int *is_own, struct err *e)
{
	if (!l->cfg.gpu)
		return err_set(e, PS_EUSAGE, "the server has no --store cuda:N");
	if (l->cfg.gpu_off)
		return err_set(e, PS_EUSAGE, "%.150s", l->cfg.gpu_off);
	if (!is_sound_offer(l, &lane->offer))
		return err_set(e, PS_EPROTO, "the memory of the GPU has an unknown layout");
	return gpu_store_import(l->cfg.gpu, fd, lane->offer.bytes, &lane->gpu, is_own, e);
}

/* Handles the worker's offer of memory of its GPU. A lane accepts at most one offer, because each
 * offer can cause a log line. If the server cannot use this memory, the worker uses the lane's
 * shared memory instead. Returns 0 if the worker has closed the lane, or has sent something
 * else. */
static int receive_offer(struct lanes *l, struct lane *lane)
{
	struct lane_gpu_answer answer = {.magic = LANE_GPU_MAGIC};
	struct lane_gpu_offer offer;
	struct err e;
	int is_own = 0, fd, rc = share_receive(lane->guest->fd, &offer, sizeof(offer), &fd, 1);

	if (rc)
		return rc == PS_EAGAIN;
	if (lane->has_offered) {
		close(fd);
		return 0;
	}
	lane->has_offered = 1;
	lane->offer = offer;
	rc = accept_gpu(l, lane, fd, &is_own, &e);
	close(fd);
	answer.accepted = rc ? 0 : is_own ? LANE_GPU_SAME : LANE_GPU_OTHER;
	if (rc)
		memcpy(answer.why, e.text, strnlen(e.text, sizeof(answer.why) - 1));
	l->stats.gpus += lane->gpu != NULL;
	if (lane->gpu)
		gpu_store_defer(l->cfg.gpu, 1);
	int is_logged = may_log(l, lane);
	if (is_logged && rc)
		log_info("lane", "no_gpu", "worker=%u reason=\"%s\"", worker_of(l, lane), e.text);
	else if (is_logged)
		log_info("lane", "gpu", "worker=%u slots=%llu gpu=%s", worker_of(l, lane),
			(unsigned long long)offer.slots, is_own ? "same" : "other");
	return share_send(lane->guest->fd, &answer, sizeof(answer), NULL, 0) == PS_OK;
}

/* Called when a connection is readable. After its greeting a worker sends at most one offer of
 * memory of its GPU. If its connection is readable after that, the worker has closed the
 * connection. */
static void on_guest(uv_poll_t *poll, int status, int events)
{
	struct guest *g = poll->data;

	(void)events;
	if (g->lane) {
		if (status || !receive_offer(g->lanes, g->lane))
			close_lane(g->lanes, g->lane, "the worker closed it");
	} else if (status || !greet(g))
		remove_guest(g);
}

static void add_guest(struct lanes *l, int fd)
{
	struct guest *g = l->n_guests < MAX_GUESTS ? mem_try(1, sizeof(*g)) : NULL;

	if (!g || uv_poll_init(l->cfg.loop, &g->poll, fd) != 0) {
		free(g);
		close(fd);
		return;
	}
	g->poll.data = g;
	g->fd = fd;
	g->lanes = l;
	g->since_ms = uv_now(l->cfg.loop);
	g->next = l->guests;
	l->guests = g;
	l->n_guests++;
	(void)uv_poll_start(&g->poll, UV_READABLE | UV_DISCONNECT, on_guest);
}

static void on_new_guest(uv_poll_t *poll, int status, int events)
{
	struct lanes *l = poll->data;

	(void)events;
	int fd = status ? -1 : accept4(l->cfg.fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
	if (fd >= 0)
		add_guest(l, fd);
	else
		/* accept failed, perhaps because no descriptor is free: stop until on_timer tries
		 * again */
		(void)uv_poll_stop(poll);
}

static void on_timer(uv_timer_t *timer)
{
	struct lanes *l = timer->data;
	uint64_t now = uv_now(l->cfg.loop);

	for (struct guest *g = l->guests, *next; g; g = next) {
		next = g->next;
		if (!g->lane && now - g->since_ms >= GREETING_MS)
			remove_guest(g);
	}
	if (!uv_is_active((uv_handle_t *)&l->listener))
		(void)uv_poll_start(&l->listener, UV_READABLE, on_new_guest);
}

/* ---- sessions -------------------------------------------------------------------------------- */

void lanes_welcome(struct lanes *l, uint32_t peer, struct msg_welcome *m)
{
	uint32_t worker = m->stamp.worker;
	uint64_t secret[2];

	if (worker < 1 || worker > l->cfg.max_workers ||
		uv_random(NULL, NULL, secret, sizeof(secret), 0, NULL) != 0)
		return;
	struct lane *lane = &l->lane[worker - 1];
	if (lane->incarnation != m->stamp.incarnation)
		close_lane(l, lane, "another process has the worker's slot");
	/* the worker writes to its ring only after it has received this WELCOME, so all messages in
	 * the ring are older than its HELLO. They are lost, like those of a broken connection */
	if (lane->ring.memory)
		ring_discard(&lane->ring.in, ring_end(&lane->ring.in));
	lane->ring.expected = lane_received(secret[1]);
	/* invariant 1 */
	PS_ASSERT(!lane->guest || lane->incarnation == m->stamp.incarnation);
	if (lane->peer != peer)
		memset(lane->key, 0, sizeof(lane->key));
	lane->incarnation = m->stamp.incarnation;
	lane->peer = peer;
	l->recent[peer % RECENT] = (uint16_t)worker;
	lane->has_secret = 1;
	lane->secret_hi = m->lane_secret_hi = secret[0];
	lane->secret_lo = m->lane_secret_lo = secret[1];
	memcpy(m->lane_path, l->cfg.path, strlen(l->cfg.path) + 1);
	m->lane_ticket = lane->ticket;
	m->lane_gpu = l->cfg.gpu != NULL;
	m->lane_ring = l->bells >= 0;
}

void lanes_check(struct lanes *l, const struct core *c)
{
	uint32_t left = l->stats.open;
	struct worker_view w;

	for (uint32_t i = 0; i < l->cfg.max_workers && left > 0; i++) {
		if (!l->lane[i].guest)
			continue;
		left--;
		core_worker(c, i, &w);
		if (!w.in_session)
			close_lane(l, &l->lane[i], "the session has ended");
	}
}

/* Returns the lane whose worker has connection `peer`, which may not be open, or NULL. */
static struct lane *find_peer(struct lanes *l, uint32_t peer)
{
	uint16_t *recent = &l->recent[peer % RECENT];

	if (peer == 0)
		return NULL;
	if (*recent && l->lane[*recent - 1].peer == peer)
		return &l->lane[*recent - 1];
	for (uint32_t i = 0; i < l->cfg.max_workers; i++)
		if (l->lane[i].peer == peer) {
			*recent = (uint16_t)(i + 1);
			return &l->lane[i];
		}
	return NULL;
}

/* Returns the open lane of connection `peer`, or NULL if there is none. */
static struct lane *find_lane(struct lanes *l, uint32_t peer)
{
	struct lane *lane = l->stats.open ? find_peer(l, peer) : NULL;

	return lane && lane->guest ? lane : NULL;
}

/* Called when the last reference to a copy of a push is gone. */
static void return_copy(void *copy, void *pool)
{
	float *buffer = copy;

	pool_release(pool, &buffer);
}

/* Makes a frame for `count` values, in a buffer of the pool if there is one. */
static int take_copy(struct lanes *l, size_t count, zmq_msg_t *frame)
{
	float *buffer = l->cfg.copies ? pool_acquire(l->cfg.copies) : NULL;

	if (!buffer)
		return zmq_msg_init_size(frame, count * sizeof(float)) ? PS_ENOMEM : PS_OK;
	if (zmq_msg_init_data(frame, buffer, count * sizeof(float), return_copy, l->cfg.copies)) {
		pool_release(l->cfg.copies, &buffer);
		return PS_ENOMEM;
	}
	return PS_OK;
}

/* Returns 1 if `copy` does not lie in the memory to which the worker of `lane` can write. */
static int is_private(const struct lanes *l, const struct lane *lane, const char *copy)
{
	return copy < lane->memory || copy >= lane->memory + memory_bytes(l);
}

/* Frees nothing, because the private copies of pushes belong to the GPU's store. The GPU may
 * overwrite a copy as soon as the server has handled its push. */
static void leave_copy(void *copy, void *unused)
{
	(void)copy;
	(void)unused;
}

int lanes_use_gpus(const struct lanes *l)
{
	return l->stats.gpus > 0;
}

/* Returns the address of the values of `ref` in the memory of the worker's GPU, or NULL if this
 * memory has no such slot, or if `ref` does not name n_params values. */
static const char *gpu_values(
	const struct lanes *l, const struct lane *lane, const struct lane_ref *ref)
{
	const uint64_t slot = ref->slot - l->slots;

	if (!lane->gpu || slot >= lane->offer.slots || ref->count != l->cfg.n_params)
		return NULL;
	return lane->gpu + slot * lane->offer.pitch;
}

int lanes_begin(struct lanes *l, uint32_t peer, size_t at, struct frames *f)
{
	const struct lane *lane = find_lane(l, peer);
	struct lane_ref ref = {0};

	if (!lane || !wire_lane_ref(f, &ref) || ref.slot < l->slots)
		return 0;
	const char *values = gpu_values(l, lane, &ref);
	if (values)
		gpu_store_take(l->cfg.gpu, at, values, ref.count, l->cfg.pass.trained);
	return values != NULL;
}

/* Appends a frame with a private copy of a slot in the memory of the worker's GPU. Only the
 * server's GPU can read this frame. If the worker has opened another lane since the copy began, the
 * copy still has values of this worker, and the server accepts it only if its checksum is right. */
static int join_gpu(struct lanes *l, struct lane *lane, const struct lane_ref *ref, size_t at,
	int begun, struct frames *f)
{
	const char *values = gpu_values(l, lane, ref);
	const float *copy;

	if (!values)
		return PS_EPROTO;
	if (!begun)
		gpu_store_take(l->cfg.gpu, at, values, ref->count, l->cfg.pass.trained);
	gpu_store_taken(l->cfg.gpu, at, &copy, &f->chunk[0]);
	/* invariant 4 */
	PS_ASSERT((const char *)copy < lane->gpu ||
		  (const char *)copy >= lane->gpu + lane->offer.bytes);
	/* libzmq takes a pointer that is not const; nobody writes to the frame */
	void *data = (void *)(uintptr_t)copy; /* NOLINT(performance-no-int-to-ptr) */
	if (zmq_msg_init_data(&f->frame[1], data, ref->count * sizeof(float), leave_copy, NULL))
		return PS_ENOMEM;
	f->n = 2;
	f->n_chunks = 1;
	l->stats.pushes++;
	return PS_OK;
}

int lanes_join(struct lanes *l, uint32_t peer, const struct lane_ref *ref, size_t at, int begun,
	struct frames *f)
{
	struct lane *lane = find_lane(l, peer);

	if (!lane)
		return PS_ESTATE;
	if (f->n != 1 || ref->count < 1 || ref->count > l->cfg.n_params)
		return PS_EPROTO;
	if (ref->slot >= l->slots)
		return join_gpu(l, lane, ref, at, begun, f);
	/* usually the worker has finished reading its weights when it pushes, so their buffer may
	 * be free */
	reap(l, lane);
	if (take_copy(l, ref->count, &f->frame[1]))
		return PS_ENOMEM;
	PS_ASSERT(is_private(l, lane, zmq_msg_data(&f->frame[1]))); /* invariant 4 */
	wire_copy_chunk(zmq_msg_data(&f->frame[1]),
		lane->memory + LANE_PAGE + ref->slot * l->slot_pitch, ref->count, &f->chunk[0],
		&l->cfg.pass);
	f->n = 2;
	f->n_chunks = 1;
	l->stats.pushes++;
	return PS_OK;
}

_Static_assert(LANE_COPIES == GPU_STORE_COPIES && LANE_GIVES == GPU_STORE_GIVES,
	"the store has these copies");

/* Begins to copy the current weights to buffer i in the memory of the worker's GPU. Returns 0 if
 * the lane has no such memory, or if the server's GPU does not have the weights. */
static int hold_on_gpu(struct lanes *l, struct lane *lane, size_t i, size_t at, size_t *index)
{
	if (!lane->gpu || !gpu_store_give(l->cfg.gpu, at,
				  lane->gpu + (lane->offer.slots + i) * lane->offer.pitch))
		return 0;
	lane->hold[i].on_gpu = 1;
	*index = l->weights.n + i;
	return 1;
}

int lanes_hold(struct lanes *l, uint32_t peer, size_t at, struct msg_params *m, int *awaits)
{
	struct lane *lane = find_lane(l, peer);
	size_t i = 0, index;

	*awaits = 0;
	if (!lane || m->which != WEIGHTS_CURRENT)
		return 0;
	reap(l, lane);
	while (i < LANE_HOLDS && is_in_use(&lane->hold[i]))
		i++;
	if (i == LANE_HOLDS)
		return 0;
	*awaits = hold_on_gpu(l, lane, i, at, &index);
	if (!*awaits && !param_buffers_hold(l->cfg.params, m, &index, &lane->hold[i].buffer))
		return 0;
	lane->hold[i].ticket = ++lane->ticket;
	m->lane_hold = (uint32_t)i + 1;
	m->lane_ticket = lane->ticket;
	m->lane_buffer = (uint32_t)index;
	l->stats.params++;
	return 1;
}

int lanes_given(struct lanes *l, size_t at, int waits, uint64_t *xxh3)
{
	return gpu_store_given(l->cfg.gpu, at, waits, xxh3);
}

/* ---- messages in rings ----------------------------------------------------------------------- */

/* Takes the oldest message of the ring into the empty `f`. Returns 0 if there is none. */
static int take_from_ring(struct lanes *l, struct lane *lane, uint32_t *peer, struct frames *f)
{
	int rc = lane_ring_take(&lane->ring, &f->frame[0]);

	if (rc == PS_EPROTO)
		close_lane(l, lane, "the worker has damaged its ring");
	if (rc != 1)
		return 0;
	f->n = 1;
	f->key = lane->key;
	*peer = lane->peer;
	l->stats.messages++;
	return 1;
}

int lanes_take(struct lanes *l, uint32_t *peer, struct frames *f)
{
	struct lane *lane;

	frames_init(f);
	/* a hostile worker could change its position again and again, so the loop has a limit */
	for (uint32_t i = 0; i <= l->cfg.max_workers && (lane = unqueue_lane(l)); i++) {
		if (take_from_ring(l, lane, peer, f)) {
			queue_lane(l, lane);
			return 1;
		}
		if (lane->ring.memory && !ring_may_sleep(&lane->ring.in))
			queue_lane(l, lane);
	}
	if (l->first)
		l->cfg.on_ring(l->cfg.arg);
	return 0;
}

int lanes_note_received(struct lanes *l, uint32_t peer, const char *key)
{
	struct lane *lane = find_peer(l, peer);

	if (!lane)
		return 0;
	if (key && !lane->key[0])
		snprintf(lane->key, sizeof(lane->key), "%s", key);
	if (!lane->ring.memory)
		return 0;
	lane->ring.end = ring_end(&lane->ring.in);
	return ring_has_message(&lane->ring.in);
}

int lanes_take_earlier(struct lanes *l, uint32_t peer, struct frames *f)
{
	struct lane *lane = find_lane(l, peer);

	frames_init(f);
	return lane && lane->ring.in.at != lane->ring.end && take_from_ring(l, lane, &peer, f);
}

int lanes_give(struct lanes *l, uint32_t peer, struct frames *f)
{
	struct lane *lane = f->n == 1 ? find_lane(l, peer) : NULL;
	int rc = lane ? lane_ring_give(&lane->ring, &f->frame[0]) : 0;

	if (rc == PS_EPROTO)
		close_lane(l, lane, "the worker has damaged its ring");
	if (rc != 1)
		return 0;
	frames_release(f);
	l->stats.messages++;
	return 1;
}

void lanes_note_sent(struct lanes *l, uint32_t peer, int is_welcome)
{
	struct lane *lane = find_peer(l, peer);

	if (lane && is_welcome)
		lane->ring.expected = lane_received(lane->secret_lo);
	else if (lane)
		lane->ring.expected++;
}

int lanes_note_refused(struct lanes *l, uint32_t peer, uint32_t burst, uint64_t now_ms)
{
	struct lane *lane = find_lane(l, peer);

	if (!lane || !port_is_flood(&lane->refusals, burst, now_ms))
		return 0;
	close_lane(l, lane, "too many refused messages");
	return 1;
}

void lanes_end(struct lanes *l, uint32_t peer, const char *why)
{
	struct lane *lane = find_lane(l, peer);

	if (lane)
		close_lane(l, lane, why);
}

void lanes_stats(const struct lanes *l, struct lanes_stats *s)
{
	*s = l->stats;
}

/* ---- creation and release -------------------------------------------------------------------- */

/* Prepares for rings. Without the epoll instance, no lane has rings. */
static void open_bells(struct lanes *l)
{
	l->bells = l->cfg.on_ring ? epoll_create1(EPOLL_CLOEXEC) : -1;
	if (l->bells >= 0 && uv_poll_init(l->cfg.loop, &l->bells_poll, l->bells) != 0) {
		close(l->bells);
		l->bells = -1;
	}
	if (l->bells < 0)
		return;
	l->bells_poll.data = l;
	(void)uv_poll_start(&l->bells_poll, UV_READABLE, on_bells);
}

int lanes_new(struct lanes **out, const struct lanes_config *cfg, struct err *e)
{
	struct lanes *l = mem_try(1, sizeof(*l));
	int rc;

	*out = NULL;
	if (!l || !(l->lane = mem_try(cfg->max_workers, sizeof(*l->lane)))) {
		free(l);
		return err_set(e, PS_ENOMEM, "no memory for shared-memory lanes");
	}
	l->cfg = *cfg;
	l->slot_pitch = (cfg->n_params * sizeof(float) + LANE_PAGE - 1) / LANE_PAGE * LANE_PAGE;
	l->slots = SLOTS_BYTES / l->slot_pitch;
	l->slots = l->slots < 2 ? 2 : l->slots > MAX_SLOTS ? MAX_SLOTS : l->slots;
	if (!param_buffers_shared(cfg->params, &l->weights))
		rc = err_set(e, PS_EIO, "this system has no sealed shared memory");
	else
		rc = uv_poll_init(cfg->loop, &l->listener, cfg->fd) == 0
			     ? PS_OK
			     : err_set(e, PS_EIO, "%.200s cannot be watched", cfg->path);
	if (rc) {
		free(l->lane);
		free(l);
		return rc;
	}
	l->listener.data = l->timer.data = l;
	open_bells(l);
	(void)uv_poll_start(&l->listener, UV_READABLE, on_new_guest);
	uv_timer_init(cfg->loop, &l->timer);
	(void)uv_timer_start(&l->timer, on_timer, RETRY_MS, RETRY_MS);
	*out = l;
	return PS_OK;
}

void lanes_stop(struct lanes *l)
{
	if (l->is_stopped)
		return;
	for (uint32_t i = 0; i < l->cfg.max_workers; i++)
		close_lane(l, &l->lane[i], "the server ends");
	while (l->guests)
		remove_guest(l->guests);
	uv_close((uv_handle_t *)&l->listener, NULL);
	uv_close((uv_handle_t *)&l->timer, NULL);
	if (l->bells >= 0) {
		uv_close((uv_handle_t *)&l->bells_poll, NULL);
		close(l->bells);
	}
	l->is_stopped = 1;
}

void lanes_free(struct lanes **l)
{
	if (!*l)
		return;
	free((*l)->lane);
	free(*l);
	*l = NULL;
}
