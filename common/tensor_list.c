/* tensor_list.c - see tensor_list.h. */
#include "common/tensor_list.h"
#include <string.h>
#include "common/clones.h"

#define MAX_SLOTS (2 * TENSOR_LIST_LINES) /* slots in the largest table of names */

static const struct tensor_type types[] = {
	{"I64", 8, INT64_MIN, INT64_MAX},
	{"I32", 4, INT32_MIN, INT32_MAX},
	{"I16", 2, INT16_MIN, INT16_MAX},
	{"I8", 1, INT8_MIN, INT8_MAX},
	{"U8", 1, 0, UINT8_MAX},
	{"BOOL", 1, 0, 1},
};

/* ---- one line -------------------------------------------------------------------------------- */

static int is_name_byte(unsigned char c)
{
	return c > ' ' && c < 0x7f && c != '"' && c != '\\';
}

/* Reads a name that ends before the character `end`. Returns the number of bytes of the name, or 0
 * if the name is malformed. */
static size_t read_tensor_name(const char **at, char end)
{
	const char *begin = *at;
	size_t n = 0;

	while (n <= TENSOR_LIST_NAME && is_name_byte((unsigned char)begin[n]))
		n++;
	if (n > TENSOR_LIST_NAME || begin[n] != end)
		return 0;
	*at = begin + n + 1;
	return n;
}

static int is_digit(char c)
{
	return c >= '0' && c <= '9';
}

static int read_size(const char **at, size_t *out)
{
	size_t n = 0;

	if (**at == '0' || !is_digit(**at))
		return 0;
	for (; is_digit(**at); (*at)++) {
		n = 10 * n + (size_t)(**at - '0');
		if (n > TENSOR_LIST_COUNT)
			return 0;
	}
	*out = n;
	return 1;
}

static int read_shape(const char **at, struct tensor_line *l)
{
	const size_t scalar = strlen("scalar");

	l->count = 1;
	if (strncmp(*at, "scalar", scalar) == 0) {
		*at += scalar;
		return 1;
	}
	do {
		size_t *dim = &l->dim[l->n_dims];

		if (l->n_dims == TENSOR_LIST_DIMS || !read_size(at, dim))
			return 0;
		l->n_dims++;
		l->count *= *dim;
		if (l->count > TENSOR_LIST_COUNT)
			return 0;
	} while (*(*at)++ == 'x');
	(*at)--;
	return 1;
}

/* Reads a whole number without leading zeros. */
static int read_integer(const char **at, const struct tensor_type *type, int64_t *out)
{
	int is_negative = **at == '-';
	const char *digit = *at + is_negative;
	uint64_t n = 0, max = is_negative ? -(uint64_t)type->min : (uint64_t)type->max;

	if (!is_digit(*digit) || (*digit == '0' && (is_negative || is_digit(digit[1]))))
		return 0;
	for (; is_digit(*digit); digit++) {
		uint64_t d = (uint64_t)(*digit - '0');

		if (n > (max - d) / 10 || max < d)
			return 0;
		n = 10 * n + d;
	}
	*out = is_negative ? (int64_t)-n : (int64_t)n;
	*at = digit;
	return 1;
}

int64_t tensor_list_value(const char **values)
{
	int64_t v = 0;

	(void)read_integer(values, &types[0], &v);
	*values += **values == ',';
	return v;
}

static int read_values_of(const char **at, const struct tensor_line *l)
{
	int64_t v;

	for (size_t i = 0; i < l->count; i++) {
		if (!read_integer(at, l->type, &v))
			return 0;
		if (i + 1 < l->count && *(*at)++ != ',')
			return 0;
	}
	return 1;
}

static const char *read_constant(const char **at, struct tensor_line *l)
{
	for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
		size_t n = strlen(types[i].name);

		if (strncmp(*at, types[i].name, n) != 0 || (*at)[n] != ' ')
			continue;
		*at += n + 1;
		l->type = &types[i];
		if (!read_shape(at, l) || *(*at)++ != ' ')
			return "its shape is malformed";
		l->values = *at;
		return read_values_of(at, l) ? NULL : "its values do not fit its type and shape";
	}
	return "its type is not F32, I64, I32, I16, I8, U8 or BOOL";
}

const char *tensor_list_next(const char **list, struct tensor_line *l)
{
	const char *at = *list, *why = NULL;

	*l = (struct tensor_line){.name = at};
	l->name_bytes = read_tensor_name(&at, ' ');
	if (!l->name_bytes)
		return "its name is malformed";
	if (strncmp(at, "= ", 2) == 0) {
		l->other = at += 2;
		l->other_bytes = read_tensor_name(&at, '\n');
		*list = at;
		return l->other_bytes ? NULL : "its other name is malformed";
	}
	if (strncmp(at, "F32 ", 4) == 0) {
		at += 4;
		if (!read_shape(&at, l))
			return "its shape is malformed";
	} else {
		why = read_constant(&at, l);
	}
	if (!why && *at != '\n')
		why = "it does not end with a newline after its last field";
	*list = at + 1;
	return why;
}

/* ---- a list ---------------------------------------------------------------------------------- */

/* This struct is a hash table of the names read so far. An entry is 1 more than the offset of a
 * name in the list, or 0 if the entry is empty. */
struct names {
	const char *list;
	/* number of slots that this table has, a power of 2; the others are unused */
	uint32_t slots;
	uint32_t slot[MAX_SLOTS];
};

_Static_assert((MAX_SLOTS & (MAX_SLOTS - 1)) == 0, "a power of 2");

/* Sets the number of slots to at least twice the number of lines of the list, and clears these
 * slots. */
static void clear_names(struct names *t)
{
	uint32_t lines = 0;

	for (const char *at = t->list; (at = strchr(at, '\n')) && lines < TENSOR_LIST_LINES; at++)
		lines++;
	t->slots = 2;
	while (t->slots < 2 * lines)
		t->slots *= 2;
	memset(t->slot, 0, t->slots * sizeof(t->slot[0]));
}

/* Returns the slot of a name. If the table does not have the name, returns the empty slot in which
 * it belongs. */
static uint32_t *find_name(struct names *t, const char *name, size_t n)
{
	uint32_t hash = 2166136261u;

	for (size_t i = 0; i < n; i++)
		hash = (hash ^ (unsigned char)name[i]) * 16777619u;
	for (;; hash++) {
		uint32_t *slot = &t->slot[hash & (t->slots - 1)];

		/* memcmp reads no byte after the end of the list: each known name begins before
		 * `name`, so at least n bytes of the list follow */
		if (!*slot || (memcmp(t->list + *slot - 1, name, n) == 0 &&
				      t->list[*slot - 1 + n] == ' '))
			return slot;
	}
}

static const char *check_names(struct names *t, const struct tensor_line *l)
{
	uint32_t *slot = find_name(t, l->name, l->name_bytes), other;

	if (*slot)
		return "its name occurs twice";
	other = l->other ? *find_name(t, l->other, l->other_bytes) : 0;
	if (l->other && (!other || t->list[other + l->other_bytes] == '='))
		return "no earlier line describes the tensor of its other name";
	*slot = (uint32_t)(l->name - t->list) + 1;
	return NULL;
}

const char *tensor_list_check(const char *list, uint64_t n_params, uint64_t n_trained, size_t *line)
{
	PS_UNINITIALIZED struct names t;
	struct tensor_line l;
	uint64_t n = 0;
	const char *why;

	*line = 0;
	if (strnlen(list, TENSOR_LIST_BYTES + 1) > TENSOR_LIST_BYTES)
		return "it is too long";
	t.list = list;
	clear_names(&t);
	for (const char *at = list; *at;) {
		if (++*line > TENSOR_LIST_LINES)
			return "it has too many lines";
		why = tensor_list_next(&at, &l);
		if (!why)
			why = check_names(&t, &l);
		if (why)
			return why;
		if (l.type || l.other)
			continue;
		if (n < n_trained && n + l.count > n_trained && n_trained < n_params)
			return "a part of it is trained, and the rest is running statistics";
		n += l.count;
	}
	*line = 0;
	return n == n_params ? NULL : "its tensors have another number of values than the vector";
}

static const char *end_of_line(const char *at)
{
	return at + strcspn(at, "\n");
}

/* Returns the number of bytes of a line, but counts only those before the values of a constant. */
static size_t fixed_bytes(const char *at)
{
	struct tensor_line l;
	const char *next = at, *why = tensor_list_next(&next, &l);

	return (size_t)((!why && l.values ? l.values : end_of_line(at)) - at);
}

size_t tensor_list_difference(const char *a, const char *b)
{
	size_t line = 1;

	for (; *a && *b; line++) {
		size_t n = fixed_bytes(a);

		if (n != fixed_bytes(b) || memcmp(a, b, n) != 0)
			return line;
		a = end_of_line(a) + 1;
		b = end_of_line(b) + 1;
	}
	return *a || *b ? line : 0;
}
