/*
 * socketplace.c
 *		Where gpuvecd listens, and whose it is.
 *
 * One that the supervisor starts is the server's own user's, and its socket
 * lies in the data directory.  One that PostgreSQL does not start
 * (gpuvec.server = external) is found in a folder that both know, and may be
 * another user's, whom gpuvec.server_owner names.  In that folder nobody else
 * may be able to put a socket.
 */
#include "postgres.h"

#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "port.h"

#include "client/state/socketplace.h"
#include "client/state/served.h"

/* Who runs it; found while the library is preloaded. */
static uid_t owner;

/* Has PostgreSQL nothing to do with its start and its end? */
bool
IvfpqServerIsExternal(void)
{
	return ivfpq_server == IVFPQ_SERVER_EXTERNAL;
}

/* See served.h. */
bool
IvfpqFindUser(const char *name, uid_t *uid)
{
	struct passwd *user;
	char	   *end;
	unsigned long long number;

	if (name[0] == '\0')
	{
		*uid = geteuid();
		return true;
	}
	errno = 0;
	number = strtoull(name, &end, 10);
	if (name[0] >= '0' && name[0] <= '9' && *end == '\0')
	{
		*uid = (uid_t) number;
		/* the last one means no user to the system */
		return errno == 0 && number < PG_UINT32_MAX;
	}
	user = getpwnam(name);
	if (user == NULL)
		return false;
	*uid = user->pw_uid;
	return true;
}

/* See served.h. */
bool
IvfpqFolderFits(const char *folder)
{
	return strlen(folder) + sizeof("/" GV_SOCKET_PATH) <=
		sizeof(((struct sockaddr_un *) NULL)->sun_path);
}

/*
 * Look at the settings, which stay as they are, while the library is
 * preloaded.
 */
void
IvfpqPlaceInit(void)
{
	owner = geteuid();
	if (!IvfpqServerIsExternal())
		return;
	if (ivfpq_server_directory[0] == '\0')
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("gpuvec.server is external, and gpuvec.server_directory is empty"),
				 errhint("Set it to the folder that gpuvecd's option --socket names.")));
	/* a name that no user has is not accepted, and warned of */
	if (!IvfpqFindUser(ivfpq_server_owner, &owner))
		owner = geteuid();
}

/* Does it run as who it should? */
bool
IvfpqIsServerOwner(uid_t uid)
{
	return uid == owner;
}

/* Say why there is no way to it; false. */
static bool
pg_attribute_printf(2, 3)
refuse(const char **reason, const char *format,...)
{
	static char text[200];
	va_list		args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	*reason = text;

	return false;
}

/* Can nobody but its owner and root put a socket into the folder? */
static bool
is_safe(const char **reason)
{
	struct stat status;

	if (stat(ivfpq_server_directory, &status) != 0)
		return refuse(reason, "its folder cannot be looked at: %s",
					  strerror(errno));
	if (!S_ISDIR(status.st_mode))
		return refuse(reason, "its folder is no folder");
	if (status.st_uid != owner && status.st_uid != 0)
		return refuse(reason, "its folder is user %u's, neither gpuvec.server_owner's nor root's",
					  (unsigned) status.st_uid);
	if ((status.st_mode & 022) != 0)
		return refuse(reason, "its folder has mode %03o: the group or others may write to it",
					  (unsigned) status.st_mode & 07777);
	return true;
}

/* The socket's address; false, and why, if it is not to be trusted. */
bool
IvfpqFindSocket(struct sockaddr_un *address, const char **reason)
{
	memset(address, 0, sizeof(*address));
	address->sun_family = AF_UNIX;
	if (!IvfpqServerIsExternal())
	{
		strlcpy(address->sun_path, GV_SOCKET_PATH, sizeof(address->sun_path));
		return true;
	}
	snprintf(address->sun_path, sizeof(address->sun_path), "%s/%s",
			 ivfpq_server_directory, GV_SOCKET_PATH);
	return is_safe(reason);
}

/* Why connect() has failed. */
const char *
IvfpqConnectProblem(int error)
{
	const char *reason;

	if (!IvfpqServerIsExternal())
		return "it does not listen";
	if (error == ENOENT)
		return "there is no socket in its folder";
	if (error == ECONNREFUSED)
		return "nobody listens at the socket in its folder";
	(void) refuse(&reason, "the socket in its folder cannot be connected to: %s",
				  strerror(error));
	return reason;
}
