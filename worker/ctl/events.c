/*
 * events.c - see ctl.h: writes a history as TensorBoard's event file. The file is a sequence of
 * records of TensorFlow's format TFRecord. A record has a length (8 bytes), the masked CRC32C of
 * the length, an Event message of protobuf, and the masked CRC32C of the message, all
 * little-endian. This file encodes an Event without protobuf-c, because it needs only four fields
 * of it.
 */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/assert.h"
#include "common/file.h"
#include "common/le.h"
#include "common/mem.h"
#include "common/metric_names.h"
#include "worker/ctl/ctl.h"

#define MAX_EVENT 256

struct bytes {
	unsigned char *at;
	size_t n, room;
};

static uint32_t masked_crc32c(const unsigned char *p, size_t n)
{
	uint32_t crc = UINT32_MAX;

	for (size_t i = 0; i < n; i++) {
		crc ^= p[i];
		for (int bit = 0; bit < 8; bit++)
			crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
	}
	crc = ~crc;
	return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

static void put_varint(struct bytes *b, uint64_t v)
{
	for (; v >= 128; v >>= 7)
		b->at[b->n++] = (unsigned char)(v | 128);
	b->at[b->n++] = (unsigned char)v;
}

/* Appends field `number`, whose value is a text or a message. */
static void put_nested(struct bytes *b, unsigned number, const void *data, size_t n)
{
	put_varint(b, number << 3 | 2);
	put_varint(b, n);
	memcpy(b->at + b->n, data, n);
	b->n += n;
}

static void put_record(struct bytes *file, const struct bytes *event)
{
	unsigned char *p = file->at + file->n;

	PS_ASSERT(file->n + event->n + 16 <= file->room);
	le64_put(p, event->n);
	le32_put(p + 8, masked_crc32c(p, 8));
	memcpy(p + 12, event->at, event->n);
	le32_put(p + 12 + event->n, masked_crc32c(event->at, event->n));
	file->n += event->n + 16;
}

/* Begins an Event: field 1 is the wall time, field 2 the step. */
static struct bytes begin_event(unsigned char memory[MAX_EVENT], double seconds, uint64_t step)
{
	struct bytes b = {memory, 0, MAX_EVENT};
	uint64_t bits;

	memcpy(&bits, &seconds, sizeof(bits));
	b.at[b.n++] = 1 << 3 | 1;
	le64_put(b.at + b.n, bits);
	b.n += 8;
	put_varint(&b, 2 << 3);
	put_varint(&b, step);
	return b;
}

/* Appends Event.summary (field 5) with one Summary.value (1), which has a tag (1) and a
 * simple_value (2). */
static void put_scalar(
	struct bytes *file, double seconds, uint64_t step, const char *tag, double value)
{
	unsigned char memory[4][MAX_EVENT];
	struct bytes event = begin_event(memory[0], seconds, step);
	struct bytes v = {memory[1], 0, MAX_EVENT}, summary = {memory[2], 0, MAX_EVENT};
	float single = (float)value;
	uint32_t bits;

	memcpy(&bits, &single, sizeof(bits));
	put_nested(&v, 1, tag, strlen(tag));
	v.at[v.n++] = 2 << 3 | 5;
	le32_put(v.at + v.n, bits);
	v.n += 4;
	put_nested(&summary, 1, v.at, v.n);
	put_nested(&event, 5, summary.at, summary.n);
	put_record(file, &event);
}

static const struct {
	const char *kind, *key, *tag;
	const char *step; /* key of the value in the history that becomes TensorBoard's step */
} scalars[] = {
	{"sample", "loss", "train/loss", "updates"},
	{"sample", "images_per_s", "speed/images_per_s", "updates"},
	{"sample", "learning_rate", "train/learning_rate", "updates"},
	{"sample", "live", "workers/live", "updates"},
	{"sample", "duplicates", "pushes/duplicates", "updates"},
	{"sample", "rejected", "pushes/rejected", "updates"},
	{"epoch", "loss", "epoch/loss", "epoch"},
	{"epoch", "test_loss", "epoch/test_loss", "epoch"},
	{"epoch", "accuracy", "epoch/accuracy", "epoch"},
};

#define N_SCALARS (sizeof(scalars) / sizeof(scalars[0]))

/* Writes the metrics except accuracy, with the tag epoch/NAME. */
static void put_metrics(struct bytes *file, double seconds, const json_t *o)
{
	json_int_t epoch = json_integer_value(json_object_get(o, "epoch"));
	json_t *metrics = json_object_get(o, "metrics"), *v;
	const char *name;
	size_t n = 0;

	json_object_foreach(metrics, name, v)
	{
		char tag[8 + MAX_METRIC_NAME];

		if (!json_is_number(v) || strlen(name) > MAX_METRIC_NAME || epoch < 0 ||
			n++ == MAX_METRICS)
			continue;
		snprintf(tag, sizeof(tag), "epoch/%s", name);
		put_scalar(file, seconds, (uint64_t)epoch, tag, json_number_value(v));
	}
}

/* Writes the values of line `o` of the history. `is_validated` is 1 if the run has --validate. */
static void put_scalars(struct bytes *file, const json_t *o, int is_validated)
{
	double seconds = json_number_value(json_object_get(o, "t")) / 1000;
	const char *kind = json_string_value(json_object_get(o, "kind"));

	for (size_t i = 0; i < N_SCALARS; i++) {
		const json_t *v = json_object_get(o, scalars[i].key);
		json_int_t step = json_integer_value(json_object_get(o, scalars[i].step));
		const char *tag = is_validated && strcmp(scalars[i].key, "test_loss") == 0
					  ? "epoch/validation_loss"
					  : scalars[i].tag;

		if (strcmp(kind, scalars[i].kind) == 0 && json_is_number(v) && step >= 0)
			put_scalar(file, seconds, (uint64_t)step, tag, json_number_value(v));
	}
	put_metrics(file, seconds, o);
}

int ctl_write_events(const char *dir, const json_t *lines, int is_validated, struct err *e)
{
	static const char version[] = "brain.Event:2";
	size_t n = json_array_size(lines);
	struct bytes file = {.room = (n * (N_SCALARS + MAX_METRICS) + 1) * MAX_EVENT};
	double first = json_number_value(json_object_get(json_array_get(lines, 0), "t")) / 1000;
	unsigned char memory[MAX_EVENT];
	struct bytes event = begin_event(memory, first, 0);
	char name[96];
	int rc = file_make_dirs(dir, e);

	if (rc)
		return rc;
	file.at = mem_must(file.room, 1, "event file");
	put_nested(&event, 3, version, sizeof(version) - 1); /* the field file_version */
	put_record(&file, &event);
	for (size_t i = 0; i < n; i++)
		put_scalars(&file, json_array_get(lines, i), is_validated);
	/* TensorBoard reads files whose names contain "tfevents" */
	snprintf(name, sizeof(name), "events.out.tfevents.%.0f.cnn-ps", first);
	rc = file_replace(dir, name, &(struct file_part){file.at, file.n}, 1, e);
	if (!rc)
		printf("%s/%s\n", dir, name);
	free(file.at);
	return rc;
}
