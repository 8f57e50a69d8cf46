/*
 * fuzz_input.h - the bytes of a fuzz target (tests/fuzz), read as numbers or as a file.
 *
 * A fuzz target is one C file with the function LLVMFuzzerTestOneInput. `make fuzz` links the
 * target with libFuzzer; tests/fuzz/replay.c gives the target the files of a corpus instead. Every
 * input is valid: after the last byte, a target reads zeros. A target reports a broken invariant
 * with PS_ASSERT.
 */
#ifndef TESTS_SUPPORT_FUZZ_INPUT_H
#define TESTS_SUPPORT_FUZZ_INPUT_H
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include "common/assert.h"
#include "common/engine.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct input {
	const uint8_t *at;
	size_t left;
};

uint8_t input_u8(struct input *in);
uint64_t input_u64(struct input *in);
/* Returns a number in [0, n). n is at most 256, because the number comes from one byte. */
uint32_t input_below(struct input *in, uint32_t n);
/* Returns `v` most of the time, sometimes a number near `v`, and seldom an arbitrary number. */
uint64_t input_near(struct input *in, uint64_t v);
/* Read the next line without its '\n' to `text`, at most size - 1 bytes of it. The function skips
 * the rest of a longer line. */
void input_line(struct input *in, char *text, size_t size);
/* Returns an engine with blocks of `block` values, which runs all blocks of a job in descending
 * order when the job begins. */
struct engine input_engine(size_t block);
/* Write these bytes to a file in memory that only this user may read, and return the path of the
 * file. A process has only one such file: each call replaces its content. */
const char *input_file(const uint8_t *data, size_t size);
/* Connect to a port of this machine, send these bytes, and return the socket. */
int input_connect(unsigned port, const void *data, size_t size);
/* Close a socket without the state TIME_WAIT, so that the machine does not run out of ports. */
void input_close(int fd);

#endif
