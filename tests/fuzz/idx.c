/* idx.c - fuzzes the reader of IDX files, plain or gzipped. If byte 0 is even, the target reads a
 * file of images, otherwise a file of labels. */
#include "common/err.h"
#include "tests/support/fuzz_input.h"
#include "worker/data/idx.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = {data, size};
	enum idx_kind kind = input_u8(&in) & 1 ? IDX_LABELS : IDX_IMAGES;
	struct idx x;
	struct err e = {0};
	const char *path = input_file(in.at, in.left);

	if (idx_read(&x, path, kind, &e) != 0) {
		PS_ASSERT(e.text[0]);
		return 0;
	}
	uint64_t n = (uint64_t)x.n * x.channels * x.rows * x.columns * x.width;
	PS_ASSERT(x.size == x.head + n);
	if (kind == IDX_LABELS && x.n < 100000) {
		static uint16_t label[100000];

		(void)!idx_labels(&x, path, label, &e);
	}
	uint8_t sum = 0;
	for (uint64_t i = 0; i < n; i++)
		sum ^= x.values[i];
	/* this use of `sum` keeps the compiler from removing the loop */
	PS_ASSERT(sum != 0 || n < 1ull << 40);
	idx_release(&x);
	return 0;
}
