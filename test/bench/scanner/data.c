/*
 * data.c
 *		Real queries, their true neighbors, and which row of the table is which.
 *
 * A set is what test/bench/data.py makes: base.npy float32 [rows][dims],
 * query.npy float32 [n][dims], truth.npy int32 [n][width].
 *
 * Mirrors hold transformed vectors, and no mean and scale; backends, which
 * transform queries, have these from the index.  Here they are found from rows
 * and the refine records of the same rows: the scale is a power of two, so that
 * the ratio of their spreads tells it, and the mean of dimension i is the mean
 * of x'_i - x^_i / scale over many rows, since a record is as often too high as
 * it is too low.
 */
#include "bench.h"

#include <fcntl.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#define SAMPLE		20000		/* rows that mean and scale are found from */

/* An open .npy file of 4-byte elements [rows][columns], in C order. */
typedef struct Npy
{
	int			fd;
	off_t		start;			/* of the elements */
	int64_t		rows;
	int64_t		columns;
} Npy;

static Npy
npy_open(const char *set, const char *name)
{
	Npy			npy = {0};
	char		path[4096];
	unsigned char head[10];
	char		text[1024] = "";
	const char *shape;
	size_t		length;

	snprintf(path, sizeof(path), "%s/%s.npy", set, name);
	npy.fd = open(path, O_RDONLY);
	if (npy.fd < 0 || read(npy.fd, head, sizeof(head)) != sizeof(head))
		bench_fail(path);
	length = head[8] | (size_t) head[9] << 8;
	if (memcmp(head, "\x93NUMPY\x01", 7) != 0 || length >= sizeof(text) ||
		read(npy.fd, text, length) != (ssize_t) length ||
		strstr(text, "4'") == NULL || strstr(text, "True") != NULL ||
		(shape = strstr(text, "'shape': (")) == NULL ||
		sscanf(shape, "'shape': (%ld, %ld)", &npy.rows, &npy.columns) != 2)
	{
		fprintf(stderr, "%s: not a matrix of 4-byte elements\n", path);
		exit(1);
	}
	npy.start = (off_t) (sizeof(head) + length);
	return npy;
}

/* Rows first .. first + n - 1 into to [n][columns]. */
static void
npy_read(const Npy *npy, int64_t first, int64_t n, void *to)
{
	size_t		bytes = (size_t) (n * npy->columns) * 4;
	off_t		at = npy->start + (off_t) (first * npy->columns) * 4;
	size_t		done = 0;

	while (done < bytes)
	{
		ssize_t		got = pread(npy->fd, (char *) to + done, bytes - done,
								at + (off_t) done);

		if (got <= 0)
			bench_fail("a short .npy file");
		done += (size_t) got;
	}
}

/* A row's address and number, as COPY (FORMAT binary) writes three ints. */
typedef struct __attribute__((packed)) CopiedRow
{
	uint16_t	nfields;
	struct __attribute__((packed))
	{
		uint32_t	bytes;
		uint32_t	value;
	}			block, item, row;
} CopiedRow;

typedef struct RowNumber
{
	uint64_t	rowid;
	int32_t		row;
} RowNumber;

static int
compare_rows(const void *a, const void *b)
{
	uint64_t	x = ((const RowNumber *) a)->rowid;
	uint64_t	y = ((const RowNumber *) b)->rowid;

	return (x > y) - (x < y);
}

/*
 * Which row of the set each row of the table is: a file as this makes it:
 * COPY (SELECT (ctid::text::point)[0]::int, (ctid::text::point)[1]::int, id
 * FROM t) TO ... (FORMAT binary)
 */
void
bench_read_rows(BenchTruth *truth, const char *file)
{
	FILE	   *f = fopen(file, "r");
	char		head[19];
	RowNumber  *numbers = NULL;
	CopiedRow	copied;
	int64_t		n = 0;
	int64_t		i;

	if (f == NULL || fread(head, sizeof(head), 1, f) != 1)
		bench_fail(file);
	while (fread(&copied, sizeof(copied), 1, f) == 1)
	{
		if ((n & (n - 1)) == 0)
			numbers = realloc(numbers, sizeof(*numbers) *
							  (size_t) (n == 0 ? 1 : 2 * n));
		numbers[n].rowid = (uint64_t) __builtin_bswap32(copied.block.value) << 16 |
			__builtin_bswap32(copied.item.value);
		numbers[n++].row = (int32_t) __builtin_bswap32(copied.row.value);
	}
	fclose(f);
	qsort(numbers, (size_t) n, sizeof(*numbers), compare_rows);
	truth->nrows = n;
	truth->rowids = malloc(sizeof(uint64_t) * (size_t) n);
	truth->rows = malloc(sizeof(int32_t) * (size_t) n);
	for (i = 0; i < n; i++)
	{
		truth->rowids[i] = numbers[i].rowid;
		truth->rows[i] = numbers[i].row;
	}
	free(numbers);
}

/* The row number of a row id; -1: there is none. */
int32_t
bench_row(const BenchTruth *truth, uint64_t rowid)
{
	int64_t		low = 0;
	int64_t		high = truth->nrows;

	while (low < high)
	{
		int64_t		middle = (low + high) / 2;

		if (truth->rowids[middle] < rowid)
			low = middle + 1;
		else
			high = middle;
	}
	return low < truth->nrows && truth->rowids[low] == rowid ?
		truth->rows[low] : -1;
}

/* The refine record at an address, NULL if there is none. */
const BenchRecord *
bench_record(const Bench *bench, uint64_t address)
{
	int64_t		low = 0;
	int64_t		high = bench->nrecords;

	while (low < high)
	{
		int64_t		middle = (low + high) / 2;

		if (bench->records[middle].address < address)
			low = middle + 1;
		else
			high = middle;
	}
	return low < bench->nrecords && bench->records[low].address == address ?
		&bench->records[low] : NULL;
}

/* Sums over a sample of what is to be fitted. */
typedef struct Sums
{
	double	   *x;				/* [dims] rows */
	double	   *y;				/* [dims] what their records stand for */
	double		xx;
	double		yy;
} Sums;

static void
add_row(Sums *sums, GvMetric metric, int32_t dims, const float *x,
		const float *y)
{
	double		factor = 1.0;
	int32_t		d;

	if (metric == GV_COSINE)
		factor = 1.0 / sqrt(-gv_distance_ip(x, x, dims));
	for (d = 0; d < dims; d++)
	{
		double		value = x[d] * factor;

		sums->x[d] += value;
		sums->y[d] += y[d];
		sums->xx += value * value;
		sums->yy += (double) y[d] * y[d];
	}
}

/* Find the index's mean and scale. */
static void
fit(Bench *bench, const BenchTruth *truth, const Npy *base)
{
	int32_t		dims = bench->spec.dims;
	int32_t		n = bench->nrecords < SAMPLE ? (int32_t) bench->nrecords :
		SAMPLE;
	BenchRecord *sample = malloc(sizeof(BenchRecord) * (size_t) n);
	float	   *row = malloc(sizeof(float) * (size_t) dims);
	float	   *mean = calloc((size_t) dims, sizeof(float));
	Sums		sums = {calloc((size_t) dims, sizeof(double)),
	calloc((size_t) dims, sizeof(double)), 0, 0};
	float	   *decoded;
	int32_t		i;

	for (i = 0; i < n; i++)
		sample[i] = bench->records[bench->nrecords * i / n];
	decoded = bench_decode(bench, sample, n);
	for (i = 0; i < n; i++)
	{
		int32_t		number = bench_row(truth, sample[i].rowid);

		if (number < 0 || number >= base->rows)
		{
			fprintf(stderr, "a row of the index is not in the list of rows\n");
			exit(1);
		}
		npy_read(base, number, 1, row);
		add_row(&sums, bench->spec.metric, dims, row,
				decoded + (size_t) i * (size_t) dims);
	}
	for (i = 0; i < dims; i++)
	{
		sums.xx -= sums.x[i] * sums.x[i] / n;
		sums.yy -= sums.y[i] * sums.y[i] / n;
	}
	bench->model.scale = exp2f(roundf(log2f((float) sqrt(sums.yy / sums.xx))));
	if (bench->spec.metric != GV_IP)
		for (i = 0; i < dims; i++)
			mean[i] = (float) ((sums.x[i] - sums.y[i] / bench->model.scale) / n);
	bench->model.mean = mean;
	free(sample);
	free(row);
	free(decoded);
	free(sums.x);
	free(sums.y);
}

/* The queries of a set and their neighbors, in place of made ones. */
void
bench_read_queries(Bench *bench, BenchTruth *truth, const char *set)
{
	Npy			base = npy_open(set, "base");
	Npy			query = npy_open(set, "query");
	Npy			neighbors = npy_open(set, "truth");

	if (base.columns != bench->spec.dims || query.columns != base.columns ||
		neighbors.rows != query.rows || neighbors.columns < BENCH_K ||
		truth->nrows != base.rows || bench->nrecords == 0)
	{
		fprintf(stderr, "%s: not of the index's rows, or the index has no refine records\n",
				set);
		exit(1);
	}
	bench->nqueries = query.rows < BENCH_QUERIES ? (int32_t) query.rows :
		BENCH_QUERIES;
	npy_read(&query, 0, bench->nqueries, bench->queries);
	truth->width = (int32_t) neighbors.columns;
	truth->ground_truth = malloc(sizeof(int32_t) * (size_t) bench->nqueries *
						  (size_t) truth->width);
	npy_read(&neighbors, 0, bench->nqueries, truth->ground_truth);
	fit(bench, truth, &base);
	gv_transform(&bench->model, bench->queries, bench->nqueries,
				 bench->queries);
	close(base.fd);
	close(query.fd);
	close(neighbors.fd);
}
