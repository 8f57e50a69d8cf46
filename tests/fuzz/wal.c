/*
 * wal.c - fuzzes the reader of files of the write-ahead log, and the reader of single records. If
 * byte 0 is even, the target first corrects the checksums of the file.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>
#include "common/le.h"
#include "common/wal_file.h"
#include "server/durability/wal_record.h"
#include "tests/support/fuzz_input.h"

#define HEAD   64u
#define RECORD 48u
#define PARAMS 8u

static char dir[] = "/tmp/fuzz-wal-XXXXXX";
static int made; /* 1: make_directory has created the directory `dir` */

static void remove_directory(void)
{
	char path[128];

	snprintf(path, sizeof(path), "%s/journal-0000000000000001", dir);
	(void)unlink(path);
	(void)rmdir(dir);
}

static void make_directory(void)
{
	if (made)
		return;
	PS_ASSERT(mkdtemp(dir));
	made = 1;
	PS_ASSERT(atexit(remove_directory) == 0);
}

static void repair_log_sums(uint8_t *file, size_t size)
{
	if (size < HEAD)
		return;
	le64_put(file + 56, XXH3_64bits(file, 56));
	for (size_t at = HEAD; at + RECORD <= size;) {
		uint64_t bytes = le64_get(file + at + 32);
		XXH3_state_t *hash = XXH3_createState();

		PS_ASSERT(hash);
		if (bytes <= size - at - RECORD) {
			(void)XXH3_64bits_reset(hash);
			(void)XXH3_64bits_update(hash, file + at, RECORD - 8);
			(void)XXH3_64bits_update(hash, file + at + RECORD, bytes);
			le64_put(file + at + 40, XXH3_64bits_digest(hash));
			at += (RECORD + bytes + 7) / 8 * 8;
		} else {
			at = size;
		}
		(void)XXH3_freeState(hash);
	}
}

static void write_log(const uint8_t *data, size_t size)
{
	char path[128];

	snprintf(path, sizeof(path), "%s/journal-0000000000000001", dir);
	int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);
	PS_ASSERT(fd >= 0);
	PS_ASSERT(write(fd, data, size) == (ssize_t)size);
	PS_ASSERT(close(fd) == 0);
}

static void read_log(struct wal_record_reader *record)
{
	struct wal_reader r;
	struct err e = {0};
	const unsigned char *data;
	size_t size;

	if (wal_reader_open(&r, dir, 1, wal_record_max(PARAMS), &e) != 0) {
		PS_ASSERT(e.text[0]);
		return;
	}
	while (r.fd >= 0 && wal_reader_next(&r, &data, &size, &e) == 1) {
		PS_ASSERT(size <= wal_record_max(PARAMS));
		if (!wal_record_is_mark(data, size) && wal_record_read(record, data, size) == 0)
			PS_ASSERT(record->event.kind <= EVENT_PROGRESS);
	}
	if (r.fd >= 0)
		(void)!wal_reader_has_gap(&r, &e);
	wal_reader_release(&r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static uint8_t file[1 << 16];
	struct input in = {data, size};
	uint8_t how = input_u8(&in);
	size_t n = in.left < sizeof(file) ? in.left : sizeof(file);
	struct wal_record_reader record;

	make_directory();
	PS_ASSERT(wal_record_reader_init(&record, PARAMS) == 0);
	if (how & 2) { /* read the input as one record, without a file */
		if (!wal_record_is_mark(in.at, in.left))
			(void)!wal_record_read(&record, in.at, in.left);
	} else {
		if (n)
			memcpy(file, in.at, n);
		if (!(how & 1))
			repair_log_sums(file, n);
		write_log(file, n);
		read_log(&record);
	}
	wal_record_reader_release(&record);
	return 0;
}
