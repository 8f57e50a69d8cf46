/*
 * checkpoint.c - fuzzes the reader of a checkpoint file, and the resumption of a checkpoint of this
 * release, of 0.2.0, which lacks some sections and options, or of 0.1.0, which
 * server/durability/upgrade.c first converts. If byte 0 is even, the target first corrects the
 * checksums of the file, so that the fuzzer reaches the code that runs only after the checksums
 * were verified. If bit 1 of byte 0 is set, the target decodes a checkpoint of this release or of
 * 0.2.0 as the replay of a write-ahead log does, otherwise as a start without a log.
 *
 * The options of this start are those of the checkpoint, because with other options the start would
 * refuse the checkpoint. The target checks that a refusal has a reason. A core that was accepted
 * must process a HELLO and ticks, and the decoder must accept the snapshot of this core, too.
 */
#include <stdlib.h>
#include <xxhash.h>
#include "common/checkpoint.h"
#include "common/le.h"
#include "common/run_head.h"
#include "server/core/core_state.h"
#include "server/core/snapshot_v5.h"
#include "server/durability/upgrade.h"
#include "tests/support/core_config.h"
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

/* ---- the resumption -------------------------------------------------------------------------- */

/* The target decodes no larger cores, which would take too much time. Outside the flavours of
 * `make fuzz`, the core of a small run with a data set needs 4 MiB. */
#define MAX_BYTES ((size_t)5 << 20)

struct sections {
	const unsigned char *data[SNAPSHOT_SECTIONS];
	size_t size[SNAPSHOT_SECTIONS];
};

/* The memory of a core. */
struct room {
	void *core;
	float *weights;
};

/* Returns 0 if the core would be too large. */
static int allocate_core(struct room *r, const struct core_config *cfg)
{
	if (cfg->n_params > MAX_BYTES / sizeof(float) || core_bytes(cfg) > MAX_BYTES)
		return 0;
	r->core = aligned_alloc(64, core_bytes(cfg));
	r->weights = aligned_alloc(64, (cfg->n_params * sizeof(float) + 63) / 64 * 64 + 64);
	PS_ASSERT(r->core && r->weights);
	return 1;
}

static void free_core(struct room *r)
{
	free(r->weights);
	free(r->core);
}

/* Returns 1 if cnn-ps accepts these options together. The function has the rules of check_mode
 * (server/config/options.c) for the options that a checkpoint of 0.1.0 has. */
static int may_start(const struct core_config *c)
{
	enum mode mode = c->training.mode;

	return (c->training.epochs > 0 || mode == MODE_DOWNPOUR) &&
	       (c->optim.kind != OPTIM_LBFGS || mode == MODE_SANDBLASTER) &&
	       (c->optim.kind == OPTIM_SGD || mode != MODE_EASGD) &&
	       (c->dc.kind == DC_NONE || mode == MODE_DOWNPOUR || mode == MODE_SSP) &&
	       !(c->push.sum && mode == MODE_SANDBLASTER);
}

/* Encode the core to blocks of exactly the sizes of the sections, and decode these blocks. */
static void decode_again(struct core *c, const struct core_config *cfg, const struct room *r)
{
	struct core_config next = *cfg;
	unsigned char *copy[SNAPSHOT_SECTIONS];
	struct sections s;
	const char *why = NULL;
	struct core *out;

	for (int i = 0; i < SNAPSHOT_SECTIONS; i++) {
		s.size[i] = snapshot_size(c, (enum snapshot_section)i);
		s.data[i] = copy[i] = malloc(s.size[i] + !s.size[i]);
		PS_ASSERT(copy[i]);
		(void)snapshot_encode(c, (enum snapshot_section)i, copy[i], s.size[i], NULL);
	}
	next.term++;
	PS_ASSERT(snapshot_decode(r->core, r->weights, &next, s.data, s.size, &out, &why) == PS_OK);
	for (int i = 0; i < SNAPSHOT_SECTIONS; i++)
		free(copy[i]);
}

/* Let a new worker join, and let time pass. */
static void step_resumed(struct core *c)
{
	const struct event tick = {.kind = EVENT_TICK};
	struct msg m = {.type = MSG_HELLO, .hello = {.role = ROLE_WORKER, .name = "anna"}};

	m.hello.data = *core_data(c);
	core_step(c, &(struct event){.kind = EVENT_MESSAGE, .peer = 1, .msg = &m}, 1000);
	for (uint64_t now_ms = 2000; now_ms < 8000; now_ms += 2000)
		core_step(c, &tick, now_ms);
}

/* Decode the sections as a start with the options of the checkpoint does. */
static void resume_stopped(const struct sections *s)
{
	struct core_config cfg = fixture_training();
	struct core *c = NULL;
	const char *why = NULL;
	struct room r;

	/* an option of the checkpoint that is out of its range must make the decoder refuse it */
	int is_bad = snapshot_config(s->data[SNAPSHOT_SESSIONS], s->size[SNAPSHOT_SESSIONS], &cfg);
	if (is_bad)
		cfg = fixture_training();
	cfg.term++;
	if (!may_start(&cfg) || !allocate_core(&r, &cfg))
		return;
	int rc = snapshot_decode(r.core, r.weights, &cfg, s->data, s->size, &c, &why);
	PS_ASSERT(rc == PS_OK ? !is_bad : why && why[0]);
	if (rc == PS_OK) {
		step_resumed(c);
		decode_again(c, &cfg, &r);
	}
	free_core(&r);
}

/* Decode the sections as the replay of a log does (server/durability/wal_replay.c). */
static void resume_running(const struct sections *s)
{
	struct core_config cfg = fixture_training();
	struct core *c = NULL;
	const char *why = NULL;
	struct room r;

	if (snapshot_config(s->data[SNAPSHOT_SESSIONS], s->size[SNAPSHOT_SESSIONS], &cfg) ||
		s->size[SNAPSHOT_WEIGHTS] != cfg.n_params * sizeof(float) ||
		!allocate_core(&r, &cfg))
		return;
	int rc = snapshot_decode_running(r.core, r.weights, &cfg, s->data, s->size, &c, &why);
	PS_ASSERT(rc == PS_OK || (why && why[0]));
	free_core(&r);
}

static void resume_checkpoint(struct checkpoint *c, int running)
{
	static struct options o; /* a start with a directory that has no log */
	struct sections s;
	struct err e = {0};

	o.core = fixture_training();
	o.checkpoint_dir = "/none";
	int upgraded = upgrade_checkpoint(&o, c, &e);
	PS_ASSERT(upgraded >= 0 || e.text[0]);
	for (int i = 0; i < SNAPSHOT_SECTIONS; i++) {
		const struct checkpoint_section *found = checkpoint_find(c, snapshot_names[i]);

		if (upgraded < 0 || (!found && !SNAPSHOT_MAY_LACK(i)))
			return;
		s.data[i] = found ? found->data : NULL;
		s.size[i] = found ? found->size : 0;
	}
	if (running && !upgraded)
		resume_running(&s);
	else
		resume_stopped(&s);
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
	resume_checkpoint(&c, how >> 1 & 1);
	checkpoint_release(&c);
	return 0;
}
