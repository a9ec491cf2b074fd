/*
 * prewarm.c
 *		gpuvec_prewarm: which index, and whether it may be mirrored.
 */
#include "postgres.h"

#include "access/relation.h"
#include "fmgr.h"

#include "am/common/identity.h"
#include "client/client.h"
#include "pgcompat.h"

PG_FUNCTION_INFO_V1(gpuvec_prewarm);

/* The key of an index's mirror; ERROR if there can be none. */
static GvMirrorKey
get_key(Oid relid)
{
	Relation	index = IvfpqOpenIndex(relid, AccessShareLock);
	IvfpqMetaData meta;
	GvMirrorKey key;

	IvfpqCheckInspect(index);
	if (index->rd_rel->relpersistence == RELPERSISTENCE_TEMP)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("index \"%s\" is temporary",
						RelationGetRelationName(index)),
				 errhint("Only its own session can read it.")));
	if (IvfpqIsUncommitted(index))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("index \"%s\" was built in this transaction",
						RelationGetRelationName(index)),
				 errhint("Others can read it after COMMIT.")));
	IvfpqCheckValid(index);
	IvfpqMetaRead(index, &meta);
	if (!IvfpqCanMirror(index, &meta))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("index \"%s\" is not trained",
						RelationGetRelationName(index)),
				 errhint("Call gpuvec_train, or VACUUM its table when it has more rows.")));
	key = IvfpqMirrorKey(index, &meta);

	/*
	 * else a loader could not lock the index while another session waits for
	 * that
	 */
	relation_close(index, AccessShareLock);
	return key;
}

/* gpuvec_prewarm(index regclass) */
Datum
gpuvec_prewarm(PG_FUNCTION_ARGS)
{
	GvMirrorKey key = get_key(PG_GETARG_OID(0));

	PG_RETURN_INT64(IvfpqPrewarm(&key));
}
