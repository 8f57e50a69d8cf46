/*
 * folders.c - see convert.h: converts pictures in folders, one folder per class. FROM has the
 * folders train/CLASS and test/CLASS, or only the folders CLASS. In the second case every tenth
 * picture of a class is a test image. Classes are numbered from 0 in the order of their names,
 * which classes.txt lists. All pictures must have the size of the first picture. The images are in
 * colour if any picture is: when the first coloured picture comes after grey ones, the conversion
 * begins again.
 */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>
#include "common/mem.h"
#include "worker/ctl/convert.h"
#include "worker/ctl/ctl.h"
#include "worker/ctl/picture.h"

#define PATH       4300
#define TEST_EVERY 10
/* begin again, with images in colour; every PS_* status is 0 or less, so 1 is none of them */
#define RESTART 1

/* ---- names ----------------------------------------------------------------------------------- */

struct names {
	char **name; /* the names, sorted; owned */
	size_t n, room;
};

static void names_release(struct names *l)
{
	for (size_t i = 0; i < l->n; i++)
		free(l->name[i]);
	free(l->name);
	*l = (struct names){.name = NULL};
}

static int names_add(struct names *l, const char *name)
{
	if (l->n == l->room) {
		size_t room = l->room ? 2 * l->room : 64;
		char **more = realloc(l->name, room * sizeof(*more));

		if (!more)
			return PS_ENOMEM;
		l->name = more;
		l->room = room;
	}
	l->name[l->n] = strdup(name);
	return l->name[l->n] ? (l->n++, PS_OK) : PS_ENOMEM;
}

static int by_name(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

static int is_dir(const char *dir, const char *name)
{
	char path[PATH];
	struct stat st;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	return !stat(path, &st) && S_ISDIR(st.st_mode);
}

static int is_picture(const char *name)
{
	static const char *const endings[] = {".png", ".jpg", ".jpeg", ".pgm"};
	const char *dot = strrchr(name, '.');

	for (size_t i = 0; dot && i < sizeof(endings) / sizeof(endings[0]); i++)
		if (strcasecmp(dot, endings[i]) == 0)
			return 1;
	return 0;
}

/* ---- what is skipped ------------------------------------------------------------------------- */

#define KINDS  5
#define ENDING 8 /* bytes of the longest ending that counts as a kind of file, with its NUL */

/* The numbers of the skipped files, which are no pictures by the endings of their names. */
struct skipped {
	size_t n, others; /* others: number of files with endings for which `kind` has no room */
	struct {
		char ending[ENDING];
		size_t n;
	} kind[KINDS];
};

static void skip(struct skipped *s, const char *name)
{
	const char *dot = strrchr(name, '.');
	char ending[ENDING] = "";

	s->n++;
	for (size_t i = 0; dot && strlen(dot) < ENDING && dot[i]; i++)
		ending[i] = (char)tolower((unsigned char)dot[i]);
	for (size_t i = 0; i < KINDS && ending[0]; i++) {
		if (!s->kind[i].n)
			memcpy(s->kind[i].ending, ending, ENDING);
		if (strcmp(s->kind[i].ending, ending) != 0)
			continue;
		s->kind[i].n++;
		return;
	}
	s->others++;
}

static void warn_skipped(const struct skipped *s)
{
	char kinds[KINDS * 40 + 40] = "", text[sizeof(kinds) + 100];
	size_t at = 0;

	if (!s->n)
		return;
	for (size_t i = 0; i < KINDS && s->kind[i].n; i++)
		at += (size_t)snprintf(kinds + at, sizeof(kinds) - at, "%s%zu %s", at ? ", " : "",
			s->kind[i].n, s->kind[i].ending);
	if (s->others)
		snprintf(kinds + at, sizeof(kinds) - at, "%s%zu other%s", at ? ", " : "", s->others,
			s->others == 1 ? "" : "s");
	snprintf(text, sizeof(text), "skipped %zu file%s not PNG, JPEG or PGM by %s: %s", s->n,
		s->n == 1 ? " that is" : "s that are", s->n == 1 ? "its name" : "their names",
		kinds);
	ctl_say("skipped", PS_OK, text);
}

/* If `skipped` is NULL, lists the folders in `dir`. Otherwise lists the pictures in `dir`, and
 * counts the other files in *skipped, except those whose names begin with a dot. */
static int list(struct names *l, const char *dir, struct skipped *skipped, struct err *e)
{
	DIR *d = opendir(dir);
	const struct dirent *entry;
	int rc = PS_OK;

	*l = (struct names){.name = NULL};
	if (!d)
		return err_set(e, PS_EDATA, "%s: %s", dir, strerror(errno));
	while (!rc && (entry = readdir(d)) != NULL)
		if (entry->d_name[0] == '.')
			continue;
		else if (skipped ? is_picture(entry->d_name) : is_dir(dir, entry->d_name))
			rc = names_add(l, entry->d_name);
		else if (skipped && !is_dir(dir, entry->d_name))
			skip(skipped, entry->d_name);
	closedir(d);
	if (rc)
		return err_set(e, rc, "%s: no memory for its names", dir);
	if (l->n)
		qsort(l->name, l->n, sizeof(*l->name), by_name);
	return PS_OK;
}

/* ---- pictures -------------------------------------------------------------------------------- */

struct folders {
	struct convert *c;
	struct names classes;
	int split; /* 1: FROM has the folders train and test */
	int in_colour;
	struct shape shape;
	struct skipped skipped;
	struct names empty; /* classes without a training picture */
};

/* Discards what is written, and lets the conversion begin again in colour. */
static int restart(struct folders *f)
{
	struct err e;

	for (int part = 0; part < CONVERT_PARTS; part++)
		(void)!writer_settle(&f->c->writer[part], 0, &e);
	names_release(&f->empty);
	f->skipped = (struct skipped){.n = 0};
	f->shape = (struct shape){.c = 0};
	f->in_colour = 1;
	return RESTART;
}

/* Begins both parts with the size and the channels of the first picture. */
static int begin_parts(struct folders *f, const struct picture *p, struct err *e)
{
	struct convert *c = f->c;
	int rc = PS_OK;

	f->shape = p->shape;
	f->in_colour = p->shape.c == 3;
	for (int part = 0; part < CONVERT_PARTS && !rc; part++)
		rc = writer_open(
			&c->writer[part], c->to, (enum convert_part)part, f->shape, c->classes, e);
	return rc;
}

static int put_picture(
	struct folders *f, enum convert_part part, const char *path, size_t label, struct err *e)
{
	struct picture p;
	int rc = picture_load(&p, path, f->in_colour ? 3 : 0, e);

	if (rc)
		return rc;
	if (p.shape.c == 3 && f->shape.c == 1)
		rc = restart(f);
	else if (!f->shape.c)
		rc = begin_parts(f, &p, e);
	else if (p.shape.h != f->shape.h || p.shape.w != f->shape.w)
		rc = err_set(e, PS_EDATA,
			"%s: is %zux%zu pixels, the first picture %zux%zu: scale all to one size",
			path, p.shape.w, p.shape.h, f->shape.w, f->shape.h);
	if (!rc)
		rc = writer_put(&f->c->writer[part], p.pixels, (uint32_t)label, e);
	picture_release(&p);
	return rc;
}

/* Writes the pictures of class `label` from its folder `dir`. If FROM has no folders train and
 * test, every tenth picture is a test image. */
static int put_class(
	struct folders *f, enum convert_part part, const char *dir, size_t label, struct err *e)
{
	struct names pictures;
	char path[PATH + 260];
	int rc = list(&pictures, dir, &f->skipped, e);

	if (!rc && !pictures.n && part == CONVERT_TRAIN)
		rc = names_add(&f->empty, f->classes.name[label]);

	for (size_t i = 0; i < pictures.n && !rc; i++) {
		int is_test = i % TEST_EVERY == TEST_EVERY - 1;

		snprintf(path, sizeof(path), "%s/%s", dir, pictures.name[i]);
		rc = put_picture(f,
			f->split  ? part
			: is_test ? CONVERT_TEST
				  : CONVERT_TRAIN,
			path, label, e);
	}
	names_release(&pictures);
	return rc;
}

static int put_part(struct folders *f, enum convert_part part, const char *dir, struct err *e)
{
	char path[PATH];
	int rc = PS_OK;

	for (size_t i = 0; i < f->classes.n && !rc; i++) {
		snprintf(path, sizeof(path), "%s/%s", dir, f->classes.name[i]);
		if (is_dir(dir, f->classes.name[i]))
			rc = put_class(f, part, path, i, e);
	}
	return rc;
}

/* ---- the whole conversion -------------------------------------------------------------------- */

/* Checks that every class of test/ is also in train/. A class that is only in test/ would have no
 * number. */
static int check_test_classes(const struct folders *f, const char *dir, struct err *e)
{
	struct names tests;
	int rc = list(&tests, dir, NULL, e);

	for (size_t i = 0; i < tests.n && !rc; i++)
		if (!bsearch(
			    &tests.name[i], f->classes.name, f->classes.n, sizeof(char *), by_name))
			rc = err_set(
				e, PS_EDATA, "%s/%s: train has no such class", dir, tests.name[i]);
	names_release(&tests);
	return rc;
}

static void classes_path(const struct folders *f, char path[PATH])
{
	snprintf(path, PATH, "%s/classes.txt", f->c->to);
}

/* Refuses to convert if classes.txt exists already, because it has the names of other classes. */
static int check_no_classes(const struct folders *f, struct err *e)
{
	char path[PATH];

	classes_path(f, path);
	if (access(path, F_OK))
		return PS_OK;
	return err_set(e, PS_EUSAGE, "%s: exists already: name another directory", path);
}

static int write_classes(const struct folders *f, struct err *e)
{
	char path[PATH];
	FILE *out;
	int ok;

	classes_path(f, path);
	out = fopen(path, "wx");
	ok = out != NULL;
	for (size_t i = 0; ok && i < f->classes.n; i++)
		ok = fprintf(out, "%s\n", f->classes.name[i]) > 0;
	if (out && fclose(out))
		ok = 0;
	return ok ? PS_OK : err_set(e, PS_EIO, "%s: %s", path, strerror(errno));
}

static void warn_empty(const struct names *empty)
{
	char text[320];

	if (!empty->n)
		return;
	snprintf(text, sizeof(text), "%zu %s no picture: %.255s%s", empty->n,
		empty->n == 1 ? "class has" : "classes have", empty->name[0],
		empty->n == 1 ? "" : ", ...");
	ctl_say("empty_class", PS_OK, text);
}

static int put_both_parts(struct folders *f, const char *train, const char *test, struct err *e)
{
	int rc = put_part(f, CONVERT_TRAIN, train, e);

	return !rc && f->split ? put_part(f, CONVERT_TEST, test, e) : rc;
}

static int convert_all(struct folders *f, const char *train, const char *test, struct err *e)
{
	struct convert *c = f->c;
	int rc = check_no_classes(f, e);

	if (!rc && f->split)
		rc = check_test_classes(f, test, e);
	if (!rc)
		rc = put_both_parts(f, train, test, e);
	if (rc == RESTART)
		rc = put_both_parts(f, train, test, e);
	if (!rc) {
		warn_empty(&f->empty);
		warn_skipped(&f->skipped);
	}
	if (!rc && !f->shape.c)
		rc = err_set(e, PS_EDATA, "%s: no folder has a picture (png, jpg, pgm)", c->from);
	for (int part = 0; part < CONVERT_PARTS && !rc; part++)
		rc = writer_close(&c->writer[part], e);
	return rc ? rc : write_classes(f, e);
}

int convert_folders(struct convert *c, int *found, struct err *e)
{
	struct folders f = {.c = c};
	char train[PATH], test[PATH];
	int rc;

	f.split = is_dir(c->from, "train") && is_dir(c->from, "test");
	snprintf(train, sizeof(train), "%s%s", c->from, f.split ? "/train" : "");
	snprintf(test, sizeof(test), "%s/test", c->from);
	rc = list(&f.classes, train, NULL, e);
	*found = f.classes.n > 0;
	c->classes = f.classes.n > 2 ? f.classes.n : 2;
	if (!rc && f.classes.n > MODEL_MAX_CLASSES)
		rc = err_set(e, PS_EDATA, "%s: more than %zu folders", train, MODEL_MAX_CLASSES);
	if (!rc && *found)
		rc = convert_all(&f, train, test, e);
	names_release(&f.classes);
	names_release(&f.empty);
	return rc;
}
