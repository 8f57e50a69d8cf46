/*
 * version.h - the version of all programs of this tree. Between two releases, it is the version of
 * the next release with "-dev" after it.
 */
#ifndef COMMON_VERSION_H
#define COMMON_VERSION_H

#define PS_VERSION "0.3.0-dev"

#endif
