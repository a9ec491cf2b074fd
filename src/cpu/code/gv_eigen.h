/*
 * gv_eigen.h
 *		Eigenvectors of a symmetric matrix, and a matrix made orthogonal
 *		(eigen.c), for opq.c.
 *
 * Every level of instructions gives the same bits.  Both return false when the
 * caller must give up.
 */
#ifndef GV_EIGEN_H
#define GV_EIGEN_H

#include "cpu/simd/gv_kernels.h"

/*
 * Of c [dims][dims], symmetric, not negative and not zero: eigenvalues [dims],
 * descending, and their eigenvectors, rows of vectors [dims][dims], nearly
 * orthogonal; rows [dims][dims] are for work.
 */
extern bool gv_cpu_eigen(const float *c, int32_t dims, double *values,
						 float *vectors, double *rows, GvPoll *poll);

/*
 * x [dims][dims] is nearly orthogonal: make it so as far as fp32 can;
 * spare [2 * dims * dims].
 */
extern bool gv_cpu_orthogonalize(float *x, int32_t dims, int steps,
								 float *spare, GvPoll *poll);

#endif							/* GV_EIGEN_H */
