/*
 * program.c
 *		Where the program gpuvecd lies.
 *
 * It may come with the extension, as by `make install` or in an image that is
 * mounted in some folder, or by itself, as from a package.
 */
#include "postgres.h"

#include <dlfcn.h>
#include <sys/stat.h>
#include <unistd.h>

#include "miscadmin.h"
#include "port.h"

#include "client/state/state.h"
#include "client/supervise/supervisor.h"

#define PROGRAM			"gpuvecd"

/* The PATH of a postmaster that has none, as pg_ctlcluster starts it. */
#define USUAL_PATH		"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin"

/* A program that we may run; if not, errno says why. */
static bool
is_program(const char *path)
{
	struct stat st;

	if (stat(path, &st) != 0)
		return false;
	if (!S_ISREG(st.st_mode))
	{
		errno = EACCES;
		return false;
	}
	return access(path, X_OK) == 0;
}

/* Is it in this folder? */
static bool
is_in(const char *folder, char *path)
{
	join_path_components(path, folder, PROGRAM);
	return is_program(path);
}

/* Beside the folder that our library was loaded from: lib and bin. */
static bool
is_beside_library(char *path)
{
	char		folder[MAXPGPATH];
	Dl_info		library;

	if (dladdr((const void *) &IvfpqFindProgram, &library) == 0 ||
		library.dli_fname == NULL || !is_absolute_path(library.dli_fname))
		return false;
	strlcpy(folder, library.dli_fname, sizeof(folder));
	get_parent_directory(folder);
	get_parent_directory(folder);
	join_path_components(folder, folder, "bin");
	return is_in(folder, path);
}

static bool
is_beside_postgres(char *path)
{
	char		folder[MAXPGPATH];

	strlcpy(folder, my_exec_path, sizeof(folder));
	get_parent_directory(folder);
	return is_in(folder, path);
}

/*
 * In a folder of the postmaster's PATH.  Not in one that is relative: that
 * would be one in the data directory.
 */
static bool
is_in_search_path(char *path)
{
	const char *next = getenv("PATH");

	if (next == NULL)
		next = USUAL_PATH;
	while (*next != '\0')
	{
		size_t		length = strcspn(next, ":");
		char		folder[MAXPGPATH];

		if (is_absolute_path(next) && length < sizeof(folder))
		{
			strlcpy(folder, next, length + 1);
			if (is_in(folder, path))
				return true;
		}
		next += length + (next[length] == ':');
	}
	return false;
}

/*
 * The program to start, in path[MAXPGPATH]; false, and a line in the log, if
 * there is none.  Who names one means that one: no other is looked for.
 */
bool
IvfpqFindProgram(char *path)
{
	if (ivfpq_server_path[0] != '\0')
	{
		strlcpy(path, ivfpq_server_path, MAXPGPATH);
		if (is_program(path))
			return true;
		ereport(LOG,
				(errcode_for_file_access(),
				 errmsg("could not execute \"%s\": %m", path),
				 errhint("gpuvec.server_path names it.")));
		return false;
	}
	if (is_beside_library(path) || is_beside_postgres(path) ||
		is_in_search_path(path))
		return true;
	ereport(LOG,
			(errcode(ERRCODE_UNDEFINED_FILE),
			 errmsg("could not find the program \"%s\"", PROGRAM),
			 errdetail("It is neither in \"bin\" beside the folder of gpuvec's library, nor beside \"postgres\", nor in the server's PATH."),
			 errhint("Install it, as by the package gpuvecd, or name it by gpuvec.server_path; with gpuvec.server = off nobody looks for it.")));
	return false;
}
