/*
 * checkpoint.c - fuzzes the reader of a checkpoint file. If byte 0 is even, the target first
 * corrects the checksums of the file, so that the fuzzer reaches the code that runs only after the
 * checksums were verified.
 */
#include <xxhash.h>
#include "common/checkpoint.h"
#include "common/le.h"
#include "common/run_head.h"
#include "tests/support/fuzz_input.h"

/* The sizes of parts of the header (common/checkpoint.h). The header has magic, format, number of
 * sections and generation (HEAD bytes); then name, offset, size and XXH3 of each section (ENTRY
 * bytes); then the XXH3 of the header. */
#define HEAD  24u
#define ENTRY 40u

static void repair_checkpoint_sums(uint8_t *file, size_t size)
{
	uint64_t n;

	if (size < HEAD)
		return;
	n = le32_get(file + 12) % 17;
	if (HEAD + n * ENTRY + 8 > size)
		return;
	for (uint64_t i = 0; i < n; i++) {
		uint8_t *entry = file + HEAD + i * ENTRY;
		uint64_t offset = le64_get(entry + 16), bytes = le64_get(entry + 24);

		if (offset <= size && bytes <= size - offset)
			le64_put(entry + 32, XXH3_64bits(file + offset, bytes));
	}
	le64_put(file + HEAD + n * ENTRY, XXH3_64bits(file, HEAD + n * ENTRY));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static uint8_t file[1 << 16];
	struct input in = {data, size};
	uint8_t how = input_u8(&in);
	size_t n = in.left < sizeof(file) ? in.left : sizeof(file);
	struct checkpoint c;
	struct err e = {0};

	if (n)
		memcpy(file, in.at, n);
	if (!(how & 1))
		repair_checkpoint_sums(file, n);
	if (checkpoint_read(input_file(file, n), &c, &e) != 0) {
		PS_ASSERT(e.text[0]);
		return 0;
	}
	for (size_t i = 0; i < c.n_sections; i++) {
		struct run_head head;

		PS_ASSERT(c.section[i].size <= n);
		(void)!run_head_read(c.section[i].data, c.section[i].size, &head);
	}
	(void)checkpoint_find(&c, RUN_HEAD_WEIGHTS);
	checkpoint_release(&c);
	return 0;
}
