/*
 * keys.c - fuzzes the readers of the list of authorized keys and of key files. These readers also
 * check the directories above a file, and refuse the file of input_file, which is only in memory.
 * The target therefore writes its input to a file in /tmp. At the start it checks that the readers
 * accept valid content of this file.
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include "common/authorized_keys.h"
#include "common/keys.h"
#include "tests/support/fuzz_input.h"

enum what { LIST, PUBLIC, SECRET, KINDS };

static char path[] = "/tmp/fuzz-keys-XXXXXX";

static void remove_key_file(void)
{
	(void)unlink(path);
}

static void write_key_file(const void *data, size_t size)
{
	static int fd = -1;

	if (fd < 0) {
		fd = mkstemp(path);
		PS_ASSERT(fd >= 0 && atexit(remove_key_file) == 0);
	}
	PS_ASSERT(pwrite(fd, data, size, 0) == (ssize_t)size);
	PS_ASSERT(ftruncate(fd, (off_t)size) == 0); /* last: on a disk, truncation to 0 is slow */
}

static int read_key_file(enum what what)
{
	struct authorized_keys *list = NULL;
	struct key_pair pair = {{0}, {0}};
	struct err e = {0};
	char key[KEY_TEXT];
	int rc;

	if (what == LIST) {
		rc = authorized_keys_read(&list, path, &e);
		if (rc == 0)
			PS_ASSERT(authorized_keys_count(list) <= MAX_AUTHORIZED_KEYS);
		authorized_keys_free(&list);
	} else if (what == PUBLIC) {
		rc = key_read_public(path, key, &e);
		if (rc == 0)
			PS_ASSERT(key_is_text(key));
	} else {
		rc = key_read_secret(path, &pair, &e);
		key_wipe(&pair);
	}
	PS_ASSERT(rc == 0 || e.text[0]);
	return rc;
}

static void check_valid_files(void)
{
	struct key_pair pair;
	struct err e = {0};
	char text[128];

	PS_ASSERT(key_random(&pair, &e) == PS_OK);
	for (int what = LIST; what < KINDS; what++) {
		int n = snprintf(text, sizeof(text), "%s%s\n",
			what == LIST     ? "worker "
			: what == PUBLIC ? "cnn-ps public key\n"
					 : "cnn-ps secret key\n",
			what == SECRET ? pair.secret_key : pair.public_key);

		write_key_file(text, (size_t)n);
		PS_ASSERT(read_key_file((enum what)what) == PS_OK);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static int checked;
	struct input in = {data, size};
	enum what what = (enum what)(input_u8(&in) % KINDS);

	if (!checked)
		check_valid_files();
	checked = 1;
	write_key_file(in.at, in.left);
	(void)read_key_file(what);
	return 0;
}
