/*
 * replay.c - runs a fuzz target without libFuzzer, once for each file on the command line, and for
 * each file in a directory on the command line. `make test` uses this program to replay the
 * corpora.
 */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include "tests/support/fuzz_input.h"

static unsigned n_files;

static void replay_input(const char *path)
{
	FILE *f = fopen(path, "rb");
	uint8_t *data = NULL;
	size_t size = 0, n;

	if (!f) {
		perror(path);
		exit(2);
	}
	do {
		data = realloc(data, size + 65536);
		PS_ASSERT(data);
		n = fread(data + size, 1, 65536, f);
		size += n;
	} while (n > 0);
	fclose(f);
	fprintf(stderr, "%s\n", path);
	/* make a copy of exactly `size` bytes, so that a sanitizer finds reads past its end */
	uint8_t *exact = malloc(size ? size : 1);
	PS_ASSERT(exact);
	memcpy(exact, data, size);
	(void)LLVMFuzzerTestOneInput(exact, size);
	free(exact);
	free(data);
	n_files++;
}

static int replay_directory(const char *path)
{
	DIR *dir = opendir(path);
	char file[4096];

	if (!dir)
		return 0;
	for (const struct dirent *d; (d = readdir(dir));)
		if (d->d_name[0] != '.') {
			snprintf(file, sizeof(file), "%s/%s", path, d->d_name);
			replay_input(file);
		}
	closedir(dir);
	return 1;
}

int main(int argc, char **argv)
{
	for (int i = 1; i < argc; i++)
		if (!replay_directory(argv[i]))
			replay_input(argv[i]);
	printf("%u inputs\n", n_files);
	return n_files == 0;
}
