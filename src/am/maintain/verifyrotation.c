/*
 * verifyrotation.c
 *		Checks whether an index's rotation is orthogonal.
 *
 * Bounds that refine records prove rest on it.
 */
#include "postgres.h"

#include "miscadmin.h"

#include "am/common/model.h"
#include "am/maintain/maintain.h"

/*
 * Returns whether the rotation of an index, whose pages are sound, is
 * orthogonal, as it was written.
 */
bool
IvfpqVerifyRotation(Relation index, const IvfpqMetaData *meta)
{
	float	   *rotation = IvfpqRotationLoad(index, meta);
	double		defect = 0;

	for (int i = 0; i < meta->dims; i++)
	{
		CHECK_FOR_INTERRUPTS();
		defect += gv_rotation_defect(meta->dims, rotation, i);
	}
	pfree(rotation);
	return gv_is_rotation(meta->dims, defect);
}
