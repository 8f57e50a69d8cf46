/*
 * snapshot.c - fuzzes the decoder of a checkpoint's sections. The input changes the sections of a
 * real core: each change has the number of a section, an offset of two bytes, a length and up to
 * eight new bytes; a change of length 0 truncates the section at the offset.
 *
 * The target checks that a refusal has a reason. If the decoder accepts the sections, the core must
 * process a tick, and the decoder must accept the snapshot of this core, too.
 */
#include <stdlib.h>
#include "server/core/core_state.h"
#include "server/core/snapshot.h"
#include "tests/support/core_config.h"
#include "tests/support/fuzz_input.h"

static struct core_config cfg;
static void *block;
static float *weights;
static unsigned char *base[SNAPSHOT_SECTIONS], *data[SNAPSHOT_SECTIONS];
static size_t base_size[SNAPSHOT_SECTIONS];

static void step_hello(struct core *c, uint32_t peer, const char name[5])
{
	struct msg m = {.type = MSG_HELLO};

	m.hello.role = ROLE_WORKER;
	memcpy(m.hello.name, name, 5);
	m.hello.data = (struct data_id){
		.n_train = 35, .n_test = 7, .rows = 2, .cols = 3, .classes = 10, .xxh3 = 99};
	core_step(c, &(struct event){.kind = EVENT_MESSAGE, .peer = peer, .msg = &m}, 1000);
}

/* Encode the snapshot of a core with two workers. One of the workers holds a lease. */
static void make_base(void)
{
	cfg = fixture_training();
	cfg.optim.kind = OPTIM_ADAM;
	cfg.rate.lr = 0.5;
	cfg.lbfgs.trials = 2;
	cfg.sessions.max_workers = 3;
	cfg.sessions.replay_window = 8;
	block = aligned_alloc(64, core_bytes(&cfg));
	weights = aligned_alloc(64, 64);
	PS_ASSERT(block && weights);
	memset(weights, 0, 64);
	struct core *c = core_init(block, &cfg, weights);
	step_hello(c, 1, "anna");
	core_step(c, &(struct event){.kind = EVENT_DURABLE, .generation = 1}, 1000);
	step_hello(c, 2, "bert");
	core_step(c, &(struct event){.kind = EVENT_DURABLE, .generation = 2}, 1000);
	struct msg m = {.type = MSG_LEASE};
	m.lease.stamp = (struct stamp){.run = cfg.run, .term = 5, .worker = 1, .incarnation = 1};
	m.lease.request = 1;
	core_step(c, &(struct event){.kind = EVENT_MESSAGE, .peer = 1, .msg = &m}, 1000);
	for (int i = 0; i < SNAPSHOT_SECTIONS; i++) {
		base_size[i] = snapshot_size(c, (enum snapshot_section)i);
		base[i] = malloc(base_size[i] + 1);
		data[i] = malloc(base_size[i] + 1);
		PS_ASSERT(base[i] && data[i]);
		(void)snapshot_encode(c, (enum snapshot_section)i, base[i], base_size[i], NULL);
	}
}

static void check_sound(struct core *c)
{
	struct core_config again = cfg;
	unsigned char *copy[SNAPSHOT_SECTIONS];
	const unsigned char *in[SNAPSHOT_SECTIONS];
	size_t size[SNAPSHOT_SECTIONS];
	const char *why = NULL;
	struct core *out;

	core_step(c, &(struct event){.kind = EVENT_TICK}, 2000);
	for (int i = 0; i < SNAPSHOT_SECTIONS; i++) {
		size[i] = snapshot_size(c, (enum snapshot_section)i);
		in[i] = copy[i] = malloc(size[i] + 1);
		PS_ASSERT(copy[i]);
		(void)snapshot_encode(c, (enum snapshot_section)i, copy[i], size[i], NULL);
	}
	again.term = cfg.term + 1;
	int rc = snapshot_decode(block, weights, &again, in, size, &out, &why);
	PS_ASSERT(rc == 0);
	for (int i = 0; i < SNAPSHOT_SECTIONS; i++)
		free(copy[i]);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
	struct input in = {bytes, n};
	const unsigned char *sections[SNAPSHOT_SECTIONS];
	size_t size[SNAPSHOT_SECTIONS];
	const char *why = NULL;
	struct core *c = NULL;

	if (!block)
		make_base();
	uint8_t running = input_u8(&in) & 1;
	for (int i = 0; i < SNAPSHOT_SECTIONS; i++) {
		memcpy(data[i], base[i], base_size[i]);
		sections[i] = data[i];
		size[i] = base_size[i];
	}
	while (in.left) {
		uint32_t s = input_below(&in, SNAPSHOT_SECTIONS);
		size_t at = input_u8(&in), length;

		at = (at << 8 | input_u8(&in)) % (base_size[s] + 1);
		length = input_below(&in, 9);
		if (length == 0)
			size[s] = at;
		while (length-- && at < base_size[s])
			data[s][at++] = input_u8(&in);
	}
	struct core_config now = cfg;
	now.term = 6;
	if (running && snapshot_config(sections[SNAPSHOT_SESSIONS], size[SNAPSHOT_SESSIONS], &now))
		return 0;
	/* skip larger cores: for them startup.c would allocate more memory, but this target has
	 * only one small block */
	if (running && (core_bytes(&now) > core_bytes(&cfg) || now.n_params > FIXTURE_PARAMS))
		return 0;
	int rc = running ? snapshot_decode_running(block, weights, &now, sections, size, &c, &why)
			 : snapshot_decode(block, weights, &now, sections, size, &c, &why);
	if (rc != 0)
		PS_ASSERT(why && why[0]);
	else if (!running)
		check_sound(c);
	return 0;
}
