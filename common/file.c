/*
 * file.c - see file.h.
 */
#include "common/file.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include "common/io.h"
#include "common/mem.h"

/* LOCK_LIVING_MS and LOCK_DYING_MS limit the wait for the lock of a directory. If a live process
 * has the lock, the wait fails after LOCK_LIVING_MS. A killed process keeps its lock until the
 * kernel has freed its memory, which takes seconds for gigabytes. If the process that holds the
 * lock is ending, the wait therefore takes up to LOCK_DYING_MS. */
#define LOCK_PAUSE_MS  2
#define LOCK_LIVING_MS 60
#define LOCK_DYING_MS  5000

/* Connections of unknown peers may use up all file descriptors for a short time, until the server
 * closes these connections. If an open fails for this reason, the code repeats it every
 * DESCRIPTOR_PAUSE_MS, for at most DESCRIPTOR_MS. */
#define DESCRIPTOR_PAUSE_MS 5
#define DESCRIPTOR_MS       500

/* The modes of new files, from which the umask removes bits. */
#define MODE_SHARED  0644
#define MODE_PRIVATE 0600

#define MAX_NAME_BYTES 251 /* the name with ".tmp" has at most 255 bytes, the limit of Linux */

int file_no_space(int error)
{
	return error == ENOSPC || error == EDQUOT;
}

/* Checks that the size of the file is the sum of the sizes of the parts. The check is needed
 * because some disks report success although data are lost. Such a loss would be final, because
 * workers discard their copies of data that the server reports as durable. */
static int check_written(int fd, const struct file_part *parts, size_t n_parts)
{
	struct stat st;
	size_t size = 0;

	for (size_t i = 0; i < n_parts; i++)
		size += parts[i].size;
	if (fstat(fd, &st) != 0)
		return -1;
	errno = EIO;
	return (uintmax_t)st.st_size == size ? 0 : -1;
}

/* The caller calls this function after an open has failed. If the process had no free descriptor
 * and the time limit is not over, sleeps for a moment and returns 1, so that the caller tries
 * again. In all other cases, returns 0 at once. */
static int wait_for_descriptor(int *waited_ms)
{
	const struct timespec pause = {.tv_nsec = DESCRIPTOR_PAUSE_MS * 1000000};

	if ((errno != EMFILE && errno != ENFILE) || *waited_ms >= DESCRIPTOR_MS)
		return 0;
	*waited_ms += DESCRIPTOR_PAUSE_MS;
	nanosleep(&pause, NULL);
	return 1;
}

/* Creates dir_fd/name with the mode `mode`, writes the parts and syncs them. Returns 0 on success.
 * After a failure, returns -1 with errno, and sets *step to the name of the step that failed. */
static int write_synced(int dir_fd, const char *name, mode_t mode, const struct file_part *parts,
	size_t n_parts, const char **step)
{
	int fd, waited_ms = 0;

	*step = "create";
	/* a file that an earlier process has left may have another mode, and a process of another
	 * user may have opened it */
	if (mode == MODE_PRIVATE)
		(void)unlinkat(dir_fd, name, 0);
	do
		fd = openat(
			dir_fd, name, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, mode);
	while (fd < 0 && wait_for_descriptor(&waited_ms));
	if (fd < 0)
		return -1;
	*step = "write";
	for (size_t i = 0; i < n_parts; i++)
		if (io_write_all(fd, parts[i].data, parts[i].size) != 0)
			goto failed;
	if (check_written(fd, parts, n_parts) != 0)
		goto failed;
	*step = "fsync";
	if (fsync(fd) != 0)
		goto failed;
	*step = "close";
	return close(fd);
failed:;
	int first_errno = errno;
	close(fd);
	errno = first_errno;
	return -1;
}

/* Checks the name for file_replace: if a file of this name exists, it must be a regular one. The
 * check is needed because a rename would replace a device or a link such as /dev/stdout instead of
 * writing to it. */
static int check_file_name(int dir_fd, const char *dir, const char *name, struct err *e)
{
	struct stat st;
	size_t n = strlen(name);

	if (n == 0 || n > MAX_NAME_BYTES || strchr(name, '/'))
		return err_set(e, PS_EIO,
			"\"%.300s\" in %s: not a file name; expected 1 to %d bytes without a slash",
			name, dir, MAX_NAME_BYTES);
	if (fstatat(dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && !S_ISREG(st.st_mode))
		return err_set(e, PS_EIO, "%s/%s: not a regular file", dir, name);
	return PS_OK;
}

static int replace_in(int dir_fd, const char *dir, const char *name, mode_t mode,
	const struct file_part *parts, size_t n_parts, struct err *e)
{
	char temporary[MAX_NAME_BYTES + 5];
	const char *step;
	int rc = check_file_name(dir_fd, dir, name, e);

	if (rc)
		return rc;
	memcpy(temporary, name, strlen(name));
	memcpy(temporary + strlen(name), ".tmp", sizeof(".tmp"));
	if (write_synced(dir_fd, temporary, mode, parts, n_parts, &step) == 0) {
		step = "rename";
		if (renameat(dir_fd, temporary, dir_fd, name) == 0) {
			if (fsync(dir_fd) == 0)
				return PS_OK;
			return err_set(
				e, PS_EIO, "%s: fsync of the directory: %s", dir, strerror(errno));
		}
	}
	int first_errno = errno;
	unlinkat(dir_fd, temporary, 0);
	rc = err_set(e, PS_EIO, "%s/%s: %s: %s", dir, temporary, step, strerror(first_errno));
	errno = first_errno;
	return rc;
}

static int replace_with_mode(const char *dir, const char *name, mode_t mode,
	const struct file_part *parts, size_t n_parts, struct err *e)
{
	int dir_fd, waited_ms = 0;

	do
		dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	while (dir_fd < 0 && wait_for_descriptor(&waited_ms));
	if (dir_fd < 0)
		return err_set(e, PS_EIO, "%s: open directory: %s", dir, strerror(errno));
	int rc = replace_in(dir_fd, dir, name, mode, parts, n_parts, e), first_errno = errno;
	close(dir_fd);
	errno = first_errno;
	return rc;
}

int file_replace(const char *dir, const char *name, const struct file_part *parts, size_t n_parts,
	struct err *e)
{
	return replace_with_mode(dir, name, MODE_SHARED, parts, n_parts, e);
}

int file_replace_private(const char *dir, const char *name, const struct file_part *parts,
	size_t n_parts, struct err *e)
{
	return replace_with_mode(dir, name, MODE_PRIVATE, parts, n_parts, e);
}

/* Sets `dir` to the directory of the file `path`, and *name to the name of the file in this
 * directory. */
static int split_path(const char *path, char dir[4096], const char **name, struct err *e)
{
	const char *slash = strrchr(path, '/');
	const size_t n = slash ? (size_t)(slash - path) : 0;

	if (n >= 4096)
		return err_set(e, PS_EIO, "%.100s...: path too long", path);
	snprintf(dir, 4096, "%.*s", (int)n, path);
	if (n == 0)
		snprintf(dir, 4096, "%s", slash ? "/" : ".");
	*name = slash ? slash + 1 : path;
	return PS_OK;
}

int file_replace_path(
	const char *path, const struct file_part *parts, size_t n_parts, struct err *e)
{
	char dir[4096];
	const char *name = path;
	int rc = split_path(path, dir, &name, e);

	return rc ? rc : file_replace(dir, name, parts, n_parts, e);
}

/* Reads exactly `size` bytes and checks that no byte follows them. */
static int read_exactly(int fd, const char *path, unsigned char *bytes, size_t size, struct err *e)
{
	for (size_t have = 0;;) {
		unsigned char beyond;

		ssize_t got =
			have < size ? read(fd, bytes + have, size - have) : read(fd, &beyond, 1);
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return err_set(e, PS_EIO, "%s: read: %s", path, strerror(errno));
		if (got == 0 && have == size)
			return PS_OK;
		if (got == 0 || have == size)
			return err_set(e, PS_EIO, "%s: its size changed while it was read", path);
		have += (size_t)got;
	}
}

static int read_open(int fd, const char *path, size_t max, void **data, size_t *size, struct err *e)
{
	struct stat st;

	if (fstat(fd, &st) != 0)
		return err_set(e, PS_EIO, "%s: stat: %s", path, strerror(errno));
	if (!S_ISREG(st.st_mode))
		return err_set(e, PS_EIO, "%s: not a regular file", path);
	if ((uintmax_t)st.st_size > max)
		return err_set(e, PS_ETOOBIG, "%s: %jd bytes; at most %zu are read", path,
			(intmax_t)st.st_size, max);
	size_t n = (size_t)st.st_size;
	unsigned char *bytes = mem_try(n, 1);
	if (!bytes)
		return err_set(e, PS_EIO, "%s: no memory for its %zu bytes", path, n);
	int rc = read_exactly(fd, path, bytes, n, e);
	if (rc) {
		free(bytes);
		return rc;
	}
	*data = bytes;
	*size = n;
	return PS_OK;
}

int file_read(const char *path, size_t max, void **data, size_t *size, struct err *e)
{
	*data = NULL;
	*size = 0;
	/* O_NONBLOCK, so that open does not wait if `path` is a FIFO, which read_open refuses */
	int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);

	if (fd < 0)
		return err_set(e, PS_EIO, "%s: open: %s", path, strerror(errno));
	int rc = read_open(fd, path, max, data, size, e);
	close(fd);
	return rc;
}

int file_make_dir(const char *dir, struct err *e)
{
	struct stat st;

	if (mkdir(dir, 0755) != 0 && errno != EEXIST)
		return err_set(
			e, PS_EUSAGE, "%s: cannot create the directory: %s", dir, strerror(errno));
	if (stat(dir, &st) != 0)
		return err_set(e, PS_EUSAGE, "%s: %s", dir, strerror(errno));
	if (!S_ISDIR(st.st_mode))
		return err_set(e, PS_EUSAGE, "%s: not a directory", dir);
	if (faccessat(AT_FDCWD, dir, W_OK | X_OK, AT_EACCESS) != 0)
		return err_set(e, PS_EUSAGE, "%s: cannot be written to: %s", dir, strerror(errno));
	return PS_OK;
}

int file_make_dirs(const char *dir, struct err *e)
{
	char parent[4096];

	for (const char *slash = strchr(dir, '/'); slash; slash = strchr(slash + 1, '/')) {
		const size_t n = (size_t)(slash - dir);

		if (n == 0 || n >= sizeof(parent))
			continue;
		snprintf(parent, sizeof(parent), "%.*s", (int)n, dir);
		/* if `dir` cannot be created, file_make_dir reports the error */
		(void)mkdir(parent, 0755);
	}
	return file_make_dir(dir, e);
}

/* Checks that `path` has the type `type` (S_IFDIR or S_IFREG) and that this process has the access
 * rights `rights` (R_OK and the like). */
static int check_path(
	const char *path, mode_t type, int rights, const char *expected, struct err *e)
{
	struct stat st;

	if (stat(path, &st) != 0)
		return err_set(e, PS_EUSAGE, "%.200s: %s; %s", path, strerror(errno), expected);
	if ((st.st_mode & S_IFMT) != type)
		return err_set(e, PS_EUSAGE, "%.200s: not a %s; %s", path,
			type == S_IFDIR ? "directory" : "regular file", expected);
	if (faccessat(AT_FDCWD, path, rights, AT_EACCESS) != 0)
		return err_set(e, PS_EUSAGE, "%.200s: %s; %s", path, strerror(errno), expected);
	return PS_OK;
}

int file_check_dir(const char *dir, const char *expected, struct err *e)
{
	return check_path(dir, S_IFDIR, R_OK | X_OK, expected, e);
}

int file_check_readable(const char *path, const char *expected, struct err *e)
{
	return check_path(path, S_IFREG, R_OK, expected, e);
}

int file_check_target(const char *path, struct err *e)
{
	static const char expected[] = "expected the path of a file that can be written";
	char dir[4096];
	const char *name = path;
	struct stat st;
	int rc = split_path(path, dir, &name, e);

	if (!rc)
		rc = check_path(dir, S_IFDIR, W_OK | X_OK, expected, e);
	if (!rc && (!*name || stat(path, &st) == 0))
		rc = check_path(path, S_IFREG, W_OK, expected, e);
	return rc;
}

/* Returns the pid that the holder of the lock has written into the file, or 0 if the file has no
 * number. */
static long read_holder(int fd)
{
	char text[32];
	ssize_t n = pread(fd, text, sizeof(text) - 1, 0);

	text[n > 0 ? n : 0] = '\0';
	return strtol(text, NULL, 10);
}

/* Returns 1 if the process is ending: it has no address space any more, but the kernel has not yet
 * released its locks. */
static int is_dying(long pid)
{
	char path[64], text[32];

	snprintf(path, sizeof(path), "/proc/%ld/statm", pid);
	int fd = pid > 0 ? open(path, O_RDONLY | O_CLOEXEC) : -1;
	ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof(text));
	if (fd >= 0)
		close(fd);
	return n >= 2 && memcmp(text, "0 ", 2) == 0;
}

static int refuse_lock(int fd, const char *dir, struct err *e)
{
	long pid = read_holder(fd);

	if (pid <= 0)
		return err_set(e, PS_ELOCKED,
			"%s is locked by another process; stop it or use another directory", dir);
	return err_set(e, PS_ELOCKED,
		"%s is locked by process %ld; stop it or use another directory", dir, pid);
}

/* Waits until the lock is free. The wait is needed because a server may start before the kernel has
 * released the lock of a server that was killed. */
static int wait_for_lock(int fd, const char *dir, struct err *e)
{
	const struct timespec pause = {.tv_nsec = LOCK_PAUSE_MS * 1000000};

	for (int waited = 0; flock(fd, LOCK_EX | LOCK_NB) != 0; waited += LOCK_PAUSE_MS) {
		if (errno != EINTR && errno != EWOULDBLOCK)
			return err_set(e, PS_EIO, "%s/LOCK: flock: %s", dir, strerror(errno));
		if (waited >= LOCK_DYING_MS ||
			(waited >= LOCK_LIVING_MS && !is_dying(read_holder(fd))))
			return refuse_lock(fd, dir, e);
		nanosleep(&pause, NULL);
	}
	return PS_OK;
}

static int take_lock(int fd, const char *dir, struct err *e)
{
	int rc = wait_for_lock(fd, dir, e);

	if (rc)
		return rc;
	char pid[32];
	int n = snprintf(pid, sizeof(pid), "%ld\n", (long)getpid());
	/* write before truncating: on a full disk, an emptied file may not get its block back */
	if (pwrite(fd, pid, (size_t)n, 0) != n || ftruncate(fd, n) != 0)
		return err_set(e, PS_EIO, "%s/LOCK: write: %s", dir, strerror(errno));
	return PS_OK;
}

int file_lock_dir(const char *dir, int *fd, struct err *e)
{
	*fd = -1;
	int dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (dir_fd < 0)
		return err_set(e, PS_EIO, "%s: open directory: %s", dir, strerror(errno));
	int lock = openat(dir_fd, "LOCK", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0644);
	int open_errno = errno;
	close(dir_fd);
	if (lock < 0)
		return err_set(e, PS_EIO, "%s/LOCK: open: %s", dir, strerror(open_errno));
	int rc = take_lock(lock, dir, e);
	if (rc) {
		close(lock);
		return rc;
	}
	*fd = lock;
	return PS_OK;
}
