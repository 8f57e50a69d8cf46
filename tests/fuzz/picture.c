/* picture.c - fuzzes the readers of PGM, PNG and JPEG pictures. */
#include "common/model.h"
#include "tests/support/fuzz_input.h"
#include "worker/ctl/picture.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = {data, size};
	size_t channels = (size_t[]){0, 1, 3}[input_below(&in, 3)];
	struct picture p;
	struct err e = {0};
	uint8_t last = 0;

	if (picture_load(&p, input_file(in.at, in.left), channels, &e) != 0) {
		PS_ASSERT(e.text[0]);
		return 0;
	}
	PS_ASSERT(p.shape.c == 1 || p.shape.c == 3);
	PS_ASSERT(channels == 0 || p.shape.c == channels);
	for (size_t i = 0; i < shape_count(p.shape); i++)
		last ^= p.pixels[i];
	/* this use of `last` keeps the compiler from removing the loop */
	PS_ASSERT(last != 0 || p.shape.c <= 3);
	picture_release(&p);
	return 0;
}
