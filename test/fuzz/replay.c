/*
 * replay.c
 *		Runs a fuzz target on files, without libFuzzer; or writes its seeds.
 *
 * usage: TARGET FOLDER...			every file in there; FOLDER may be a file
 *		  TARGET --seeds FOLDER		writes what the target begins with
 *
 * A fault ends the process.  Prints "fuzz: N passed, N failed" else: an input
 * fails that does not come as far as its name says (fuzz.h).
 */
#include <dirent.h>
#include <string.h>
#include <sys/stat.h>

#include "fuzz.h"

static long passed;
static long failed;
static const char *folder;

/* Did the last input, of this file, come as far as that says? */
static void
count(const char *path)
{
	const char *at = strrchr(path, '@');
	int			wanted = at == NULL ? 1 : atoi(at + 1);

	if (fuzz_taken() >= wanted)
		passed++;
	else
	{
		fprintf(stderr, "FAILED: %d of %d messages were taken: %s is of another version\n",
				fuzz_taken(), wanted, path);
		failed++;
	}
}

/* The bytes lie in memory of just that size, so that reads behind it are seen. */
static void
replay_file(const char *path, size_t size)
{
	FILE	   *file = fopen(path, "rb");
	uint8_t    *data = malloc(size > 0 ? size : 1);

	if (file == NULL || data == NULL || fread(data, 1, size, file) != size)
	{
		perror(path);
		exit(2);
	}
	fclose(file);
	/* which one it was, if it does not come back */
	fprintf(stderr, "%s\n", path);
	LLVMFuzzerTestOneInput(data, size);
	free(data);
	count(path);
}

static void
replay(const char *path)
{
	struct dirent **entries;
	struct stat status;
	int			n;
	int			i;

	if (stat(path, &status) == 0 && !S_ISDIR(status.st_mode))
	{
		replay_file(path, (size_t) status.st_size);
		return;
	}
	n = scandir(path, &entries, NULL, alphasort);
	if (n < 0)
	{
		perror(path);
		exit(2);
	}
	for (i = 0; i < n; i++)
	{
		char		name[4096];

		snprintf(name, sizeof(name), "%s/%s", path, entries[i]->d_name);
		if (entries[i]->d_name[0] != '.')
			replay(name);
		free(entries[i]);
	}
	free(entries);
}

/* FuzzKeep */
static void
write_seed(const char *name, const void *data, size_t size)
{
	char		path[4096];
	FILE	   *file;

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	file = fopen(path, "wb");
	if (file == NULL || fwrite(data, 1, size, file) != size ||
		fclose(file) != 0)
	{
		perror(path);
		exit(2);
	}
}

int
main(int argc, char **argv)
{
	int			i;

	if (argc == 3 && strcmp(argv[1], "--seeds") == 0)
	{
		folder = argv[2];
		fuzz_seeds(write_seed);
		return 0;
	}
	for (i = 1; i < argc; i++)
		replay(argv[i]);
	printf("fuzz: %ld passed, %ld failed\n", passed, failed);
	return passed == 0 || failed > 0;
}
