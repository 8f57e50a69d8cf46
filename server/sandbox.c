/* sandbox.c - see sandbox.h. */
#include "server/sandbox.h"
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <linux/capability.h>
#include <linux/landlock.h>
#include <linux/netlink.h>
#include <linux/sockios.h>
#include <sched.h>
#include <seccomp.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "common/endpoint.h"
#include "common/file.h"
#include "common/log.h"
#include "common/share.h"

/* A build with a sanitizer cannot use the sandbox, because the sanitizer needs other files and
 * system calls. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

/* ---- capabilities ---------------------------------------------------------------------------- */

static int set_capabilities(uint64_t effective, uint64_t permitted)
{
	struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[2] = {
		{.effective = (uint32_t)effective, .permitted = (uint32_t)permitted},
		{.effective = (uint32_t)(effective >> 32),
			.permitted = (uint32_t)(permitted >> 32)}};

	return (int)syscall(SYS_capset, &head, data);
}

static uint64_t permitted_capabilities(void)
{
	struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[2] = {{0}};

	if (syscall(SYS_capget, &head, data) != 0)
		return 0;
	return data[0].permitted | (uint64_t)data[1].permitted << 32;
}

static int can_use_files(const struct options *o)
{
	return (!o->checkpoint_dir || faccessat(AT_FDCWD, o->checkpoint_dir, R_OK | W_OK | X_OK,
					      AT_EACCESS) == 0) &&
	       (!o->key || faccessat(AT_FDCWD, o->key, R_OK, AT_EACCESS) == 0) &&
	       (!o->authorized_keys ||
		       faccessat(AT_FDCWD, o->authorized_keys, R_OK, AT_EACCESS) == 0) &&
	       (!o->http_token || faccessat(AT_FDCWD, o->http_token, R_OK, AT_EACCESS) == 0) &&
	       (!o->init || faccessat(AT_FDCWD, o->init, R_OK, AT_EACCESS) == 0);
}

static int is_low_port(const struct endpoint *e)
{
	return e->number > 0 && e->number < 1024;
}

static int needs_low_port(const struct options *o)
{
	struct endpoint e;

	if (endpoint_parse(o->bind, &e) == 0 && is_low_port(&e))
		return 1;
	return o->http &&
	       (endpoint_parse_address(o->http, &e) == 0 ||
		       endpoint_parse_port(o->http, &e) == 0) &&
	       is_low_port(&e);
}

static int drop_capabilities(const struct options *o)
{
	const uint64_t had = permitted_capabilities();
	uint64_t keep = needs_low_port(o) ? had & (1ull << CAP_NET_BIND_SERVICE) : 0;

	if (set_capabilities(keep, had) != 0)
		return -1;
	if (!can_use_files(o))
		keep |= had & (1ull << CAP_DAC_OVERRIDE);
	return set_capabilities(keep, keep);
}

/* ---- Landlock -------------------------------------------------------------------------------- */

/* older headers lack this right, which Linux 6.2 added (Landlock's ABI 3) */
#ifndef LANDLOCK_ACCESS_FS_TRUNCATE
#define LANDLOCK_ACCESS_FS_TRUNCATE (1ull << 14)
#endif

#define READ_FILE LANDLOCK_ACCESS_FS_READ_FILE
#define READ_DIR  (READ_FILE | LANDLOCK_ACCESS_FS_READ_DIR)
#define WRITE_DIR                                                                                  \
	(READ_DIR | LANDLOCK_ACCESS_FS_WRITE_FILE | LANDLOCK_ACCESS_FS_REMOVE_FILE |               \
		LANDLOCK_ACCESS_FS_MAKE_REG | LANDLOCK_ACCESS_FS_TRUNCATE)

/* The server and its libraries read the following files. These files contain the configuration and
 * the modules of host name resolution, the time zone, the memory limit, and the state of a process
 * that holds a lock (file.c). */
static const struct {
	const char *path;
	uint64_t rights;
} system_files[] = {
	{"/etc/hosts", READ_FILE},
	{"/etc/host.conf", READ_FILE},
	{"/etc/resolv.conf", READ_FILE},
	{"/etc/nsswitch.conf", READ_FILE},
	{"/etc/gai.conf", READ_FILE},
	{"/etc/services", READ_FILE},
	{"/etc/protocols", READ_FILE},
	{"/etc/localtime", READ_FILE},
	{"/etc/ld.so.cache", READ_FILE},
	{"/usr/lib", READ_DIR},
	{"/lib", READ_DIR},
	{"/lib64", READ_DIR},
	{"/usr/share/zoneinfo", READ_DIR},
	{"/dev/urandom", READ_FILE},
	{"/dev/null", READ_FILE | LANDLOCK_ACCESS_FS_WRITE_FILE},
	{"/proc", READ_DIR},
	{"/sys/devices/system/cpu", READ_DIR},
	{"/sys/fs/cgroup", READ_DIR},
};

/* Allows `rights` for a file or everything in a directory. Adds no rule if the path does not
 * exist. */
static int allow_path(int ruleset, const char *path, uint64_t rights)
{
	struct landlock_path_beneath_attr rule = {.allowed_access = rights};

	rule.parent_fd = open(path, O_PATH | O_CLOEXEC);
	if (rule.parent_fd < 0)
		return 0;
	int rc = (int)syscall(SYS_landlock_add_rule, ruleset, LANDLOCK_RULE_PATH_BENEATH, &rule, 0);
	close(rule.parent_fd);
	return rc;
}

/* Allows `rights` for the directory of file `path`. A rule for the file itself would not apply to a
 * new file with which an administrator replaces the file. */
static int allow_beside(int ruleset, const char *path, uint64_t rights)
{
	char copy[4097] = "";

	if (strlen(path) >= sizeof(copy))
		return 0;
	memcpy(copy, path, strlen(path));
	return allow_path(ruleset, dirname(copy), rights);
}

static int allow_files(int ruleset, const struct options *o, uint64_t handled)
{
	int rc = 0;

	for (size_t i = 0; i < sizeof(system_files) / sizeof(system_files[0]); i++)
		rc |= allow_path(ruleset, system_files[i].path, system_files[i].rights & handled);
	if (o->checkpoint_dir)
		rc |= allow_path(ruleset, o->checkpoint_dir, WRITE_DIR & handled);
	if (o->made_checkpoint_dir) /* a start that fails removes the directory that it made */
		rc |= allow_beside(ruleset, o->checkpoint_dir, LANDLOCK_ACCESS_FS_REMOVE_DIR);
	if (o->key)
		rc |= allow_beside(ruleset, o->key, READ_DIR);
	if (o->authorized_keys)
		rc |= allow_beside(ruleset, o->authorized_keys, READ_DIR);
	if (o->http_token)
		rc |= allow_path(ruleset, o->http_token, READ_FILE);
	if (o->init)
		rc |= allow_path(ruleset, o->init, READ_FILE);
	return rc;
}

static int confine_files(const struct options *o)
{
	/* version 1 of Landlock has the rights up to MAKE_SYM, version 2 also REFER, version 3 also
	 * TRUNCATE */
	uint64_t handled = (LANDLOCK_ACCESS_FS_MAKE_SYM << 1) - 1;
	long abi = syscall(SYS_landlock_create_ruleset, NULL, 0, LANDLOCK_CREATE_RULESET_VERSION);

	if (abi < 1)
		return -1;
	if (abi >= 2)
		handled |= handled + 1;
	if (abi >= 3)
		handled |= LANDLOCK_ACCESS_FS_TRUNCATE;
	struct landlock_ruleset_attr attr = {.handled_access_fs = handled};
	int ruleset = (int)syscall(SYS_landlock_create_ruleset, &attr, sizeof(attr), 0);
	if (ruleset < 0)
		return -1;
	int rc = allow_files(ruleset, o, handled);
	if (rc == 0)
		rc = (int)syscall(SYS_landlock_restrict_self, ruleset, 0);
	close(ruleset);
	return rc;
}

/* ---- seccomp --------------------------------------------------------------------------------- */

#define CALL(name) SCMP_SYS(name)
static const int allowed_calls[] = {
	/* files */
	CALL(access),
	CALL(close),
	CALL(close_range),
	CALL(dup),
	CALL(dup2),
	CALL(dup3),
	CALL(faccessat),
	CALL(faccessat2),
	CALL(fadvise64),
	CALL(fallocate),
	CALL(fdatasync),
	CALL(flock),
	CALL(fstat),
	CALL(fstatfs),
	CALL(fsync),
	CALL(ftruncate),
	CALL(getcwd),
	CALL(getdents64),
	CALL(lseek),
	CALL(lstat),
	CALL(mkdir),
	CALL(mkdirat),
	CALL(newfstatat),
	CALL(open),
	CALL(openat),
	CALL(pipe2),
	CALL(pread64),
	CALL(preadv),
	CALL(pwrite64),
	CALL(pwritev),
	CALL(read),
	CALL(readlink),
	CALL(readlinkat),
	CALL(readv),
	CALL(rename),
	CALL(renameat),
	CALL(renameat2),
	CALL(rmdir),
	CALL(stat),
	CALL(statfs),
	CALL(statx),
	CALL(unlink),
	CALL(unlinkat),
	CALL(write),
	CALL(writev),
	/* memory */
	CALL(brk),
	CALL(madvise),
	CALL(memfd_create),
	CALL(mlock), /* keeps secret keys out of the swap space (libsodium) */
	CALL(mremap),
	CALL(munlock),
	CALL(munmap),
	/* threads, signals, limits */
	CALL(exit),
	CALL(exit_group),
	CALL(futex),
	CALL(get_robust_list),
	CALL(getegid),
	CALL(geteuid),
	CALL(getgid),
	CALL(getpgrp), /* the progress bar appears only in the foreground of a terminal (log.c) */
	CALL(getpid),
	CALL(getppid),
	CALL(getrlimit),
	CALL(getrusage),
	CALL(gettid),
	CALL(getuid),
	CALL(membarrier),
	CALL(prctl),
	CALL(restart_syscall),
	CALL(rseq),
	CALL(rt_sigaction),
	CALL(rt_sigpending),
	CALL(rt_sigprocmask),
	CALL(rt_sigreturn),
	CALL(rt_sigtimedwait),
	CALL(sched_getaffinity),
	CALL(sched_getparam),
	CALL(sched_getscheduler),
	CALL(sched_setaffinity),
	CALL(sched_setscheduler),
	CALL(sched_yield),
	CALL(set_robust_list),
	CALL(set_tid_address),
	CALL(setrlimit),
	CALL(sigaltstack),
	CALL(sysinfo),
	CALL(uname),
	/* time and random numbers */
	CALL(clock_getres),
	CALL(clock_gettime),
	CALL(clock_nanosleep),
	CALL(getrandom),
	CALL(gettimeofday),
	CALL(nanosleep),
	CALL(time),
	CALL(timerfd_create),
	CALL(timerfd_gettime),
	CALL(timerfd_settime),
	/* waiting and sockets */
	CALL(accept),
	CALL(accept4),
	CALL(bind),
	CALL(connect),
	CALL(epoll_create1),
	CALL(epoll_ctl),
	CALL(epoll_pwait),
	CALL(epoll_pwait2),
	CALL(epoll_wait),
	CALL(eventfd2),
	CALL(getpeername),
	CALL(getsockname),
	CALL(getsockopt),
	CALL(listen),
	CALL(poll),
	CALL(ppoll),
	CALL(pselect6),
	CALL(recvfrom),
	CALL(recvmmsg),
	CALL(recvmsg),
	CALL(select),
	CALL(sendfile),
	CALL(sendmmsg),
	CALL(sendmsg),
	CALL(sendto),
	CALL(setsockopt),
	CALL(shutdown),
	CALL(signalfd4),
};
static const int deadly_calls[] = {CALL(execve), CALL(execveat), CALL(process_vm_readv),
	CALL(process_vm_writev), CALL(ptrace)};
/* The first argument of these calls is the id of a process, and must be that of the server. */
static const int calls_on_itself[] = {CALL(kill), CALL(tgkill), CALL(prlimit64)};
/* The type of a socket has only these bits; the others are flags. */
#define SOCKET_TYPE 0xfu
/* libzmq and the C library list network interfaces with a socket of NETLINK_ROUTE. Datagram sockets
 * of AF_UNIX have two uses: libzmq and the C library ask the kernel for the number of an interface,
 * and notify.c sends messages to the service manager. */
static const struct {
	int family, type;
} socket_kinds[] = {{AF_INET, SOCK_STREAM}, {AF_INET, SOCK_DGRAM}, {AF_INET6, SOCK_STREAM},
	{AF_INET6, SOCK_DGRAM}, {AF_UNIX, SOCK_DGRAM}};
/* The ioctl requests that the filter allows: the server sets flags of sockets, and asks whether its
 * log is a terminal. If the filter allowed all requests, the process could type into its terminal
 * (TIOCSTI). */
static const unsigned device_requests[] = {
	FIONBIO, FIONREAD, FIOCLEX, TCGETS, TIOCGPGRP, TIOCGWINSZ, SIOCGIFINDEX, SIOCGIFNAME};

/* The commands of fcntl that the server and its libraries use, besides F_SETFL without O_ASYNC.
 * With F_SETOWN, F_SETSIG and O_ASYNC, a process could make a file descriptor send signals to any
 * process of the server's user. */
static const int descriptor_commands[] = {F_DUPFD, F_DUPFD_CLOEXEC, F_GETFD, F_SETFD, F_GETFL,
	F_GETLK, F_SETLK, F_SETLKW, F_OFD_GETLK, F_OFD_SETLK, F_OFD_SETLKW, F_ADD_SEALS,
	F_GET_SEALS, F_GETPIPE_SZ, F_SETPIPE_SZ};

/* The requests of NVIDIA's driver that the store of --store cuda:N makes. A request to a GPU has
 * the type 'F'. A request to nvidia-uvm is a number below 256, to which one or both of the bits
 * 0x30000000 may be added. */
#define REQUEST_TYPE   0xff00u
#define GPU_REQUEST    ((unsigned)'F' << 8)
#define NO_UVM_REQUEST (0xffffff00u & ~0x30000000u)

/* Returns a condition for a seccomp rule: the first argument of the system call is `value`. */
static struct scmp_arg_cmp first_is(scmp_datum_t value)
{
	return (struct scmp_arg_cmp){.op = SCMP_CMP_EQ, .datum_a = value};
}

/* Allows sockets of one kind. `protocol` is negative to allow all protocols. */
static int allow_socket(scmp_filter_ctx filter, int family, int type, int protocol)
{
	return seccomp_rule_add(filter, SCMP_ACT_ALLOW, CALL(socket), protocol < 0 ? 2 : 3,
		first_is((scmp_datum_t)family),
		SCMP_A1(SCMP_CMP_MASKED_EQ, SOCKET_TYPE, (scmp_datum_t)type),
		SCMP_A2(SCMP_CMP_EQ, protocol < 0 ? 0 : (scmp_datum_t)protocol, 0));
}

static int allow_sockets(scmp_filter_ctx filter, const struct options *o)
{
	int rc = allow_socket(filter, AF_NETLINK, SOCK_RAW, NETLINK_ROUTE);

	for (size_t i = 0; i < sizeof(socket_kinds) / sizeof(socket_kinds[0]); i++)
		rc |= allow_socket(filter, socket_kinds[i].family, socket_kinds[i].type, -1);
	if (o->key) /* selftest.c, the self-test of the keys, uses a private Unix socket */
		rc |= allow_socket(filter, AF_UNIX, SOCK_STREAM, -1);
	return rc;
}

static int allow_gpu(scmp_filter_ctx filter)
{
	int rc = seccomp_rule_add(filter, SCMP_ACT_ALLOW, CALL(ioctl), 1,
		SCMP_A1(SCMP_CMP_MASKED_EQ, REQUEST_TYPE, GPU_REQUEST));

	return rc | seccomp_rule_add(filter, SCMP_ACT_ALLOW, CALL(ioctl), 1,
			    SCMP_A1(SCMP_CMP_MASKED_EQ, NO_UVM_REQUEST, 0));
}

static int allow_descriptor_commands(scmp_filter_ctx filter)
{
	const size_t n = sizeof(descriptor_commands) / sizeof(descriptor_commands[0]);
	int rc = seccomp_rule_add(filter, SCMP_ACT_ALLOW, CALL(fcntl), 2,
		SCMP_A1(SCMP_CMP_EQ, F_SETFL, 0), SCMP_A2(SCMP_CMP_MASKED_EQ, O_ASYNC, 0));

	for (size_t i = 0; i < n; i++)
		rc |= seccomp_rule_add(filter, SCMP_ACT_ALLOW, CALL(fcntl), 1,
			SCMP_A1(SCMP_CMP_EQ, (scmp_datum_t)descriptor_commands[i], 0));
	return rc;
}

static int add_rules(scmp_filter_ctx filter, const struct options *o)
{
	int rc = allow_sockets(filter, o) | allow_descriptor_commands(filter);

	if (o->store_gpu >= 0)
		rc |= allow_gpu(filter);

	for (size_t i = 0; i < sizeof(allowed_calls) / sizeof(allowed_calls[0]); i++)
		rc |= seccomp_rule_add(filter, SCMP_ACT_ALLOW, allowed_calls[i], 0);
	for (size_t i = 0; i < sizeof(deadly_calls) / sizeof(deadly_calls[0]); i++)
		rc |= seccomp_rule_add(filter, SCMP_ACT_KILL_PROCESS, deadly_calls[i], 0);
	for (size_t i = 0; i < sizeof(device_requests) / sizeof(device_requests[0]); i++)
		rc |= seccomp_rule_add(filter, SCMP_ACT_ALLOW, CALL(ioctl), 1,
			SCMP_A1(SCMP_CMP_EQ, device_requests[i], 0));
	/* The process may start threads, but no other process. A filter cannot check the arguments
	 * of clone3, because they lie in memory. The filter therefore lets clone3 fail, and the C
	 * library calls clone instead. */
	rc |= seccomp_rule_add(filter, SCMP_ACT_ALLOW, CALL(clone), 1,
		SCMP_A0(SCMP_CMP_MASKED_EQ, CLONE_THREAD, CLONE_THREAD));
	rc |= seccomp_rule_add(filter, SCMP_ACT_ERRNO(ENOSYS), CALL(clone3), 0);
	/* The process can neither make memory executable nor map a file as code. All libraries are
	 * mapped before the process enters the sandbox. */
	rc |= seccomp_rule_add(filter, SCMP_ACT_ALLOW, CALL(mprotect), 1,
		SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, 0));
	rc |= seccomp_rule_add(
		filter, SCMP_ACT_ALLOW, CALL(mmap), 1, SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, 0));
	/* The process can send signals only to itself, and change only its own limits. The process
	 * can still choose the processors of other processes of its user, because sched_setaffinity
	 * takes the id of any thread. */
	for (size_t i = 0; i < sizeof(calls_on_itself) / sizeof(calls_on_itself[0]); i++)
		rc |= seccomp_rule_add(filter, SCMP_ACT_ALLOW, calls_on_itself[i], 1,
			first_is((scmp_datum_t)getpid()));
	rc |= seccomp_rule_add(filter, SCMP_ACT_ALLOW, CALL(prlimit64), 1, first_is(0));
	/* on a CPU whose kernel lacks the system call getpgrp, the C library calls getpgid(0) */
	rc |= seccomp_rule_add(filter, SCMP_ACT_ALLOW, CALL(getpgid), 1, first_is(0));
	return rc;
}

static int confine_calls(const struct options *o)
{
	scmp_filter_ctx filter = seccomp_init(SCMP_ACT_ERRNO(EPERM));
	int rc;

	if (!filter)
		return -1;
	rc = seccomp_attr_set(filter, SCMP_FLTATR_CTL_TSYNC, 1);
	if (rc == 0)
		rc = add_rules(filter, o);
	if (rc == 0)
		rc = seccomp_load(filter);
	seccomp_release(filter);
	return rc;
}

/* ---- all mechanisms -------------------------------------------------------------------------- */

int sandbox_enter(struct options *o, struct err *e)
{
	const char *none = "", *privileges = none, *capabilities = none, *files = none,
		   *calls = none;

	o->made_checkpoint_dir =
		o->checkpoint_dir && faccessat(AT_FDCWD, o->checkpoint_dir, F_OK, 0) != 0;
	int rc = o->checkpoint_dir ? file_make_dir(o->checkpoint_dir, e) : PS_OK;
	if (rc)
		return rc;
	/* make the socket of the lanes now: in the sandbox the process has no right to make it,
	 * because such a right would hold for everything beneath the directory of the socket */
	if (!o->lane_path[0] || share_listen(o->lane_path, &o->lane_fd, &o->lane_why))
		o->lane_fd = -1;
	if (o->sandbox == SANDBOX_OFF || (SANITIZED && o->sandbox == SANDBOX_AUTO))
		return PS_OK;
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
		privileges = " no_new_privs";
	if (drop_capabilities(o) != 0)
		capabilities = " capabilities";
	if (confine_files(o) != 0)
		files = " Landlock";
	if (confine_calls(o) != 0)
		calls = " seccomp";
	if (privileges == none && capabilities == none && files == none && calls == none) {
		log_debug("sandbox", "on", "checkpoint_dir=\"%s\"",
			o->checkpoint_dir ? o->checkpoint_dir : "");
		return PS_OK;
	}
	if (o->sandbox == SANDBOX_REQUIRE)
		return err_set(e, PS_EUSAGE,
			"--sandbox: require, but this system does not permit:%s%s%s%s "
			"(docs/operations.md, \"Sandbox\")",
			privileges, capabilities, files, calls);
	log_warn("sandbox", "incomplete", "missing=\"%s%s%s%s\"", privileges, capabilities, files,
		calls);
	return PS_OK;
}
