/*
 * garbage.h - limits what a server can cause by messages that nobody can use: messages that
 * wire_decode refuses, and weights with a wrong checksum. A hostile server could fill the disk of
 * the worker's log with them. So the log gets at most one line about them per second. If too many
 * arrive, the worker closes its connections and connects again after a pause, which grows each
 * time. A single damaged message does not close the connections. If a server ends each connection
 * soon after it was established, the worker also pauses, so that it connects only about twice per
 * second.
 *
 * Thread: the holder of the I/O lock (net.h).
 */
#ifndef WORKER_CLIENT_GARBAGE_H
#define WORKER_CLIENT_GARBAGE_H
#include <stdint.h>

#define GARBAGE_LINE_MS 1000 /* minimum interval between lines of the log */
/* maximum number of such messages in a short time; after that, one more is permitted every
 * GARBAGE_MS */
#define GARBAGE_AT_ONCE 64u
#define GARBAGE_MS      1000u
/* Each pause is twice as long as the one before it: from GARBAGE_PAUSE_MS up to
 * GARBAGE_MAX_PAUSE_MS. After GARBAGE_FORGET_MS without a message that nobody can use, the next
 * pause is the shortest one again. */
#define GARBAGE_PAUSE_MS     1000u
#define GARBAGE_MAX_PAUSE_MS 16000u
#define GARBAGE_FORGET_MS    600000u

/* maximum number of connections that may end in a short time; after that, one more is permitted
 * every GARBAGE_MS */
#define GARBAGE_LOSSES 20u

/* A count of recent events, which decreases with time. A struct of zeros means that the count is
 * 0. */
struct garbage_count {
	/* time until the count is 0 again, and time of the newest call */
	uint64_t spent_ms, newest_ms;
};

/* A struct of zeros means that no message of this kind has arrived. */
struct garbage {
	uint64_t total;
	uint64_t line_ms; /* time of the newest line in the log */
	struct garbage_count messages, losses;
	uint64_t pause_ms; /* the newest pause */
};

/* Notes a message that nobody can use, and logs it unless the newest line is too recent. Returns 0,
 * or the time for which the worker must now stay without a connection to the server. */
uint64_t garbage_note(struct garbage *g, const char *why, uint64_t now_ms);
/* Notes that the connection to the server has ended. The return value is as for garbage_note. */
uint64_t garbage_note_loss(struct garbage *g, uint64_t now_ms);

#endif
