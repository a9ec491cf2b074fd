/*
 * log.c
 *		Lines for the parent of gpuvecd: "LEVEL: text" on standard error.
 */
#include "server/gv_server.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Print a line; a reader that does not read loses it, and delays nothing. */
void
gv_log(const char *level, const char *format,...)
{
	struct pollfd out = {.fd = STDERR_FILENO, .events = POLLOUT};
	char		line[512];
	va_list		args;
	int			length;
	int			more;

	length = snprintf(line, sizeof(line) - 1, "%s: ", level);
	va_start(args, format);
	more = vsnprintf(line + length, sizeof(line) - 1 - (size_t) length,
					 format, args);
	va_end(args);
	length += more < 0 ? 0 : more;
	if (length > (int) sizeof(line) - 2)
		length = sizeof(line) - 2;
	line[length++] = '\n';
	/* one write, which a pipe takes whole when there is room at all */
	if (poll(&out, 1, 0) == 1 && (out.revents & POLLOUT) != 0 &&
		write(STDERR_FILENO, line, (size_t) length) < 0)
		return;
}

/* The system has refused something: the end. */
void
gv_system_error(const char *format,...)
{
	int			saved_errno = errno;
	char		what[400];
	va_list		args;

	va_start(args, format);
	vsnprintf(what, sizeof(what), format, args);
	va_end(args);
	gv_log("FATAL", "could not %s: %s", what, strerror(saved_errno));
	exit(GV_EXIT_SYSTEM);
}
