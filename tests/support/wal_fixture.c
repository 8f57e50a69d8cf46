/* wal_fixture.c - see wal_fixture.h. */
#include "tests/support/wal_fixture.h"

struct wal_fixture wal;

void wal_on_done(void *arg)
{
	assert_ptr_equal(arg, &wal);
	wal.done++;
}

/* ---- the disk ------------------------------------------------------------------------------- */

void wal_save(uint64_t generation)
{
	struct core_snapshot snapshot = fixture_save(&wal.f);
	struct checkpoint c = {.generation = generation, .n_sections = SNAPSHOT_SECTIONS};
	struct err e;

	for (int i = 0; i < SNAPSHOT_SECTIONS; i++) {
		snprintf(c.section[i].name, sizeof(c.section[i].name), "%s", snapshot_names[i]);
		c.section[i].data = snapshot.data[i];
		c.section[i].size = snapshot.size[i];
	}
	disk_exempt = 1;
	assert_int_equal(checkpoint_write(wal.dir, &c, &e), PS_OK);
	disk_exempt = 0;
	fixture_drop(&snapshot);
}

void wal_assert_recovers(int accept_loss)
{
	struct core_snapshot snapshot = fixture_save(&wal.f);
	struct checkpoint c;
	struct err e;

	assert_int_equal(checkpoint_read_newest(wal.dir, 0, &c, NULL, &e), PS_OK);
	struct core_config now = wal.f.cfg;
	now.sessions.accept_rollback = accept_loss;
	assert_int_equal(wal_replay(wal.dir, &now, &c, &e), PS_OK);
	for (int i = 0; i < SNAPSHOT_SECTIONS; i++) {
		const struct checkpoint_section *s = checkpoint_find(&c, snapshot_names[i]);

		assert_int_equal(s ? s->size : 0, snapshot.size[i]);
		if (s)
			assert_memory_equal(s->data, snapshot.data[i], s->size);
	}
	checkpoint_release(&c);
	fixture_drop(&snapshot);
}

int wal_recovered_pushes(int accept_loss, int *rc)
{
	struct checkpoint c;
	struct err e;
	float w = 0;

	assert_int_equal(checkpoint_read_newest(wal.dir, 0, &c, NULL, &e), PS_OK);
	struct core_config now = wal.f.cfg;
	now.sessions.accept_rollback = accept_loss;
	*rc = wal_replay(wal.dir, &now, &c, &e);
	memcpy(&w, checkpoint_find(&c, "weights")->data, sizeof(w));
	checkpoint_release(&c);
	return (int)-w;
}

unsigned wal_count_files(void)
{
	DIR *d = opendir(wal.dir);
	unsigned n = 0;

	assert_non_null(d);
	for (const struct dirent *entry; (entry = readdir(d));)
		n += generation_parse(entry->d_name, "journal", "") != 0;
	closedir(d);
	return n;
}

/* ---- events --------------------------------------------------------------------------------- */

void wal_event(const struct event *ev, struct frames *f)
{
	const struct effect *e;

	wal.newest = wal_append(wal.wal, ev, wal.f.now_ms, f, wal.key);
	fixture_step(&wal.f, ev);
	e = fixture_effect(&wal.f, EFFECT_SNAPSHOT);
	if (e)
		wal_rotate(wal.wal, e->generation);
}

void wal_receive(uint32_t peer, const struct msg *m)
{
	struct frames f;
	struct msg decoded;

	assert_int_equal(wire_encode(m, &f), PS_OK);
	assert_int_equal(wire_decode(wal.wire, &f, &decoded, NULL), PS_OK);
	wal_event(&(struct event){.kind = EVENT_MESSAGE, .peer = peer, .msg = &decoded}, &f);
	frames_release(&f);
}

void wal_push(int n)
{
	while (n-- > 0) {
		struct msg m = fixture_push_ones(wal.stamp, ++wal.seq);

		wal_receive(9, &m);
	}
}

void wal_tick(void)
{
	wal.f.now_ms += 50;
	wal_event(&(struct event){.kind = EVENT_TICK}, NULL);
}

void wal_settle(void)
{
	wal_flush(wal.wal);
	while (wal_busy(wal.wal))
		uv_run(&wal.loop, UV_RUN_ONCE);
}

void wal_saved(int ok)
{
	uint64_t generation = wal.f.saving;

	if (ok)
		wal_checkpointed(wal.wal, generation);
	wal.f.saving = 0;
	wal_event(&(struct event){.kind = ok ? EVENT_DURABLE : EVENT_SAVE_FAILED,
			  .generation = generation},
		NULL);
}

void wal_begin_snapshot(void)
{
	wal.f.now_ms += core_config(wal.f.core)->checkpoint.interval_ms;
	wal_event(&(struct event){.kind = EVENT_SAVE}, NULL);
	assert_int_not_equal(wal.f.saving, 0);
}

void wal_snapshot(void)
{
	wal_begin_snapshot();
	wal_save(wal.f.saving);
	wal_saved(1);
}

void wal_failing_snapshots(int n)
{
	while (n-- > 0) {
		wal_begin_snapshot();
		wal_push(1);
		wal_settle();
		wal_saved(0);
		wal_push(1);
	}
	wal_settle();
}

/* ---- life cycle ----------------------------------------------------------------------------- */

static void wal_open_file(void)
{
	const struct core_config *cfg = core_config(wal.f.core);
	const struct wal_config config = {.loop = &wal.loop,
		.dir = wal.dir,
		.run = cfg->run,
		.term = cfg->term,
		.generation = cfg->generation,
		.max_bytes = 100000,
		.done = wal_on_done,
		.arg = &wal};
	struct err e;

	assert_int_equal(wal_new(&wal.wal, &config, &e), PS_OK);
}

int wal_set_up(void **state)
{
	struct core_config cfg = fixture_config();
	struct msg hello = fixture_hello("");

	(void)state;
	memset(&wal, 0, sizeof(wal));
	temp_dir_make(wal.dir);
	assert_int_equal(uv_loop_init(&wal.loop), 0);
	assert_int_equal(wire_new(&wal.wire, FIXTURE_PARAMS), PS_OK);
	cfg.checkpoint.wal = 1;
	cfg.generation = 1;
	fixture_open(&wal.f, cfg);
	wal_save(1);
	wal_open_file();
	wal_receive(9, &hello);
	wal.stamp = fixture_sent(&wal.f, 9, MSG_WELCOME)->welcome.stamp;
	return 0;
}

int wal_tear_down(void **state)
{
	(void)state;
	disk_writes_left = disk_syncs_left = -1;
	atomic_store(&disk_sync_hangs, 0);
	wal_settle();
	wal_free(&wal.wal);
	wire_free(&wal.wire);
	fixture_close(&wal.f);
	temp_dir_remove(wal.dir);
	return uv_loop_close(&wal.loop);
}
