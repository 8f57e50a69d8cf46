/*
 * curve_memory.h - the memory in which libzmq encrypts and decrypts the messages of handshakes.
 *
 * libzmq takes this memory from libsodium, which maps pages for each buffer of about a hundred
 * bytes, locks them and changes the access to the pages around them. A handshake needs about 25
 * system calls for this, and most of them interrupt the other threads of the process, because the
 * other processors must drop the old mapping from their caches (TLBs), too. In a flood of
 * connections, these system calls slowed the server down more than the encryption did. This module
 * therefore defines libsodium's functions again, with memory of malloc. The linker lets libzmq call
 * the definitions of the program.
 *
 * A buffer is cleared when it is freed. A buffer is not locked in memory, but the secret keys,
 * which libzmq copies into its own structs, are not locked either. The program writes no core file
 * if it has a key.
 *
 * Thread: any. libzmq calls the functions on its I/O threads.
 */
#ifndef SERVER_AUTH_CURVE_MEMORY_H
#define SERVER_AUTH_CURVE_MEMORY_H
#include <stddef.h>
#include <stdint.h>

/* Returns the number of buffers that were taken so far. If it is 0 after a handshake, libzmq uses
 * libsodium's own functions, and handshakes take more time. */
uint64_t curve_memory_taken(void);

/* These functions replace those of libsodium with the same names. */
void *sodium_malloc(size_t size);
void *sodium_allocarray(size_t count, size_t size);
void sodium_free(void *p);

#endif
