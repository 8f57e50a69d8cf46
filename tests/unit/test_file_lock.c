/* Proves the promises of common/file.h about the lock of a directory. */
#include <signal.h>
#include <sys/wait.h>
#include "common/file.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test.h"

static struct err e;

TEST_IN(the_second_to_lock_a_directory_learns_the_firsts_pid, temp_dir_set_up, temp_dir_tear_down)
{
	int fd, pipe_fds[2], status;
	char byte, text[32];

	assert_int_equal(pipe(pipe_fds), 0);
	pid_t holder = fork();
	if (holder == 0) {
		int rc = file_lock_dir(temp_dir, &fd, &e);

		byte = rc == PS_OK ? 'y' : 'n';
		if (write(pipe_fds[1], &byte, 1) != 1)
			_exit(1);
		for (;;)
			pause(); /* keeps the lock until the test kills this child */
	}
	assert_int_equal(read(pipe_fds[0], &byte, 1), 1);
	assert_int_equal(byte, 'y');
	assert_int_equal(file_lock_dir(temp_dir, &fd, &e), PS_ELOCKED);
	assert_int_equal(fd, -1);
	snprintf(text, sizeof(text), "process %ld;", (long)holder);
	assert_non_null(strstr(e.text, text));
	kill(holder, SIGKILL);
	assert_int_equal(waitpid(holder, &status, 0), holder);
	/* succeeds, because the lock of a process ends when the process is killed */
	assert_int_equal(file_lock_dir(temp_dir, &fd, &e), PS_OK);
	snprintf(text, sizeof(text), "%ld\n", (long)getpid());
	temp_dir_assert_holds(temp_dir, "LOCK", text);
	int again;
	/* even the same process cannot lock the directory twice */
	assert_int_equal(file_lock_dir(temp_dir, &again, &e), PS_ELOCKED);
	close(fd);
	assert_int_equal(file_lock_dir(temp_dir, &fd, &e), PS_OK);
	close(fd);
	close(pipe_fds[0]);
	close(pipe_fds[1]);
}

/* The lock of a killed process may stay for a moment, because the kernel frees the memory of the
 * process before it releases the lock. The next process must wait for this. */
TEST_IN(a_dying_holder_is_waited_for, temp_dir_set_up, temp_dir_tear_down)
{
	const size_t bytes = (size_t)256 << 20;
	int ready[2], fd, status;
	char byte = 0;

	assert_int_equal(pipe(ready), 0);
	pid_t holder = fork();
	if (holder == 0) {
		char *memory = malloc(bytes);
		int rc = file_lock_dir(temp_dir, &fd, &e);

		if (memory && rc == PS_OK)
			memset(memory, 1, bytes);
		if (write(ready[1], &byte, 1) != 1 || rc)
			_exit(1);
		for (;;)
			pause();
	}
	assert_int_equal(read(ready[0], &byte, 1), 1);
	assert_int_equal(kill(holder, SIGKILL), 0);
	assert_int_equal(file_lock_dir(temp_dir, &fd, &e), PS_OK);
	close(fd);
	assert_int_equal(waitpid(holder, &status, 0), holder);
	close(ready[0]);
	close(ready[1]);
}

TEST_IN(a_lock_file_with_rubbish_in_it_still_locks, temp_dir_set_up, temp_dir_tear_down)
{
	int first, second;
	char rubbish[4096];

	memset(rubbish, 0xff, sizeof(rubbish));
	temp_dir_write(temp_dir, "LOCK", rubbish, sizeof(rubbish));
	assert_int_equal(file_lock_dir(temp_dir, &first, &e), PS_OK);
	temp_dir_write(temp_dir, "LOCK", rubbish, sizeof(rubbish));
	assert_int_equal(file_lock_dir(temp_dir, &second, &e), PS_ELOCKED);
	assert_non_null(strstr(e.text, "locked by another process"));
	close(first);
	assert_int_equal(file_lock_dir("/nonexistent-directory", &first, &e), PS_EIO);
}
