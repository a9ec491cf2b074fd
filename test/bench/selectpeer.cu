/*
 * selectpeer.cu
 *		RAFT's select_k over the values that selectcard.cu selects from, timed
 *		as there.  cardpeers.py builds it, against the headers of libraft's
 *		wheel; selectcard.py --peers runs it.
 *
 * usage: selectpeer ROWS COLUMNS K [ROWS COLUMNS K...]
 *
 * Prints a line for each shape: rows, columns, k, microseconds, and how many
 * of the first and the last row's positions are not those of their values, or
 * not in ascending order.  A shape that RAFT refuses has no line.
 */
#include <exception>
#include <optional>
#include <vector>

#include <raft/core/device_mdspan.hpp>
#include <raft/core/device_resources.hpp>
#include <raft/core/resource/device_memory_resource.hpp>
#include <raft/matrix/select_k.cuh>

#include "selectdata.cuh"

#define MOST_VALUES		(INT64_C(1) << 31)
#define MOST_WANTED		(INT64_C(1) << 24)	/* rows * k */
#define WORKSPACE		(INT64_C(2) << 30)	/* bytes, taken once */

struct Peer
{
	raft::device_resources resources;
	int64_t		nvalues;		/* of the largest shape */
	float	   *d_values;		/* [nvalues] */
	float	   *d_selected;		/* [MOST_WANTED] */
	int		   *d_positions;
};

template <typename T>
static raft::device_matrix_view<T, int64_t, raft::row_major>
matrix(T *d_values, int64_t rows, int64_t columns)
{
	return raft::make_device_matrix_view<T, int64_t, raft::row_major>(
		d_values, rows, columns);
}

static int
count_wrong(const Peer *peer, int64_t row, int64_t columns, int64_t k)
{
	std::vector<float> values(columns);
	std::vector<float> selected(k);
	std::vector<int> positions(k);
	int			nwrong = 0;

	NEED(cudaMemcpy(values.data(), peer->d_values + row * columns,
					sizeof(float) * columns, cudaMemcpyDeviceToHost));
	NEED(cudaMemcpy(selected.data(), peer->d_selected + row * k,
					sizeof(float) * k, cudaMemcpyDeviceToHost));
	NEED(cudaMemcpy(positions.data(), peer->d_positions + row * k,
					sizeof(int) * k, cudaMemcpyDeviceToHost));
	for (int64_t i = 0; i < k; i++)
		nwrong += positions[i] < 0 || positions[i] >= columns ||
			values[positions[i]] != selected[i] ||
			(i > 0 && selected[i] < selected[i - 1]);
	return nwrong;
}

static void
measure(Peer *peer, int64_t rows, int64_t columns, int64_t k)
{
	float		us = card_time(peer->resources.get_stream(), [&]
	{
		raft::matrix::select_k<float, int>(
			peer->resources,
			matrix<const float>(peer->d_values, rows, columns), std::nullopt,
			matrix(peer->d_selected, rows, k),
			matrix(peer->d_positions, rows, k), true, true);
	});

	printf("%lld\t%lld\t%lld\t%.2f\t%d\n", (long long) rows,
		   (long long) columns, (long long) k, us,
		   count_wrong(peer, 0, columns, k) +
		   count_wrong(peer, rows - 1, columns, k));
	fflush(stdout);
}

int
main(int argc, char **argv)
{
	Peer		peer = {};

	raft::resource::set_workspace_to_pool_resource(peer.resources, WORKSPACE);
	for (int i = 1; i + 2 < argc; i += 3)
	{
		int64_t		n = atoll(argv[i]) * atoll(argv[i + 1]);

		if (n <= MOST_VALUES && n > peer.nvalues)
			peer.nvalues = n;
	}
	NEED(cudaMalloc((void **) &peer.d_values, sizeof(float) * peer.nvalues));
	NEED(cudaMalloc((void **) &peer.d_selected, sizeof(float) * MOST_WANTED));
	NEED(cudaMalloc((void **) &peer.d_positions, sizeof(int) * MOST_WANTED));
	select_fill_kernel<<<1024, 256>>>(peer.d_values, peer.nvalues, UNIFORM);
	NEED(cudaDeviceSynchronize());
	for (int i = 1; i + 2 < argc; i += 3)
	{
		int64_t		rows = atoll(argv[i]);
		int64_t		columns = atoll(argv[i + 1]);
		int64_t		k = atoll(argv[i + 2]);

		if (k > columns || rows * columns > MOST_VALUES ||
			rows * k > MOST_WANTED)
			continue;
		try
		{
			measure(&peer, rows, columns, k);
		}
		catch (const std::exception &error)
		{
			fprintf(stderr, "selectpeer: %lld x %lld, %lld: %s\n",
					(long long) rows, (long long) columns, (long long) k,
					error.what());
		}
	}
	return 0;
}
