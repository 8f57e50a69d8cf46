/*
 * Proves the promises of server/durability/wal_record.h: an event of any kind decodes to the same
 * event, and damaged bytes do no harm.
 */
#include "server/durability/wal_record.h"
#include "tests/support/core_fixture.h"
#include "tests/support/test.h"

TEST(an_event_of_any_kind_comes_back_and_no_damage_does_harm)
{
	struct rng rng = rng_seed(3, RNG_SIM, 0);
	unsigned char whole[4096], copy[4096];

	struct msg m =
		fixture_push_ones((struct stamp){.term = 1, .worker = 1, .incarnation = 1}, 1);
	struct wal_record_reader r;
	struct frames f;
	unsigned accepted = 0;

	assert_int_equal(wal_record_reader_init(&r, FIXTURE_PARAMS), PS_OK);
	for (int kind = EVENT_MESSAGE; kind <= EVENT_PROGRESS; kind++) {
		const struct event ev = {.kind = (enum event_kind)kind,
			.peer = 7,
			.msg = &m,
			.generation = 99,
			.bytes = 98,
			.held_ms = 97,
			.rule_met = 1};
		int has_frames = kind == EVENT_MESSAGE;

		assert_int_equal(wire_encode(&m, &f), PS_OK);
		size_t n = wal_record_head(&ev, 1234, has_frames ? &f : NULL, whole);
		for (size_t i = 0; has_frames && i < f.n; n += zmq_msg_size(&f.frame[i++]))
			memcpy(whole + n, zmq_msg_data(&f.frame[i]), zmq_msg_size(&f.frame[i]));
		frames_release(&f);
		assert_true(n <= wal_record_max(FIXTURE_PARAMS));
		assert_int_equal(wal_record_read(&r, whole, n), PS_OK);
		assert_int_equal(r.event.kind, kind);
		assert_int_equal(r.event.peer, 7);
		assert_int_equal(r.event.held_ms, kind == EVENT_TICK ? 97 : 0);
		assert_int_equal(r.event.bytes, kind == EVENT_PROGRESS ? 98 : 0);
		assert_int_equal(r.event.rule_met, kind == EVENT_DRAIN);
		int has_another =
			kind == EVENT_TICK || kind == EVENT_PROGRESS || kind == EVENT_DRAIN;
		assert_int_equal(r.event.generation, has_another ? 0 : 99);
		assert_int_equal(r.now_ms, 1234);
		if (has_frames)
			assert_memory_equal(r.msg.push.slices.slice[0].data, fixture_ones,
				sizeof(fixture_ones));
		for (size_t cut = 0; cut < n; cut++)
			assert_int_not_equal(wal_record_read(&r, whole, cut), PS_OK);
		for (int i = 0; i < 2000; i++) {
			memcpy(copy, whole, n);
			copy[rng_below(&rng, n)] ^= (unsigned char)(1 + rng_below(&rng, 255));
			accepted += wal_record_read(&r, copy, n) == PS_OK;
		}
	}
	/* not checked, because a record with a damaged peer or time may still be valid */
	print_message("%u accepted\n", accepted);
	wal_record_reader_release(&r);
}
