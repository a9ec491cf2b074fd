/*
 * fuzz_options.c
 *		Command lines of gpuvecd: text that our own code takes apart.
 *
 * An input is arguments, each ending with 0.  Values accepted are in range.
 * Options of CREATE INDEX and settings are taken apart by the server:
 * test/t/options.pl.
 */
#include <setjmp.h>
#include <stdarg.h>

#include "fuzz.h"
#include "server/server.h"

static jmp_buf ended;

/* gpuvecd's messages are discarded, and its exit does not end the target. */
static void
quiet(const char *format,...)
{
	char		line[4000];
	va_list		args;

	va_start(args, format);
	vsnprintf(line, sizeof(line), format, args);
	va_end(args);
}

#define printf quiet
#define fprintf(file, ...) quiet(__VA_ARGS__)
#define exit(status) longjmp(ended, 1)
#define main gpuvecd_main
#include "server/gpuvecd.c"
#undef fprintf

#define MOST_ARGUMENTS	16

/* Is what was accepted in range? */
static void
check_options(const Options *options)
{
	const GvDevice device = {.memory = 1 << 20};

	if (options->max_connections < 1 || options->keep_s < 0 ||
		options->memory_mb < 0 || options->patience_s < -1 ||
		options->parent < 0 || options->engine == NULL ||
		options->data == NULL || options->devices == NULL ||
		(options->socket != NULL && strlen(options->socket) > 107) ||
		options->simd < GV_SIMD_AUTO || options->simd >= GV_NSIMD ||
		!gv_simd_has(options->simd))
		FAULT("an option out of range");
	/* what becomes of them */
	(void) choose_owner(options);
	use_devices(&device, 1, options);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char	   *text = malloc(size + 1);
	char	   *arguments[MOST_ARGUMENTS + 2] = {"gpuvecd"};
	int			n = 1;
	size_t		at;

	memcpy(text, data, size);
	text[		size] = '\0';

	for (at = 0; at < size && n <= MOST_ARGUMENTS; at += strlen(text +at) + 1)
		arguments[n++] = text +at;

	opterr = 0;
	optind = 0;					/* begin anew, glibc's way */
	if (setjmp(ended) == 0)
	{
		Options		options = parse_options(n, arguments);

		check_options(&options);
	}
	free(text);
	return 0;
}

static void
keep_arguments(FuzzKeep keep, const char *name, const char *const *arguments)
{
	char		input[1000];
	size_t		size = 0;

	for (; *arguments != NULL; arguments++)
	{
		strcpy(input + size, *arguments);
		size += strlen(*arguments) + 1;
	}
	keep(name, input, size);
}

int
fuzz_taken(void)
{
	return 1;
}

/* All options, with good values and bad ones. */
void
fuzz_seeds(FuzzKeep keep)
{
	static const char *const good[] = {"--engine", "cpu", "--data", "/tmp",
		"--memory", "64", "--devices=0,1", "--matmul", "own", "--simd",
	"portable", "--max-connections", "7", "--keep", "3", NULL};
	static const char *const others[] = {"--patience", "9", "--parent", "1",
	"--socket", "/tmp/x", "--owner", "0", "--fault", "3:4", "--build-fault=1:2", "--set-fault", "9:3", NULL};
	static const char *const bad[] = {"--memory", "-1", "--keep",
		"99999999999999999999", "--matmul", "no", "--simd", "avx9", "--fault",
	":", "extra", NULL};
	static const char *const shown[] = {"--help", "--version", NULL};

	keep_arguments(keep, "good", good);
	keep_arguments(keep, "others", others);
	keep_arguments(keep, "bad", bad);
	keep_arguments(keep, "shown", shown);
}
