/* test_share.c - tests memory and sockets that processes share (common/share.h). */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "tests/support/temp_dir.h"
#include "common/share.h"
#include "tests/support/test.h"

static char dir[64], path[128];
static int listener = -1;

static int set_up_share(void **state)
{
	struct err e;

	(void)state;
	temp_dir_make(dir);
	snprintf(path, sizeof(path), "%s/lane", dir);
	return share_listen(path, &listener, &e);
}

static int tear_down_share(void **state)
{
	(void)state;
	if (listener >= 0)
		close(listener);
	(void)unlink(path);
	rmdir(dir);
	return 0;
}

static void connect_both(int *client, int *server)
{
	struct err e;

	assert_int_equal(share_connect(path, client, &e), PS_OK);
	*server = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
	assert_true(*server >= 0);
}

TEST_IN(memory_arrives_with_its_message, set_up_share, tear_down_share)
{
	char text[8] = "";
	int client, server, fd, got, nothing;

	connect_both(&client, &server);
	assert_int_equal(share_new("test", 8192, &fd), PS_OK);
	char *mine = share_map(fd, 8192, 1);
	assert_non_null(mine);
	mine[8191] = 42;
	assert_int_equal(share_receive(client, text, 5, &got, 1), PS_EAGAIN);
	assert_int_equal(share_send(server, "hello", 5, &fd, 1), PS_OK);
	assert_int_equal(share_receive(client, text, 5, &got, 1), PS_OK);
	assert_string_equal(text, "hello");
	assert_true(share_is_sound(got, 8192));
	assert_false(share_is_sound(got, 8193));
	const char *theirs = share_map(got, 8192, 0);
	assert_non_null(theirs);
	assert_int_equal(theirs[8191], 42);
	close(server);
	assert_int_equal(share_receive(client, text, 5, &nothing, 0), PS_EUNREACHABLE);
	close(client);
	close(fd);
	close(got);
	munmap(mine, 8192);
}

static int open_descriptors(void)
{
	int n = 0;

	for (int fd = 0; fd < 256; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

/* A message with a wrong size, or with a wrong number of descriptors, must be refused and leave no
 * descriptor open. */
TEST_IN(messages_of_another_form_are_refused, set_up_share, tear_down_share)
{
	int client, server, fd[SHARE_MAX_FDS], got[SHARE_MAX_FDS];
	char text[8];

	connect_both(&client, &server);
	for (int i = 0; i < SHARE_MAX_FDS; i++)
		assert_int_equal(share_new("test", 4096, &fd[i]), PS_OK);
	int before = open_descriptors();
	assert_int_equal(share_send(client, "hell", 4, NULL, 0), PS_OK);
	assert_int_equal(share_receive(server, text, 5, got, 0), PS_EPROTO);
	assert_int_equal(share_send(client, "hello!", 6, NULL, 0), PS_OK);
	assert_int_equal(share_receive(server, text, 5, got, 0), PS_EPROTO);
	assert_int_equal(share_send(client, "hello", 5, fd, SHARE_MAX_FDS), PS_OK);
	assert_int_equal(share_receive(server, text, 5, got, 0), PS_EPROTO);
	assert_int_equal(share_send(client, "hello", 5, fd, 1), PS_OK);
	assert_int_equal(share_receive(server, text, 5, got, 2), PS_EPROTO);
	assert_int_equal(share_send(client, "hello", 5, NULL, 0), PS_OK);
	assert_int_equal(share_receive(server, text, 5, got, 1), PS_EPROTO);
	assert_int_equal(open_descriptors(), before);
	for (int i = 0; i < SHARE_MAX_FDS; i++)
		close(fd[i]);
	close(client);
	close(server);
}

TEST_IN(memory_is_not_sound_if_its_size_can_change, set_up_share, tear_down_share)
{
	int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, 4096), 0);
	assert_false(share_is_sound(fd, 4096));
	assert_false(share_is_sound(listener, 1));
	close(fd);
}

TEST_IN(only_this_user_may_connect, set_up_share, tear_down_share)
{
	struct stat st;

	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_mode & 0777, 0600);
}

/* A killed process leaves the file of its socket behind. Another process must be able to listen on
 * the same path after that. */
TEST_IN(the_socket_of_a_dead_process_is_replaced, set_up_share, tear_down_share)
{
	struct err e;
	int fd, again;

	/* refused, because a live process listens on this socket */
	assert_int_equal(share_listen(path, &again, &e), PS_EUSAGE);
	assert_non_null(strstr(e.text, path));
	close(listener);
	listener = -1;
	assert_int_equal(access(path, F_OK), 0);
	assert_int_equal(share_connect(path, &fd, &e), PS_EUNREACHABLE);
	assert_int_equal(share_listen(path, &listener, &e), PS_OK);
	assert_int_equal(share_connect(path, &fd, &e), PS_OK);
	close(fd);
}

TEST_IN(a_file_that_is_no_socket_stays, set_up_share, tear_down_share)
{
	char other[160], longer[200];
	struct err e;
	int fd;

	snprintf(other, sizeof(other), "%s/file", dir);
	close(open(other, O_CREAT | O_WRONLY, 0600));
	assert_int_equal(share_listen(other, &fd, &e), PS_EUSAGE);
	assert_int_equal(access(other, F_OK), 0);
	unlink(other);
	memset(longer, 'x', sizeof(longer) - 1);
	longer[sizeof(longer) - 1] = '\0';
	assert_int_equal(share_listen(longer, &fd, &e), PS_EUSAGE);
	assert_int_equal(share_connect("", &fd, &e), PS_EUSAGE);
}
