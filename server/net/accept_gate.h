/*
 * accept_gate.h - the listening socket while file descriptors are short: closed to newcomers,
 * without a word to those who are inside.
 *
 * When no descriptor is left libzmq tries to accept for ever, at full speed; and when its port is
 * unbound it closes everybody's connection. So some descriptors are kept in reserve, and when
 * accepting fails, or only a few are left, the door shuts: a filter on the socket drops the packets
 * of newcomers, who try again by themselves; the reserve is given up, so that libzmq can take in
 * those who wait already (at most the backlog, which the reserve exceeds) and checkpoints still
 * find descriptors. The door opens again when the whole reserve can be had back.
 *
 * Thread: the loop's.
 */
#ifndef SERVER_NET_ACCEPT_GATE_H
#define SERVER_NET_ACCEPT_GATE_H
#include <stdint.h>

#define DOOR_RESERVE 160 /* descriptors, where the limit is far above it */

struct door {
	int listener; /* libzmq's, -1: not known yet */
	int reserve[DOOR_RESERVE], n_reserve, want;
	int backlog; /* connections that the kernel may keep waiting */
	int last;    /* a descriptor of this number or above: the end is near */
	int shut;
};

/* Take the reserve, as the limit of descriptors allows. */
void door_init(struct door *d);
void door_release(struct door *d);
/* A connection got descriptor `fd`: are so few left that the door should shut? */
int door_is_near(const struct door *d, uint32_t fd);
/* Until door_try_open; 0: it was shut already, or nothing listens yet. */
int door_shut(struct door *d);
/* The socket was closed: the next one has a new listener. */
void door_closed(struct door *d);
/* Open it if descriptors are there again; returns whether it is open. */
int door_try_open(struct door *d);

#endif
