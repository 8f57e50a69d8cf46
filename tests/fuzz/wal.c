/*
 * wal.c - fuzzes the reader of files of the write-ahead log, the reader of single records, and the
 * replay of a log. The bits of byte 0 choose what the other bytes are:
 *
 *   none      a file of the log. Without the bit BAD_SUMS, the target first corrects its checksums
 *   RECORD    one record, without a file
 *   REPLAY    a mode of training and a list of events. The target writes the events to log files,
 *             as the server does, and replays them after a checkpoint. With the bit ACCEPT, the
 *             replay has the option --accept-rollback
 *
 * The checkpoint is of a core with two workers (core_config.h). An event of the input can be one
 * that no server would log. The target checks that a failed replay has a reason, and that a server
 * can resume from the state after a replay.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <xxhash.h>
#include "common/generation.h"
#include "common/le.h"
#include "common/wal_file.h"
#include "server/core/core_state.h"
#include "server/core/snapshot.h"
#include "server/durability/wal.h"
#include "server/durability/wal_record.h"
#include "tests/support/core_config.h"
#include "tests/support/fuzz_input.h"

#define BAD_SUMS 1
#define RECORD   2
#define REPLAY   4
#define ACCEPT   8

#define HEAD_BYTES   64u
#define RECORD_BYTES 48u
#define PARAMS       FIXTURE_PARAMS
#define MODES        5u
#define PEERS        4u

static char dir[] = "/dev/shm/fuzz-wal-XXXXXX"; /* in memory, because a disk is slow */
static int made; /* 1: make_directory has created the directory `dir` */

static void remove_directory(void)
{
	wal_remove_files(dir, UINT64_MAX);
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
	if (size < HEAD_BYTES)
		return;
	le64_put(file + 56, XXH3_64bits(file, 56));
	for (size_t at = HEAD_BYTES; at + RECORD_BYTES <= size;) {
		uint64_t bytes = le64_get(file + at + 32);
		XXH3_state_t *hash = XXH3_createState();

		PS_ASSERT(hash);
		if (bytes <= size - at - RECORD_BYTES) {
			(void)XXH3_64bits_reset(hash);
			(void)XXH3_64bits_update(hash, file + at, RECORD_BYTES - 8);
			(void)XXH3_64bits_update(hash, file + at + RECORD_BYTES, bytes);
			le64_put(file + at + 40, XXH3_64bits_digest(hash));
			at += (RECORD_BYTES + bytes + 7) / 8 * 8;
		} else {
			at = size;
		}
		(void)XXH3_freeState(hash);
	}
}

static void write_log(uint64_t generation, const uint8_t *data, size_t size)
{
	char name[GENERATION_NAME], path[128];

	generation_name("journal", generation, name);
	snprintf(path, sizeof(path), "%s/%s", dir, name);
	int fd = open(path, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
	PS_ASSERT(fd >= 0);
	PS_ASSERT(write(fd, data, size) == (ssize_t)size);
	PS_ASSERT(close(fd) == 0);
}

/* ---- a file, or a record --------------------------------------------------------------------- */

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

static void fuzz_reader(struct input *in, uint8_t how)
{
	static uint8_t file[1 << 16];
	size_t n = in->left < sizeof(file) ? in->left : sizeof(file);
	struct wal_record_reader record;

	PS_ASSERT(wal_record_reader_init(&record, PARAMS) == 0);
	if (how & RECORD) {
		if (!wal_record_is_mark(in->at, in->left))
			(void)!wal_record_read(&record, in->at, in->left);
	} else {
		if (n)
			memcpy(file, in->at, n);
		if (!(how & BAD_SUMS))
			repair_log_sums(file, n);
		write_log(1, file, n);
		read_log(&record);
	}
	wal_record_reader_release(&record);
}

/* ---- the checkpoint before the events -------------------------------------------------------- */

/* The state of a core that has just taken snapshot `generation`. */
struct base {
	struct core_config cfg;
	uint64_t generation;
	unsigned char *data[SNAPSHOT_SECTIONS];
	size_t size[SNAPSHOT_SECTIONS];
};

/* The memory of a core, large enough for all modes. */
static void *block;
static _Alignas(64) float weights[PARAMS];

static void join_base(struct core *c, uint32_t peer, const char name[5])
{
	struct msg m = {.type = MSG_HELLO, .hello.role = ROLE_WORKER};

	memcpy(m.hello.name, name, 5);
	m.hello.data = (struct data_id){
		.n_train = 35, .n_test = 7, .rows = 2, .cols = 3, .classes = 10, .xxh3 = 99};
	core_step(c, &(struct event){.kind = EVENT_MESSAGE, .peer = peer, .msg = &m}, 1000);
}

static struct core_config base_config(enum mode mode)
{
	struct core_config cfg = fixture_training();

	cfg.training.mode = mode;
	cfg.rate.lr = 0.5;
	cfg.lbfgs.trials = 2;
	cfg.sessions.max_workers = 3;
	cfg.sessions.replay_window = 8;
	cfg.checkpoint.wal = DURABILITY_ALWAYS;
	return cfg;
}

static void make_log_base(struct base *b, enum mode mode)
{
	const struct effect *e;

	b->cfg = base_config(mode);
	memset(weights, 0, sizeof(weights));
	struct core *c = core_init(block, &b->cfg, weights);
	join_base(c, 1, "anna");
	join_base(c, 2, "bert");
	core_step(c, &(struct event){.kind = EVENT_SAVE}, 1000);
	for (size_t i = 0; (e = core_effect(c, i)) != NULL; i++)
		if (e->kind == EFFECT_SNAPSHOT)
			b->generation = e->generation;
	PS_ASSERT(b->generation > 0);
	for (int i = 0; i < SNAPSHOT_SECTIONS; i++) {
		b->size[i] = snapshot_size(c, (enum snapshot_section)i);
		b->data[i] = malloc(b->size[i] + 1);
		PS_ASSERT(b->data[i]);
		(void)snapshot_encode(c, (enum snapshot_section)i, b->data[i], b->size[i], NULL);
	}
}

static const struct base *find_base(enum mode mode)
{
	static struct base bases[MODES + 1]; /* of each mode */
	size_t room = 0;

	if (bases[mode].generation)
		return &bases[mode];
	for (uint32_t i = 1; i <= MODES; i++) {
		struct core_config cfg = base_config((enum mode)i);

		room = core_bytes(&cfg) > room ? core_bytes(&cfg) : room;
	}
	if (!block)
		block = aligned_alloc(64, room);
	PS_ASSERT(block);
	make_log_base(&bases[mode], mode);
	return &bases[mode];
}

static struct checkpoint base_checkpoint(const struct base *b)
{
	struct checkpoint c = {.generation = b->generation, .n_sections = SNAPSHOT_SECTIONS};

	for (int i = 0; i < SNAPSHOT_SECTIONS; i++) {
		c.section[i] = (struct checkpoint_section){.data = b->data[i], .size = b->size[i]};
		snprintf(c.section[i].name, sizeof(c.section[i].name), "%s", snapshot_names[i]);
	}
	return c;
}

/* ---- the events ------------------------------------------------------------------------------ */

/* The log file that the target is making. */
struct log {
	uint8_t file[1 << 16];
	size_t size;
	uint64_t generation; /* of this file */
	uint64_t next;       /* the generation of the next snapshot */
	uint64_t seq;        /* the sequence number of the next record */
	uint64_t now_ms;
};

static void begin_log(struct log *l, const struct base *b, uint64_t generation)
{
	l->generation = generation;
	l->size = HEAD_BYTES;
	memcpy(l->file, "CNNPSJNL", 8);
	le64_put(l->file + 8, 1);
	le64_put(l->file + 16, b->cfg.run.hi);
	le64_put(l->file + 24, b->cfg.run.lo);
	le64_put(l->file + 32, b->cfg.term);
	le64_put(l->file + 40, generation);
	le64_put(l->file + 48, l->seq);
}

static void end_log(struct log *l)
{
	repair_log_sums(l->file, l->size);
	write_log(l->generation, l->file, l->size);
}

/* Append a record, unless the file is full. */
static void add_record(struct log *l, const uint8_t *data, size_t size)
{
	uint8_t *at = l->file + l->size;

	if (RECORD_BYTES + size + 8 > sizeof(l->file) - l->size)
		return;
	memset(at, 0, RECORD_BYTES + size + 8);
	memcpy(at, "CNNPSREC", 8);
	le64_put(at + 8, l->generation);
	le64_put(at + 16, l->seq);
	le64_put(at + 24, l->seq);
	le64_put(at + 32, size);
	memcpy(at + RECORD_BYTES, data, size);
	l->size += (RECORD_BYTES + size + 7) / 8 * 8;
	l->seq++;
}

static void take_frame(struct frames *f, const void *data, size_t size)
{
	PS_ASSERT(zmq_msg_init_size(&f->frame[f->n], size) == 0);
	memcpy(zmq_msg_data(&f->frame[f->n]), data, size);
	f->n++;
}

/* Read the frames of a message: the size of the header and the header, then the number of tensor
 * frames. The byte of a tensor frame chooses the number of its values and the value. */
static void read_frames(struct frames *f, struct input *in)
{
	static const float choice[] = {0, 0.5f, -1, 1e15f};
	size_t size = input_u8(in);

	size = size < in->left ? size : in->left;
	take_frame(f, in->at, size);
	in->at += size;
	in->left -= size;
	for (uint32_t n = input_below(in, 4); n > 0; n--) {
		uint32_t byte = input_u8(in), count = byte % (PARAMS + 1);
		float values[PARAMS] = {0};

		for (uint32_t i = 0; i < count; i++)
			values[i] = choice[byte / (PARAMS + 1) % 4];
		take_frame(f, values, count * sizeof(float));
	}
}

static void add_log_event(struct log *l, enum event_kind kind, struct input *in)
{
	uint8_t record[WAL_RECORD_HEAD + 256 + 4 * PARAMS * sizeof(float)];
	struct event ev = {.kind = kind, .peer = input_below(in, PEERS + 1)};
	struct frames f;
	uint8_t wait = input_u8(in);

	frames_init(&f);
	l->now_ms = wait < 250 ? l->now_ms + 10u * wait : input_u64(in);
	if (kind == EVENT_MESSAGE)
		read_frames(&f, in);
	else if (kind == EVENT_TICK)
		ev.held_ms = input_near(in, 0);
	else if (kind == EVENT_PROGRESS)
		ev.bytes = input_near(in, 100);
	else if (kind == EVENT_DURABLE || kind == EVENT_SAVE_FAILED)
		ev.generation = input_near(in, l->next - 1);
	size_t size = wal_record_head(&ev, l->now_ms, &f, record);
	for (size_t i = 0; i < f.n; i++) {
		memcpy(record + size, zmq_msg_data(&f.frame[i]), zmq_msg_size(&f.frame[i]));
		size += zmq_msg_size(&f.frame[i]);
	}
	add_record(l, record, size);
	frames_release(&f);
}

/* Write the input's events to log files. */
static void write_events(struct log *l, const struct base *b, struct input *in)
{
	enum { MARK = EVENT_PROGRESS + 1, NEXT_FILE, LOST, KINDS };
	uint8_t mark[WAL_RECORD_HEAD];

	l->next = b->generation + 1;
	l->seq = 1;
	l->now_ms = 1000;
	begin_log(l, b, b->generation);
	while (in->left) {
		uint32_t kind = input_below(in, KINDS);

		if (kind == MARK) {
			add_record(l, mark, wal_record_mark(l->next++, mark));
		} else if (kind == NEXT_FILE) {
			end_log(l);
			begin_log(l, b, l->next++);
		} else if (kind == LOST) {
			l->seq++;
		} else {
			add_log_event(l, (enum event_kind)kind, in);
		}
	}
	end_log(l);
}

/* Decode the state after the replay, as the next start of the server does. */
static void check_resumes(const struct base *b, const struct checkpoint *c)
{
	const unsigned char *data[SNAPSHOT_SECTIONS];
	size_t size[SNAPSHOT_SECTIONS];
	struct core_config next = b->cfg;
	struct core *core;
	const char *why;

	for (int i = 0; i < SNAPSHOT_SECTIONS; i++) {
		const struct checkpoint_section *s = checkpoint_find(c, snapshot_names[i]);

		data[i] = s ? s->data : NULL;
		size[i] = s ? s->size : 0;
	}
	next.term++;
	PS_ASSERT(snapshot_decode(block, weights, &next, data, size, &core, &why) == PS_OK);
}

static void fuzz_replay(struct input *in, uint8_t how)
{
	static struct log l;
	const struct base *b = find_base((enum mode)(1 + input_below(in, MODES)));
	struct core_config now = b->cfg;
	struct checkpoint c = base_checkpoint(b);
	struct err e = {0};

	write_events(&l, b, in);
	now.sessions.accept_rollback = (how & ACCEPT) != 0;
	if (wal_replay(dir, &now, &c, &e) == PS_OK)
		check_resumes(b, &c);
	else
		PS_ASSERT(e.text[0]);
	checkpoint_release(&c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = {data, size};
	uint8_t how = input_u8(&in);

	make_directory();
	wal_remove_files(dir, UINT64_MAX);
	if (how & REPLAY)
		fuzz_replay(&in, how);
	else
		fuzz_reader(&in, how);
	return 0;
}
