/*
 * checkpoint.c - fuzzes the reader of a checkpoint file, and the resumption of a checkpoint of
 * release 0.1.0 (server/core/snapshot_v5.h). If byte 0 is even, the target first corrects the
 * checksums of the file, so that the fuzzer reaches the code that runs only after the checksums
 * were verified.
 *
 * If the file is a checkpoint of 0.1.0, the target rewrites its sections and decodes the result, as
 * a start of the server does. The options of this start are those of the checkpoint, because with
 * other options the start would refuse the checkpoint. The target checks that both passes of the
 * rewrite compute the same sizes, and that a refusal has a reason. A core that was accepted must
 * process a HELLO and ticks, and the decoder must accept the snapshot of this core, too.
 */
#include <stdlib.h>
#include <xxhash.h>
#include "common/checkpoint.h"
#include "common/le.h"
#include "common/run_head.h"
#include "server/core/core_state.h"
#include "server/core/snapshot_v5.h"
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

/* ---- a checkpoint of release 0.1.0 ----------------------------------------------------------- */

/* The target decodes no larger cores, which would take too much time. */
#define MAX_BYTES ((size_t)1 << 20)

struct sections {
	const unsigned char *data[SNAPSHOT_SECTIONS];
	size_t size[SNAPSHOT_SECTIONS];
};

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
static void decode_again(
	struct core *c, const struct core_config *cfg, void *memory, float *weights)
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
	PS_ASSERT(snapshot_decode(memory, weights, &next, s.data, s.size, &out, &why) == PS_OK);
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

/* Decode the rewritten sections as a start with the options of the checkpoint does. */
static void resume_rewritten(const struct sections *s)
{
	struct core_config cfg = fixture_training();
	struct core *c = NULL;
	const char *why = NULL;

	/* an option of the checkpoint that is out of its range must make the decoder refuse it */
	int is_bad = snapshot_config(s->data[SNAPSHOT_SESSIONS], s->size[SNAPSHOT_SESSIONS], &cfg);
	if (is_bad)
		cfg = fixture_training();
	cfg.term++;
	if (!may_start(&cfg) || core_bytes(&cfg) > MAX_BYTES)
		return;
	void *memory = aligned_alloc(64, core_bytes(&cfg));
	float *weights = aligned_alloc(64, (cfg.n_params * sizeof(float) + 63) / 64 * 64 + 64);
	PS_ASSERT(memory && weights);
	int rc = snapshot_decode(memory, weights, &cfg, s->data, s->size, &c, &why);
	PS_ASSERT(rc == PS_OK ? !is_bad : why && why[0]);
	if (rc == PS_OK) {
		step_resumed(c);
		decode_again(c, &cfg, memory, weights);
	}
	free(weights);
	free(memory);
}

/* Rewrite the sections into a block of exactly the measured size, so that ASan finds writes past
 * its end. */
static void rewrite_and_resume(const struct sections *old)
{
	const struct core_config now = fixture_training();
	size_t bytes = 0, size[SNAPSHOT_SECTIONS];
	struct sections new;

	if (snapshot_v5_rewrite(old->data, old->size, &now, NULL, size))
		return;
	for (int i = 0; i < SNAPSHOT_SECTIONS; i++)
		bytes += size[i];
	if (bytes > MAX_BYTES)
		return;
	unsigned char *block = malloc(bytes), *at = block;
	PS_ASSERT(block);
	PS_ASSERT(snapshot_v5_rewrite(old->data, old->size, &now, block, new.size) == PS_OK);
	PS_ASSERT(memcmp(new.size, size, sizeof(size)) == 0);
	for (int i = 0; i < SNAPSHOT_SECTIONS; at += new.size[i++])
		new.data[i] = at;
	resume_rewritten(&new);
	free(block);
}

static void resume_old_release(const struct checkpoint *c)
{
	struct sections s;

	for (int i = 0; i < SNAPSHOT_SECTIONS; i++) {
		const struct checkpoint_section *found = checkpoint_find(c, snapshot_names[i]);

		if (!found && !SNAPSHOT_MAY_LACK(i))
			return;
		s.data[i] = found ? found->data : NULL;
		s.size[i] = found ? found->size : 0;
	}
	if (!snapshot_v5_is(s.data[SNAPSHOT_RUN], s.size[SNAPSHOT_RUN]))
		return;
	(void)snapshot_v5_is_final(s.data[SNAPSHOT_SESSIONS], s.size[SNAPSHOT_SESSIONS]);
	rewrite_and_resume(&s);
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
	resume_old_release(&c);
	checkpoint_release(&c);
	return 0;
}
