/* test_server_sandbox.c - tests which actions the sandbox permits and which it forbids. Each case
 * runs in a new process, because a process cannot leave the sandbox. Covers attack A21 of
 * docs/faults.md. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <net/if.h>
#include <netinet/in.h>
#include <linux/netlink.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#include "tests/support/temp_dir.h"
#include "common/log.h"
#include "server/sandbox.h"
#include "tests/support/test.h"

static const char *lane; /* path of the socket of lanes; NULL: --lane tcp */
static const char *key;  /* argument of --key; NULL: no key */
static int lane_fd;      /* the socket that sandbox_enter has opened there */
static int gpu = -1;     /* the N of --store cuda:N; -1: --store host */

/* Starts a process that enters the sandbox and calls `act`. Returns the exit status of the process,
 * or 128 + the signal that ended it. Returns 255 if the system does not permit a sandbox. */
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
		o.checkpoint_dir = temp_dir;
		o.key = key;
		o.store_gpu = gpu;
		o.lane = lane ? LANE_AUTO : LANE_TCP;
		snprintf(o.lane_path, sizeof(o.lane_path), "%s", lane ? lane : "");
		int rc = sandbox_enter(&o, &e);
		lane_fd = o.lane_fd;
		_exit(rc ? 255 : act());
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

static void expect_in_sandbox(int (*act)(void), int status)
{
	int got = in_sandbox(act);

	if (got == 255) { /* the kernel has no sandbox; .ci/run permits no such kernel */
		assert_null(getenv("KX_REQUIRE_TOOLS"));
		skip();
	}
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

static int may_start_thread(void)
{
	pthread_t t;

	return pthread_create(&t, NULL, do_nothing, NULL) != 0 || pthread_join(t, NULL) != 0;
}

static int write_checkpoint(void)
{
	char path[80], to[80];

	snprintf(path, sizeof(path), "%s/a.tmp", temp_dir);
	snprintf(to, sizeof(to), "%s/a", temp_dir);
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

static int lock_a_secret(void)
{
	static char secret[32];

	return mlock(secret, sizeof(secret)) && errno == EPERM;
}

static int map_code(void)
{
	return mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) ==
				       MAP_FAILED &&
			       errno == EPERM
		       ? 0
		       : 1;
}

/* Calls map_code in another thread: a thread that starts in the sandbox must be in the sandbox,
 * too. */
static void *map_code_in_thread(void *arg)
{
	*(int *)arg = map_code();
	return NULL;
}

static int map_code_of_thread(void)
{
	int failed = 1;
	pthread_t t;

	return pthread_create(&t, NULL, map_code_in_thread, &failed) != 0 ||
	       pthread_join(t, NULL) != 0 || failed;
}

/* Tries to map, as code, a file that the sandbox lets the process write. */
static int map_code_of_file(void)
{
	char path[80];

	snprintf(path, sizeof(path), "%s/code", temp_dir);
	int fd = open(path, O_CREAT | O_RDWR, 0600);
	if (fd < 0 || write(fd, "\xc3", 1) != 1)
		return 2;
	return mmap(NULL, 1, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0) == MAP_FAILED &&
			       errno == EPERM && unlink(path) == 0
		       ? 0
		       : 1;
}

/* Makes the request that types a character into a terminal, but on a pipe. Without the sandbox, the
 * request fails with ENOTTY. */
static int type_into_a_terminal(void)
{
	int ends[2];

	return pipe2(ends, O_CLOEXEC) == 0 && ioctl(ends[0], TIOCSTI, "x") < 0 && errno == EPERM
		       ? 0
		       : 1;
}

static int ask_a_terminal(void)
{
	struct winsize size;
	int ends[2], n;

	return pipe2(ends, O_CLOEXEC) != 0 || isatty(ends[0]) || errno != ENOTTY ||
	       ioctl(ends[0], TIOCGWINSZ, &size) == 0 || errno != ENOTTY ||
	       ioctl(ends[0], FIONREAD, &n) != 0 || if_nametoindex("lo") == 0;
}

/* The progress bar appears only if the server is in the foreground of its terminal (log.c). */
static int ask_for_its_process_group(void)
{
	return getpgrp() <= 0 || getpgid(0) != getpgrp();
}

/* Returns the number of requests of NVIDIA's driver that the sandbox refuses. The requests go to a
 * pipe, so a request that the sandbox permits fails with ENOTTY. */
static int ask_a_gpu(void)
{
	static const unsigned long requests[] = {0xc020462b, 0xc00446ca, 27, 0x30000001};
	int ends[2], refused = 0;

	if (pipe2(ends, O_CLOEXEC) != 0)
		return 9;
	for (size_t i = 0; i < sizeof(requests) / sizeof(requests[0]); i++)
		refused += ioctl(ends[0], requests[i], NULL) < 0 && errno == EPERM;
	return refused;
}

static int change_modes(void)
{
	char path[80];

	snprintf(path, sizeof(path), "%s/mode", temp_dir);
	int fd = open(path, O_CREAT | O_RDWR, 0600);
	if (fd < 0)
		return 2;
	if (fchmod(fd, 04755) == 0 || errno != EPERM || chmod(path, 04755) == 0 || errno != EPERM)
		return 3;
	if (fchmod(fd, 0600) == 0 || errno != EPERM)
		return 4;
	if (fchown(fd, getuid(), getgid()) == 0 || errno != EPERM)
		return 5;
	return unlink(path);
}

static int is_refused(int family, int type, int protocol)
{
	return socket(family, type, protocol) < 0 && errno == EPERM;
}

static int open_other_sockets(void)
{
	int pair[2];

	return is_refused(AF_UNIX, SOCK_STREAM, 0) && is_refused(AF_UNIX, SOCK_SEQPACKET, 0) &&
			       is_refused(AF_INET, SOCK_RAW, IPPROTO_ICMP) &&
			       is_refused(AF_NETLINK, SOCK_RAW, NETLINK_AUDIT) &&
			       is_refused(AF_NETLINK, SOCK_RAW, NETLINK_KOBJECT_UEVENT) &&
			       socketpair(AF_UNIX, SOCK_STREAM, 0, pair) < 0 && errno == EPERM
		       ? 0
		       : 1;
}

/* libzmq and the C library need these sockets: for TCP, the names of hosts and interfaces, and
 * NOTIFY_SOCKET. */
static int open_needed_sockets(void)
{
	return socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP) < 0 ||
	       socket(AF_INET, SOCK_DGRAM, 0) < 0 || socket(AF_UNIX, SOCK_DGRAM, 0) < 0 ||
	       socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE) < 0;
}

/* The directory of the socket of lanes, or of the key. The server's user has other files in it. */
static char home[64];

static const char *in_home(const char *name)
{
	static char out[320];

	return temp_dir_path(home, name, out);
}

/* The socket of lanes listens since before the sandbox, in which the process can neither make
 * another one nor replace its file. */
static int use_lane_only(void)
{
	struct sockaddr_un at = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_STREAM, 0); /* the self-test of the keys may open this one */

	snprintf(at.sun_path, sizeof(at.sun_path), "%s", in_home("other"));
	if (fd < 0 || bind(fd, (const struct sockaddr *)&at, sizeof(at)) == 0 || errno != EACCES)
		return 2;
	if (!is_refused(AF_UNIX, SOCK_SEQPACKET, 0))
		return 3;
	if (fchmod(fd, 0600) == 0 || errno != EPERM)
		return 4;
	if (unlink(in_home("lane")) == 0 || errno != EACCES)
		return 5;
	return accept4(lane_fd, NULL, NULL, SOCK_CLOEXEC) >= 0;
}

static int change_files_beneath(void)
{
	if (unlink(in_home("deep/thesis")) == 0 || errno != EACCES)
		return 2;
	if (unlink(in_home("secret")) == 0 || errno != EACCES)
		return 3;
	if (open(in_home("secret"), O_WRONLY) >= 0 || errno != EACCES)
		return 4;
	return mkdir(in_home("new"), 0700) == 0 || errno != EACCES;
}

static int read_beneath(void)
{
	return open(in_home("deep/thesis"), O_RDONLY) < 0 && errno == EACCES ? 0 : 1;
}

/* Opens a socket as the self-test of the keys does, which uses a Unix stream socket. */
static int open_self_test(void)
{
	return socket(AF_UNIX, SOCK_STREAM, 0) < 0 || !is_refused(AF_UNIX, SOCK_SEQPACKET, 0);
}

static int kill_parent(void)
{
	return kill(getppid(), 0) < 0 && errno == EPERM ? 0 : 1;
}

static int signal_a_thread_of_the_parent(void)
{
	return syscall(SYS_tgkill, getppid(), getppid(), 0) < 0 && errno == EPERM ? 0 : 1;
}

static int limit_the_parent(void)
{
	struct rlimit r;

	return prlimit(getppid(), RLIMIT_NOFILE, NULL, &r) < 0 && errno == EPERM ? 0 : 1;
}

static int signal_and_limit_itself(void)
{
	struct rlimit r;

	signal(SIGUSR1, SIG_IGN);
	return raise(SIGUSR1) || pthread_kill(pthread_self(), SIGUSR1) ||
	       prlimit(getpid(), RLIMIT_NOFILE, NULL, &r) || getrlimit(RLIMIT_NOFILE, &r);
}

/* A file descriptor can send a signal to the process that is set as its owner. */
static int own_descriptors_for_the_parent(void)
{
	int fd[2], pid = getppid(), on = 1;
	struct f_owner_ex owner = {F_OWNER_PID, pid};

	if (pipe2(fd, O_CLOEXEC) || fcntl(fd[0], F_SETOWN, pid) == 0 || errno != EPERM)
		return 1;
	if (fcntl(fd[0], F_SETOWN_EX, &owner) == 0 || errno != EPERM)
		return 2;
	if (fcntl(fd[0], F_SETSIG, SIGKILL) == 0 || errno != EPERM)
		return 3;
	if (fcntl(fd[0], F_SETFL, O_ASYNC | O_NONBLOCK) == 0 || errno != EPERM)
		return 4;
	if (ioctl(fd[0], FIOASYNC, &on) == 0 || errno != EPERM)
		return 5;
	int s = socket(AF_INET, SOCK_STREAM, 0);
	if (ioctl(s, FIOSETOWN, &pid) == 0 || errno != EPERM)
		return 6;
	return ioctl(s, SIOCSPGRP, &pid) < 0 && errno == EPERM ? 0 : 7;
}

static int queue_signals_for_the_parent(void)
{
	struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGKILL};
	siginfo_t info = {.si_code = SI_QUEUE};
	long timer;
	int parent = getppid();

	if (syscall(SYS_rt_sigqueueinfo, parent, 0, &info) == 0 || errno != EPERM)
		return 1;
	if (syscall(SYS_rt_tgsigqueueinfo, parent, parent, 0, &info) == 0 || errno != EPERM)
		return 2;
	if (syscall(SYS_tkill, parent, 0) == 0 || errno != EPERM)
		return 3;
	if (syscall(SYS_pidfd_open, parent, 0) >= 0 || errno != EPERM)
		return 4;
	if (syscall(SYS_pidfd_send_signal, 0, 0, NULL, 0) == 0 || errno != EPERM)
		return 5;
	if (syscall(SYS_timer_create, CLOCK_MONOTONIC, &event, &timer) == 0 || errno != EPERM)
		return 6;
	if (syscall(SYS_mq_notify, 0, &event) == 0 || errno != EPERM)
		return 7;
	return syscall(SYS_io_uring_setup, 1, NULL) < 0 && errno == EPERM ? 0 : 8;
}

static int change_its_descriptors(void)
{
	int fd[2];

	return pipe2(fd, 0) || fcntl(fd[0], F_GETFL) < 0 || fcntl(fd[0], F_SETFL, O_NONBLOCK) ||
	       fcntl(fd[0], F_SETFD, FD_CLOEXEC) || fcntl(fd[0], F_GETFD) != FD_CLOEXEC ||
	       fcntl(fd[0], F_DUPFD_CLOEXEC, 0) < 0 || fcntl(fd[0], F_DUPFD, 0) < 0;
}

TEST(it_signals_and_limits_only_itself)
{
	expect_in_sandbox(own_descriptors_for_the_parent, 0);
	expect_in_sandbox(queue_signals_for_the_parent, 0);
	expect_in_sandbox(change_its_descriptors, 0);
	expect_in_sandbox(signal_a_thread_of_the_parent, 0);
	expect_in_sandbox(limit_the_parent, 0);
	expect_in_sandbox(signal_and_limit_itself, 0);
}

TEST(it_starts_no_program_and_no_process)
{
	expect_in_sandbox(start_program, 128 + SIGSYS);
	expect_in_sandbox(fork_process, 0);
	expect_in_sandbox(kill_parent, 0);
	expect_in_sandbox(may_start_thread, 0);
}

TEST(it_opens_only_its_files)
{
	expect_in_sandbox(write_checkpoint, 0);
	expect_in_sandbox(read_hosts, 0);
	expect_in_sandbox(write_elsewhere, 0);
	expect_in_sandbox(read_passwords, 0);
}

TEST(it_has_tcp_but_no_raw_socket)
{
	expect_in_sandbox(open_tcp_socket, 0);
	expect_in_sandbox(open_raw_socket, 0);
	expect_in_sandbox(open_other_sockets, 0);
	expect_in_sandbox(open_needed_sockets, 0);
}

TEST(it_has_unix_sockets_only_for_keys)
{
	key = "/nowhere/server.key";
	expect_in_sandbox(open_self_test, 0);
	key = NULL;
}

static int set_up_home(void **state)
{
	(void)state;
	temp_dir_make(home);
	assert_int_equal(mkdir(in_home("deep"), 0700), 0);
	temp_dir_write(home, "deep/thesis", "x", 1);
	temp_dir_write(home, "secret", "x", 1);
	return 0;
}

static int tear_down_home(void **state)
{
	static const char *const files[] = {"deep/thesis", "secret", "lane", "other"};

	(void)state;
	lane = key = NULL;
	for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++)
		(void)unlink(in_home(files[i]));
	(void)rmdir(in_home("deep"));
	temp_dir_remove(home);
	return 0;
}

/* A rule of Landlock holds for everything beneath a directory, so the socket of lanes needs no such
 * rule. */
TEST_IN(it_changes_nothing_beneath_the_directory_of_the_lane, set_up_home, tear_down_home)
{
	char path[80];

	snprintf(path, sizeof(path), "%s/lane", home);
	lane = path;
	expect_in_sandbox(change_files_beneath, 0);
	assert_int_equal(access(path, F_OK), 0);
	expect_in_sandbox(read_beneath, 0);
	key = "/nowhere/server.key";
	expect_in_sandbox(use_lane_only, 0);
}

/* docs/operations.md advises to keep the keys in a directory of their own. */
TEST_IN(it_reads_but_does_not_change_what_lies_beneath_the_directory_of_the_key, set_up_home,
	tear_down_home)
{
	char path[80];

	snprintf(path, sizeof(path), "%s/server.key", home);
	key = path;
	expect_in_sandbox(read_beneath, 1);
	expect_in_sandbox(change_files_beneath, 0);
}

TEST(memory_does_not_become_code)
{
	expect_in_sandbox(make_code, 0);
	expect_in_sandbox(map_code, 0);
	expect_in_sandbox(map_code_of_thread, 0);
	expect_in_sandbox(map_code_of_file, 0);
	expect_in_sandbox(lock_a_secret, 0);
}

TEST(it_controls_no_terminal_and_no_rights_of_files)
{
	expect_in_sandbox(type_into_a_terminal, 0);
	expect_in_sandbox(ask_a_terminal, 0);
	expect_in_sandbox(ask_for_its_process_group, 0);
	expect_in_sandbox(change_modes, 0);
}

TEST(it_controls_a_gpu_only_for_the_store)
{
	expect_in_sandbox(ask_a_gpu, 4);
	gpu = 0;
	expect_in_sandbox(ask_a_gpu, 0);
	expect_in_sandbox(type_into_a_terminal, 0);
	gpu = -1;
}

TEST_GROUP(temp_dir_set_up, temp_dir_tear_down)
