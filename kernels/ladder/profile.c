/* profile.c - adds up the time of each phase of a step. */
#include <string.h>
#include "kernels/ladder/ladder.h"

void profile_add(struct profile *p, const char *name, enum phase_kind kind, double ms)
{
	size_t i = 0;

	if (!p)
		return;
	while (i < p->n && strcmp(p->phase[i].name, name) != 0)
		i++;
	if (i == MAX_PHASES)
		return;
	if (i == p->n)
		p->phase[p->n++] = (struct phase){.name = name, .kind = kind};
	p->phase[i].ms += ms;
}

const char *phase_kind_name(enum phase_kind kind)
{
	static const char *const names[] = {"copy-in", "kernel", "copy-out", "host"};

	return names[kind];
}
