/* config.c - see config.h. */
#include "server/core/config.h"
#include <math.h>
#include "common/assert.h"
#include "server/core/cursor.h"
#include "server/core/lbfgs.h"

#define MAX_NAME 63

/* NOLINTBEGIN(bugprone-macro-parentheses): the macros' arguments are names of members and
 * initialisers, which cannot stand in parentheses */
/* clang-format off */
#define MISMATCH(name) "it was begun with another --" name
#define AT(member, field) offsetof(struct core_config, member.field)
#define NUMBER(kind, m, f, n, d, min_, max_, a, r, sent, ...) \
	{.type = kind, .offset = AT(m, f), .name = n, .name_bytes = sizeof(n) - 1, .def = d, \
	 .min = min_, .max = max_, .arg = a, .resume = r, .mismatch = MISMATCH(n), .help = __VA_ARGS__},
#define GROUP(member, tag, title) {.type = CONFIG_GROUP, .help = title},
#define U32(...)  NUMBER(CONFIG_U32, __VA_ARGS__)
#define U64(...)  NUMBER(CONFIG_U64, __VA_ARGS__)
#define REAL(...) NUMBER(CONFIG_REAL, __VA_ARGS__)
#define ENUM(m, f, n, d, tag, names, first, a, r, sent, ...) \
	{.type = CONFIG_ENUM, .offset = AT(m, f), .name = n, .name_bytes = sizeof(n) - 1, .def = d, \
	 .min = first, .max = first, .values = names, .arg = a, .resume = r, \
	 .mismatch = MISMATCH(n), .help = __VA_ARGS__},
#define FLAG(m, f, n, r, sent, ...) \
	{.type = CONFIG_FLAG, .offset = AT(m, f), .name = n, .name_bytes = sizeof(n) - 1, .def = "0", \
	 .max = 1, .resume = r, .mismatch = MISMATCH(n), .help = __VA_ARGS__},
/* clang-format on */
/* NOLINTEND(bugprone-macro-parentheses) */
const struct config_row config_rows[] = {
#include "server/core/options.def"
};
const size_t config_n_rows = sizeof(config_rows) / sizeof(config_rows[0]);

_Static_assert(sizeof(enum mode) == sizeof(int), "an enum is read and written as an int");

/* ---- values ---------------------------------------------------------------------------------- */

double config_value(const struct core_config *c, const struct config_row *row)
{
	const unsigned char *at = (const unsigned char *)c + row->offset;
	uint32_t u;
	uint64_t n;
	double v;

	switch (row->type) {
	case CONFIG_U32:
		memcpy(&u, at, sizeof(u));
		return u;
	case CONFIG_U64:
		memcpy(&n, at, sizeof(n));
		return (double)n;
	case CONFIG_REAL:
		memcpy(&v, at, sizeof(v));
		return v;
	case CONFIG_ENUM:
	case CONFIG_FLAG:
		memcpy(&u, at, sizeof(u));
		return (int)u;
	case CONFIG_GROUP:
		break;
	}
	return 0;
}

const char *config_name(const struct config_row *row, double v, size_t *n)
{
	const char *name = row->values;

	for (int i = (int)(v - row->min); i > 0 && *name; name++)
		i -= *name == '|';
	for (*n = 0; name[*n] && name[*n] != '|' && name[*n] != '['; (*n)++)
		;
	return name;
}

static void set_value(struct core_config *c, const struct config_row *row, double v)
{
	unsigned char *at = (unsigned char *)c + row->offset;
	uint32_t u = row->type == CONFIG_REAL || row->type == CONFIG_U64 ? 0 : (uint32_t)v;
	uint64_t n = row->type == CONFIG_U64 ? (uint64_t)v : 0;

	if (row->type == CONFIG_REAL)
		memcpy(at, &v, sizeof(v));
	else if (row->type == CONFIG_U64)
		memcpy(at, &n, sizeof(n));
	else if (row->type != CONFIG_GROUP)
		memcpy(at, &u, sizeof(u));
}

static double max_of(const struct config_row *row)
{
	double max = row->max;

	for (const char *v = row->values; v && *v; v++)
		max += *v == '|';
	return max;
}

/* Returns the row of an option, or NULL if there is none. The search begins at row `first`. A
 * snapshot lists its options in the order of the rows, so row `first` is usually the result. */
static const struct config_row *find(const char *name, size_t bytes, size_t first)
{
	for (size_t i = 0; i < config_n_rows; i++) {
		const struct config_row *row = &config_rows[(first + i) % config_n_rows];

		if (row->name && row->name_bytes == bytes && memcmp(row->name, name, bytes) == 0)
			return row;
	}
	return NULL;
}

/* ---- resume ---------------------------------------------------------------------------------- */

int config_row_differs(
	const struct config_row *row, const struct core_config *then, const struct core_config *now)
{
	double a = config_value(then, row), b = config_value(now, row);

	switch (row->resume) {
	case RESUME_SAME:
		return a < b || a > b;
	case RESUME_SAME_0:
		return (a > 0) != (b > 0);
	case RESUME_SAME_1:
		return (a > 1) != (b > 1);
	case RESUME_ANY:
		break;
	}
	return 0;
}

const struct config_row *config_differs(
	const struct core_config *then, const struct core_config *now)
{
	for (size_t i = 0; i < config_n_rows; i++)
		if (config_row_differs(&config_rows[i], then, now))
			return &config_rows[i];
	return NULL;
}

/* ---- snapshot -------------------------------------------------------------------------------- */

/* Reads one option into `c`. *next is, on entry, the row at which the search for the option begins;
 * on return, it is the row after the option. */
static void read_option(struct cursor *k, struct core_config *c, unsigned char *seen, size_t *next)
{
	char name[MAX_NAME];
	uint32_t n = 0;
	double v = 0;

	u32(k, &n);
	refuse_over(k, n, sizeof(name));
	if (k->error)
		return;
	bytes(k, name, n);
	f64(k, &v);
	if (k->error)
		return;
	const struct config_row *row = find(name, n, *next);
	if (!row) {
		set_error(k, "it has an option that this version does not have");
		return;
	}
	if (seen[row - config_rows] || !isfinite(v) || v < row->min || v > max_of(row) ||
		(row->type != CONFIG_REAL && v < 1e15 && v > (double)(uint64_t)v)) {
		set_error(k, MALFORMED);
		return;
	}
	seen[row - config_rows] = 1;
	*next = (size_t)(row - config_rows) + 1;
	set_value(c, row, v);
}

/* All options as a snapshot stores them, in the order of their rows: the length of the name, the
 * name, and the value. Snapshots differ only in the values, so this struct has all other bytes
 * ready. */
/* clang-format off */
#define PACKED __attribute__((packed))
struct PACKED stored_options {
#define STORED(m, f, n, ...) \
	struct PACKED { uint64_t bytes; char text[sizeof(n) - 1]; double value; } m##_##f;
#define U32 STORED
#define U64 STORED
#define REAL STORED
#define ENUM STORED
#define FLAG STORED
#include "server/core/options.def"
#undef STORED
};
/* N_OPTIONS is the number of options; a snapshot stores this number before the options */
enum {
#define STORED(m, f, ...) OPTION_##m##_##f,
#define U32 STORED
#define U64 STORED
#define REAL STORED
#define ENUM STORED
#define FLAG STORED
#include "server/core/options.def"
#undef STORED
	N_OPTIONS
};
static const struct stored_options without_values = {
#define STORED(m, f, n, ...) .m##_##f = {.bytes = sizeof(n) - 1, .text = n},
#define U32 STORED
#define U64 STORED
#define REAL STORED
#define ENUM STORED
#define FLAG STORED
#include "server/core/options.def"
#undef STORED
};
/* clang-format on */

/* clang-format off */
static void write_options(struct cursor *k, const struct core_config *c)
{
	struct stored_options *to = (void *)cursor_place(k, sizeof(*to));

	if (!to)
		return;
	memcpy(to, &without_values, sizeof(*to));
#define STORED(m, f, ...) to->m##_##f.value = (double)c->m.f;
#define U32 STORED
#define U64 STORED
#define REAL STORED
#define ENUM STORED
#define FLAG STORED
#include "server/core/options.def"
#undef STORED
}
/* clang-format on */

static void read_all_options(struct cursor *k, struct core_config *c, uint32_t n)
{
	unsigned char seen[sizeof(config_rows) / sizeof(config_rows[0])] = {0};
	size_t next = 0;

	for (uint32_t i = 0; i < n && !k->error; i++)
		read_option(k, c, seen, &next);
}

void config_put(struct cursor *k, struct core_config *c)
{
	uint32_t n = N_OPTIONS;

	u32(k, &n);
	if (k->in)
		read_all_options(k, c, n);
	else
		write_options(k, c);
}
