/* lane.c - see lane.h. */
#include "worker/client/lane.h"
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>
#include "common/assert.h"
#include "common/mem.h"
#include "common/share.h"
#include "proto/lane.h"

#define MAX_SLOTS   1024u
#define MAX_BUFFERS 65536u
/* maximum number of bytes of all slots in memory of the device, and the limits of their number */
#define MAX_SHARED       ((uint64_t)256 << 20)
#define MIN_SHARED_SLOTS 2u
#define MAX_SHARED_SLOTS 256u

/* The argument that libzmq passes to return_slot. */
struct slot_owner {
	struct lane *lane;
	struct slots *slots;
	uint32_t index; /* number of the slot in `slots`, from 0 */
	int taken;      /* 1 if the program or a message owns the slot */
};

/* The slots in one memory: the push memory of the host, or memory of the device. */
struct slots {
	uint32_t n, n_free;
	/* indices of the free slots, as a stack, because the caches still hold the slot that was
	 * returned last */
	uint32_t *free_slot;
	struct slot_owner *owner;
};

struct lane {
	/* number of references: one of the owner, and one for each slot and each buffer in use */
	atomic_uint refs;
	int fd;
	int asks_ring; /* 1: the worker has asked for rings */
	/* the rings: their memory, or NULL if the lane has none; the eventfd that wakes the server
	 * up, and the pipe with which the server wakes the worker up, or -1 */
	struct lane_rings *rings;
	struct ring in, out;
	int bell, wake;
	uint64_t n_params;
	struct lane_layout layout;
	char *pushes;  /* the push memory; NULL if the lane is not open */
	char *weights; /* the server's buffers of weights, mapped read-only */
	struct lane_control *control;
	pthread_mutex_t mutex; /* guards n_free, free_slot, and `taken` of each owner */
	struct slots host, gpu;
	/* the memory of the device that the worker has offered; NULL: none */
	char *shared;
	struct lane_gpu_offer offer;
	enum { OFFER_NONE, OFFER_SENT, OFFER_ACCEPTED, OFFER_REFUSED } offered;
	int is_apart; /* 1: the server uses this memory with another GPU */
	/* number of received PARAMS that are not closed yet and whose tensor frame is a buffer in
	 * the device's memory */
	atomic_uint readings;
	/* the device that uses the memory; its functions are NULL before the first lane_pin */
	struct lane_device device;
	/* arrays with the enum pin of each slot, and of each buffer */
	unsigned char *slot_pin, *buffer_pin;
};

enum pin { PIN_UNKNOWN, PIN_DONE, PIN_REFUSED };

static size_t pushes_bytes(const struct lane *l)
{
	return LANE_PAGE + l->layout.slots * l->layout.slot_pitch;
}

static size_t weights_bytes(const struct lane *l)
{
	return l->layout.buffers * l->layout.buffer_pitch;
}

/* ---- slots ----------------------------------------------------------------------------------- */

static void release_slots(struct slots *s)
{
	free(s->free_slot);
	free(s->owner);
	*s = (struct slots){0};
}

static int make_slots(struct lane *l, struct slots *s, uint32_t n)
{
	*s = (struct slots){.n = n,
		.owner = mem_try(n, sizeof(*s->owner)),
		.free_slot = mem_try(n, sizeof(*s->free_slot))};
	if (!s->owner || !s->free_slot) {
		release_slots(s);
		return PS_ENOMEM;
	}
	for (uint32_t i = n; i-- > 0;) {
		s->owner[i] = (struct slot_owner){.lane = l, .slots = s, .index = i};
		s->free_slot[s->n_free++] = i;
	}
	return PS_OK;
}

/* ---- creation and release -------------------------------------------------------------------- */

static void add_ref(struct lane *l)
{
	atomic_fetch_add(&l->refs, 1);
}

static void unpin_all(
	const struct lane *l, char *base, size_t pitch, const unsigned char *pin, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (pin[i] == PIN_DONE)
			l->device.unpin(base + i * pitch);
}

static void unmap_memory(struct lane *l)
{
	if (l->pushes && l->weights) {
		unpin_all(l, l->pushes + LANE_PAGE, l->layout.slot_pitch, l->slot_pin,
			l->layout.slots);
		unpin_all(l, l->weights, l->layout.buffer_pitch, l->buffer_pin, l->layout.buffers);
	}
	if (l->pushes)
		(void)munmap(l->pushes, pushes_bytes(l));
	if (l->weights)
		(void)munmap(l->weights, weights_bytes(l));
	free(l->slot_pin);
	free(l->buffer_pin);
}

static void drop_shared(struct lane *l)
{
	if (l->shared)
		l->device.unshare(l->shared, l->offer.bytes);
	l->shared = NULL;
	release_slots(&l->gpu);
}

static void close_fd(int fd)
{
	if (fd >= 0)
		close(fd);
}

static void unmap_rings(struct lane *l)
{
	if (l->rings)
		(void)munmap(l->rings, sizeof(*l->rings));
	close_fd(l->bell);
	close_fd(l->wake);
}

static void drop_lane_ref(struct lane *l)
{
	unsigned before = atomic_fetch_sub(&l->refs, 1);

	PS_ASSERT(before >= 1); /* invariant 2 */
	if (before > 1)
		return;
	/* invariant 2 */
	PS_ASSERT(l->host.n_free == l->host.n && l->gpu.n_free == l->gpu.n);
	unmap_memory(l);
	drop_shared(l);
	unmap_rings(l);
	close_fd(l->fd);
	pthread_mutex_destroy(&l->mutex);
	release_slots(&l->host);
	free(l);
}

int lane_open(struct lane **out, const struct msg_welcome *w, struct err *e)
{
	const struct lane_greeting greeting = {.magic = w->lane_ring ? LANE_RING_MAGIC : LANE_MAGIC,
		.secret_hi = w->lane_secret_hi,
		.secret_lo = w->lane_secret_lo,
		.worker = w->stamp.worker,
		.incarnation = w->stamp.incarnation};
	struct lane *l = mem_try(1, sizeof(*l));
	int rc;

	*out = NULL;
	if (!l || pthread_mutex_init(&l->mutex, NULL)) {
		free(l);
		return err_set(e, PS_ENOMEM, "no memory");
	}
	atomic_init(&l->refs, 1);
	atomic_init(&l->readings, 0);
	l->n_params = w->n_params;
	l->asks_ring = (int)w->lane_ring;
	l->bell = l->wake = -1;
	rc = share_connect(w->lane_path, &l->fd, e);
	if (!rc && share_send(l->fd, &greeting, sizeof(greeting), NULL, 0))
		rc = err_set(
			e, PS_EUNREACHABLE, "%.200s: the greeting cannot be sent", w->lane_path);
	if (rc)
		drop_lane_ref(l);
	else
		*out = l;
	return rc;
}

void lane_close(struct lane **l)
{
	if (*l)
		drop_lane_ref(*l);
	*l = NULL;
}

static int is_layout(const struct lane *l, const struct lane_layout *a)
{
	uint64_t bytes = l->n_params * sizeof(float);

	return a->magic == LANE_MAGIC && a->n_params == l->n_params && a->buffers >= 1 &&
	       a->buffers <= MAX_BUFFERS && a->slots >= 1 && a->slots <= MAX_SLOTS &&
	       a->buffer_pitch >= bytes && a->buffer_pitch < bytes + 2 * LANE_PAGE &&
	       a->slot_pitch >= bytes && a->slot_pitch < bytes + 2 * LANE_PAGE &&
	       a->buffer_pitch % LANE_PAGE == 0 && a->slot_pitch % LANE_PAGE == 0;
}

/* Maps the memory whose descriptors came with the server's answer. */
static int map_memory(struct lane *l, const int fds[LANE_FDS], struct err *e)
{
	if (!is_layout(l, &l->layout) || !share_is_sound(fds[0], weights_bytes(l)) ||
		!share_is_sound(fds[1], pushes_bytes(l)))
		return err_set(
			e, PS_EPROTO, "the shared memory of the server has an unknown layout");
	if (make_slots(l, &l->host, (uint32_t)l->layout.slots))
		return err_set(e, PS_ENOMEM, "no memory");
	l->slot_pin = mem_try(l->layout.slots, 1);
	l->buffer_pin = mem_try(l->layout.buffers, 1);
	if (!l->slot_pin || !l->buffer_pin)
		return err_set(e, PS_ENOMEM, "no memory");
	l->weights = share_map(fds[0], weights_bytes(l), 0);
	char *pushes = share_map(fds[1], pushes_bytes(l), 1);
	if (!l->weights || !pushes) {
		if (pushes)
			(void)munmap(pushes, pushes_bytes(l));
		return err_set(e, PS_ENOMEM, "the server's memory cannot be mapped");
	}
	l->control = (struct lane_control *)(void *)pushes;
	l->pushes = pushes;
	return PS_OK;
}

/* Maps the rings whose descriptors came with the server's answer, and takes over the last two
 * descriptors. */
static int map_rings(struct lane *l, int fds[LANE_RING_FDS], struct err *e)
{
	int flags = fcntl(fds[4], F_GETFL);

	if (!share_is_sound(fds[2], sizeof(*l->rings)) || flags < 0 ||
		fcntl(fds[4], F_SETFL, flags | O_NONBLOCK) != 0)
		return err_set(e, PS_EPROTO, "the rings of the server have an unknown form");
	l->rings = share_map(fds[2], sizeof(*l->rings), 1);
	if (!l->rings)
		return err_set(e, PS_ENOMEM, "the server's memory cannot be mapped");
	ring_init(&l->out, &l->rings->to_server);
	ring_init(&l->in, &l->rings->to_worker);
	l->bell = fds[3];
	l->wake = fds[4];
	fds[3] = fds[4] = -1;
	return PS_OK;
}

int lane_poll(struct lane *l, struct err *e)
{
	const size_t n = l->asks_ring ? LANE_RING_FDS : LANE_FDS;
	int fds[LANE_RING_FDS], rc;

	if (l->pushes)
		return PS_OK;
	rc = share_receive(l->fd, &l->layout, sizeof(l->layout), fds, n);
	if (rc == PS_EAGAIN)
		return rc;
	if (rc)
		return err_set(e, rc, "%s",
			rc == PS_EPROTO ? "the server's answer has an unknown form"
					: "the server refused the connection");
	rc = l->asks_ring ? map_rings(l, fds, e) : PS_OK;
	if (!rc)
		rc = map_memory(l, fds, e);
	for (size_t i = 0; i < n; i++)
		close_fd(fds[i]);
	return rc;
}

int lane_is_open(const struct lane *l)
{
	return l && l->pushes != NULL;
}

int lane_is_lost(const struct lane *l)
{
	char byte;

	return l->pushes && recv(l->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}

int lane_fd(const struct lane *l)
{
	return l->fd;
}

/* ---- rings ----------------------------------------------------------------------------------- */

int lane_has_ring(const struct lane *l)
{
	return lane_is_open(l) && l->rings;
}

int lane_ring_send(struct lane *l, zmq_msg_t *header)
{
	const uint64_t one = 1;
	int sleeps;

	if (!lane_has_ring(l) ||
		ring_write(&l->out, zmq_msg_data(header), zmq_msg_size(header), &sleeps))
		return 0;
	/* if this fails, the server has already been woken up */
	if (sleeps && write(l->bell, &one, sizeof(one)) < 0)
		return 1;
	return 1;
}

int lane_ring_receive(struct lane *l, struct frames *f)
{
	unsigned char bytes[RING_MAX_MESSAGE];
	size_t n;

	frames_init(f);
	int rc = lane_has_ring(l) ? ring_read(&l->in, bytes, &n) : 0;
	if (rc != 1)
		return rc;
	if (zmq_msg_init_size(&f->frame[0], n))
		return PS_EPROTO;
	memcpy(zmq_msg_data(&f->frame[0]), bytes, n);
	f->n = 1;
	return 1;
}

void lane_ring_received(struct lane *l, uint64_t received)
{
	if (lane_has_ring(l))
		atomic_store(&l->rings->to_worker.received, received);
}

int lane_ring_may_sleep(struct lane *l)
{
	return !lane_has_ring(l) || ring_may_sleep(&l->in);
}

int lane_ring_fd(const struct lane *l)
{
	return lane_has_ring(l) ? l->wake : -1;
}

int lane_ring_wake(struct lane *l, int is_readable)
{
	char bytes[64];

	if (!lane_has_ring(l))
		return 1;
	ring_wake(&l->in);
	return !is_readable || read(l->wake, bytes, sizeof(bytes)) != 0;
}

/* ---- memory of the device -------------------------------------------------------------------- */

int lane_offer(struct lane *l, const struct lane_device *device)
{
	const uint64_t bytes = l->n_params * sizeof(float);
	const uint64_t pitch = (bytes + LANE_GPU_ALIGN - 1) / LANE_GPU_ALIGN * LANE_GPU_ALIGN;
	uint64_t slots = MAX_SHARED / pitch;
	void *memory;
	int fd;

	if (!lane_is_open(l) || l->offered || !device->share)
		return 0;
	slots = slots < MIN_SHARED_SLOTS ? MIN_SHARED_SLOTS : slots;
	slots = slots > MAX_SHARED_SLOTS ? MAX_SHARED_SLOTS : slots;
	size_t room = (slots + LANE_HOLDS) * pitch;
	l->device = *device;
	if (make_slots(l, &l->gpu, (uint32_t)slots))
		return 0;
	if (!device->share(&room, &memory, &fd)) {
		release_slots(&l->gpu);
		return 0;
	}
	l->shared = memory;
	l->offer = (struct lane_gpu_offer){
		.magic = LANE_GPU_MAGIC, .bytes = room, .pitch = pitch, .slots = slots};
	int rc = share_send(l->fd, &l->offer, sizeof(l->offer), &fd, 1);
	close(fd);
	if (rc)
		drop_shared(l);
	l->offered = rc ? OFFER_NONE : OFFER_SENT;
	return rc == PS_OK;
}

int lane_poll_offer(struct lane *l, struct err *e)
{
	struct lane_gpu_answer answer;

	if (l->offered != OFFER_SENT)
		return PS_EAGAIN;
	int rc = share_receive(l->fd, &answer, sizeof(answer), NULL, 0);
	if (rc == PS_EAGAIN)
		return rc;
	if (!rc && answer.magic == LANE_GPU_MAGIC && answer.accepted) {
		l->offered = OFFER_ACCEPTED;
		l->is_apart = answer.accepted == LANE_GPU_OTHER;
		return PS_OK;
	}
	l->offered = OFFER_REFUSED;
	/* No slot of this memory is in use. But a server that breaks the rules may have sent
	 * weights in it before its answer: then the memory stays mapped until drop_lane_ref */
	if (atomic_load(&l->readings) == 0)
		drop_shared(l);
	answer.why[LANE_GPU_WHY - 1] = '\0';
	return err_set(
		e, PS_EUSAGE, "%s", rc ? "the server's answer has an unknown form" : answer.why);
}

int lane_fetch(const struct lane_device *device, zmq_msg_t *message)
{
	zmq_msg_t copy;
	const size_t bytes = zmq_msg_size(message);

	if (zmq_msg_init_size(&copy, bytes))
		return PS_ENOMEM;
	if (!device->fetch(zmq_msg_data(&copy), zmq_msg_data(message), bytes)) {
		(void)zmq_msg_close(&copy);
		return PS_EDEVICE;
	}
	(void)zmq_msg_move(message, &copy);
	return PS_OK;
}

/* Returns the number of the slot or buffer in the memory of the device at `values`, or -1. */
static int64_t part_of_shared(const struct lane *l, const void *values)
{
	const char *at = values;

	if (!l->shared || at < l->shared || at >= l->shared + l->offer.bytes)
		return -1;
	return (int64_t)((uint64_t)(at - l->shared) / l->offer.pitch);
}

int lane_is_apart(const struct lane *l, const void *values)
{
	return l->is_apart && part_of_shared(l, values) >= 0;
}

/* ---- pushes: slots --------------------------------------------------------------------------- */

static float *slot_values(const struct lane *l, const struct slots *s, uint32_t index)
{
	if (s == &l->gpu)
		return (float *)(void *)(l->shared + index * l->offer.pitch);
	return (float *)(void *)(l->pushes + LANE_PAGE + index * l->layout.slot_pitch);
}

/* Pins part `i` of the memory at `base` at its first use. */
static int pin_part(
	struct lane *l, char *base, size_t pitch, size_t i, unsigned char *pin, int reads_only)
{
	if (pin[i] == PIN_UNKNOWN)
		pin[i] =
			l->device.pin(base + i * pitch, pitch, reads_only) ? PIN_DONE : PIN_REFUSED;
	return pin[i] == PIN_DONE;
}

int lane_pin(struct lane *l, const void *values, const struct lane_device *device)
{
	const char *at = values;

	if (!lane_is_open(l))
		return 0;
	l->device = *device;
	if (part_of_shared(l, values) >= 0)
		return 1;
	uint32_t slot = lane_slot_of(l, values);
	if (slot)
		return pin_part(
			l, l->pushes + LANE_PAGE, l->layout.slot_pitch, slot - 1, l->slot_pin, 0);
	if (at < l->weights || at >= l->weights + weights_bytes(l))
		return 0;
	return pin_part(l, l->weights, l->layout.buffer_pitch,
		(size_t)(at - l->weights) / l->layout.buffer_pitch, l->buffer_pin, 1);
}

int lane_take(struct lane *l, struct lane_slot *slot, int on_device)
{
	struct slots *s = on_device ? &l->gpu : &l->host;
	int found;

	*slot = (struct lane_slot){0};
	pthread_mutex_lock(&l->mutex);
	found = s->n_free > 0 && (!on_device || l->offered == OFFER_ACCEPTED);
	if (found) {
		slot->owner = &s->owner[s->free_slot[--s->n_free]];
		PS_ASSERT(!slot->owner->taken); /* invariant 1 */
		slot->owner->taken = 1;
	}
	pthread_mutex_unlock(&l->mutex);
	if (!found)
		return 0;
	add_ref(l);
	slot->lane = l;
	slot->values = slot_values(l, s, slot->owner->index);
	return 1;
}

/* libzmq calls this function, on any thread, when the last reference to a push is closed. */
static void return_slot(void *values, void *owner)
{
	struct slot_owner *o = owner;
	struct lane *l = o->lane;

	(void)values;
	pthread_mutex_lock(&l->mutex);
	PS_ASSERT(o->taken && o->slots->n_free < o->slots->n); /* invariant 1 */
	o->taken = 0;
	o->slots->free_slot[o->slots->n_free++] = o->index;
	pthread_mutex_unlock(&l->mutex);
	drop_lane_ref(l);
}

void lane_return(struct lane_slot *slot)
{
	if (slot->lane)
		return_slot(slot->values, slot->owner);
	slot->lane = NULL;
}

int lane_send(struct lane_slot *slot, size_t count, zmq_msg_t *message)
{
	if (zmq_msg_init_data(
		    message, slot->values, count * sizeof(float), return_slot, slot->owner))
		return PS_ENOMEM;
	slot->lane = NULL;
	return PS_OK;
}

uint32_t lane_slot_of(const struct lane *l, const void *values)
{
	const char *at = values;

	int64_t shared = lane_is_open(l) ? part_of_shared(l, values) : -1;

	if (shared >= 0 && shared < (int64_t)l->gpu.n)
		return (uint32_t)(l->layout.slots + (uint64_t)shared) + 1;
	if (!lane_is_open(l) || at < l->pushes + LANE_PAGE || at >= l->pushes + pushes_bytes(l))
		return 0;
	return (uint32_t)((size_t)(at - l->pushes - LANE_PAGE) / l->layout.slot_pitch) + 1;
}

/* ---- weights: buffers of the server ---------------------------------------------------------- */

/* A buffer of weights that is the tensor frame of a received PARAMS. */
struct reading {
	struct lane *lane;
	uint32_t hold;
	uint64_t ticket;
	int is_shared; /* 1: the buffer is in memory of the device */
};

/* libzmq calls this function, on any thread, when the last reference to the weights is closed. */
static void end_reading(void *values, void *reading)
{
	struct reading *r = reading;
	uint64_t ticket = r->ticket;

	(void)values;
	/* clear the entry of `held`, unless a later PARAMS already uses the entry */
	(void)atomic_compare_exchange_strong(&r->lane->control->held[r->hold], &ticket, 0);
	if (r->is_shared)
		atomic_fetch_sub(&r->lane->readings, 1);
	drop_lane_ref(r->lane);
	free(r);
}

static void note_seen(struct lane *l, uint64_t ticket)
{
	if (ticket > atomic_load(&l->control->seen))
		atomic_store(&l->control->seen, ticket);
}

void lane_resynchronised(struct lane *l, uint64_t ticket)
{
	if (lane_is_open(l))
		note_seen(l, ticket);
}

/* Returns 1 if `ref` names a buffer in the memory of the device. In this memory, hold number i
 * always uses buffer number i. */
static int is_shared_buffer(const struct lane *l, const struct lane_ref *ref)
{
	return l->shared && l->offered != OFFER_REFUSED &&
	       ref->buffer - l->layout.buffers == ref->hold;
}

int lane_append(struct lane *l, const struct lane_ref *ref, struct frames *f)
{
	const int is_shared = ref->buffer >= l->layout.buffers;
	struct reading *r;

	if (f->n != 1 || ref->ticket <= l->layout.ticket || ref->hold >= LANE_HOLDS ||
		(is_shared && !is_shared_buffer(l, ref)))
		return PS_EPROTO;
	r = malloc(sizeof(*r));
	if (!r)
		return PS_ENOMEM;
	*r = (struct reading){l, (uint32_t)ref->hold, ref->ticket, is_shared};
	char *at = is_shared ? l->shared + (l->offer.slots + ref->hold) * l->offer.pitch
			     : l->weights + ref->buffer * l->layout.buffer_pitch;
	if (zmq_msg_init_data(&f->frame[1], at, l->n_params * sizeof(float), end_reading, r)) {
		free(r);
		return PS_ENOMEM;
	}
	add_ref(l);
	atomic_fetch_add(&l->readings, (unsigned)is_shared);
	f->n = 2;
	atomic_store(&l->control->held[ref->hold], ref->ticket);
	note_seen(l, ref->ticket);
	return PS_OK;
}
