/*
 * call_trace.c - writes to the file $KX_CALL_TRACE which functions the main thread of a program
 * enters and leaves. Only the flavour `trace` has this file: it compiles the program with
 * -finstrument-functions, so each function calls the two functions below.
 *
 * An entry of the file has 64 bits: twice the offset of the function in the program, plus 1 if the
 * program leaves the function.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define UNTRACED __attribute__((no_instrument_function))

extern const char __executable_start[]; /* the linker defines this symbol */

static FILE *file;
static _Thread_local int is_main;

UNTRACED __attribute__((constructor)) static void open_trace(void)
{
	const char *name = getenv("KX_CALL_TRACE");

	is_main = 1;
	file = name ? fopen(name, "w") : NULL;
}

UNTRACED static void record_call(const void *function, unsigned leaves)
{
	const uint64_t offset = (uintptr_t)function - (uintptr_t)__executable_start;
	const uint64_t entry = 2 * offset + leaves;

	if (is_main && file)
		(void)fwrite(&entry, sizeof(entry), 1, file);
}

void __cyg_profile_func_enter(void *function, void *caller) UNTRACED;
void __cyg_profile_func_enter(void *function, void *caller)
{
	(void)caller;
	record_call(function, 0);
}

void __cyg_profile_func_exit(void *function, void *caller) UNTRACED;
void __cyg_profile_func_exit(void *function, void *caller)
{
	(void)caller;
	record_call(function, 1);
}
