/* test_cnnps_structs.c - programs that were built with an older or a newer <cnnps.h> can use
 * libcnnps, because each struct begins with its size. */
#include "tests/support/client_fixture.h"
#include "tests/support/test.h"

/* ---- the structs as in the first version of cnnps.h whose structs had the member `size` ------ */

/* Never change these structs, because programs that were compiled with them exist. */
struct first_options {
	size_t size;
	const char *server, *key, *server_key, *name, *device;
	struct {
		uint32_t n_train, n_test, rows, cols, classes, channels;
		uint64_t xxh3;
	} data;
	int observer;
	uint32_t connect_timeout_ms, disconnect_timeout_ms, batch_timeout_ms;
	uint64_t replay_bytes;
	int (*stop)(void *arg);
	void *stop_arg;
	void *(*allocate)(size_t bytes);
	void (*release)(void *memory);
	void (*report)(void *arg, const char *line);
	void *report_arg;
	void (*log)(void *arg, int level, const char *line);
	void *log_arg;
	enum cnnps_log_level log_level;
};
struct first_lease {
	size_t size;
	int kind;
	uint32_t epoch, first, count;
	uint64_t eval_id;
	int exact;
	uint64_t version, term;
};
struct first_pull {
	size_t size;
	uint32_t flags;
	float *into;
	const float *weights;
	uint64_t version, term;
	double elastic;
};
struct first_push {
	size_t size;
	const float *gradient;
	uint64_t offset, count, version;
	struct {
		uint32_t epoch, first, count, images;
		float loss;
	} work;
	struct cnnps_pull *then;
};
struct first_evaluation {
	size_t size;
	uint32_t correct;
	double loss_sum, metric_sum[4];
};
struct first_stats {
	size_t size;
	uint64_t pushed, acked, rejected, durable, last_version, reconnects, replayed, superseded;
};

#define SAME_PLACE(type, field)                                                                    \
	_Static_assert(                                                                            \
		offsetof(struct first_##type, field) == offsetof(struct cnnps_##type, field),      \
		"older programs have struct cnnps_" #type " with `" #field "` at another place")
SAME_PLACE(options, device);
SAME_PLACE(options, data);
SAME_PLACE(options, observer);
SAME_PLACE(options, replay_bytes);
SAME_PLACE(options, allocate);
SAME_PLACE(options, log_level);
SAME_PLACE(lease, count);
SAME_PLACE(lease, exact);
SAME_PLACE(lease, term);
SAME_PLACE(pull, into);
SAME_PLACE(pull, elastic);
SAME_PLACE(push, version);
SAME_PLACE(push, work);
SAME_PLACE(push, then);
SAME_PLACE(evaluation, loss_sum);
SAME_PLACE(evaluation, metric_sum);
SAME_PLACE(stats, last_version);
SAME_PLACE(stats, superseded);

/* ---- a struct of a program, and memory after it that libcnnps may not change ----------------- */

enum { ROOM = 512, GUARD = 0xA5 };
static union {
	size_t size;
	unsigned char byte[ROOM];
} program;

/* Writes a struct of `n` bytes to `program`: the first bytes of `from`, which has `known` bytes,
 * and then zeros. The bytes after the struct are a guard, which the library must not change. */
static void put_struct(const void *from, size_t known, size_t n)
{
	assert_true(n + sizeof(size_t) <= ROOM);
	memset(program.byte, GUARD, ROOM);
	memset(program.byte, 0, n);
	memcpy(program.byte, from, n < known ? n : known);
	program.size = n;
}

static void expect_guard(size_t n)
{
	assert_int_equal(program.size, n);
	for (size_t i = n; i < ROOM; i++)
		assert_int_equal(program.byte[i], GUARD);
}

/* This struct describes a call of libcnnps that takes one struct. `first` is the size of this
 * struct in the first header, and `now` its size in the present header. */
struct call {
	const char *name;
	size_t first, now;
	const void *content;
	int (*make)(void *s);
};

static int make_connect(void *s)
{
	struct cnnps *c;
	int rc = cnnps_connect(&c, s);

	/* keep the failed client in `client`, from which the tests read the text of the error */
	if (rc)
		client = c;
	else
		cnnps_close(&c);
	return rc;
}

static int make_lease(void *s)
{
	return cnnps_lease(client, s);
}

static int make_pull(void *s)
{
	return cnnps_pull(client, s);
}

static int push_of_struct(void *s)
{
	return cnnps_push(client, s);
}

static int make_then(void *s)
{
	struct cnnps_push push = {
		.size = sizeof(push), .gradient = client_ones, .work = {.count = 1}, .then = s};

	return cnnps_push(client, &push);
}

static int result_of_struct(void *s)
{
	struct cnnps_lease lease = {.size = sizeof(lease), .kind = CNNPS_EVAL, .count = 1};

	return cnnps_result(client, &lease, s);
}

static int make_result_of(void *s)
{
	struct cnnps_evaluation evaluation = {.size = sizeof(evaluation)};

	return cnnps_result(client, s, &evaluation);
}

static int make_stats(void *s)
{
	return cnnps_stats(client, s);
}

static void expect_refusal(const struct call *c, const char *why)
{
	char text[80];

	snprintf(text, sizeof(text), "struct %s: ", c->name);
	assert_int_equal(c->make(program.byte), CNNPS_EUSAGE);
	if (c->make == make_stats)
		return; /* cnnps_stats sets no text */
	if (!strstr(cnnps_error(client), text) || !strstr(cnnps_error(client), why))
		fail_msg("\"%s\" has no \"%s\"", cnnps_error(client), why);
	if (c->make == make_connect)
		cnnps_close(&client);
}

/* Makes a call with a struct of each size that a header had or may have, and with wrong sizes. */
static void check_sizes(const struct call *c)
{
	for (size_t n = c->first; n <= c->now + 2 * sizeof(size_t); n += sizeof(size_t)) {
		put_struct(c->content, c->now, n);
		if (c->make(program.byte))
			fail_msg("struct %s of %zu bytes: %s", c->name, n, cnnps_error(client));
		expect_guard(n);
		if (n <= c->now)
			continue;
		put_struct(c->content, c->now, n);
		program.byte[n - 1] = 1;
		expect_refusal(c, "the fields after them must be zero");
		put_struct(c->content, c->now, n);
		program.byte[c->now] = 1;
		expect_refusal(c, "the fields after them must be zero");
	}
	put_struct(c->content, c->now, c->first - sizeof(size_t));
	expect_refusal(c, "set it to sizeof(struct ");
	put_struct(c->content, c->now, c->now + 1);
	expect_refusal(c, "set it to sizeof(struct ");
}

/* ---- tests ----------------------------------------------------------------------------------- */

TEST_IN(options_of_another_header_connect, client_set_up_unconnected, client_tear_down)
{
	struct cnnps_options o = client_options();
	struct call c = {
		"cnnps_options", sizeof(struct first_options), sizeof(o), &o, make_connect};

	check_sizes(&c);
}

TEST_IN(calls_accept_the_structs_of_other_headers, client_set_up, client_tear_down)
{
	static const struct cnnps_lease lease = {.kind = CNNPS_EVAL};
	static const struct cnnps_pull pull = {.flags = 0};
	static const struct cnnps_push push = {.gradient = client_ones, .work = {.count = 1}};
	static const struct cnnps_evaluation evaluation = {.loss_sum = 1};
	static const struct cnnps_stats stats = {.pushed = 9};
	static const struct call calls[] = {
		{"cnnps_lease", sizeof(struct first_lease), sizeof(lease), &lease, make_lease},
		{"cnnps_lease", sizeof(struct first_lease), sizeof(lease), &lease, make_result_of},
		{"cnnps_pull", sizeof(struct first_pull), sizeof(pull), &pull, make_pull},
		{"cnnps_pull", sizeof(struct first_pull), sizeof(pull), &pull, make_then},
		{"cnnps_push", sizeof(struct first_push), sizeof(push), &push, push_of_struct},
		{"cnnps_evaluation", sizeof(struct first_evaluation), sizeof(evaluation),
			&evaluation, result_of_struct},
		{"cnnps_stats", sizeof(struct first_stats), sizeof(stats), &stats, make_stats},
	};

	for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++)
		check_sizes(&calls[i]);
}

TEST_IN(an_older_program_gets_the_results_that_it_knows, client_set_up, client_tear_down)
{
	struct first_stats stats = {.size = sizeof(stats)};

	client_push(1, 0);
	put_struct(&stats, sizeof(stats), sizeof(stats));
	assert_int_equal(cnnps_stats(client, (struct cnnps_stats *)program.byte), 0);
	expect_guard(sizeof(stats));
	memcpy(&stats, program.byte, sizeof(stats));
	assert_int_equal(stats.pushed, 1);
	assert_int_equal(stats.rejected, 0);
}
