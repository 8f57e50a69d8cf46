/*
 * curve_memory.h - the memory in which libzmq encrypts and decrypts the messages of handshakes.
 *
 * libzmq takes this memory from libsodium, which maps pages for each buffer of about a hundred
 * bytes, locks them and changes the access to the pages around them. A handshake needs about 25
 * system calls for this, and most of them interrupt the other threads of the process, because the
 * other processors must drop the old mapping from their caches (TLBs), too. In a flood of
 * connections, these system calls slowed the server down more than the encryption did. This module
 * therefore has its own definitions of these functions of libsodium, which take the memory from
 * malloc. Because the program defines the functions, the linker makes libzmq call these definitions
 * instead of libsodium's.
 *
 * sodium_free clears a buffer before it frees the memory. A buffer is not locked in memory. This
 * gives up no protection, because libzmq also copies the secret keys into its own structs, which
 * are not locked. A program that has a secret key writes no core file.
 *
 * Any thread may call the functions; libzmq calls them on its I/O threads.
 */
#ifndef SERVER_AUTH_CURVE_MEMORY_H
#define SERVER_AUTH_CURVE_MEMORY_H
#include <stddef.h>
#include <stdint.h>

/* Returns the number of buffers that this module has allocated so far. If it is 0 after a
 * handshake, libzmq uses libsodium's own functions, and handshakes take more time. */
uint64_t curve_memory_taken(void);

/* These functions replace those of libsodium with the same names. */
void *sodium_malloc(size_t size);
void *sodium_allocarray(size_t count, size_t size);
void sodium_free(void *p);

#endif
