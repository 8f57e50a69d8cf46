/*
 * client_opt.h - the options that cnn-worker and cnn-ctl have in common, as rows of the tables of
 * opt.h. Each macro makes a row: the argument `to` is its member `dest`, and the argument `when` is
 * its member `needs`.
 *
 * Only the main thread calls these functions, at start-up.
 */
#ifndef COMMON_CLIENT_OPT_H
#define COMMON_CLIENT_OPT_H
#include "common/err.h"
#include "common/log.h"
#include "common/opt.h"

#define CLIENT_OPT_SERVER(to, when)                                                                \
	{                                                                                          \
		.name = "server", .type = OPT_TEXT, .dest = (to), .def = "tcp://127.0.0.1:5555",   \
		.min = 1, .max = 255, .arg = "URL",                                                \
		.help = "address of the server, in the form tcp://HOST:PORT", .needs = (when)      \
	}
#define CLIENT_OPT_KEY(to, when)                                                                   \
	{                                                                                          \
		.name = "key", .type = OPT_TEXT, .dest = (to), .min = 1, .max = 4000,              \
		.arg = "FILE",                                                                     \
		.help = "file with the secret key of this program, made by cnn-ctl keygen; "       \
			"without a key, this program cannot connect to a server that has one",     \
		.unset = "no encryption", .needs = (when)                                          \
	}
#define CLIENT_OPT_SERVER_KEY(to, when)                                                            \
	{                                                                                          \
		.name = "server-key", .type = OPT_TEXT, .dest = (to), .min = 1, .max = 4000,       \
		.arg = "FILE",                                                                     \
		.help = "file with the public key of the server; with --key, this program "        \
			"accepts only the server that has this public key",                        \
		.unset = "\"server.pub\" in the directory of the file --key", .needs = (when)      \
	}
#define CLIENT_OPT_DATA(to, when)                                                                  \
	{                                                                                          \
		.name = "data", .type = OPT_TEXT, .dest = (to), .min = 1, .max = 4000,             \
		.arg = "DIR",                                                                      \
		.help = "directory of the data set, with four IDX files (images and labels for "   \
			"training and for tests), plain or gzipped. If the directory has "         \
			"several splits of EMNIST, append a slash and the name of one split, as "  \
			"in DIR/emnist-letters",                                                   \
		.unset = "data/mnist or, if it is missing, Debian's Fashion-MNIST",                \
		.needs = (when)                                                                    \
	}
#define CLIENT_OPT_LOG_LEVEL(to, level)                                                            \
	{                                                                                          \
		.name = "log-level", .type = OPT_ENUM, .dest = (to), .def = (level),               \
		.values = LOG_LEVEL_NAMES, .arg = "LEVEL",                                         \
		.help = "least severe level of events that this program logs on stderr; from "     \
			"the most to the least severe, the levels are error, warn, info and "      \
			"debug"                                                                    \
	}
#define CLIENT_OPT_LOG_FORMAT(to)                                                                  \
	{                                                                                          \
		.name = "log-format", .type = OPT_ENUM, .dest = (to), .def = "text",               \
		.values = LOG_FORMAT_NAMES, .arg = "FORMAT",                                       \
		.help = "format of a line of the log: text is logfmt (fields of the form "         \
			"KEY=VALUE); json is a JSON object"                                        \
	}

/* Checks that `server` is tcp://HOST:PORT with a port of 1 to 65535. Returns PS_EUSAGE if the
 * endpoint has another form; the function has then printed an error on stderr that begins with
 * `program`. */
int client_opt_check_server(const char *program, const char *server) PS_MUST_CHECK;

#endif
