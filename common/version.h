/*
 * version.h - the version of all programs of this tree: that of a release, or between two releases
 * the next one with "-dev".
 */
#ifndef COMMON_VERSION_H
#define COMMON_VERSION_H

#define PS_VERSION "0.3.0-dev"

#endif
