/* keys.c - fuzzes the readers of the list of authorized keys and of key files. */
#include "common/authorized_keys.h"
#include "common/keys.h"
#include "tests/support/fuzz_input.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = {data, size};
	uint8_t what = input_u8(&in) % 3;
	const char *path = input_file(in.at, in.left);
	struct authorized_keys *list = NULL;
	struct key_pair pair = {{0}, {0}};
	struct err e = {0};
	char key[KEY_TEXT];
	int rc;

	if (what == 0) {
		rc = authorized_keys_read(&list, path, &e);
		if (rc == 0)
			PS_ASSERT(authorized_keys_count(list) <= MAX_AUTHORIZED_KEYS);
		authorized_keys_free(&list);
	} else if (what == 1) {
		rc = key_read_public(path, key, &e);
		if (rc == 0)
			PS_ASSERT(key_is_text(key));
	} else {
		rc = key_read_secret(path, &pair, &e);
		key_wipe(&pair);
	}
	PS_ASSERT(rc == 0 || e.text[0]);
	return 0;
}
