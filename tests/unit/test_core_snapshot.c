/*
 * Proves the promises of server/core/snapshot.c: the decoder restores the encoded state.
 * The decoder refuses sections that are too short, too long or have impossible values, and then
 * uses nothing of the snapshot.
 * Covers attack A20 of docs/faults.md.
 */
#include "tests/support/random_workers.h"
#include <math.h>
#include "common/le.h"
#include "server/core/cursor.h"
#include "tests/support/sanitizer.h"
#include "tests/support/test.h"

/* Returns a core in a random state. `seed` determines the configuration of the core and its events,
 * up to 119. */
static struct random_workers random_core(uint64_t seed)
{
	struct random_workers k = {.r = rng_seed(seed, RNG_SIM, 0)};
	struct core_config cfg = fixture_training();
	uint64_t steps = rng_below(&k.r, 120);
	size_t line;

	cfg.training.epochs = (uint32_t)rng_below(&k.r, 4);
	cfg.optim.kind = (enum optim_kind)rng_below(&k.r, OPTIM_LBFGS);
	cfg.sessions.replay_window = 8 + (uint32_t)rng_below(&k.r, 30);
	cfg.leases.max_batches = 1 + (uint32_t)rng_below(&k.r, 4);
	cfg.leases.eval_images = 1 + (uint32_t)rng_below(&k.r, 7);
	cfg.sessions.accept_rollback = 1;
	fixture_open(&k.f, cfg);
	if (rng_below(&k.r, 2))
		assert_null(
			core_name_tensors(k.f.core, "w F32 7\nn I64 scalar 3\nb F32 1\n", &line));
	if (rng_below(&k.r, 10))
		random_join(&k);
	else
		steps = 0;
	while (steps--)
		random_step(&k);
	return k;
}

static void assert_same_but_sessions(const struct core_snapshot *x, const struct core_snapshot *y)
{
	/* leave out the last section, SESSIONS, which differs because a restart ends all
	 * connections */
	for (int i = 0; i < SNAPSHOT_SESSIONS; i++) {
		assert_int_equal(x->size[i], y->size[i]);
		assert_memory_equal(x->data[i], y->data[i], x->size[i]);
	}
}

TEST(decoding_and_encoding_give_the_same_bytes)
{
	for (uint64_t seed = 1; seed <= REPETITIONS(300); seed++) {
		struct random_workers k = random_core(seed);
		struct core_snapshot first = fixture_save(&k.f), second;
		struct core_fixture f;
		const char *why = NULL;

		print_message("seed %llu\r", (unsigned long long)seed);
		assert_int_equal(fixture_read(&f, k.f.cfg, &first, &why), PS_OK);
		assert_int_equal(
			core_stats(f.core)->recoveries, core_stats(k.f.core)->recoveries + 1);
		f.core->stats.recoveries--; /* a restart increments this count */
		second = fixture_save(&f);
		assert_same_but_sessions(&first, &second);
		fixture_drop(&first);
		fixture_drop(&second);
		fixture_close(&f);
		fixture_close(&k.f);
	}
}

/* F of --aggregate RULE:F was an option, --bad-workers, and a snapshot still stores it like one. So
 * this release resumes the snapshots of the time when it was an option. */
TEST(the_number_of_bad_workers_is_stored_under_a_name_of_its_own)
{
	static const char name[] = "bad-workers";
	const struct core_config cfg = {.push = {.aggregate = AGGREGATE_TRIMMED, .bad_workers = 3}};
	struct core_config copy = cfg;
	static unsigned char stored[1 << 14];
	struct cursor k = {.out = stored, .room = sizeof(stored)};

	config_put(&k, &copy);
	assert_false(k.error);
	const unsigned char *at = memmem(stored, k.at, name, sizeof(name) - 1);
	assert_non_null(at);
	assert_int_equal(le64_get(at - 8), sizeof(name) - 1);
	const double three = 3;
	assert_memory_equal(at + sizeof(name) - 1, &three, sizeof(three));
}

TEST(encoding_changes_nothing)
{
	struct random_workers k = random_core(7);
	size_t n = fixture_bytes(&k.f.cfg);
	void *copy = malloc(n);
	struct core_snapshot img;

	assert_non_null(copy);
	memcpy(copy, k.f.memory, n);
	img = fixture_save(&k.f);
	assert_memory_equal(copy, k.f.memory, n);
	fixture_drop(&img);
	free(copy);
	fixture_close(&k.f);
}

/* ---- lengths -------------------------------------------------------------------------------- */

/* Decode a snapshot into `memory`. Before, copy each section to a block of exactly its size, so
 * that AddressSanitizer finds reads past the end of a section. */
static int read_into(void *memory, const struct core_config *cfg, const struct core_snapshot *img)
{
	const unsigned char *data[SNAPSHOT_SECTIONS];
	const char *why = NULL;
	struct core *c = (struct core *)memory;
	int rc;

	memcpy(data, img->data, sizeof(data));
	rc = snapshot_decode(memory, fixture_weights(memory, cfg), cfg, data, img->size, &c, &why);
	if (rc == PS_OK) {
		assert_ptr_equal(c, memory);
		return rc;
	}
	assert_true(rc == PS_ECHECKPOINT || rc == PS_EUSAGE);
	assert_null(c);
	assert_non_null(why);
	return PS_ECHECKPOINT;
}

static void with_length(void *memory, const struct core_config *cfg, struct core_snapshot img,
	int section, size_t n)
{
	unsigned char *cut = malloc(n);
	size_t old = img.size[section];

	memcpy(cut, img.data[section], n < old ? n : old);
	for (size_t i = old; i < n; i++)
		cut[i] = 0;
	img.data[section] = cut;
	img.size[section] = n;
	assert_int_equal(read_into(memory, cfg, &img), PS_ECHECKPOINT);
	free(cut);
}

TEST(every_section_that_is_cut_or_longer_is_refused)
{
	for (uint64_t seed = 50; seed < 58; seed++) {
		struct random_workers k = random_core(seed);
		struct core_snapshot img = fixture_save(&k.f);
		void *memory = fixture_memory(&k.f.cfg);

		print_message("seed %llu\r", (unsigned long long)seed);
		assert_int_equal(read_into(memory, &k.f.cfg, &img), PS_OK);
		for (int s = 0; s < SNAPSHOT_SESSIONS; s++) {
			for (size_t n = 0; n < img.size[s]; n++)
				with_length(memory, &k.f.cfg, img, s, n);
			with_length(memory, &k.f.cfg, img, s, img.size[s] + 1);
			with_length(memory, &k.f.cfg, img, s, img.size[s] + 8);
		}
		free(memory);
		fixture_drop(&img);
		fixture_close(&k.f);
	}
}

TEST(a_missing_section_is_refused)
{
	struct random_workers k = random_core(3);
	struct core_snapshot img = fixture_save(&k.f);
	void *memory = fixture_memory(&k.f.cfg);

	for (int s = 0; s < SNAPSHOT_SESSIONS; s++) {
		unsigned char *there = img.data[s];

		img.data[s] = NULL;
		assert_int_equal(read_into(memory, &k.f.cfg, &img),
			SNAPSHOT_MAY_LACK(s) ? PS_OK : PS_ECHECKPOINT);
		img.data[s] = there;
	}
	free(memory);
	fixture_drop(&img);
	fixture_close(&k.f);
}

/* ---- false values --------------------------------------------------------------------------- */

static void mutate_snapshot(struct rng *r, struct core_snapshot *img)
{
	const uint64_t edges[] = {0, 1, 2, 3, 4, 7, 64, 1u << 20, UINT32_MAX, 1ull << 32,
		UINT64_MAX, UINT64_MAX - 1, 1ull << 63};

	for (uint64_t n = 1 + rng_below(r, 3); n; n--) {
		int s = (int)rng_below(r, SNAPSHOT_LEASES + 1 + (rng_below(r, 8) == 0) * 2);
		size_t at = img->size[s] ? rng_below(r, img->size[s]) : 0;

		if (at + 8 <= img->size[s] && rng_below(r, 2))
			le64_put(img->data[s] + at / 8 * 8,
				edges[rng_below(r, sizeof(edges) / sizeof(edges[0]))]);
		else if (img->size[s])
			img->data[s][at] ^= (unsigned char)(1u << rng_below(r, 8));
	}
}

/* Check that a core from an accepted snapshot works: it encodes to a snapshot that can be decoded,
 * and it processes events. */
static void assert_random_run_works(struct random_workers *k)
{
	struct core_snapshot img = fixture_save(&k->f);
	struct core_fixture again;
	const char *why = NULL;

	k->f.saving = 0;
	assert_int_equal(fixture_read(&again, k->f.cfg, &img, &why), PS_OK);
	fixture_close(&again);
	fixture_drop(&img);
	for (int i = 0; i < 40; i++)
		random_step(k);
}

TEST(no_mutation_does_harm)
{
	const uint64_t seed = 77;
	struct rng r = rng_seed(seed, RNG_SIM, 1);
	uint32_t accepted = 0, refused = 0;

	print_message("seed %llu\n", (unsigned long long)seed);
	for (uint64_t i = 0; i < 6000; i++) {
		static struct random_workers k;
		struct core_snapshot img;
		struct core_config cfg;
		const char *why = NULL;

		if (i % 200 == 0)
			k = random_core(seed + i);
		img = fixture_save(&k.f);
		mutate_snapshot(&r, &img);
		cfg = k.f.cfg;
		struct random_workers victim = k;
		if (fixture_read(&victim.f, cfg, &img, &why) == PS_OK) {
			accepted++;
			assert_random_run_works(&victim);
		} else {
			refused++;
		}
		fixture_close(&victim.f);
		fixture_drop(&img);
		if (i % 200 == 199)
			fixture_close(&k.f);
	}
	print_message("%u accepted, %u refused\n", accepted, refused);
	assert_true(accepted > 500 && refused > 500);
}

/* Change one value in the core's memory with `falsify`, and encode the core. If `sound` is 1, the
 * decoder must accept this snapshot, otherwise refuse it. */
static void refused_after(enum optim_kind kind, void (*falsify)(struct core *c), int sound)
{
	struct core_config cfg = fixture_training();
	struct stamp s;
	struct core_fixture f;
	struct core_snapshot img;
	struct msg m;
	void *memory;

	cfg.optim.kind = kind;
	memory = fixture_memory(&cfg);
	/* in this state epoch 0 is under evaluation, epoch 1 in training, and worker 1 holds a
	 * lease */
	fixture_open(&f, cfg);
	s = fixture_join(&f, 9, "");
	m = fixture_push_ones(s, 1);
	fixture_work(&m, 0, 0, 4);
	fixture_applied(&f, 9, &m);
	for (uint64_t i = 1; i <= 4; i++)
		fixture_lease(&f, 9, s, i);
	falsify(f.core);
	img = fixture_save(&f);
	assert_int_equal(read_into(memory, &cfg, &img), sound ? PS_OK : PS_ECHECKPOINT);
	fixture_drop(&img);
	fixture_close(&f);
	free(memory);
}

#define FALSE_VALUES(X)                                                                            \
	X(a_batch_in_no_state, c->leases.batch[2] = 3)                                             \
	X(a_portion_in_no_state, c->leases.portion[1] = 3)                                         \
	X(no_portion_left_though_it_is_evaluated, memset(c->leases.portion, BATCH_DONE, 3))        \
	X(an_epoch_past_the_last, c->leases.epoch = 3)                                             \
	X(an_evaluation_before_any_epoch, c->leases.epoch = 0)                                     \
	X(an_epoch_before_any_data,                                                                \
		(memset(&c->dataset.id, 0, sizeof(c->dataset.id)), c->leases.n_batches = 0))       \
	X(a_portion_of_no_images, c->leases.eval_size = 0)                                         \
	X(a_data_set_too_large, c->dataset.id.n_train = UINT32_MAX)                                \
	X(a_data_set_with_nothing_to_test, c->dataset.id.n_test = 0)                               \
	X(a_lease_past_the_end, (c->worker[0].lease.grant.kind = GRANT_TRAIN,                      \
					c->worker[0].lease.grant.work.first = 5))                  \
	X(a_lease_longer_than_the_epoch,                                                           \
		(c->worker[0].lease.grant.kind = GRANT_TRAIN,                                      \
			c->worker[0].lease.grant.work = (struct work){1, 1, UINT32_MAX}))          \
	X(a_batch_noted_of_an_impossible_epoch,                                                    \
		(c->later.n = 1, c->later.work[0] = (struct work){UINT32_MAX, 0, 1}))              \
	X(a_grant_of_no_kind, c->worker[0].lease.grant.kind = (enum grant_kind)3)                  \
	X(an_evaluation_past_the_test_set, (c->worker[0].lease.grant.kind = GRANT_EVAL,            \
						   c->worker[0].lease.grant.eval_first = 7))       \
	X(a_verdict_that_is_none, c->worker[0].ledger.decisions[1].verdict = 3)                    \
	X(a_reason_that_is_none, c->worker[0].ledger.decisions[1].reject = REJECT_REASONS)         \
	X(a_name_without_an_end,                                                                   \
		memset(c->worker[0].session.name, 'x', sizeof(c->worker[0].session.name)))         \
	X(a_weight_that_is_nan, c->store.weights[7] = NAN)                                         \
	X(a_weight_that_is_infinite, c->store.weights[0] = -INFINITY)                              \
	X(an_evaluated_weight_that_is_nan, c->store.eval_weights[7] = NAN)                         \
	X(a_sum_of_squares_that_is_nan, c->store.state[0][7] = NAN)                                \
	X(a_sum_of_squares_below_zero, c->store.state[0][0] = -1)                                  \
	X(a_version_that_no_run_reaches, c->store.version = UINT64_MAX)                            \
	X(a_version_that_is_not_the_number_of_versions, c->stats.version++)                        \
	X(a_term_after_this_start, c->cfg.term = 1000)                                             \
	X(no_model, c->cfg.model[0] = '\0')

#define DEFINE(name, change)                                                                       \
	static void name(struct core *c)                                                           \
	{                                                                                          \
		change;                                                                            \
	}
FALSE_VALUES(DEFINE)

static void unchanged(struct core *c)
{
	(void)c;
}

/* Changes the state so that all batches of the epoch in training are done, and the next step would
 * begin the evaluation of this epoch. */
static void trained_before_its_evaluation(struct core *c)
{
	memset(c->leases.batch, BATCH_DONE, 4);
	c->leases.evaluating = 0;
}

TEST(a_snapshot_with_an_impossible_value_is_refused)
{
	for (int kind = 0; kind < OPTIM_LBFGS; kind++)
		refused_after((enum optim_kind)kind, unchanged, 1);
	refused_after(OPTIM_ADAGRAD, trained_before_its_evaluation, 1);
#define TRY(name, change)                                                                          \
	print_message("%s\n", #name);                                                              \
	refused_after(OPTIM_ADAGRAD, name, 0);
	FALSE_VALUES(TRY)
}

/* L-BFGS has a gradient only after a pass over batches, and a batch that counts fixes the data set.
 * A snapshot with a gradient but without a fixed data set is therefore refused. */
TEST(a_line_search_before_any_push_is_refused)
{
	struct core_config cfg = fixture_training();
	struct core_fixture f;

	cfg.training.mode = MODE_SANDBLASTER;
	cfg.optim.kind = OPTIM_LBFGS;
	void *memory = fixture_memory(&cfg);
	fixture_open(&f, cfg);
	fixture_join(&f, 9, "");
	for (int known = 0; known <= 1; known++) {
		f.core->lbfgs.known = known;
		struct core_snapshot img = fixture_save(&f);
		assert_int_equal(read_into(memory, &cfg, &img), known ? PS_ECHECKPOINT : PS_OK);
		fixture_drop(&img);
	}
	fixture_close(&f);
	free(memory);
}

static void state_7_is_nan(struct core *c)
{
	size_t last = optim_vectors(c->cfg.optim.kind) - 1;

	c->store.state[last][7] = NAN;
}

static void state_0_is_negative(struct core *c)
{
	c->store.state[0][0] = -1;
}

static void state_1_is_negative(struct core *c)
{
	c->store.state[1][0] = -1;
}

/* Sums and means of squares cannot be negative. Momentum can be negative. */
TEST(optimizers_state_must_be_possible)
{
	const enum optim_kind kinds[] = {
		OPTIM_ADAGRAD, OPTIM_MOMENTUM, OPTIM_NESTEROV, OPTIM_RMSPROP, OPTIM_ADAM};

	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
		refused_after(kinds[i], state_7_is_nan, 0);
	refused_after(OPTIM_ADAGRAD, state_0_is_negative, 0);
	refused_after(OPTIM_MOMENTUM, state_0_is_negative, 1);
	refused_after(OPTIM_NESTEROV, state_0_is_negative, 1);
	refused_after(OPTIM_RMSPROP, state_0_is_negative, 0);
	refused_after(OPTIM_ADAM, state_0_is_negative, 1);
	refused_after(OPTIM_ADAM, state_1_is_negative, 0);
}

/* A run without a data set has no memory for batches, so the core refuses a snapshot with
 * batches. */
TEST(a_data_set_is_refused_in_a_run_without_one)
{
	struct core_fixture f;
	struct core_snapshot img;
	void *memory;

	fixture_open(&f, fixture_config());
	fixture_join(&f, 9, "");
	img = fixture_save(&f);
	memory = fixture_memory(&f.cfg);
	assert_int_equal(read_into(memory, &f.cfg, &img), PS_OK);
	le64_put(img.data[SNAPSHOT_LEASES], 60000); /* this number is n_train */
	le64_put(img.data[SNAPSHOT_LEASES] + 8, 10000);
	assert_int_equal(read_into(memory, &f.cfg, &img), PS_ECHECKPOINT);
	free(memory);
	fixture_drop(&img);
	fixture_close(&f);
}
