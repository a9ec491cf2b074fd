/*
 * hog.cu
 *		Holds a card's memory, all that there is, until its input ends.  For
 *		test/gpu/card_faults.pl.
 */
#include <stdio.h>

#include <cuda_runtime.h>

int
main(void)
{
	size_t		piece = (size_t) 1 << 36;
	size_t		held = 0;

	/* less and less, down to what no allocation is smaller than */
	while (piece >= 4096)
	{
		void	   *memory;

		if (cudaMalloc(&memory, piece) == cudaSuccess)
			held += piece;
		else
		{
			(void) cudaGetLastError();
			piece /= 2;
		}
	}
	printf("%zu MB held\n", held >> 20);
	fflush(stdout);
	while (getchar() != EOF)
		;
	return held > 0 ? 0 : 1;
}
