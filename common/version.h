/*
 * version.h - the version of all programs of this tree.
 */
#ifndef COMMON_VERSION_H
#define COMMON_VERSION_H

#define PS_VERSION "0.2.0"

#endif
