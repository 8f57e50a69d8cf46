/* xxh3.h - XXH3 in the best version for the CPU that the program runs on. */
#ifndef COMMON_XXH3_H
#define COMMON_XXH3_H
#include <xxhash.h>
#if defined(__x86_64__) && __has_include(<xxh_x86dispatch.h>)
/* makes XXH3_64bits and XXH3_64bits_update choose at run time the version for this CPU */
#include <xxh_x86dispatch.h>
#endif

#endif
