/* main.c - cnn-ps: the parameter server. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#include "common/keys.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/opt.h"
#include "common/threads.h"
#include "server/config/images.h"
#include "server/config/memory.h"
#include "server/config/options.h"
#include "server/device/gpu_store.h"
#include "server/monitor/notify.h"
#include "server/sandbox.h"
#include "server/server.h"

/* Ignores SIGPIPE and SIGXFSZ, so that a write to a closed connection, or to a file that has
 * reached the size limit, only returns an error and does not end the process. Also ignores SIGUSR2,
 * which has no meaning for the server (docs/operations.md has the table of signals). */
static void ignore_signals(void)
{
	signal(SIGPIPE, SIG_IGN);
	signal(SIGXFSZ, SIG_IGN);
	signal(SIGUSR2, SIG_IGN);
}

/* Raises the limit of open files to its maximum. Each worker needs two descriptors, so with the
 * usual soft limit of 1024 the server could have only about 500 workers. */
static void raise_descriptors(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
		limit.rlim_cur = limit.rlim_max;
		(void)setrlimit(RLIMIT_NOFILE, &limit);
	}
}

static int refuse_start(int rc, const struct err *e)
{
	log_error("server", "cannot_start", "code=%s reason=\"%s\"", err_name(rc), e->text);
	return err_exit_code(rc);
}

/* Checks the key files and the file of the HTTP token: reads them in the same way as
 * server_start. */
static int check_key_files(const struct options *o, struct err *e)
{
	const struct auth_config config = {.key_file = o->key,
		.keys_file = o->authorized_keys,
		.max_workers = o->core.sessions.max_workers};
	char token[HTTP_TOKEN];
	struct auth *a = NULL;
	int rc = o->key ? auth_new(&a, &config, e) : PS_OK;

	if (!rc && o->http_token)
		rc = http_read_token(o->http_token, token, e);
	auth_free(&a);
	explicit_bzero(token, sizeof(token));
	return rc;
}

/* Carries out --check-config: checks and prints the configuration. Returns the exit code. */
static int check_config(const struct options *o)
{
	struct err e;
	int rc = check_key_files(o, &e);

	if (rc)
		return refuse_start(rc, &e);
	printf("configuration ok: model=\"%s\" parameters=%zu epochs=%u max_workers=%u "
	       "memory_bytes=%llu\n",
		o->core.model, o->core.n_params, o->core.training.epochs,
		o->core.sessions.max_workers, (unsigned long long)memory_needed(o));
	return 0;
}

/* Carries out --store cuda:N. */
static int open_store(struct options *o, struct err *e)
{
	int rc = o->store_gpu < 0 ? PS_OK : gpu_store_open(&o->gpu, o->store_gpu, e);

	if (!rc && o->gpu)
		o->core.device = gpu_store_device(o->gpu);
	return rc;
}

int main(int argc, char **argv)
{
	static struct options options;
	static struct server server; /* static, because the struct is too large for the stack */
	char bind[ENDPOINT_TEXT], http[ENDPOINT_TEXT];
	struct threads *threads = NULL;
	struct err e;
	int is_blocked, rc;

	server_hold_signals();
	ignore_signals();
	log_set_level(LOG_INFO);
	rc = options_parse(&options, argc, argv);
	if (rc != OPT_RUN)
		return rc == OPT_EXIT ? 0 : err_exit_code(rc);
	if (options.key)
		key_protect_process();
	if (options.check_config)
		return check_config(&options);
	mem_keep();
	raise_descriptors();
	rc = open_store(&options, &e);
	if (!rc)
		rc = sandbox_enter(&options, &e);
	if (!rc)
		rc = images_begin(&options, &e);
	if (rc && options.lane_fd >= 0)
		(void)unlink(options.lane_path);
	if (rc && options.made_checkpoint_dir)
		(void)rmdir(options.checkpoint_dir);
	if (!rc)
		rc = threads_new(&threads, options.n_threads, "cnn-ps apply", &e);
	/* at least half of the CPUs are left to the workers, so a thread without a job may keep its
	 * CPU busy for a moment before it sleeps */
	if (!rc && options.n_cpus >= 2 * options.n_threads)
		threads_stay_awake(threads);
	if (!rc)
		options.core.engine = threads_engine(threads);
	do {
		if (!rc)
			rc = server_start(&server, &options, &e);
		if (rc) {
			threads_free(&threads);
			gpu_store_close(&options.gpu);
			return refuse_start(rc, &e);
		}
		notify_manager("READY=1");
		server_run(&server);
	} while (server_restarts(&server, &options, bind, http));
	notify_manager("STOPPING=1");
	rc = server_stop(&server, &is_blocked);
	if (is_blocked) /* exit() would wait for the thread that hangs in a file operation */
		_exit(rc);
	threads_free(&threads);
	gpu_store_close(&options.gpu);
	return rc;
}
