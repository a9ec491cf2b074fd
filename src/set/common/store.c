/*
 * store.c
 *		Vectors that are read again and again.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/buffile.h"
#include "utils/memutils.h"

#include "set/common/common.h"
#include "set/common/tablerows.h"

struct IvfpqStore
{
	int			dims;			/* 0: nothing came */
	int64		nrows;
	int64		capacity;		/* rows that memory holds; of a file: of a
								 * batch */
	float	   *vectors;		/* [capacity][dims] */
	BufFile    *file;			/* with all rows, or NULL */
};

IvfpqStore *
IvfpqStoreBegin(void)
{
	return palloc0(sizeof(IvfpqStore));
}

static Size
row_bytes(const IvfpqStore *store)
{
	return store->dims * sizeof(float);
}

/* Moves the rows in memory to a file, to which later rows go, too. */
static void
spill(IvfpqStore *store)
{
	store->file = BufFileCreateTemp(false);
	for (int64 i = 0; i < store->nrows; i++)
	{
		CHECK_FOR_INTERRUPTS();
		BufFileWrite(store->file, store->vectors + i * store->dims,
					 row_bytes(store));
	}
	pfree(store->vectors);
	store->capacity = Max(IVFPQ_BATCH_BYTES / row_bytes(store), 1);
	store->vectors = palloc(store->capacity * row_bytes(store));
}

/* Room for a row more: twice as much memory, or a file. */
static void
ensure_capacity(IvfpqStore *store)
{
	Size		limit = (Size) maintenance_work_mem * 1024;
	int64		most = Max(limit / row_bytes(store), 1);

	if (store->nrows == most)
		spill(store);
	else
	{
		store->capacity = Min(2 * store->capacity, most);
		store->vectors = repalloc_huge(store->vectors,
									   store->capacity * row_bytes(store));
	}
}

/* All vectors have the same number of dimensions. */
void
IvfpqStoreAdd(IvfpqStore *store, const float *vector, int dims)
{
	if (store->dims == 0)
	{
		store->dims = dims;
		store->capacity = 1;
		store->vectors = palloc(row_bytes(store));
	}
	if (store->file == NULL && store->nrows == store->capacity)
		ensure_capacity(store);
	if (store->file != NULL)
	{
		memcpy(store->vectors, vector, row_bytes(store));
		BufFileWrite(store->file, store->vectors, row_bytes(store));
	}
	else
		memcpy(store->vectors + store->nrows * dims, vector, row_bytes(store));
	store->nrows++;
}

int64
IvfpqStoreRows(const IvfpqStore *store)
{
	return store->nrows;
}

/*
 * Up to n rows from number `first` on; returns how many there are at *vectors,
 * at least one, until the next reading.
 */
int
IvfpqStoreRead(IvfpqStore *store, int64 first, int64 n, const float **vectors)
{
	int64		most = Max(IVFPQ_BATCH_BYTES / row_bytes(store), 1);

	CHECK_FOR_INTERRUPTS();
	n = Min(Min(n, most), store->nrows - first);
	Assert(n > 0);
	if (store->file == NULL)
	{
		*vectors = store->vectors + first * store->dims;
		return (int) n;
	}
	if (BufFileSeek(store->file, 0, first * row_bytes(store), SEEK_SET) != 0 ||
		BufFileRead(store->file, store->vectors, n * row_bytes(store)) !=
		n * row_bytes(store))
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not read rows from a temporary file")));
	*vectors = store->vectors;
	return (int) n;
}

void
IvfpqStoreEnd(IvfpqStore *store)
{
	if (store->file != NULL)
		BufFileClose(store->file);
	if (store->vectors != NULL)
		pfree(store->vectors);
	pfree(store);
}
