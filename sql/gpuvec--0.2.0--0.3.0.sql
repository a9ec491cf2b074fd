/* sql/gpuvec--0.2.0--0.3.0.sql */

-- complain if script is sourced in psql, rather than via ALTER EXTENSION
\echo Use "ALTER EXTENSION gpuvec UPDATE TO '0.3.0'" to load this file. \quit

--
-- Distances of real[] from arrays of the other integers: psycopg 3 sends a
-- list of numbers as the narrowest of smallint[], integer[] and bigint[]
-- that holds them.
--

CREATE FUNCTION gpuvec_l2_distance(real[], smallint[])
RETURNS double precision
AS 'MODULE_PATHNAME', 'gpuvec_l2_distance'
LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;

CREATE FUNCTION gpuvec_l2_distance(real[], bigint[])
RETURNS double precision
AS 'MODULE_PATHNAME', 'gpuvec_l2_distance'
LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;

COMMENT ON FUNCTION gpuvec_l2_distance(real[], smallint[]) IS
	'Euclidean distance';
COMMENT ON FUNCTION gpuvec_l2_distance(real[], bigint[]) IS
	'Euclidean distance';

CREATE FUNCTION gpuvec_negative_inner_product(real[], smallint[])
RETURNS double precision
AS 'MODULE_PATHNAME', 'gpuvec_negative_inner_product'
LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;

CREATE FUNCTION gpuvec_negative_inner_product(real[], bigint[])
RETURNS double precision
AS 'MODULE_PATHNAME', 'gpuvec_negative_inner_product'
LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;

COMMENT ON FUNCTION gpuvec_negative_inner_product(real[], smallint[]) IS
	'negative inner product';
COMMENT ON FUNCTION gpuvec_negative_inner_product(real[], bigint[]) IS
	'negative inner product';

CREATE FUNCTION gpuvec_cosine_distance(real[], smallint[])
RETURNS double precision
AS 'MODULE_PATHNAME', 'gpuvec_cosine_distance'
LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;

CREATE FUNCTION gpuvec_cosine_distance(real[], bigint[])
RETURNS double precision
AS 'MODULE_PATHNAME', 'gpuvec_cosine_distance'
LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;

COMMENT ON FUNCTION gpuvec_cosine_distance(real[], smallint[]) IS
	'cosine distance';
COMMENT ON FUNCTION gpuvec_cosine_distance(real[], bigint[]) IS
	'cosine distance';

CREATE OPERATOR <-> (
	FUNCTION = gpuvec_l2_distance,
	LEFTARG = real[],
	RIGHTARG = smallint[]
);

CREATE OPERATOR <-> (
	FUNCTION = gpuvec_l2_distance,
	LEFTARG = real[],
	RIGHTARG = bigint[]
);

COMMENT ON OPERATOR <-> (real[], smallint[]) IS
	'Euclidean distance';
COMMENT ON OPERATOR <-> (real[], bigint[]) IS
	'Euclidean distance';

CREATE OPERATOR <#> (
	FUNCTION = gpuvec_negative_inner_product,
	LEFTARG = real[],
	RIGHTARG = smallint[]
);

CREATE OPERATOR <#> (
	FUNCTION = gpuvec_negative_inner_product,
	LEFTARG = real[],
	RIGHTARG = bigint[]
);

COMMENT ON OPERATOR <#> (real[], smallint[]) IS
	'negative inner product';
COMMENT ON OPERATOR <#> (real[], bigint[]) IS
	'negative inner product';

CREATE OPERATOR <=> (
	FUNCTION = gpuvec_cosine_distance,
	LEFTARG = real[],
	RIGHTARG = smallint[]
);

CREATE OPERATOR <=> (
	FUNCTION = gpuvec_cosine_distance,
	LEFTARG = real[],
	RIGHTARG = bigint[]
);

COMMENT ON OPERATOR <=> (real[], smallint[]) IS
	'cosine distance';
COMMENT ON OPERATOR <=> (real[], bigint[]) IS
	'cosine distance';

ALTER OPERATOR FAMILY real_l2_ops USING gpuivfpq ADD
	OPERATOR 1 <-> (real[], smallint[]) FOR ORDER BY float_ops,
	OPERATOR 1 <-> (real[], bigint[]) FOR ORDER BY float_ops;

ALTER OPERATOR FAMILY real_ip_ops USING gpuivfpq ADD
	OPERATOR 2 <#> (real[], smallint[]) FOR ORDER BY float_ops,
	OPERATOR 2 <#> (real[], bigint[]) FOR ORDER BY float_ops;

ALTER OPERATOR FAMILY real_cosine_ops USING gpuivfpq ADD
	OPERATOR 3 <=> (real[], smallint[]) FOR ORDER BY float_ops,
	OPERATOR 3 <=> (real[], bigint[]) FOR ORDER BY float_ops;

--
-- Approximate quantiles may differ between engines
--

ALTER FUNCTION gpuvec_quantiles(real[], bigint[], boolean) STABLE;
