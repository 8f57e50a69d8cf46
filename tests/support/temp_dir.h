/* temp_dir.h - a temporary directory of a test, and the files in it. */
#ifndef TESTS_SUPPORT_TEMP_DIR_H
#define TESTS_SUPPORT_TEMP_DIR_H
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Create a directory and write its path to `out`. */
void temp_dir_make(char out[64]);
/* Remove the directory and its files. The directory must not contain other directories. */
void temp_dir_remove(const char *dir);
/* Write the path dir/name to `out`. Returns `out`. */
const char *temp_dir_path(const char *dir, const char *name, char out[320]);
/* Write `size` bytes as the whole content of dir/name. */
void temp_dir_write(const char *dir, const char *name, const void *data, size_t size);
/* Write `size` bytes as the whole content of the file `path`. */
void temp_file_put(const char *path, const void *data, size_t size);
int temp_dir_exists(const char *dir, const char *name);
/* Check that the whole content of dir/name is `text`. */
void temp_dir_assert_holds(const char *dir, const char *name, const char *text);

/* The directory for a test program that needs only one. TEST_IN and TEST_GROUP take
 * temp_dir_set_up, which creates it, and temp_dir_tear_down, which removes it. */
extern char temp_dir[64];
int temp_dir_set_up(void **state);
int temp_dir_tear_down(void **state);

#endif
