/*
 * bytes.h
 *		What a mirror takes of a device's memory, from first principles, and
 *		mirrors without contents to compare that with (gpu/README, "Bytes a
 *		row").
 */
#ifndef BYTES_H
#define BYTES_H

#include "engine/mirror/gv_mirror.h"

/* An index that a device is to hold, or several devices together. */
typedef struct DeviceIndex
{
	int64_t		rows;
	int32_t		dims;
	int32_t		m;				/* sub-quantizers */
	int32_t		lists;
	int64_t		postings;			/* of all rows */
	bool		records;		/* refine = sq8 */
	GvRowForm	stored;			/* rows of the table, in place of records */
	int32_t		page_rows;		/* of a page of the table */
	int32_t		key_bytes;		/* of a block: gv_keys_bytes */
	int32_t		devices;			/* that have a share of lists and of records
									 * or rows, and all centroids */
} DeviceIndex;

/* Of each device. */
extern int64_t device_bytes(const DeviceIndex *index);

/* Refine records that a page of an index has memory for. */
extern int32_t device_record_slots(int32_t dims);

/*
 * A mirror of an index without keys, on devices 0 .. devices - 1, with lists
 * between half and one and a half times as long as the mean, all zero; NULL:
 * an engine's call has failed.
 */
extern GvMirror *device_mirror(const DeviceIndex *index);

#endif							/* BYTES_H */
