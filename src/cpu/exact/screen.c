/*
 * screen.c
 *		Which pairs of a query and a row are certainly too far apart: see
 *		gv_screen.h.
 *
 * u = 2^-24, v = 2^-53.  Placed vectors p(q) and p(x), exact, and as stored, a
 * and b: |a - p(q)| <= u |a| + h, where h is 0 but for cosine and Pearson,
 * whose factors have an error in double.  g bounds the products' error
 * (gv_estimate_error): P = <a, b> +- g |a| |b|.  slack = g + 8 u exceeds g by
 * all roundings of what follows, and slack64 = (dims + 64) v those of a
 * distance in double, relative or, for cosine and Pearson, absolute.
 *
 * L2, cosine, Pearson.  D = |p(q) - p(x)| is the distance times the scale, or
 * sqrt(2 distance) times it.  Let R be what D exceeds only if the distance in
 * double exceeds the farthest kept one, plus 2 h.  D > R where
 *		|a - b| > R + u (|a| + |b|).
 * By 2 s t <= s^2 + t^2 the square of the right side is at most
 *		R^2 (1 + 2 u) + (|a|^2 + |b|^2) (u + 2 u^2),
 * and that of the left at least |a|^2 + |b|^2 - 2 P - g (|a|^2 + |b|^2); so
 *		|b|^2 (1 - slack) - 2 P > R^2 (1 + 4 u) - |a|^2 (1 - slack) + tiny
 * is enough.  The left side, in fp32, is off by less than 4 u (|a|^2 + |b|^2),
 * the right side by u (R^2 + |a|^2).
 *
 * Inner product.  a = f q, f a power of two, 1/2 <= |a| < 2, exact; with
 * z = f scale, <q, x> z = <a, p(x)> + <q, mean> z.  The negative product in
 * double exceeds the last one, W, where
 *		-P - (g + u) |a| |b| - <q, mean> z - slack64 |q| |x| z > W z;
 * as |x| scale <= |b| (1 + u) + |mean| scale,
 *		-(4 g + 32 u) |b| - 2 P > 2 (W z + <q, mean> z) + 8 slack64 (..) + tiny
 * is enough, and 32 u |b| has room for fp32's roundings of the left side.
 *
 * tiny, FLT_MIN, is for what underflows: numbers of a, b and products are then
 * off by 2^-150 each, together by less than FLT_MIN + u (|a|^2 + |b|^2), as
 * squares from HUGE_SQUARE on are let through.
 */
#include <math.h>

#include "cpu/code/gv_assign.h"
#include "cpu/exact/gv_screen.h"

#define UNIT		GV_FILTER_UNIT	/* u */
#define UNIT64		(1.0 / 9007199254740992.0)	/* v */
#define HUGE_SQUARE	1e36

/* See gv_screen.h. */
void
gv_screen_reset(GvScreen *screen, GvSetMetric metric, int32_t dims,
				float *mean)
{
	screen->metric = metric;
	screen->dims = dims;
	screen->is_fitted = false;
	screen->mean = mean;
	screen->slack = gv_estimate_error(dims) + 8.0 * UNIT;
	screen->slack64 = (dims + 64) * UNIT64;
}

/* Is the distance one of directions, of vectors made one long? */
static bool
of_directions(const GvScreen *screen)
{
	return screen->metric == GV_SET_COSINE ||
		screen->metric == GV_SET_PEARSON;
}

/*
 * Shift and factor of a row, or of a query that is not GV_SET_IP's; false: all
 * its distances are NaN.
 */
static bool
find_factor(const GvScreen *screen, const float *x, double *shift,
			double *factor)
{
	double		square;

	*shift = 0.0;
	*factor = 1.0;
	if (!of_directions(screen))
		return true;
	if (screen->metric == GV_SET_PEARSON)
	{
		*shift = gv_cpu_mean64(x, screen->dims);
		square = gv_cpu_centered_dot64(x, *shift, x, *shift, screen->dims);
	}
	else
		square = gv_kernels->dot64(x, x, screen->dims);
	*factor = square > 0.0 ? 1.0 / sqrt(square) : 0.0;
	return square > 0.0;
}

/* Place a vector; what overflows is infinite. */
static void
place(const GvScreen *screen, const float *x, double shift, double factor,
	  float *placed)
{
	double		scale = screen->scale;
	const float *mean = screen->mean;
	int32_t		i;

	for (i = 0; i < screen->dims; i++)
		placed[i] = (float) ((((double) x[i] - shift) * factor - mean[i]) *
							 scale);
}

/* See gv_screen.h. */
void
gv_screen_fit(GvScreen *screen, const float *rows, int64_t n, float *placed)
{
	int32_t		dims = screen->dims;
	double		square;
	float		scale;
	int64_t		i;

	for (i = 0; i < dims; i++)
		screen->mean[i] = 0.0f;
	screen->scale = 1.0;
	for (i = 0; i < n; i++)
	{
		double		shift;
		double		factor;

		(void) find_factor(screen, rows + i * dims, &shift, &factor);
		place(screen, rows + i * dims, shift, factor, placed + i * dims);
	}
	gv_fit_transform(GV_L2, dims, placed, n, screen->mean, &scale);
	square = gv_kernels->dot64(screen->mean, screen->mean, dims);
	screen->scale = scale;
	screen->mean_length = sqrt(square) * screen->scale;
	screen->is_fitted = true;
}

/* A power of two that brings x to a length of 1/2 to 1, and its products. */
static void
scale_query(const GvScreen *screen, const float *x, GvScreened *screened)
{
	double		square = gv_kernels->dot64(x, x, screen->dims);
	int			exponent = 0;

	(void) frexp(sqrt(square), &exponent);
	screened->factor = ldexp(1.0, -exponent);
	screened->unit = screened->factor * screen->scale;
	screened->offset = gv_kernels->dot64(x, screen->mean, screen->dims) *
		screened->unit;
}

/* See gv_screen.h. */
GvScreened
gv_screen_query(const GvScreen *screen, const float *query, float *placed)
{
	GvScreened	screened = {0};

	if (screen->metric == GV_SET_IP)
		scale_query(screen, query, &screened);
	else
		screened.is_null = !find_factor(screen, query, &screened.shift,
										&screened.factor);
	gv_screen_place(screen, &screened, query, placed);
	screened.square = gv_kernels->dot64(placed, placed, screen->dims);
	return screened;
}

/* See gv_screen.h. */
void
gv_screen_place(const GvScreen *screen, const GvScreened *screened,
				const float *query, float *placed)
{
	int32_t		i;

	if (screen->metric != GV_SET_IP)
		place(screen, query, screened->shift, screened->factor, placed);
	else
		for (i = 0; i < screen->dims; i++)
			placed[i] = (float) (query[i] * screened->factor);
}

/* What a placed row is compared by. */
static float
row_square(const GvScreen *screen, const float *placed)
{
	double		square = gv_kernels->dot64(placed, placed, screen->dims);

	if (!(square < HUGE_SQUARE))
		return -HUGE_VALF;
	if (screen->metric == GV_SET_IP)
		return (float) (-sqrt(square) * 4.0 * screen->slack);
	return (float) (square * (1.0 - screen->slack));
}

/* See gv_screen.h. */
void
gv_screen_rows(const GvScreen *screen, const float *rows, int n,
			   float *placed, float *panel, float *squares)
{
	int32_t		dims = screen->dims;
	int32_t		first;
	int			i;

	for (i = 0; i < n; i++)
	{
		const float *row = rows + (size_t) i * dims;
		float	   *to = placed + (size_t) i * dims;
		double		shift;
		double		factor;
		bool		has_place = find_factor(screen, row, &shift, &factor);

		/* its distances, NaN, come behind all that is kept, see limit */
		place(screen, row, shift, factor, to);
		squares[i] = has_place ? row_square(screen, to) : HUGE_VALF;
	}
	for (; i < GV_SCREEN_ROWS; i++)
		squares[i] = HUGE_VALF;
	for (first = 0; first < dims; first += GV_CPU_SLICE_DIMS)
		gv_cpu_pack(placed, dims, n, first, dims - first < GV_CPU_SLICE_DIMS ?
					dims - first : GV_CPU_SLICE_DIMS,
					panel + (size_t) first * GV_SCREEN_ROWS);
}

/* The limit for placed vectors' squared distances: see above. */
static double
square_limit(const GvScreen *screen, const GvScreened *screened, double last)
{
	double		reach;
	double		square;

	if (of_directions(screen))
		reach = (sqrt(2.0 * (last + 2.0 * screen->slack64)) +
				 4.0 * screen->slack64) * screen->scale;
	else
		reach = last * (1.0 + 2.0 * screen->slack64) * screen->scale;
	square = reach * reach;
	if (!(square < HUGE_SQUARE && screened->square < HUGE_SQUARE))
		return HUGE_VAL;
	return square * (1.0 + 4.0 * UNIT) -
		screened->square * (1.0 - screen->slack) + FLT_MIN;
}

/* The limit for inner products. */
static double
product_limit(const GvScreen *screen, const GvScreened *screened,
			  double last)
{
	double		wanted = last * screened->unit;
	double		limit = 2.0 * (wanted + screened->offset) +
	8.0 * screen->slack64 * (screen->mean_length + fabs(wanted) +
							 fabs(screened->offset));

	if (!(fabs(limit) < HUGE_SQUARE))
		return HUGE_VAL;
	return limit + 2.0 * UNIT * fabs(limit) + FLT_MIN;
}

/*
 * See gv_screen.h.  Where the last neighbor is at a number, rows at NaN are
 * too far, as are later ones of those where it is at NaN.
 */
float
gv_screen_limit(const GvScreen *screen, const GvScreened *screened,
				GvKnn last)
{
	if (screened->is_null && last.position != GV_NO_ROW)
		return -HUGE_VALF;
	if (last.distance != last.distance)
		return HUGE_VALF;
	return (float) (screen->metric == GV_SET_IP ?
					product_limit(screen, screened, last.distance) :
					square_limit(screen, screened, last.distance));
}
