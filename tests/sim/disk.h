/*
 * disk.h - a simulated disk with one directory, which gives no guarantee beyond those of POSIX. The
 * server's own code for files runs on this disk.
 *
 * The simulator links common/file.c, common/checkpoint.c, server/durability/checkpointer.c and
 * server/durability/startup.c unchanged. calls.c redirects their calls of the C library (ld --wrap)
 * to this file.
 *
 * After a power cut, a file has the content of its last fsync. In addition, any sectors of later
 * writes may have survived, and the size of the file is either its size at the last fsync or its
 * newest size. The directory has the entries of its last fsync. In addition, either the first few
 * of the links, renames and unlinks after that fsync have survived, or any subset of them. A rename
 * is atomic. If a process is killed, the disk loses no byte that the process has written, but the
 * kill may come in the middle of a write.
 *
 * All randomness comes from `rng`, so a seed always replays the same run. Not thread-safe.
 */
#ifndef TESTS_SIM_DISK_H
#define TESTS_SIM_DISK_H
#include <stddef.h>
#include <stdint.h>
#include "common/rng.h"

#define DISK_DIRECTORY "disk" /* path of the directory for the real file code */
#define DISK_FILES     64
#define DISK_CHANGES   48
#define DISK_OPEN      8
#define DISK_NAME      40
#define DISK_SECTOR    512u
#define DISK_NEVER     UINT32_MAX

struct disk_file {
	unsigned char *now; /* the content that processes see */
	/* the content at the last fsync: `safe` has only the bytes [from, to) of it; all other
	 * bytes are those of `now` */
	unsigned char *safe;
	size_t size, safe_size, room;
	int dirty; /* 1: the file has changed since the last fsync */
	size_t from, to;
};

/* This struct is an entry of the directory. */
struct disk_name {
	char text[DISK_NAME];
	int file; /* number of the file; < 0: this entry is unused */
};

/* This struct has the entries of the directory. The entries from number `end` on are unused. */
struct disk_names {
	struct disk_name entry[DISK_FILES];
	size_t end;
};

enum disk_change_kind { CHANGE_LINK, CHANGE_UNLINK, CHANGE_RENAME };

/* This struct describes a change of the directory since the directory's last fsync. */
struct disk_change {
	enum disk_change_kind kind;
	char name[DISK_NAME], to[DISK_NAME];
	int file;
};

struct disk_open {
	int file; /* number of the open file; < 0: the descriptor is closed */
	int is_directory, locked;
	size_t at;
};

struct disk {
	struct rng rng;
	struct disk_file file[DISK_FILES];
	struct disk_names now, safe;
	struct disk_change change[DISK_CHANGES];
	size_t n_changes;
	struct disk_open open[DISK_OPEN];
	size_t listing; /* index of the entry that readdir returns next */

	/* faults, per 1000 operations */
	/* rate of changes of files and names, and of syncs, that fail with EIO or ENOSPC */
	uint32_t fails;
	uint32_t shorts; /* rate of writes that store fewer bytes than the caller passed */
	/* This is the rate of syncs that report success but write nothing, which breaks the
	 * guarantees of POSIX. */
	uint32_t forgets;

	uint64_t capacity; /* the maximum number of bytes of all files; 0: no limit */
	uint32_t full;     /* the number of writes that failed because the disk was full */

	/* number of changes until the process is killed; DISK_NEVER: no kill */
	uint32_t ops_left;
	int dead;            /* 1: the process was killed, and its calls have no effect */
	int broken;          /* 1: the disk has lost durable data */
	int lied;            /* 1: a sync has reported success without writing */
	uint32_t peak_names; /* the largest number of entries so far */
	uint64_t ops, cuts;
};

void disk_init(struct disk *d);
void disk_release(struct disk *d);
/* Makes `d` an empty directory on a disk without faults. */
void disk_reset(struct disk *d, struct rng rng);
/* Closes the files of the server's process, which has died, and frees its lock, so that a new
 * process can start. */
void disk_killed(struct disk *d);
void disk_power_cut(struct disk *d);
/* Flips one bit of the newest file whose name begins with `prefix`. */
void disk_rot(struct disk *d, const char *prefix);
/* Returns the number of entries whose names begin with `prefix`. */
uint32_t disk_count(const struct disk *d, const char *prefix);

/* The functions disk_* behave like the system calls of the same names: after a failure they return
 * -1 and set errno. `name` has no slash. */
int disk_open_directory(struct disk *d);
int disk_open_file(struct disk *d, const char *name, int flags);
int disk_close(struct disk *d, int fd);
long disk_read(struct disk *d, int fd, void *bytes, size_t n);
long disk_write(struct disk *d, int fd, const void *bytes, size_t n);
int disk_truncate(struct disk *d, int fd, size_t size);
int disk_seek(struct disk *d, int fd, size_t at);
int disk_sync(struct disk *d, int fd);
int disk_rename(struct disk *d, const char *name, const char *to);
int disk_unlink(struct disk *d, const char *name);
int disk_lock(struct disk *d, int fd);
/* disk_size_of and disk_size return the size of a file, or -1 if there is no such file. */
long disk_size_of(struct disk *d, const char *name);
long disk_size(struct disk *d, int fd);
/* disk_next returns the name of the next entry since disk_rewind, or NULL if there are no more
 * entries. */
void disk_rewind(struct disk *d);
const char *disk_next(struct disk *d);

#endif
