/* keygen.c - see ctl.h: key files, and the list of authorized keys. */
#include <stdio.h>
#include <string.h>
#include "common/authorized_keys.h"
#include "common/file.h"
#include "common/keys.h"
#include "worker/ctl/ctl.h"

#define MAX_NAME 63

struct key_spec {
	const char *name;
	enum key_role role; /* KEY_NONE: the key of the server, which is not on the list */
};

static const struct key_spec usual[] = {
	{"server", KEY_NONE},
	{"worker", KEY_WORKER},
	{"admin", KEY_ADMIN},
	{"observer", KEY_OBSERVER},
};

static int make_key(const char *dir, const char *list, const struct key_spec *w, struct err *e)
{
	char key[KEY_TEXT];
	int made, rc = key_make_files(dir, w->name, key, &made, e);

	if (rc)
		return rc;
	/* do not add an existing key again: if it is not on the list, it was revoked */
	if (w->role != KEY_NONE && made)
		rc = authorized_keys_add(list, w->role, key, w->name, e);
	if (!rc)
		printf("%s %s %.*s\n", made ? "made" : "kept", w->name, KEY_SHORT, key);
	return rc;
}

static int check_key_name(const char *name, struct err *e)
{
	static const char good[] =
		"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";
	size_t n = strlen(name);

	if (n >= 1 && n <= MAX_NAME && strspn(name, good) == n)
		return PS_OK;
	return err_set(e, PS_EUSAGE,
		"keygen: \"%.70s\": expected a name of 1 to %d letters, digits, - and _", name,
		MAX_NAME);
}

/* Makes the usual keys, and one key for each worker that the arguments name. Existing keys do not
 * change: a second run makes only the missing keys. */
int ctl_keygen(const struct ctl *ctl, struct err *e)
{
	const char *dir = ctl->args[0];
	char list[4096];
	int rc = PS_OK;

	if (snprintf(list, sizeof(list), "%s/" AUTHORIZED_KEYS_FILE, dir) >= (int)sizeof(list))
		return err_set(e, PS_EUSAGE, "%.100s...: the path is too long", dir);

	for (int i = 1; i < ctl->n_args && !rc; i++)
		rc = check_key_name(ctl->args[i], e);
	if (!rc)
		rc = file_make_dir(dir, e);
	if (!rc) /* check the list before any key is made */
		rc = authorized_keys_check(list, e);
	for (size_t i = 0; i < sizeof(usual) / sizeof(*usual) && !rc; i++)
		rc = make_key(dir, list, &usual[i], e);
	for (int i = 1; i < ctl->n_args && !rc; i++)
		rc = make_key(dir, list, &(struct key_spec){ctl->args[i], KEY_WORKER}, e);
	return rc;
}
