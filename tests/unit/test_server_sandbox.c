/* test_server_sandbox.c - tests which actions the sandbox permits and which it forbids. Each case
 * runs in a new process, because a process cannot leave the sandbox. Attack A21 of
 * docs/faults.md. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include "tests/support/temp_dir.h"
#include "common/log.h"
#include "server/sandbox.h"
#include "tests/support/test.h"

static char dir[64];

/* Starts a process that enters the sandbox and calls `act`. Returns its exit status, or 128 + its
 * signal. Returns 255 if the system does not permit a sandbox. */
static int in_sandbox(int (*act)(void))
{
	pid_t pid = fork();
	int status;

	assert_true(pid >= 0);
	if (pid == 0) {
		static struct options o;
		struct err e;

		log_set_level(LOG_ERROR);
		o.sandbox = SANDBOX_REQUIRE;
		o.bind = "tcp://127.0.0.1:5555";
		o.checkpoint_dir = dir;
		_exit(sandbox_enter(&o, &e) ? 255 : act());
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

static void expect(int (*act)(void), int status)
{
	int got = in_sandbox(act);

	if (got == 255)
		skip();
	assert_int_equal(got, status);
}

static int start_program(void)
{
	char *const argv[] = {(char[]){"true"}, NULL};

	execv("/bin/true", argv);
	return 1;
}

static int fork_process(void)
{
	return fork() < 0 && errno == EPERM ? 0 : 1;
}

static void *do_nothing(void *arg)
{
	return arg;
}

static int start_thread(void)
{
	pthread_t t;

	return pthread_create(&t, NULL, do_nothing, NULL) != 0 || pthread_join(t, NULL) != 0;
}

static int write_checkpoint(void)
{
	char path[80], to[80];

	snprintf(path, sizeof(path), "%s/a.tmp", dir);
	snprintf(to, sizeof(to), "%s/a", dir);
	int fd = open(path, O_CREAT | O_RDWR | O_TRUNC, 0600);
	return fd < 0 || write(fd, "x", 1) != 1 || fsync(fd) || ftruncate(fd, 0) || close(fd) ||
	       rename(path, to) || unlink(to);
}

static int write_elsewhere(void)
{
	return open("/tmp/cnn-ps-sandbox", O_CREAT | O_WRONLY, 0600) < 0 && errno == EACCES ? 0 : 1;
}

static int read_passwords(void)
{
	return open("/etc/passwd", O_RDONLY) < 0 && errno == EACCES ? 0 : 1;
}

static int read_hosts(void)
{
	return open("/etc/hosts", O_RDONLY) < 0;
}

static int open_raw_socket(void)
{
	return socket(AF_PACKET, SOCK_RAW, 0) < 0 && errno == EPERM ? 0 : 1;
}

static int open_tcp_socket(void)
{
	return socket(AF_INET, SOCK_STREAM, 0) < 0;
}

static int make_code(void)
{
	void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	return mprotect(page, 4096, PROT_READ | PROT_EXEC) < 0 && errno == EPERM ? 0 : 1;
}

static int kill_parent(void)
{
	return kill(getppid(), 0) < 0 && errno == EPERM ? 0 : 1;
}

TEST(it_starts_no_program_and_no_process)
{
	expect(start_program, 128 + SIGSYS);
	expect(fork_process, 0);
	expect(kill_parent, 0);
	expect(start_thread, 0);
}

TEST(it_opens_only_its_files)
{
	expect(write_checkpoint, 0);
	expect(read_hosts, 0);
	expect(write_elsewhere, 0);
	expect(read_passwords, 0);
}

TEST(it_has_tcp_but_no_raw_socket)
{
	expect(open_tcp_socket, 0);
	expect(open_raw_socket, 0);
}

TEST(memory_does_not_become_code)
{
	expect(make_code, 0);
}

static int set_up(void **state)
{
	(void)state;
	temp_dir_make(dir);
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	temp_dir_remove(dir);
	return 0;
}

TEST_GROUP(set_up, tear_down)
