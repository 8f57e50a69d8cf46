/* test_keys.c - tests which key files and lists of authorized keys are accepted and which are
 * refused, and that the two keys of a generated pair belong together. Covers attack A11 of
 * docs/faults.md. */
#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>
#include "common/authorized_keys.h"
#include "common/keys.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test.h"

static struct err e;

static int set_up_keys(void **state)
{
	(void)state;
	memset(&e, 0, sizeof(e));
	temp_dir_make(temp_dir);
	return 0;
}

static const char *path(const char *name)
{
	static char out[320];

	return temp_dir_path(temp_dir, name, out);
}

/* Writes a file with the content `text` and the mode `mode`. Returns its path. */
static const char *file(const char *text, unsigned mode)
{
	temp_dir_write(temp_dir, "file", text, strlen(text));
	assert_int_equal(chmod(path("file"), mode), 0);
	return path("file");
}

TEST_IN(a_pair_is_written_and_read, set_up_keys, temp_dir_tear_down)
{
	char key[KEY_TEXT], again[KEY_TEXT], public_key[KEY_TEXT];
	struct key_pair k;
	struct stat st;
	int made;

	assert_int_equal(key_make_files(temp_dir, "a", key, &made, &e), PS_OK);
	assert_true(made);
	assert_int_equal(stat(path("a.key"), &st), 0);
	assert_int_equal(st.st_mode & 07777, 0600);
	assert_int_equal(key_read_secret(path("a.key"), &k, &e), PS_OK);
	assert_string_equal(k.public_key, key);
	assert_int_equal(key_read_public(path("a.pub"), public_key, &e), PS_OK);
	assert_string_equal(public_key, key);
	assert_int_equal(key_make_files(temp_dir, "a", again, &made, &e), PS_OK);
	assert_false(made);
	assert_string_equal(again, key);
	assert_int_equal(unlink(path("a.pub")), 0);
	assert_int_equal(key_make_files(temp_dir, "a", again, &made, &e), PS_OK);
	assert_int_equal(key_read_public(path("a.pub"), public_key, &e), PS_OK);
	assert_string_equal(public_key, key);
	key_wipe(&k);
	for (size_t i = 0; i < sizeof(k); i++)
		assert_int_equal(((const char *)&k)[i], 0);
}

TEST_IN(halves_of_two_pairs_are_refused, set_up_keys, temp_dir_tear_down)
{
	char key[KEY_TEXT];
	int made;

	assert_int_equal(key_make_files(temp_dir, "a", key, &made, &e), PS_OK);
	assert_int_equal(unlink(path("a.key")), 0);
	assert_int_equal(key_make_files(temp_dir, "a", key, &made, &e), PS_EUSAGE);
	assert_non_null(strstr(e.text, "a.pub"));
}

static const char good[] = "cnn-ps secret key\nD:)Q[IlAW!ahhC2ac:9*A}h:p?([4%wOTJ%JR%cs\n";

TEST_IN(only_the_owner_may_read_a_secret, set_up_keys, temp_dir_tear_down)
{
	static const unsigned bad[] = {0644, 0640, 0604, 0610, 0601, 0660, 0777};
	struct key_pair k;

	assert_int_equal(key_read_secret(file(good, 0600), &k, &e), PS_OK);
	assert_int_equal(key_read_secret(file(good, 0400), &k, &e), PS_OK);
	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		assert_int_equal(key_read_secret(file(good, bad[i]), &k, &e), PS_EUSAGE);
		assert_non_null(strstr(e.text, "chmod 600"));
	}
}

/* A user who can write to the directory could replace the key file. */
TEST_IN(a_directory_that_others_can_write_to_is_refused, set_up_keys, temp_dir_tear_down)
{
	static const unsigned bad[] = {0777, 0770, 0707};
	struct key_pair k;

	(void)file(good, 0600);
	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		assert_int_equal(chmod(temp_dir, bad[i]), 0);
		assert_int_equal(key_read_secret(path("file"), &k, &e), PS_EUSAGE);
		assert_non_null(strstr(e.text, "chmod go-w"));
	}
	/* in a sticky directory such as /tmp, only the owner of a file can replace it */
	assert_int_equal(chmod(temp_dir, 01777), 0);
	assert_int_equal(key_read_secret(path("file"), &k, &e), PS_OK);
	assert_int_equal(chmod(temp_dir, 0755), 0);
	assert_int_equal(key_read_secret(path("file"), &k, &e), PS_OK);
}

/* A user who can write to a parent directory can replace the directory of the keys. */
TEST_IN(a_directory_above_that_others_can_write_to_is_refused, set_up_keys, temp_dir_tear_down)
{
	struct key_pair k;
	char keys[300], link[300];
	int open_to_all[2], sticky[2], of_another[2] = {PS_EUSAGE, PS_EUSAGE};
	int names_mode = 0, names_user = 0;

	snprintf(keys, sizeof(keys), "%s/a/b", temp_dir);
	snprintf(link, sizeof(link), "%s/link.key", temp_dir);
	assert_int_equal(mkdir(path("a"), 0755), 0);
	assert_int_equal(mkdir(keys, 0700), 0);
	(void)file(good, 0600);
	snprintf(keys, sizeof(keys), "%s/a/b/the.key", temp_dir);
	assert_int_equal(rename(path("file"), keys), 0);
	assert_int_equal(symlink("a/b/the.key", link), 0);
	/* first read both paths and remove the files, and only then compare the results */
	for (int i = 0; i < 2; i++) {
		const char *key = i ? link : keys;

		assert_int_equal(chmod(path("a"), 0777), 0);
		open_to_all[i] = key_read_secret(key, &k, &e);
		names_mode += !!strstr(e.text, "/a: mode 0777 permits others to replace");
		assert_int_equal(chmod(path("a"), 01777), 0);
		sticky[i] = key_read_secret(key, &k, &e);
		if (geteuid() != 0)
			continue;
		assert_int_equal(chown(path("a"), 12345, 0), 0);
		of_another[i] = key_read_secret(key, &k, &e);
		names_user += !!strstr(e.text, "/a: belongs to user 12345");
		assert_int_equal(chown(path("a"), 0, 0), 0);
	}
	assert_int_equal(unlink(keys) | unlink(link), 0);
	*strrchr(keys, '/') = '\0';
	assert_int_equal(rmdir(keys), 0);
	assert_int_equal(rmdir(path("a")), 0);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(open_to_all[i], PS_EUSAGE);
		assert_int_equal(sticky[i], PS_OK);
		assert_int_equal(of_another[i], PS_EUSAGE);
	}
	assert_int_equal(names_mode, 2);
	assert_int_equal(names_user, geteuid() == 0 ? 2 : 0);
}

/* Makes DIR/safe/the.key, the directory DIR/open, and two ways to the key: the link
 * DIR/open/link-dir to DIR/safe, and the link DIR/hop.key to DIR/open/hop, which is a link to the
 * key. */
static int set_up_links(void **state)
{
	set_up_keys(state);
	assert_int_equal(mkdir(path("safe"), 0700), 0);
	assert_int_equal(mkdir(path("open"), 0755), 0);
	temp_dir_write(temp_dir, "safe/the.key", good, strlen(good));
	assert_int_equal(chmod(path("safe/the.key"), 0600), 0);
	assert_int_equal(symlink("../safe", path("open/link-dir")), 0);
	assert_int_equal(symlink("open/hop", path("hop.key")), 0);
	char target[340];
	snprintf(target, sizeof(target), "%s/safe/the.key", temp_dir);
	assert_int_equal(symlink(target, path("open/hop")), 0);
	return 0;
}

static int tear_down_links(void **state)
{
	static const char *const files[] = {"open/hop", "hop.key", "open/link-dir", "safe/the.key"};

	for (size_t i = 0; i < sizeof(files) / sizeof(*files); i++)
		(void)unlink(path(files[i]));
	(void)rmdir(path("open"));
	(void)rmdir(path("safe"));
	return temp_dir_tear_down(state);
}

static const char *const ways[] = {"open/link-dir/the.key", "hop.key"};

TEST_IN(a_link_in_a_directory_that_others_can_write_to_is_refused, set_up_links, tear_down_links)
{
	struct key_pair k;

	for (size_t i = 0; i < sizeof(ways) / sizeof(*ways); i++) {
		assert_int_equal(chmod(path("open"), 0755), 0);
		assert_int_equal(key_read_secret(path(ways[i]), &k, &e), PS_OK);
		assert_int_equal(chmod(path("open"), 0777), 0);
		assert_int_equal(key_read_secret(path(ways[i]), &k, &e), PS_EUSAGE);
		assert_non_null(strstr(e.text, "/open: mode 0777 permits others to replace"));
		assert_int_equal(key_read_secret(path("safe/the.key"), &k, &e), PS_OK);
	}
	/* a relative path begins in the working directory */
	int before = open(".", O_PATH | O_DIRECTORY | O_CLOEXEC);
	assert_int_equal(chdir(temp_dir), 0);
	int relative = key_read_secret(ways[0], &k, &e),
	    safe = key_read_secret("safe/the.key", &k, &e);
	assert_int_equal(fchdir(before), 0);
	close(before);
	assert_int_equal(relative, PS_EUSAGE);
	assert_int_equal(safe, PS_OK);
}

/* Even in a sticky directory, the owner of a link can replace the link, so a link of another user
 * is refused. */
TEST_IN(a_link_of_another_user_in_a_sticky_directory_is_refused, set_up_links, tear_down_links)
{
	struct key_pair k;

	assert_int_equal(chmod(path("open"), 01777), 0);
	for (size_t i = 0; i < sizeof(ways) / sizeof(*ways); i++)
		assert_int_equal(key_read_secret(path(ways[i]), &k, &e), PS_OK);
	if (geteuid() != 0)
		return;
	assert_int_equal(lchown(path("open/link-dir"), 12345, 0), 0);
	assert_int_equal(lchown(path("open/hop"), 12345, 0), 0);
	for (size_t i = 0; i < sizeof(ways) / sizeof(*ways); i++) {
		assert_int_equal(key_read_secret(path(ways[i]), &k, &e), PS_EUSAGE);
		assert_non_null(strstr(e.text, "belongs to user 12345"));
	}
	/* nobody else can replace a link in this directory, whatever the owner of the link is */
	assert_int_equal(chmod(path("open"), 0755), 0);
	for (size_t i = 0; i < sizeof(ways) / sizeof(*ways); i++)
		assert_int_equal(key_read_secret(path(ways[i]), &k, &e), PS_OK);
}

TEST_IN(a_file_of_another_user_is_refused, set_up_keys, temp_dir_tear_down)
{
	struct key_pair k;

	if (geteuid() != 0)
		skip();
	assert_int_equal(chown(file(good, 0600), 12345, 0), 0);
	assert_int_equal(key_read_secret(path("file"), &k, &e), PS_EUSAGE);
	assert_non_null(strstr(e.text, "12345"));
}

/* Runs as user 12345 with the groups 12346 and 12347, and reads a key file with the group `group`
 * and the mode `mode`. Checks that the read returns the status `expected`. */
static void read_as_another_user(gid_t group, unsigned mode, int expected)
{
	static const gid_t groups[] = {12347};
	struct key_pair k;
	int status;
	pid_t child;

	assert_int_equal(chown(file(good, mode), 0, group), 0);
	assert_int_equal(chmod(path("file"), mode), 0);
	child = fork();
	if (child == 0) {
		if (setgroups(1, groups) || setgid(12346) || setuid(12345))
			_exit(2);
		_exit(key_read_secret(path("file"), &k, &e) == expected ? 0 : 1);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
}

/* Kubernetes mounts a secret as a file that belongs to root and to a group of the process. Only
 * because of this group may the process read the file. */
TEST_IN(a_file_of_root_for_the_own_group_is_accepted, set_up_keys, temp_dir_tear_down)
{
	if (geteuid() != 0)
		skip();
	assert_int_equal(chmod(temp_dir, 0755), 0);
	read_as_another_user(12346, 0440, PS_OK);
	read_as_another_user(12347, 0440, PS_OK);
	read_as_another_user(12347, 0640, PS_OK);
	read_as_another_user(12347, 0460, PS_EUSAGE);
	read_as_another_user(12347, 0444, PS_EUSAGE);
	read_as_another_user(12348, 0444, PS_EUSAGE);
	read_as_another_user(12348, 0440, PS_EUSAGE);
}

/* Gives user 12345 the right to read a file, as systemd does for a credential of a DynamicUser.
 * After that, the group bits of the file's mode show this right. Returns 0 if the file system has
 * no access control lists. */
static int let_user_read(const char *file_path)
{
	static const struct {
		uint32_t version;
		struct {
			uint16_t tag, rights;
			uint32_t id;
			/* entries: the owner, user 12345, the group, the mask, all others */
		} entry[5];
	} list = {2, {{0x01, 4, UINT32_MAX}, {0x02, 4, 12345}, {0x04, 0, UINT32_MAX},
			     {0x10, 4, UINT32_MAX}, {0x20, 0, UINT32_MAX}}};

	return setxattr(file_path, "system.posix_acl_access", &list, sizeof(list), 0) == 0;
}

TEST_IN(a_credential_of_systemd_is_accepted, set_up_keys, temp_dir_tear_down)
{
	struct key_pair k;
	struct stat st;
	int status;
	pid_t child;

	if (geteuid() != 0)
		skip();
	assert_int_equal(chmod(temp_dir, 0755), 0);
	file(good, 0400);
	if (!let_user_read(path("file")))
		skip();
	assert_int_equal(stat(path("file"), &st), 0);
	assert_int_equal(st.st_mode & 07777, 0440);
	child = fork();
	if (child == 0) {
		if (setgroups(0, NULL) || setgid(12346) || setuid(12345))
			_exit(2);
		_exit(key_read_secret(path("file"), &k, &e) == PS_OK ? 0 : 1);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
}

TEST_IN(what_is_no_key_file_is_refused, set_up_keys, temp_dir_tear_down)
{
	static const char *const bad[] = {"", "\n", "cnn-ps secret key\n",
		"cnn-ps secret key\nD:)Q[IlAW!ahhC2ac:9*A}h:p?([4%wOTJ%JR%c\n",
		"cnn-ps secret key\nD:)Q[IlAW!ahhC2ac:9*A}h:p?([4%wOTJ%JR%css\n",
		"cnn-ps secret key\nD:)Q[IlAW!ahhC2ac:9*A}h:p?([4%wOTJ%JR%cs\n\n",
		"cnn-ps secret key\nD:)Q[IlAW!ahhC2ac:9*A}h:p?([4%wOTJ%JR%c \n",
		"cnn-ps secret key\nD:)Q[IlAW!ahhC2ac:9*A}h:p?([4%wOTJ%JR%c\"\n",
		"cnn-ps public key\nD:)Q[IlAW!ahhC2ac:9*A}h:p?([4%wOTJ%JR%cs\n",
		"D:)Q[IlAW!ahhC2ac:9*A}h:p?([4%wOTJ%JR%cs\n"};
	struct key_pair k;

	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		assert_int_equal(key_read_secret(file(bad[i], 0600), &k, &e), PS_EUSAGE);
		/* the text of the error must not contain a part of the key */
		assert_null(strstr(e.text, "D:)Q"));
	}
	assert_int_equal(key_read_secret(path("absent"), &k, &e), PS_EUSAGE);
	assert_int_equal(key_read_secret("/dev/zero", &k, &e), PS_EUSAGE);
	assert_int_equal(key_read_secret(temp_dir, &k, &e), PS_EUSAGE);
}

#define W "D:)Q[IlAW!ahhC2ac:9*A}h:p?([4%wOTJ%JR%cs"
#define A "Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID"

TEST_IN(a_list_gives_roles, set_up_keys, temp_dir_tear_down)
{
	struct authorized_keys *a;

	const char *p =
		file("# keys and their roles\n\nworker " W " gpu 7\n  admin\t" A "\n", 0644);
	assert_int_equal(authorized_keys_read(&a, p, &e), PS_OK);
	assert_int_equal(authorized_keys_count(a), 2);
	assert_int_equal(authorized_keys_role(a, W), KEY_WORKER);
	assert_int_equal(authorized_keys_role(a, A), KEY_ADMIN);
	assert_int_equal(
		authorized_keys_role(a, "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"), KEY_NONE);
	assert_int_equal(authorized_keys_role(a, ""), KEY_NONE);
	authorized_keys_free(&a);
	assert_int_equal(authorized_keys_read(&a, file("", 0600), &e), PS_OK);
	assert_int_equal(authorized_keys_role(a, W), KEY_NONE);
	authorized_keys_free(&a);
}

TEST_IN(a_bad_list_is_refused_as_a_whole, set_up_keys, temp_dir_tear_down)
{
	static const char *const bad[] = {"worker\n", "worker " W "x\n", "root " W "\n",
		"none " W "\n", "worker " A "\nworker\n", "worker " A "\nadmin " A "\n"};
	struct authorized_keys *a;

	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		assert_int_equal(authorized_keys_read(&a, file(bad[i], 0644), &e), PS_EUSAGE);
		assert_null(a);
	}
	assert_int_equal(authorized_keys_read(&a, file("worker " W "\n", 0646), &e), PS_EUSAGE);
	assert_int_equal(authorized_keys_read(&a, file("worker " W "\n", 0664), &e), PS_EUSAGE);
	assert_int_equal(authorized_keys_read(&a, path("absent"), &e), PS_EUSAGE);
}

/* The server refuses to start if the list of keys has its old file name. If the server started, it
 * would ignore the old list, and nobody would notice that its keys are refused. */
TEST_IN(the_old_name_of_the_list_is_refused_with_the_new_one, set_up_keys, temp_dir_tear_down)
{
	struct authorized_keys *a;

	temp_dir_write(temp_dir, "allow", "worker " W "\n", strlen("worker " W "\n"));
	assert_int_equal(authorized_keys_read(&a, path("authorized_keys"), &e), PS_EUSAGE);
	assert_null(a);
	assert_non_null(strstr(e.text, "allow: was renamed"));
	assert_non_null(strstr(e.text, "authorized_keys"));
	memset(&e, 0, sizeof(e));
	assert_int_equal(
		authorized_keys_add(path("authorized_keys"), KEY_ADMIN, A, "", &e), PS_EUSAGE);
	assert_non_null(strstr(e.text, "allow: was renamed"));
	assert_int_equal(temp_dir_exists(temp_dir, "authorized_keys"), 0);
	/* if the user gives the path of the list, it may have the old file name */
	assert_int_equal(authorized_keys_read(&a, path("allow"), &e), PS_OK);
	authorized_keys_free(&a);
}

TEST_IN(a_key_is_added_once, set_up_keys, temp_dir_tear_down)
{
	struct authorized_keys *a;

	const char *p = path("list");
	assert_int_equal(authorized_keys_add(p, KEY_WORKER, W, "one", &e), PS_OK);
	assert_int_equal(authorized_keys_add(p, KEY_WORKER, W, "one", &e), PS_OK);
	assert_int_equal(authorized_keys_add(p, KEY_OBSERVER, A, "two", &e), PS_OK);
	assert_int_equal(authorized_keys_read(&a, p, &e), PS_OK);
	assert_int_equal(authorized_keys_count(a), 2);
	assert_int_equal(authorized_keys_role(a, A), KEY_OBSERVER);
	authorized_keys_free(&a);
}

/* On a full disk, the first write stores only a part of the text, but reports no error. */
TEST_IN(a_short_write_is_reported_with_its_cause, set_up_keys, temp_dir_tear_down)
{
	struct rlimit old, tight;
	struct err pair = {0};
	char key[KEY_TEXT];
	int added, made, is_new;

	signal(SIGXFSZ, SIG_IGN);
	getrlimit(RLIMIT_FSIZE, &old);
	tight = (struct rlimit){10, old.rlim_max};
	setrlimit(RLIMIT_FSIZE, &tight);
	added = authorized_keys_add(path("list"), KEY_WORKER, W, "one", &e);
	made = key_make_files(temp_dir, "one", key, &is_new, &pair);
	setrlimit(RLIMIT_FSIZE, &old);
	assert_int_equal(added, PS_EIO);
	assert_non_null(strstr(e.text, "File too large"));
	assert_int_equal(made, PS_EIO);
	assert_non_null(strstr(pair.text, "File too large"));
}
