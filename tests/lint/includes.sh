#!/bin/sh
# Check that each file includes only headers that the table allows. The first row whose column 1
# matches the name of the file applies. Column 2 is the pattern of the headers that #include "..."
# may name. Column 3 is the pattern of the headers that #include <...> must not name.
rules='
^worker/examples/        ^worker/client/cnnps\.h$                         ^(zmq|uv)\.h$
^worker/client/cnnps\.h$        ^$                                        ^(zmq|uv)\.h$
^worker/client/session\.[ch]$   ^(common/(assert|err|rng|mem)\.h|proto/msg\.h|worker/client/session\.h)$  ^(zmq|uv|time|pthread|unistd|stdio|sys/.*)\.h$
^worker/client/          ^(common|proto|worker/client)/             ^microhttpd\.h$
^worker/data/            ^((common|worker/data)/|(kernels/backend|proto/msg)\.h$)  ^(zmq|uv|microhttpd)\.h$
^worker/ctl/report\.c$    ^(worker/ctl/ctl\.h|report_bytes\.h)$         ^microhttpd\.h$
^worker/ctl/onnx\.c$      ^((common|worker/ctl)/|onnx\.pb-c\.h$)           ^microhttpd\.h$
^worker/ctl/             ^(common|proto|kernels|worker/(client|data|ctl))/  ^microhttpd\.h$
^worker/                 ^(common|proto|kernels|worker)/           ^microhttpd\.h$
^server/core/            ^(common/(assert|clones|engine|err|le|param_device|rng|run_head|siphash|subnormals|tensor_list)\.h|proto/msg\.h|server/core/.*)$  ^(zmq|uv|time|pthread|unistd|stdio|stdlib|fcntl|signal|sys/.*)\.h$
^server/auth/            ^(common|proto|server/auth)/              ^(cuda.*|cblas)\.h$
^server/net/lane\.c$        ^((common|proto|server/net)/|server/device/gpu_store\.h$)  ^(cuda.*|cblas)\.h$
^server/net/             ^(common|proto|server/(net|auth|core))/   ^(cuda.*|cblas)\.h$
^server/config/          ^(common|proto|server/(config|net|core))/  ^(cuda.*|cblas)\.h$
^server/device/cuda/      ^(common/(engine|gpu_memory|param_device|xxh3_lane)|server/device/(module|step))\.h$  ^(zmq|uv|microhttpd)\.h$
^server/device/          ^(common|proto|server/device)/                  ^(cuda.*|cblas|zmq|uv)\.h$
^server/durability/      ^(common|proto|server/(durability|config|net|core))/  ^(cuda.*|cblas)\.h$
^server/monitor/page\.c$   ^(server/monitor/page\.h|page_bytes\.h)$  ^(cuda.*|cblas)\.h$
^server/monitor/         ^(common|proto|server/(monitor|durability|config|net|core))/  ^(cuda.*|cblas)\.h$
^server/                 ^(common|proto|server)/                   ^(cuda.*|cblas)\.h$
^kernels/                ^(common|kernels)/                        ^(zmq|uv|microhttpd)\.h$
^proto/schema\.c$          ^(common/|proto/|cnnps\.pb-c\.h$)         ^(uv|microhttpd)\.h$
^proto/                  ^(common|proto)/                          ^(uv|microhttpd)\.h$
^common/opt\.c$    ^(common/|opt_names\.h$)                 ^(microhttpd|cuda.*|cblas|protobuf-c/.*)\.h$
^common/gpu_memory\.h$    ^$                                        ^(microhttpd|cblas|protobuf-c/.*)\.h$
^common/                 ^common/                                  ^(microhttpd|cuda.*|cblas|protobuf-c/.*)\.h$
^tests/                  ^((common|proto|kernels|server|worker|tests)/|[a-z_]+\.h$) ^protobuf-c/
'
find common proto kernels server worker tests \
	\( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' \) -print | sort |
	xargs grep -HnE '^[[:space:]]*#[[:space:]]*include[[:space:]]' |
	RULES="$rules" awk '
	BEGIN {
		n = split(ENVIRON["RULES"], row, "\n")
		for (i = 1; i <= n; i++)
			if (split(row[i], f, /[ \t]+/) >= 3) {
				rules++; files[rules] = f[1]; may[rules] = f[2]; not[rules] = f[3]
			}
	}
	{
		split($0, part, ":")
		file = part[1]
		at = file ":" part[2]
		if (match($0, /"[^"]*"/) || match($0, /<[^>]*>/)) {
			name = substr($0, RSTART + 1, RLENGTH - 2)
			own = substr($0, RSTART, 1) == "\""
			for (i = 1; i <= rules && file !~ files[i]; i++)
				;
			if (i > rules || (own ? name !~ may[i] : name ~ not[i])) {
				print at ": may not include " name
				bad = 1
			}
		} else {
			print at ": an #include that names no file"
			bad = 1
		}
	}
	END { exit bad }'
