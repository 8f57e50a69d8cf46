/* Proves the promises of server/net/clients.h about labels. Covers attack A5 of docs/faults.md. */
#include <stddef.h>
#include <stdint.h>
#include "common/log.h"
#include "tests/support/capture.h"
#include "server/net/clients.h"
#include "server/net/line_budget.h"
#include "tests/support/test.h"

#define SLOTS 3u
#define RING  (2 * SLOTS + 64)

static struct line_budget lines;
static struct labels *labels;
static struct capture said;

static int set_up_labels(void **state)
{
	(void)state;
	memset(&lines, 0, sizeof(lines));
	labels = labels_new(SLOTS, &lines);
	return labels == NULL;
}

static int tear_down_labels(void **state)
{
	(void)state;
	labels_free(&labels);
	labels_free(&labels);
	return 0;
}

static void label_hello(uint32_t peer, const char *host, uint32_t pid, const char *address)
{
	struct msg_hello m = {.pid = pid};

	snprintf(m.host, sizeof(m.host), "%s", host);
	labels_hello(labels, peer, &m, address);
}

static void label_join(uint32_t peer, uint32_t worker, uint32_t incarnation)
{
	labels_join(labels, peer, worker, incarnation);
}

static void assert_label(uint32_t worker, const char *host, uint32_t pid, const char *address)
{
	const struct label *l = labels_of(labels, worker);

	assert_string_equal(l->host, host);
	assert_int_equal(l->pid, pid);
	assert_string_equal(l->address, address);
}

TEST_IN(a_welcome_gives_the_label_of_its_connection, set_up_labels, tear_down_labels)
{
	assert_label(1, "", 0, "");
	label_hello(7, "a", 1, "10.0.0.1");
	label_hello(8, "b", 2, "::ffff:10.0.0.2");
	assert_label(1, "", 0, "");
	label_join(8, 1, 1);
	label_join(7, SLOTS, 1);
	assert_label(1, "b", 2, "10.0.0.2");
	assert_label(SLOTS, "a", 1, "10.0.0.1");
	label_join(9, 1, 2); /* connection 9 has sent no HELLO, so it has no label */
	assert_label(1, "", 0, "");
}

/* WELCOME can wait for a checkpoint for a long time. Even while WELCOME waits, the slot must have
 * its label. */
TEST_IN(a_slot_that_is_not_on_disk_yet_has_one_too, set_up_labels, tear_down_labels)
{
	static char text[LABEL_FENCED];

	label_hello(7, "a", 1, "10.0.0.1");
	label_hello(8, "b", 2, "10.0.0.2");
	labels_join(labels, 7, 2, 1);
	assert_label(2, "a", 1, "10.0.0.1");
	labels_join(labels, 7, 0, 1);
	labels_join(labels, 7, SLOTS + 1, 1);
	assert_label(1, "", 0, "");
	/* before the WELCOME of connection 7, another process takes slot 2 */
	labels_join(labels, 8, 2, 2);
	assert_label(2, "b", 2, "10.0.0.2");
	capture_begin(&said, 2);
	labels_fenced(labels, 7, 2, 1, "", text);
	(void)capture_end(&said);
	assert_non_null(strstr(text, "this one runs on a pid 1, the new one on b pid 2"));
}

TEST_IN(observers_and_strange_ids_have_none, set_up_labels, tear_down_labels)
{
	label_hello(7, "a", 1, "10.0.0.1");
	label_join(7, 0, 0);
	label_join(7, SLOTS + 1, 1);
	for (uint32_t worker = 0; worker <= SLOTS + 1; worker++)
		assert_label(worker, "", 0, "");
	assert_label(UINT32_MAX, "", 0, "");
	assert_string_equal(labels_of(NULL, 1)->host, "");
}

static const char *fenced_on(uint32_t peer, uint32_t worker, uint32_t incarnation, const char *name)
{
	static char text[LABEL_FENCED];

	labels_fenced(labels, peer, worker, incarnation, name, text);
	return text;
}

static const char *fenced(uint32_t worker, uint32_t incarnation, const char *name)
{
	return fenced_on(99, worker, incarnation, name);
}

TEST_IN(each_fenced_process_is_named_once_in_the_log, set_up_labels, tear_down_labels)
{
	for (uint32_t i = 1; i <= 5; i++) {
		char host[8];

		snprintf(host, sizeof(host), "node%u", i);
		label_hello(10 + i, host, i, "10.0.0.1");
		label_join(10 + i, 1, i);
	}
	capture_begin(&said, 2);
	for (uint32_t again = 0; again < 2; again++)
		for (uint32_t i = 4; i >= 1; i--) {
			char part[64];

			snprintf(part, sizeof(part), "this one runs on node%u pid %u, ", i, i);
			assert_non_null(strstr(fenced(1, i, "job"), part));
			assert_non_null(strstr(
				fenced(1, i, "job"), "--name \"job\": this one runs on node"));
			assert_non_null(
				strstr(fenced(1, i, "job"), "new one on node5 pid 5; give"));
		}
	assert_int_equal(count_lines(capture_log(&said)), 4);
	assert_non_null(strstr(said.text, "level=warn msg=\"worker fenced\" worker=1 incarnation=4 "
					  "name=\"job\" host=\"node4\" pid=4 address=\"10.0.0.1\" "
					  "new_host=\"node5\" new_pid=5 new_address=\"10.0.0.1\""));
}

/* A hostile worker replaces its process again and again, and lets each earlier process send a
 * message. The server must not log each of them. */
TEST_IN(fenced_processes_do_not_fill_the_log, set_up_labels, tear_down_labels)
{
	const uint32_t processes = SLOT_LINES + 100;

	log_set_level(LOG_ERROR);
	for (uint32_t i = 1; i <= processes; i++) {
		label_hello(i, "node", i, "10.0.0.1");
		label_join(i, 1, i + 1);
		assert_non_null(strstr(fenced(1, i, "job"), "new one on node pid "));
	}
	assert_int_equal(lines.left_out, processes - SLOT_LINES);
	log_set_level(LOG_INFO);
	capture_begin(&said, 2);
	(void)fenced(1, processes + 1, "job");
	(void)fenced(2, 1, "job"); /* is logged, because worker 2 has a limit of its own */
	assert_int_equal(count_lines(capture_log(&said)), 1);
	assert_non_null(strstr(said.text, "msg=\"worker fenced\" worker=2 "));
}

TEST_IN(what_is_not_known_is_not_made_up, set_up_labels, tear_down_labels)
{
	capture_begin(&said, 2);
	const char *text = fenced(2, 1, "job");
	assert_non_null(strstr(text, "runs on a host unknown to the server, the new one on a host "
				     "unknown to the server;"));
	label_hello(5, "", 0, "10.0.0.9");
	label_join(5, 2, 3);
	text = fenced(2, 2, "");
	assert_null(strstr(text, "--name"));
	assert_non_null(strstr(text, "worker 2 was silent"));
	assert_non_null(strstr(text, "the new one on a host at 10.0.0.9"));
	(void)fenced(2, 1, "job");
	(void)fenced(0, 1, "job");
	(void)fenced(SLOTS + 1, 1, "job");
	assert_int_equal(count_lines(capture_log(&said)), 2);
}

/* After a restart of the server, the newer of two processes with one name may return first. When
 * the older process returns after that, the server refuses it. */
TEST_IN(a_refused_hello_says_where_its_process_runs, set_up_labels, tear_down_labels)
{
	label_hello(6, "newer", 2, "10.0.0.2");
	label_join(6, 1, 2);
	label_hello(5, "older", 1, "10.0.0.1");
	label_hello(7, "other", 3, "10.0.0.3");
	capture_begin(&said, 2);
	for (int again = 0; again < 2; again++) {
		assert_non_null(strstr(fenced_on(5, 1, 1, "job"),
			"this one runs on older pid 1, the new one on newer pid 2;"));
		label_hello(5, "older", 1, "10.0.0.1");
	}
	assert_int_equal(count_lines(capture_log(&said)), 1);
	assert_non_null(strstr(said.text, "host=\"older\" pid=1 address=\"10.0.0.1\""));
}

TEST_IN(a_restored_host_stays_until_the_next_hello, set_up_labels, tear_down_labels)
{
	char longest[WIRE_MAX_HOST + 2];

	memset(longest, 'h', sizeof(longest));
	longest[WIRE_MAX_HOST + 1] = '\0';
	labels_restore(labels, 1, "old");
	labels_restore(labels, 2, longest);
	labels_restore(labels, 2, "new\nline");
	labels_restore(labels, 0, "none");
	labels_restore(labels, SLOTS + 1, "none");
	assert_label(1, "old", 0, "");
	assert_label(2, "", 0, "");
	label_hello(5, "new", 1, "10.0.0.1");
	assert_label(1, "old", 0, "");
	label_join(5, 1, 2);
	assert_label(1, "new", 1, "10.0.0.1");
	labels_restore(labels, 2, longest + 1);
	assert_label(2, longest + 1, 0, "");
}

TEST_IN(the_longest_text_keeps_its_end, set_up_labels, tear_down_labels)
{
	char name[WIRE_MAX_NAME + 1], host[WIRE_MAX_HOST + 1];

	memset(name, 'n', sizeof(name));
	memset(host, 'h', sizeof(host));
	name[WIRE_MAX_NAME] = host[WIRE_MAX_HOST] = '\0';
	label_hello(5, host, UINT32_MAX, "");
	label_join(5, 1, 1);
	label_hello(6, host, UINT32_MAX, "");
	label_join(6, 1, 2);
	capture_begin(&said, 2);
	static const char end[] = "; give each worker its own --name or none";
	const char *text = fenced(1, 1, name);
	char both[2 * WIRE_MAX_HOST + 64];
	snprintf(both, sizeof(both), "on %s pid %u, the new one on %s pid %u;", host, UINT32_MAX,
		host, UINT32_MAX);
	assert_non_null(strstr(text, both));
	(void)capture_end(&said);
	assert_string_equal(text + strlen(text) - strlen(end), end);
}

TEST_IN(many_hellos_without_an_answer_push_nobody_out_of_the_table, set_up_labels, tear_down_labels)
{
	label_hello(1, "kept", 1, "10.0.0.1");
	label_join(1, 1, 1);
	for (uint32_t i = 0; i < 3 * RING; i++)
		label_hello(100 + i, "flood", i, "10.9.9.9");
	assert_label(1, "kept", 1, "10.0.0.1");
	label_join(100 + 3 * RING - 1, 2, 1);
	assert_label(2, "flood", 3 * RING - 1, "10.9.9.9");
}

TEST_GROUP(capture_info, NULL)
