/*
 * foreign.c
 *		Is the server of a foreign table asked for a statement's order?
 *
 * If not, all of its rows come here to be sorted.  postgres_fdw sends an order
 * by operators of those extensions that the server's option "extensions"
 * names.
 */
#include "postgres.h"

#include "catalog/dependency.h"
#include "catalog/pg_operator.h"
#include "commands/defrem.h"
#include "commands/extension.h"
#include "foreign/foreign.h"
#include "utils/builtins.h"
#include "utils/varlena.h"

#include "am/doctor/doctor.h"

/* Does a path of the table bring what the statement orders by first? */
bool
IvfpqIsOrderSent(const PlannerInfo *root, const RelOptInfo *rel)
{
	ListCell   *lc;

	if (root->query_pathkeys == NIL)
		return false;
	foreach(lc, rel->pathlist)
	{
		const Path *path = lfirst(lc);

		if (path->pathkeys != NIL &&
			linitial(path->pathkeys) == linitial(root->query_pathkeys))
			return true;
	}
	return false;
}

/* The server's option "extensions", or NULL. */
static char *
option_extensions(const ForeignServer *server)
{
	ListCell   *lc;

	foreach(lc, server->options)
	{
		DefElem    *option = lfirst(lc);

		if (strcmp(option->defname, "extensions") == 0)
			return defGetString(option);
	}
	return NULL;
}

static bool
has_name(const char *names, const char *name)
{
	List	   *list;
	ListCell   *lc;

	if (names == NULL || !SplitIdentifierString(pstrdup(names), ',', &list))
		return false;
	foreach(lc, list)
	{
		if (strcmp(lfirst(lc), name) == 0)
			return true;
	}
	return false;
}

/* Why no path brings an order by such an operator, and what to do. */
IvfpqReason
IvfpqWhyNotSent(Oid table, Oid operator)
{
	static const char *const all[] = {"vector", "gpuvec", "gpuvec_pgvector"};
	static const char *const own[] = {"gpuvec"};
	ForeignServer *server = GetForeignServer(GetForeignTable(table)->serverid);
	char	   *extension = get_extension_name(getExtensionOfObject(OperatorRelationId,
																	operator));
	const char *names = option_extensions(server);
	char	   *wanted = names ? pstrdup(names) : "";
	bool		is_own = extension && strcmp(extension, "gpuvec") == 0;
	const char *const *needed = is_own ? own : all;
	IvfpqReason why = {"its server is not asked for the order: all rows are fetched from there and sorted here", NULL};

	if (extension == NULL ||
		strcmp(GetForeignDataWrapper(server->fdwid)->fdwname,
			   "postgres_fdw") != 0)
		return why;
	if (has_name(names, extension))
	{
		why.advice = "order by a distance to a constant, a parameter or a sub-select, by functions that the server has, too";
		return why;
	}
	for (int i = 0; i < (int) (is_own ? lengthof(own) : lengthof(all)); i++)
	{
		if (!has_name(names, needed[i]))
			wanted = psprintf("%s%s%s", wanted, wanted[0] ? ", " : "",
							  needed[i]);
	}
	why.advice = psprintf("ALTER SERVER %s OPTIONS (%s extensions %s)",
						  quote_identifier(server->servername),
						  names ? "SET" : "ADD",
						  quote_literal_cstr(wanted));
	return why;
}
