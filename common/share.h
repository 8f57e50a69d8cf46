/*
 * share.h - memory that processes on the same host share, and Unix sockets that pass its
 * descriptors.
 *
 * The memory is a memfd. A memfd has no name in a file system, and the kernel frees it when the
 * last process has closed and unmapped it, so a crash leaves nothing behind. No process can change
 * the size of this memory, so an access to it never ends a process with SIGBUS.
 *
 * Any thread may call the functions, which keep no state.
 */
#ifndef COMMON_SHARE_H
#define COMMON_SHARE_H
#include <stddef.h>
#include "common/err.h"

#define SHARE_MAX_FDS 5    /* maximum number of descriptors in one message */
#define SHARE_PATH    107u /* maximum bytes of the path of a Unix socket, without the NUL */

/* Creates shared memory of `bytes` zeros. A page takes memory only after the first write to it.
 * Sets *fd to the descriptor. Error: PS_EIO. */
int share_new(const char *name, size_t bytes, int *fd) PS_MUST_CHECK;
/* Maps `bytes` bytes of the memory `fd`. Returns NULL if this is not possible. */
void *share_map(int fd, size_t bytes, int writable);
/* Makes the memory read-only: from now on no process can write to it, except through a mapping made
 * before this call. Error: PS_EIO. */
int share_freeze(int fd) PS_MUST_CHECK;
/* Returns 1 if `fd` is memory of at least `bytes`, and no process can change its size. */
int share_is_sound(int fd, size_t bytes);

/* Listens on the Unix socket `path`, and replaces the socket file of a process that has ended. Only
 * this user may connect. Calls on *fd do not block. Returns PS_EUSAGE if the path cannot be used,
 * or if another process listens on it. Other error: PS_EIO. */
int share_listen(const char *path, int *fd, struct err *e) PS_MUST_CHECK;
/* Connects to the Unix socket `path`. Calls on *fd do not block. Errors: PS_EUNREACHABLE,
 * PS_EUSAGE. */
int share_connect(const char *path, int *fd, struct err *e) PS_MUST_CHECK;
/* Sends one message of `size` bytes with `n` descriptors. The message must fit into the buffer of a
 * new connection. Returns PS_ENET if it could not send the message. */
int share_send(int socket, const void *data, size_t size, const int *fds, size_t n) PS_MUST_CHECK;
/* Receives one message of exactly `size` bytes with exactly `n` descriptors, which the caller owns
 * after PS_OK. Returns PS_EAGAIN if no message has arrived. Returns PS_EUNREACHABLE if the peer has
 * closed the connection. Returns PS_EPROTO if the message has another size or number of
 * descriptors. */
int share_receive(int socket, void *data, size_t size, int *fds, size_t n) PS_MUST_CHECK;

#endif
