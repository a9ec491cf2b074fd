/*
 * gv_builder.c
 *		Builders: argument checks and dispatch to the engine.
 *
 * All operations go to the engine that was passed to gv_builders_open.
 * Arguments that depend on a builder's state are checked by the engine itself.
 */
#include "engine/mirror/gv_builder.h"

#include <string.h>

#include "engine/gv_call.h"

#define MAX_LISTS		(1 << 24)
#define MAX_ITERATIONS	1000

/*
 * The engine that was passed to gv_builders_open; it stays until the process
 * ends.
 */
static const GvBuilderBackend *builders;

#ifdef GV_TEST_BUILD

static GvFault fault;

void
gv_builder_fault(int64_t n, GvStatus status)
{
	gv_fault_set(&fault, n, status);
}

#endif

static bool
valid_spec(const GvBuilderSpec *spec)
{
	return spec != NULL && gv_valid_metric(spec->metric) &&
		gv_valid_shape(spec->dims, spec->m) &&
		(spec->lists_per_row == 1 || spec->lists_per_row == 2) &&
		spec->refine >= GV_RECORDS_NONE &&
		spec->refine <= GV_RECORDS_HALF &&
		spec->scale > 0 && spec->scale <= FLT_MAX &&
		spec->device >= 0 && spec->device < gv_ndevices() &&
		spec->nlists >= 1 && spec->nlists <= MAX_LISTS &&
		spec->nparents >= 1 && spec->nparents <= spec->nlists &&
		spec->nqueries >= 0 && spec->nqueries <= GV_MAX_QUERIES &&
		spec->depth >= (spec->nqueries > 0) &&
		spec->depth <= (spec->nqueries > 0 ? GV_MAX_DEPTH : 0) &&
		spec->batch_rows >= 1 && spec->batch_rows <= GV_MAX_BATCH_ROWS &&
		spec->iterations >= 0 && spec->iterations <= MAX_ITERATIONS &&
		spec->max_imbalance > 1.0 &&	/* false for NaN */
		spec->sample_rows >= 1 && spec->sample_rows <= INT32_MAX;
}

static bool
valid_encoded(const GvEncoded *encoded)
{
	bool		bare;

	if (encoded == NULL || encoded->lists == NULL || encoded->t == NULL ||
		encoded->codes == NULL || encoded->neighbors == NULL)
		return false;
	bare = encoded->min == NULL;
	return (encoded->step == NULL) == bare &&
		(encoded->error == NULL) == bare &&
		(encoded->records == NULL) == bare;
}

GvStatus
gv_builders_open(const GvBuilderBackend *engine)
{
	if (engine == NULL || builders != NULL)
		return GV_INVALID;
	builders = engine;
	return GV_OK;
}

int64_t
gv_builder_size(const GvBuilderSpec *spec)
{
	return builders != NULL && valid_spec(spec) ? builders->size(spec) : 0;
}

GvStatus
gv_builder_create(const GvBuilderSpec *spec, const float *mean,
				  GvBuilder **builder)
{
	GV_CALL(fault, builders != NULL && valid_spec(spec) && mean != NULL &&
			builder != NULL && gv_is_finite(mean, spec->dims));
	return builders->create(spec, mean, builder);
}

void
gv_builder_drop(GvBuilder *builder)
{
	if (builder != NULL)
		builders->drop(builder);
}

GvStatus
gv_builder_put_rows(GvBuilder *builder, GvRows kind, const float *rows,
					int32_t n)
{
	GV_CALL(fault, builder != NULL &&
			(kind == GV_SAMPLE || kind == GV_QUERIES) &&
			n >= 0 && (rows != NULL || n == 0));
	return builders->put_rows(builder, kind, rows, n);
}

GvStatus
gv_builder_train(GvBuilder *builder, GvTrained *trained, const GvStop *stop)
{
	GV_CALL(fault, builder != NULL && trained != NULL && gv_valid_stop(stop));
	return builders->train(builder, trained, stop);
}

GvBuilderSpec
gv_builder_copy_spec(const GvBuilderSpec *spec, int32_t device)
{
	GvBuilderSpec copy = *spec;

	copy.device = device;
	copy.sample_rows = 1;
	return copy;
}

GvStatus
gv_builder_copy(GvBuilder *builder, const GvBuilderSpec *spec,
				GvBuilder **copy)
{
	GV_CALL(fault, builder != NULL && valid_spec(spec) && copy != NULL);
	return builders->copy(builder, spec, copy);
}

GvStatus
gv_builder_get_array(GvBuilder *builder, GvArray array, int64_t first,
					 int64_t n, void *values)
{
	GV_CALL(fault, builder != NULL &&
			gv_valid_values(array, first, n, values));
	return builders->get_array(builder, array, first, n, values);
}

GvStatus
gv_builder_encode(GvBuilder *builder, const float *rows, int32_t n,
				  GvEncoded *encoded, const GvStop *stop)
{
	GV_CALL(fault, builder != NULL && rows != NULL && n >= 1 &&
			valid_encoded(encoded) && gv_valid_stop(stop));
	return builders->encode(builder, rows, n, encoded, stop);
}

GvStatus
gv_builder_encode_sample(GvBuilder *builder, int64_t first, int32_t n,
						 GvEncoded *encoded, const GvStop *stop)
{
	GV_CALL(fault, builder != NULL && first >= 0 && n >= 1 &&
			valid_encoded(encoded) && gv_valid_stop(stop));
	return builders->encode_sample(builder, first, n, encoded, stop);
}
