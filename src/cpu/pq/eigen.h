/*
 * eigen.h
 *		Eigenvectors of a symmetric matrix, and a matrix made orthogonal; used
 *		by rotation.c.
 *
 * Every level of instructions gives the same bits.  Both functions return
 * false if the caller must give up.
 */
#ifndef GV_EIGEN_H
#define GV_EIGEN_H

#include "cpu/simd/kernels.h"

/*
 * Computes the eigenvalues [dims] of c [dims][dims], descending, and the
 * eigenvectors as rows of vectors [dims][dims], nearly orthogonal.  c is
 * symmetric, not zero, and has no negative eigenvalue.  rows [dims][dims] is
 * scratch.
 */

/*
 * Makes x [dims][dims], which is nearly orthogonal, as orthogonal as fp32
 * permits.  spare [2 * dims * dims] is scratch.
 */

#endif							/* GV_EIGEN_H */
