/*
 * client_opt.h - the options that cnn-worker and cnn-ctl have in common, as rows of the tables of
 * opt.h. `to` is the destination of the value, and `when` are the conditions of the member `needs`.
 *
 * Thread: main, at start-up.
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
		.help = "file with the secret key of this program, made by cnn-ctl keygen; the "   \
			"program needs it if the server has a key",                                \
		.unset = "no encryption", .needs = (when)                                          \
	}
#define CLIENT_OPT_SERVER_KEY(to, when)                                                            \
	{                                                                                          \
		.name = "server-key", .type = OPT_TEXT, .dest = (to), .min = 1, .max = 4000,       \
		.arg = "FILE",                                                                     \
		.help = "file with the public key of the server; with --key, the program "         \
			"accepts only the server that has this key",                               \
		.unset = "the file \"server.pub\" beside the file of --key", .needs = (when)       \
	}
#define CLIENT_OPT_DATA(to, when)                                                                  \
	{                                                                                          \
		.name = "data", .type = OPT_TEXT, .dest = (to), .min = 1, .max = 4000,             \
		.arg = "DIR",                                                                      \
		.help = "directory of the data set, with four IDX files (images and labels for "   \
			"training and for tests), plain or .gz; if DIR has several splits of "     \
			"EMNIST, append the name of one split, as in DIR/emnist-letters",          \
		.unset = "data/mnist, else Debian's Fashion-MNIST", .needs = (when)                \
	}
#define CLIENT_OPT_LOG_LEVEL(to, level)                                                            \
	{                                                                                          \
		.name = "log-level", .type = OPT_ENUM, .dest = (to), .def = (level),               \
		.values = LOG_LEVEL_NAMES, .arg = "LEVEL",                                         \
		.help = "least severe level of the events that are logged on stderr"               \
	}
#define CLIENT_OPT_LOG_FORMAT(to)                                                                  \
	{                                                                                          \
		.name = "log-format", .type = OPT_ENUM, .dest = (to), .def = "text",               \
		.values = LOG_FORMAT_NAMES, .arg = "FORMAT",                                       \
		.help = "format of a log line: text means logfmt (KEY=VALUE fields), and json "    \
			"means a JSON object"                                                      \
	}

/* Checks that `server` is tcp://HOST:PORT with a port of 1 to 65535. PS_EUSAGE: the endpoint has
 * another form, and the function has printed an error that begins with `program` on stderr. */
int client_opt_check_server(const char *program, const char *server) PS_MUST_CHECK;

#endif
