/*
 * lane.h - the layout of the shared memory between a server and a worker on the same host (the
 * shared-memory lane).
 *
 * A lane carries the tensors of one worker's session through memory that both processes map. The
 * headers of the messages travel over the connection or, if the lane has rings, through the rings,
 * in the same order. WIRE.md, "Shared-memory lane", specifies lanes.
 *
 *   worker -> server, on the Unix socket of WELCOME: struct lane_greeting
 *   server -> worker: struct lane_layout, with two descriptors: the weights and the push memory. If
 *   the greeting has LANE_RING_MAGIC, three more descriptors follow (struct lane_rings)
 *
 * The weights are buffers that the server writes and a worker can only read. The first page of the
 * push memory has a struct lane_control. After this page come the slots, to which the worker
 * writes.
 *
 * If the worker computes on a GPU and the server has its weights on one, the worker may then offer
 * memory of its GPU:
 *
 *   worker -> server: struct lane_gpu_offer, with one descriptor of the memory (gpu_memory.h)
 *   server -> worker: struct lane_gpu_answer
 *
 * This memory has further slots, whose numbers follow those of the slots in the push memory. It
 * also has LANE_HOLDS buffers of weights, whose numbers follow those of the server's buffers.
 * Buffer i of this memory belongs to hold i (struct lane_control explains holds). The server's GPU
 * reads these slots and writes these buffers. The server offers no memory of its own GPU to the
 * worker.
 */
#ifndef PROTO_LANE_H
#define PROTO_LANE_H
#include <stdatomic.h>
#include <stdint.h>
#include "proto/ring.h"

#define LANE_MAGIC 0x31656e616c736e63ull /* the characters "cnslane1" as a number */
#define LANE_PAGE  4096u                 /* bytes of the page with struct lane_control */
/* maximum number of buffers of weights that a worker may hold at the same time */
#define LANE_HOLDS 4u
#define LANE_FDS   2u /* number of descriptors in the answer of the server: weights, push memory */

#define LANE_RING_MAGIC 0x32656e616c736e63ull /* the characters "cnslane2" as a number */
/* number of descriptors in the answer to a greeting with LANE_RING_MAGIC: LANE_FDS, the memory of
 * struct lane_rings, an eventfd to which the worker writes to wake the server up, and a pipe from
 * which the worker reads when the server has woken it up */
#define LANE_RING_FDS 5u

#define LANE_GPU_MAGIC 0x317570676c736e63ull /* the characters "cnslgpu1" as a number */
#define LANE_GPU_ALIGN 256u
#define LANE_GPU_SLOTS 1024u /* maximum number of slots in memory of a GPU */
#define LANE_GPU_WHY   200u

/* The values of the option --lane of cnn-ps and cnn-worker, in the order of enum lane_choice. AUTO:
 * tensors travel in shared memory if both programs run on the same host and this is possible, else
 * over the connection. TCP: only over the connection. SHM: only in shared memory. */
#define LANE_NAMES "auto|tcp|shm"
enum lane_choice { LANE_AUTO, LANE_TCP, LANE_SHM };

struct lane_greeting {
	uint64_t magic; /* LANE_MAGIC, or LANE_RING_MAGIC if the worker asks for rings */
	uint64_t secret_hi, secret_lo; /* the secret in the newest WELCOME */
	uint32_t worker, incarnation;
};

struct lane_layout {
	uint64_t magic;
	uint64_t n_params;
	/* number of buffers of weights, and bytes from the start of one to the start of the next */
	uint64_t buffers, buffer_pitch;
	/* number of slots, and bytes from one to the next; the first is at byte LANE_PAGE of the
	 * push memory */
	uint64_t slots, slot_pitch;
	/* each PARAMS of this lane has a greater ticket than this one; a PARAMS with this ticket or
	 * a smaller one belongs to an earlier lane */
	uint64_t ticket;
};

struct lane_gpu_offer {
	uint64_t magic; /* LANE_GPU_MAGIC */
	uint64_t bytes; /* size of the memory: first the slots, then the buffers */
	/* bytes from one slot or buffer to the next, a multiple of LANE_GPU_ALIGN */
	uint64_t pitch;
	uint64_t slots;
};

/* The answers that accept an offer: the server's weights are on the same GPU, or on another one. */
enum { LANE_GPU_SAME = 1, LANE_GPU_OTHER };

struct lane_gpu_answer {
	uint64_t magic;
	uint32_t accepted; /* not 0: the worker may use the offered slots and buffers */
	char why[LANE_GPU_WHY];
};

/*
 * In this struct a worker shows which buffers of weights it still reads. Each PARAMS of the lane
 * has the number of a hold, 0 to LANE_HOLDS - 1, and a ticket, which is 1 more than that of the
 * PARAMS before. The worker first stores the ticket at held[hold], then in `seen`. The worker
 * stores 0 at held[hold] when it has read the weights. The server uses a buffer again if `seen` has
 * reached the ticket of the PARAMS that named the buffer, and held[hold] is not this ticket.
 */
struct lane_control {
	_Atomic uint64_t seen;
	_Atomic uint64_t held[LANE_HOLDS];
};

/*
 * The memory of the two rings of a lane. In `to_worker.received`, the worker shows which messages
 * of the server it has received over its bulk connection: in the upper 32 bits the lower half of
 * secret_lo of the newest WELCOME that has arrived, and in the lower 32 bits the number of messages
 * that have arrived after this WELCOME.
 */
struct lane_rings {
	struct ring_memory to_server, to_worker;
};

/* Returns the value of `received` after a WELCOME with this secret_lo. Each further message adds
 * 1. */
static inline uint64_t lane_received(uint64_t secret_lo)
{
	return secret_lo << 32;
}

/* This struct has the fields of a header that refer to shared memory. These numbers come from a
 * peer, so the receiver must check each number before it uses the number. */
struct lane_ref {
	uint64_t slot;  /* PUSH: the slot with the values */
	uint64_t count; /* PUSH: the number of values */
	/* PARAMS: the numbers of the hold and of the buffer, and the ticket */
	uint64_t hold, ticket, buffer;
};

#endif
