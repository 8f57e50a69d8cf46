/*
 * cursor.h - a cursor visits the fields of a snapshot in order, and counts their bytes, writes
 * them, or reads them. One pass over the fields does one of these three things. In snapshot.c,
 * config.c and snapshot_v5.c, one function for each struct serves for all three kinds of pass.
 *
 * Numbers are little-endian, 8 bytes each. A cursor never reads past the end of its input. The
 * first field that exceeds the input sets the error of the cursor, and this field and all later
 * ones are read as zeros.
 */
#ifndef SERVER_CORE_CURSOR_H
#define SERVER_CORE_CURSOR_H
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include "common/le.h"

#define MALFORMED "a section of it is malformed"

/* A cursor reads if `in` is set, writes if `out` is set, and only counts bytes if both are NULL. A
 * writing cursor only counts bytes from the first field on for which `out` has no room. */
struct cursor {
	unsigned char *out;      /* writing: the output; NULL: reading or counting */
	const unsigned char *in; /* reading: the input; NULL: writing or counting */
	/* at: number of bytes so far; size: number of bytes of `in`; room: number of bytes of
	 * `out`, or 0 if it is NULL */
	size_t at, size, room;
	const char *error; /* the reason why the snapshot is refused; NULL: no error */
	/* 1: the snapshot is sound, but the options of this start do not fit it */
	int is_option_error;
};

/* Sets the error of the cursor, unless it has one already. */
static inline void set_error(struct cursor *k, const char *why)
{
	if (!k->error)
		k->error = why;
}

/* Sets an error that refuses a sound snapshot, because the options of this start do not fit it. */
static inline void set_option_error(struct cursor *k, const char *why)
{
	if (!k->error)
		k->is_option_error = 1;
	set_error(k, why);
}

static inline void refuse_over(struct cursor *k, uint64_t v, uint64_t max)
{
	if (v > max)
		set_error(k, MALFORMED);
}

/* Returns the place for the next `n` bytes of a writing cursor, or NULL if the cursor only counts
 * them. Do not pass a reading cursor. */
static inline unsigned char *cursor_place(struct cursor *k, size_t n)
{
	/* If there is no room for a field, there is none for a later one, because `at` grows. A
	 * counting cursor has room for 0 bytes only, and C does not define NULL + 0. */
	unsigned char *to = n > 0 && k->at + n <= k->room ? k->out + k->at : NULL;

	k->at += n;
	return to;
}

static inline void bytes(struct cursor *k, void *p, size_t n)
{
	if (!k->in) {
		unsigned char *to = cursor_place(k, n);

		if (to)
			memcpy(to, p, n);
		return;
	}
	if (n > k->size - k->at)
		set_error(k, MALFORMED);
	if (k->error) {
		memset(p, 0, n);
		return;
	}
	memcpy(p, k->in + k->at, n);
	k->at += n;
}

static inline void u64(struct cursor *k, uint64_t *v)
{
	unsigned char b[8];

	if (!k->in) {
		unsigned char *to = cursor_place(k, sizeof(b));

		if (to)
			le64_put(to, *v);
		return;
	}
	bytes(k, b, sizeof(b));
	*v = le64_get(b);
}

static inline void u32(struct cursor *k, uint32_t *v)
{
	uint64_t x = *v;

	u64(k, &x);
	refuse_over(k, x, UINT32_MAX);
	*v = (uint32_t)x;
}

/* Does the same as u32 for each of the `n` numbers. */
static inline void u32s(struct cursor *k, uint32_t *v, size_t n)
{
	unsigned char *to = k->in ? NULL : cursor_place(k, 8 * n);

	for (size_t i = 0; i < n && to; i++)
		le64_put(to + 8 * i, v[i]);
	for (size_t i = 0; i < n && k->in; i++)
		u32(k, &v[i]);
}

static inline void flag(struct cursor *k, int *v)
{
	uint64_t x = *v != 0;

	u64(k, &x);
	refuse_over(k, x, 1);
	*v = x == 1;
}

static inline void f64(struct cursor *k, double *v)
{
	uint64_t x;

	memcpy(&x, v, 8);
	u64(k, &x);
	memcpy(v, &x, 8);
}

/* Returns a part of the writing cursor `k`: a second cursor that writes the next fields from the
 * place of `k` on. The caller has checked that `k` has room for these fields. The caller passes the
 * part only to functions that are inlined, so that the compiler knows the offset of each field in
 * the output. After the part has written its fields, the caller calls cursor_join, which adds their
 * bytes to those of `k`. */
static inline struct cursor cursor_part(const struct cursor *k)
{
	return (struct cursor){.out = k->out + k->at, .room = SIZE_MAX};
}

static inline void cursor_join(struct cursor *k, const struct cursor *part)
{
	k->at += part->at;
	if (part->error)
		set_error(k, part->error);
}

/* Returns 1 if `k` writes, `n` is not 0, and `k` has room for `n` bytes. */
static inline int cursor_has_room(const struct cursor *k, size_t n)
{
	return n > 0 && k->at + n <= k->room;
}

/* The values of a float32 array are stored as they are in memory, because this program runs only on
 * little-endian machines (le.h). */
static inline void floats(struct cursor *k, float *v, size_t n)
{
	bytes(k, v, n * sizeof(float));
}

static inline void doubles(struct cursor *k, double *v, size_t n)
{
	bytes(k, v, n * sizeof(double));
}

static inline void text(struct cursor *k, char *s, size_t room)
{
	bytes(k, s, room);
	if (s[room - 1] != '\0')
		set_error(k, MALFORMED);
}

#endif
