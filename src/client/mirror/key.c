/*
 * key.c
 *		What names the mirror of an index, and what its postings' keys are.
 */
#include "postgres.h"

#include "client/mirror/mirror.h"
#include "pgcompat.h"

/* The key that names the mirror of an index. */
GvMirrorKey
IvfpqMirrorKey(Relation index, const IvfpqMetaData *meta)
{
	IvfpqStorage storage = IvfpqStorageOf(index);
	GvMirrorKey key = {storage.database, storage.tablespace, storage.number,
	RelationGetRelid(index), meta->build_id};

	return key;
}

/* Do these name the same mirror? */
bool
IvfpqSameKey(const GvMirrorKey *a, const GvMirrorKey *b)
{
	return a->relation == b->relation && a->database == b->database &&
		a->tablespace == b->tablespace && a->build_id == b->build_id;
}

/* May gpuvecd have a mirror of the index? */
bool
IvfpqCanMirror(Relation index, const IvfpqMetaData *meta)
{
	return index->rd_rel->relpersistence != RELPERSISTENCE_TEMP &&
		meta->build_id != 0 && meta->nlists > 0 && !IvfpqIsUncommitted(index);
}

/* Which keys the postings of the index's mirror have. */
GvKeyForm
IvfpqMirrorKeys(const IvfpqMetaData *meta)
{
	GvKeyForm	form = {0};

	StaticAssertStmt(sizeof(form.kind) == sizeof(meta->key_kinds) &&
					 sizeof(form.width) == sizeof(meta->key_widths),
					 "engine and pages have as many keys");
	memcpy(form.kind, meta->key_kinds, sizeof(form.kind));
	memcpy(form.width, meta->key_widths, sizeof(form.width));
	while (form.kind[form.nkeys] != 0)
		form.nkeys++;
	return form;
}
