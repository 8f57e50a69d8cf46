/*
 * class_names.h - the names of the classes of a data set, which cnn-ctl convert writes to
 * classes.txt, one per line in the order of their numbers.
 *
 * Thread: any.
 */
#ifndef WORKER_DATA_CLASS_NAMES_H
#define WORKER_DATA_CLASS_NAMES_H
#include <stddef.h>

/* bytes of a name with its NUL; longer names are cut */
#define CLASS_NAME 64

struct class_names {
	char (*name)[CLASS_NAME]; /* the names, owned; NULL: there are no names */
	size_t n;
};

/* Reads the names from classes.txt in `dir`. If there is no such file, or if it has more names than
 * the model has classes, there are no names. */
void class_names_read(struct class_names *c, const char *dir, size_t classes);
void class_names_release(struct class_names *c);
/* Returns the name of a class, or "" if it has none. `c` may be NULL. */
const char *class_names_get(const struct class_names *c, size_t class);

#endif
