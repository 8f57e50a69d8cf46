/*
 * Proves that a run continues from a snapshot (server/core/snapshot.h). With the same options, the
 * run continues bit for bit. Some options may change at a restart. The core refuses options that do
 * not fit the run, with an error that names them.
 */
#include "tests/support/core_fixture.h"
#include "common/run_head.h"
#include "tests/support/test.h"

/* ---- bit by bit ----------------------------------------------------------------------------- */

static void push_random(struct core_fixture *f, struct stamp s, uint64_t seq, struct rng *r)
{
	static float g[100];
	struct msg m = fixture_push(s, seq);

	for (size_t i = 0; i < 100; i++)
		g[i] = (float)(2 * rng_unit(r) - 1);
	if (rng_below(r, 10) == 0)
		/* makes some gradients so huge that the core rejects them */
		g[rng_below(r, 100)] *= 1e20f;
	m.push.base_version = core_stats(f->core)->version;
	m.push.base_version -= rng_below(r, m.push.base_version < 4 ? 1 : 4);
	m.push.base_term = s.term;
	m.push.loss = (float)rng_unit(r);
	m.push.slices.n = 0;
	fixture_slice(&m, 0, 60, g);
	fixture_slice(&m, 60, 40, g + 60);
	fixture_acked(f, 9, &m);
	if (f->saving)
		fixture_durable(f);
}

/* Returns a snapshot of a core after 60 pushes of one worker. If bit i of `kills` is set, the test
 * kills and restarts the server before push i. */
static struct core_snapshot trained(const struct core_config *cfg, uint64_t kills)
{
	struct rng r = rng_seed(4, RNG_SIM, 0);
	struct core_snapshot img;
	struct core_fixture f;
	struct stamp s;

	fixture_open(&f, *cfg);
	s = fixture_join(&f, 9, "");
	for (uint64_t seq = 1; seq <= 60; seq++) {
		if (kills >> seq & 1) {
			struct msg m = fixture_resume(s, seq - 1, 0);

			fixture_restart(&f);
			fixture_message(&f, 9, &m);
			s = fixture_sent(&f, 9, MSG_WELCOME)->welcome.stamp;
		}
		push_random(&f, s, seq, &r);
	}
	f.core->stats = (struct core_stats){.loss = f.core->stats.loss,
		.pushes = f.core->stats.pushes,
		.staleness_sum = f.core->stats.staleness_sum};
	f.core->cfg.term = f.core->store.version_term = cfg->term;
	img = fixture_save(&f);
	fixture_close(&f);
	return img;
}

TEST(killed_and_restarted_it_ends_with_the_same_bytes)
{
	const uint64_t kills[] = {1ull << 2, 1ull << 30, 1ull << 60, 0x5555555555555554};

	for (int kind = 0; kind < OPTIM_LBFGS; kind++) {
		struct core_config cfg = fixture_config();
		struct core_snapshot whole, part;

		cfg.n_params = 100;
		cfg.rate.lr = 0.03;
		cfg.optim.kind = (enum optim_kind)kind;
		cfg.optim.weight_decay = 0.01;
		cfg.optim.clip_norm = 3;
		cfg.rate.staleness_scaling = STALE_INVERSE;
		cfg.sessions.replay_window = 16;
		whole = trained(&cfg, 0);
		for (size_t i = 0; i < sizeof(kills) / sizeof(kills[0]); i++) {
			part = trained(&cfg, kills[i]);
			for (int s = 0; s < SNAPSHOT_SESSIONS; s++) {
				assert_int_equal(whole.size[s], part.size[s]);
				assert_memory_equal(whole.data[s], part.data[s], whole.size[s]);
			}
			fixture_drop(&part);
		}
		fixture_drop(&whole);
	}
}

TEST(a_restart_keeps_the_run_and_changes_the_epoch)
{
	struct core_config cfg = fixture_training();
	struct core_fixture f, other;
	struct core_snapshot img;
	struct run_head head;
	struct core_stats stats;
	struct stamp s;
	struct msg m;

	fixture_open(&f, cfg);
	fixture_join(&f, 9, "anna");
	s = fixture_join(&f, 10, "");
	m = fixture_push_ones(s, 1);
	fixture_work(&m, 0, 1, 1);
	fixture_applied(&f, 10, &m);
	fixture_bye(&f, 10, s);
	img = fixture_save(&f);
	assert_int_equal(run_head_read(img.data[SNAPSHOT_RUN], img.size[SNAPSHOT_RUN], &head), 0);
	assert_int_equal(head.run_lo, cfg.run.lo);
	assert_int_equal(head.term, cfg.term);
	assert_int_equal(head.version, 1);
	assert_string_equal(head.model, cfg.model);
	assert_true(run_head_data(img.data[SNAPSHOT_RUN], img.size[SNAPSHOT_RUN],
			    img.data[SNAPSHOT_LEASES],
			    img.size[SNAPSHOT_LEASES]) == core_data(f.core)->xxh3);
	assert_true(core_data(f.core)->xxh3 != 0);
	assert_string_equal(snapshot_names[SNAPSHOT_LEASES], RUN_HEAD_LEASES);
	assert_string_equal(snapshot_names[SNAPSHOT_RUN], RUN_HEAD_SECTION);
	assert_string_equal(snapshot_names[SNAPSHOT_WEIGHTS], RUN_HEAD_WEIGHTS);
	assert_int_equal(img.size[SNAPSHOT_WEIGHTS], cfg.n_params * sizeof(float));
	cfg.run = (struct run_id){0, 0};
	fixture_load(&other, cfg, &img);
	assert_memory_equal(&core_config(other.core)->run, &f.cfg.run, sizeof(cfg.run));
	assert_int_equal(core_config(other.core)->term, f.cfg.term + 1);
	assert_int_equal(fixture_worker(&other, 1).state, SESSION_AWAY);
	assert_int_equal(fixture_worker(&other, 2).state, SESSION_DEAD);
	assert_int_equal(fixture_worker(&other, 2).last_seq, 1);
	/* the snapshot contains the worker's only push */
	assert_int_equal(fixture_worker(&other, 2).durable_seq, 1);
	assert_int_equal(fixture_worker(&other, 2).images, 10);
	assert_int_equal(core_epoch(other.core, 0)->images, 10);
	assert_int_equal(core_epoch(other.core, 0)->updates, 1);
	assert_true(core_epoch(other.core, 0)->loss_sum == 5);
	stats = *core_stats(f.core);
	assert_true(stats.loss == 0.5);
	stats.recoveries++;
	assert_memory_equal(core_stats(other.core), &stats, sizeof(stats));
	assert_int_equal(core_data(other.core)->xxh3, fixture_data.xxh3);
	fixture_drop(&img);
	fixture_close(&other);
	fixture_close(&f);
}

/* ---- other options -------------------------------------------------------------------------- */

/* Returns a snapshot in which the first epoch of fixture_training is trained and half evaluated,
 * and the only worker has left. */
static struct core_snapshot half_evaluated(struct core_config cfg)
{
	struct core_snapshot img;
	struct core_fixture f;
	struct stamp s;
	struct msg m;

	fixture_open(&f, cfg);
	s = fixture_join(&f, 9, "");
	m = fixture_push_ones(s, 1);
	fixture_work(&m, 0, 0, 4);
	fixture_applied(&f, 9, &m);
	m = (struct msg){.type = MSG_RESULT};
	m.result = (struct msg_result){.stamp = s,
		.eval_id = 1,
		.eval_count = cfg.leases.eval_images < 7 ? cfg.leases.eval_images : 7,
		.correct = 1};
	if (cfg.leases.eval_images < 7)
		fixture_message(&f, 9, &m);
	fixture_bye(&f, 9, s);
	img = fixture_save(&f);
	fixture_close(&f);
	return img;
}

/* Let one worker evaluate and train as granted until the run ends. */
static void run_to_the_end(struct core_fixture *f)
{
	struct stamp s;
	uint64_t seq;

	s = fixture_join(f, 9, "");
	seq = fixture_sent(f, 9, MSG_WELCOME)->welcome.last_seq;
	for (uint64_t i = 1; i < 100; i++) {
		struct msg m = {.type = MSG_RESULT};
		struct msg_grant g;

		fixture_lease(f, 9, s, i);
		if (!fixture_sent(f, 9, MSG_GRANT))
			break;
		g = fixture_sent(f, 9, MSG_GRANT)->grant;
		if (g.kind == GRANT_EVAL) {
			m.result = (struct msg_result){.stamp = s,
				.eval_id = g.eval_id,
				.eval_first = g.eval_first,
				.eval_count = g.eval_count,
				.correct = 1};
			fixture_message(f, 9, &m);
		} else {
			m = fixture_push_ones(s, ++seq);
			m.push.base_version = core_stats(f->core)->version;
			fixture_work(&m, g.work.epoch, g.work.first, g.work.count);
			fixture_applied(f, 9, &m);
		}
	}
	fixture_durable(f);
	assert_int_equal(fixture_effect(f, EFFECT_FINISH)->status, PS_EDONE);
	for (uint32_t e = 0; e < f->cfg.training.epochs; e++) {
		assert_int_equal(core_epoch(f->core, e)->images, 35);
		assert_int_equal(core_epoch(f->core, e)->eval_done, 7);
	}
}

TEST(eval_images_may_change_in_the_middle_of_an_evaluation_and_between)
{
	const uint32_t sizes[] = {1, 3, 7, 1000};

	for (size_t i = 0; i < 4; i++)
		for (size_t k = 0; k < 4; k++) {
			struct core_config cfg = fixture_training();
			struct core_snapshot img;
			struct core_fixture f;

			cfg.leases.eval_images = sizes[i];
			img = half_evaluated(cfg);
			cfg.leases.eval_images = sizes[k];
			fixture_load(&f, cfg, &img);
			fixture_drop(&img);
			/* evaluates the rest of the test set in portions of the new size */
			run_to_the_end(&f);
			fixture_close(&f);
			cfg.leases.eval_images = sizes[i];
			/* second part: a run in which no evaluation is in progress */
			fixture_open(&f, cfg);
			fixture_bye(&f, 9, fixture_join(&f, 9, ""));
			f.cfg.leases.eval_images = sizes[k];
			fixture_restart(&f);
			run_to_the_end(&f);
			fixture_close(&f);
		}
}

TEST(a_finished_run_goes_on_with_more_epochs)
{
	struct core_config cfg = fixture_training();
	struct core_fixture f;

	fixture_open(&f, cfg);
	run_to_the_end(&f);
	f.cfg.training.epochs = 4;
	fixture_restart(&f);
	assert_int_equal(core_training_epoch(f.core), 2);
	fixture_tick(&f, f.cfg.sessions.recovery_ms);
	fixture_tick(&f, f.cfg.sessions.recovery_ms);
	run_to_the_end(&f);
	fixture_close(&f);
}

TEST(a_run_goes_on_with_more_epochs_from_the_middle)
{
	struct core_config cfg = fixture_training();
	struct core_snapshot img = half_evaluated(cfg);
	struct core_fixture f;

	cfg.training.epochs = 5;
	fixture_load(&f, cfg, &img);
	run_to_the_end(&f);
	fixture_drop(&img);
	fixture_close(&f);
	cfg.training.epochs = 1; /* the last epoch is trained, and its evaluation is in progress */
	img = half_evaluated(cfg);
	cfg.training.epochs = 2;
	fixture_load(&f, cfg, &img);
	run_to_the_end(&f);
	fixture_drop(&img);
	fixture_close(&f);
}

TEST(a_smaller_replay_window_keeps_the_newest_decisions)
{
	struct core_fixture f;
	struct stamp s;
	struct msg m;

	s = fixture_open_with_pushes(&f, fixture_config(), 20);
	f.cfg.sessions.replay_window = 8;
	fixture_restart(&f);
	s = fixture_come_back(&f, 9, s, 20);
	for (uint64_t seq = 1; seq <= 20; seq++) {
		struct msg_ack a;

		m = fixture_push_ones(s, seq);
		a = fixture_acked(&f, 9, &m);
		assert_int_equal(a.duplicate, 1);
		assert_int_equal(a.verdict, seq > 12 ? VERDICT_OK : VERDICT_REJECTED);
		assert_int_equal(a.version, seq > 12 ? seq : 0);
	}
	fixture_close(&f);
}

/* ---- options that may not change ------------------------------------------------------------ */

static void assert_restart_refused(
	const struct core_snapshot *img, struct core_config cfg, const char *option)
{
	struct core_fixture f;
	const char *why = NULL;

	assert_int_equal(fixture_read(&f, cfg, img, &why), PS_EUSAGE);
	assert_null(f.core);
	assert_non_null(strstr(why, option));
	fixture_close(&f);
}

TEST(what_cannot_be_continued_is_refused_by_name)
{
	const struct core_config good = fixture_training();
	struct core_snapshot img = half_evaluated(good);
	struct core_config cfg;

	cfg = good;
	cfg.model_fingerprint++;
	assert_restart_refused(&img, cfg, "--model");
	cfg = good;
	cfg.n_params--;
	assert_restart_refused(&img, cfg, "--model");
	cfg = good;
	cfg.training.seed++;
	assert_restart_refused(&img, cfg, "--seed");
	cfg = good;
	cfg.training.batch_size = 35;
	assert_restart_refused(&img, cfg, "--batch-size");
	cfg = good;
	cfg.optim.kind = OPTIM_ADAGRAD;
	assert_restart_refused(&img, cfg, "--optimizer");
	cfg = good;
	cfg.training.epochs = 0;
	assert_restart_refused(&img, cfg, "--epochs");
	cfg = good;
	cfg.training.epochs = 1; /* the second epoch is in training, so one epoch is too few */
	assert_restart_refused(&img, cfg, "--epochs");
	fixture_drop(&img);
}

TEST(fewer_slots_than_workers_are_refused_by_name)
{
	struct core_snapshot img;
	struct core_fixture f;
	struct core_config cfg = fixture_config();

	fixture_open(&f, cfg);
	fixture_join(&f, 9, "");
	fixture_join(&f, 10, "");
	img = fixture_save(&f);
	fixture_close(&f);
	cfg.sessions.max_workers = 1;
	assert_restart_refused(&img, cfg, "--max-workers");
	cfg.sessions.max_workers = 2;
	fixture_load(&f, cfg, &img);
	fixture_close(&f);
	fixture_drop(&img);
}
