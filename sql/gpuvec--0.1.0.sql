/* sql/gpuvec--0.1.0.sql */

-- complain if script is sourced in psql, rather than via CREATE EXTENSION
\echo Use "CREATE EXTENSION gpuvec" to load this file. \quit

--
-- Access method
--

CREATE FUNCTION gpuivfpqhandler(internal)
RETURNS index_am_handler
AS 'MODULE_PATHNAME'
LANGUAGE C;

COMMENT ON FUNCTION gpuivfpqhandler(internal) IS
	'gpuivfpq index access method handler';

CREATE ACCESS METHOD gpuivfpq TYPE INDEX HANDLER gpuivfpqhandler;

COMMENT ON ACCESS METHOD gpuivfpq IS
	'inverted-file product-quantization index for nearest-neighbour search';

--
-- Distances of real[].  The other types on the right are there because
-- drivers send them, and because ARRAY[0.5, 1] is a numeric[].
--

CREATE FUNCTION gpuvec_l2_distance(real[], real[])
RETURNS double precision
AS 'MODULE_PATHNAME', 'gpuvec_l2_distance'
LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;

CREATE FUNCTION gpuvec_l2_distance(real[], double precision[])
RETURNS double precision
AS 'MODULE_PATHNAME', 'gpuvec_l2_distance'
LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;

CREATE FUNCTION gpuvec_l2_distance(real[], integer[])
RETURNS double precision
AS 'MODULE_PATHNAME', 'gpuvec_l2_distance'
LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;

CREATE FUNCTION gpuvec_l2_distance(real[], numeric[])
RETURNS double precision
AS 'MODULE_PATHNAME', 'gpuvec_l2_distance'
LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;

COMMENT ON FUNCTION gpuvec_l2_distance(real[], real[]) IS
	'Euclidean distance';
COMMENT ON FUNCTION gpuvec_l2_distance(real[], double precision[]) IS
	'Euclidean distance';
COMMENT ON FUNCTION gpuvec_l2_distance(real[], integer[]) IS
	'Euclidean distance';
COMMENT ON FUNCTION gpuvec_l2_distance(real[], numeric[]) IS
	'Euclidean distance';

CREATE FUNCTION gpuvec_negative_inner_product(real[], real[])
RETURNS double precision
AS 'MODULE_PATHNAME', 'gpuvec_negative_inner_product'
LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;

CREATE FUNCTION gpuvec_negative_inner_product(real[], double precision[])
RETURNS double precision
AS 'MODULE_PATHNAME', 'gpuvec_negative_inner_product'
LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;

CREATE FUNCTION gpuvec_negative_inner_product(real[], integer[])
RETURNS double precision
AS 'MODULE_PATHNAME', 'gpuvec_negative_inner_product'
LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;

CREATE FUNCTION gpuvec_negative_inner_product(real[], numeric[])
RETURNS double precision
AS 'MODULE_PATHNAME', 'gpuvec_negative_inner_product'
LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;

COMMENT ON FUNCTION gpuvec_negative_inner_product(real[], real[]) IS
	'negative inner product';
COMMENT ON FUNCTION gpuvec_negative_inner_product(real[], double precision[]) IS
	'negative inner product';
COMMENT ON FUNCTION gpuvec_negative_inner_product(real[], integer[]) IS
	'negative inner product';
COMMENT ON FUNCTION gpuvec_negative_inner_product(real[], numeric[]) IS
	'negative inner product';

CREATE FUNCTION gpuvec_cosine_distance(real[], real[])
RETURNS double precision
AS 'MODULE_PATHNAME', 'gpuvec_cosine_distance'
LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;

CREATE FUNCTION gpuvec_cosine_distance(real[], double precision[])
RETURNS double precision
AS 'MODULE_PATHNAME', 'gpuvec_cosine_distance'
LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;

CREATE FUNCTION gpuvec_cosine_distance(real[], integer[])
RETURNS double precision
AS 'MODULE_PATHNAME', 'gpuvec_cosine_distance'
LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;

CREATE FUNCTION gpuvec_cosine_distance(real[], numeric[])
RETURNS double precision
AS 'MODULE_PATHNAME', 'gpuvec_cosine_distance'
LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;

COMMENT ON FUNCTION gpuvec_cosine_distance(real[], real[]) IS
	'cosine distance';
COMMENT ON FUNCTION gpuvec_cosine_distance(real[], double precision[]) IS
	'cosine distance';
COMMENT ON FUNCTION gpuvec_cosine_distance(real[], integer[]) IS
	'cosine distance';
COMMENT ON FUNCTION gpuvec_cosine_distance(real[], numeric[]) IS
	'cosine distance';

CREATE OPERATOR <-> (
	FUNCTION = gpuvec_l2_distance,
	LEFTARG = real[],
	RIGHTARG = real[],
	COMMUTATOR = <->
);

CREATE OPERATOR <-> (
	FUNCTION = gpuvec_l2_distance,
	LEFTARG = real[],
	RIGHTARG = double precision[]
);

CREATE OPERATOR <-> (
	FUNCTION = gpuvec_l2_distance,
	LEFTARG = real[],
	RIGHTARG = integer[]
);

CREATE OPERATOR <-> (
	FUNCTION = gpuvec_l2_distance,
	LEFTARG = real[],
	RIGHTARG = numeric[]
);

COMMENT ON OPERATOR <-> (real[], real[]) IS
	'Euclidean distance';
COMMENT ON OPERATOR <-> (real[], double precision[]) IS
	'Euclidean distance';
COMMENT ON OPERATOR <-> (real[], integer[]) IS
	'Euclidean distance';
COMMENT ON OPERATOR <-> (real[], numeric[]) IS
	'Euclidean distance';

CREATE OPERATOR <#> (
	FUNCTION = gpuvec_negative_inner_product,
	LEFTARG = real[],
	RIGHTARG = real[],
	COMMUTATOR = <#>
);

CREATE OPERATOR <#> (
	FUNCTION = gpuvec_negative_inner_product,
	LEFTARG = real[],
	RIGHTARG = double precision[]
);

CREATE OPERATOR <#> (
	FUNCTION = gpuvec_negative_inner_product,
	LEFTARG = real[],
	RIGHTARG = integer[]
);

CREATE OPERATOR <#> (
	FUNCTION = gpuvec_negative_inner_product,
	LEFTARG = real[],
	RIGHTARG = numeric[]
);

COMMENT ON OPERATOR <#> (real[], real[]) IS
	'negative inner product';
COMMENT ON OPERATOR <#> (real[], double precision[]) IS
	'negative inner product';
COMMENT ON OPERATOR <#> (real[], integer[]) IS
	'negative inner product';
COMMENT ON OPERATOR <#> (real[], numeric[]) IS
	'negative inner product';

CREATE OPERATOR <=> (
	FUNCTION = gpuvec_cosine_distance,
	LEFTARG = real[],
	RIGHTARG = real[],
	COMMUTATOR = <=>
);

CREATE OPERATOR <=> (
	FUNCTION = gpuvec_cosine_distance,
	LEFTARG = real[],
	RIGHTARG = double precision[]
);

CREATE OPERATOR <=> (
	FUNCTION = gpuvec_cosine_distance,
	LEFTARG = real[],
	RIGHTARG = integer[]
);

CREATE OPERATOR <=> (
	FUNCTION = gpuvec_cosine_distance,
	LEFTARG = real[],
	RIGHTARG = numeric[]
);

COMMENT ON OPERATOR <=> (real[], real[]) IS
	'cosine distance';
COMMENT ON OPERATOR <=> (real[], double precision[]) IS
	'cosine distance';
COMMENT ON OPERATOR <=> (real[], integer[]) IS
	'cosine distance';
COMMENT ON OPERATOR <=> (real[], numeric[]) IS
	'cosine distance';

--
-- Operator classes: one family for each metric
--

CREATE OPERATOR CLASS real_l2_ops
DEFAULT FOR TYPE real[] USING gpuivfpq AS
	OPERATOR 1 <-> (real[], real[]) FOR ORDER BY float_ops;

ALTER OPERATOR FAMILY real_l2_ops USING gpuivfpq ADD
	OPERATOR 1 <-> (real[], double precision[]) FOR ORDER BY float_ops,
	OPERATOR 1 <-> (real[], integer[]) FOR ORDER BY float_ops,
	OPERATOR 1 <-> (real[], numeric[]) FOR ORDER BY float_ops;

COMMENT ON OPERATOR CLASS real_l2_ops USING gpuivfpq IS
	'Euclidean distance of real[]';

CREATE OPERATOR CLASS real_ip_ops
FOR TYPE real[] USING gpuivfpq AS
	OPERATOR 2 <#> (real[], real[]) FOR ORDER BY float_ops;

ALTER OPERATOR FAMILY real_ip_ops USING gpuivfpq ADD
	OPERATOR 2 <#> (real[], double precision[]) FOR ORDER BY float_ops,
	OPERATOR 2 <#> (real[], integer[]) FOR ORDER BY float_ops,
	OPERATOR 2 <#> (real[], numeric[]) FOR ORDER BY float_ops;

COMMENT ON OPERATOR CLASS real_ip_ops USING gpuivfpq IS
	'negative inner product of real[]';

CREATE OPERATOR CLASS real_cosine_ops
FOR TYPE real[] USING gpuivfpq AS
	OPERATOR 3 <=> (real[], real[]) FOR ORDER BY float_ops;

ALTER OPERATOR FAMILY real_cosine_ops USING gpuivfpq ADD
	OPERATOR 3 <=> (real[], double precision[]) FOR ORDER BY float_ops,
	OPERATOR 3 <=> (real[], integer[]) FOR ORDER BY float_ops,
	OPERATOR 3 <=> (real[], numeric[]) FOR ORDER BY float_ops;

COMMENT ON OPERATOR CLASS real_cosine_ops USING gpuivfpq IS
	'cosine distance of real[]';

--
-- Looking into an index
--

CREATE FUNCTION gpuvec_index_info(
	index regclass,
	OUT lists integer,
	OUT dims integer,
	OUT pq_dim integer,
	OUT rows bigint,
	OUT pending bigint,
	OUT dead bigint,
	OUT bytes bigint,
	OUT rows_at_training bigint,
	OUT advice text)
AS 'MODULE_PATHNAME'
LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

COMMENT ON FUNCTION gpuvec_index_info(regclass) IS
	'size and state of a gpuivfpq index, and what to do about it';

CREATE FUNCTION gpuvec_list_stats(index regclass)
RETURNS TABLE (
	list integer,
	rows bigint,
	dead bigint,
	blocks bigint,
	generation bigint)
AS 'MODULE_PATHNAME'
LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

COMMENT ON FUNCTION gpuvec_list_stats(regclass) IS
	'the inverted lists of a gpuivfpq index';

CREATE FUNCTION gpuvec_verify_index(index regclass)
RETURNS TABLE (
	severity text,
	block bigint,
	list integer,
	problem text)
AS 'MODULE_PATHNAME'
LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE;

COMMENT ON FUNCTION gpuvec_verify_index(regclass) IS
	'faults of a gpuivfpq index, no row if there are none';

CREATE FUNCTION gpuvec_recall(
	index regclass,
	k integer DEFAULT 10,
	samples integer DEFAULT 100,
	OUT recall double precision,
	OUT low double precision,
	OUT high double precision)
AS 'MODULE_PATHNAME'
LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE;

COMMENT ON FUNCTION gpuvec_recall(regclass, integer, integer) IS
	'measured recall@k of a gpuivfpq index with a 95 % interval';
