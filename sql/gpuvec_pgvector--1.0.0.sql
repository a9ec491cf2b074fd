/* sql/gpuvec_pgvector--1.0.0.sql */

-- complain if script is sourced in psql, rather than via CREATE EXTENSION
\echo Use "CREATE EXTENSION gpuvec_pgvector" to load this file. \quit

-- vector and gpuvec may be in any schema: CREATE EXTENSION has put the
-- schemas of required extensions on the search path.

--
-- Operator classes on pgvector's own types and operators, named like
-- pgvector's, so that only the access method changes in CREATE INDEX
--

CREATE OPERATOR CLASS vector_l2_ops
DEFAULT FOR TYPE vector USING gpuivfpq AS
	OPERATOR 1 <-> (vector, vector) FOR ORDER BY float_ops,
	FUNCTION 1 vector_to_float4(vector, integer, boolean);

CREATE OPERATOR CLASS vector_ip_ops
FOR TYPE vector USING gpuivfpq AS
	OPERATOR 2 <#> (vector, vector) FOR ORDER BY float_ops,
	FUNCTION 1 vector_to_float4(vector, integer, boolean);

CREATE OPERATOR CLASS vector_cosine_ops
FOR TYPE vector USING gpuivfpq AS
	OPERATOR 3 <=> (vector, vector) FOR ORDER BY float_ops,
	FUNCTION 1 vector_to_float4(vector, integer, boolean);

COMMENT ON OPERATOR CLASS vector_l2_ops USING gpuivfpq IS
	'Euclidean distance of vector';
COMMENT ON OPERATOR CLASS vector_ip_ops USING gpuivfpq IS
	'negative inner product of vector';
COMMENT ON OPERATOR CLASS vector_cosine_ops USING gpuivfpq IS
	'cosine distance of vector';

DO $$
BEGIN
	-- pgvector has halfvec from 0.7
	IF to_regtype('halfvec') IS NULL THEN
		-- CREATE EXTENSION would keep it from the user
		SET LOCAL client_min_messages = notice;
		RAISE NOTICE 'type halfvec does not exist, leaving out its operator classes'
			USING HINT = 'After ALTER EXTENSION vector UPDATE, drop and create gpuvec_pgvector again.';
		SET LOCAL client_min_messages = warning;
		RETURN;
	END IF;

	CREATE OPERATOR CLASS halfvec_l2_ops
	DEFAULT FOR TYPE halfvec USING gpuivfpq AS
		OPERATOR 1 <-> (halfvec, halfvec) FOR ORDER BY float_ops,
		FUNCTION 1 halfvec_to_float4(halfvec, integer, boolean);

	CREATE OPERATOR CLASS halfvec_ip_ops
	FOR TYPE halfvec USING gpuivfpq AS
		OPERATOR 2 <#> (halfvec, halfvec) FOR ORDER BY float_ops,
		FUNCTION 1 halfvec_to_float4(halfvec, integer, boolean);

	CREATE OPERATOR CLASS halfvec_cosine_ops
	FOR TYPE halfvec USING gpuivfpq AS
		OPERATOR 3 <=> (halfvec, halfvec) FOR ORDER BY float_ops,
		FUNCTION 1 halfvec_to_float4(halfvec, integer, boolean);

	COMMENT ON OPERATOR CLASS halfvec_l2_ops USING gpuivfpq IS
		'Euclidean distance of halfvec';
	COMMENT ON OPERATOR CLASS halfvec_ip_ops USING gpuivfpq IS
		'negative inner product of halfvec';
	COMMENT ON OPERATOR CLASS halfvec_cosine_ops USING gpuivfpq IS
		'cosine distance of halfvec';
END
$$;

--
-- Operators with another type on one side.
--
-- pgvector casts vector to real[] implicitly, so without them the operators
-- of real[] would take v <-> ARRAY[...] and ARRAY[...] <-> v, which no index
-- on v supports.  And once there is (halfvec, real[]), there must be
-- (halfvec, vector), which pgvector resolves by its implicit cast of vector
-- to halfvec, or that would no longer be unique.
--
-- The planner support functions put pgvector's operator and a cast in their
-- place, so that they serve indexes of any access method.
--
-- A pair is (indexed type, other type); both orders are made, commutators of
-- each other.
--
CREATE FUNCTION gpuvec_mixed_l2_support(internal) RETURNS internal
AS 'MODULE_PATHNAME' LANGUAGE C STRICT;

CREATE FUNCTION gpuvec_mixed_ip_support(internal) RETURNS internal
AS 'MODULE_PATHNAME' LANGUAGE C STRICT;

CREATE FUNCTION gpuvec_mixed_cosine_support(internal) RETURNS internal
AS 'MODULE_PATHNAME' LANGUAGE C STRICT;

COMMENT ON FUNCTION gpuvec_mixed_l2_support(internal) IS
	'planner support for distances of mixed types';
COMMENT ON FUNCTION gpuvec_mixed_ip_support(internal) IS
	'planner support for distances of mixed types';
COMMENT ON FUNCTION gpuvec_mixed_cosine_support(internal) IS
	'planner support for distances of mixed types';

DO $$
DECLARE
	pair record;
	metric record;
BEGIN
	FOR pair IN
		SELECT indexed, other
		FROM (VALUES ('vector'), ('halfvec')) AS i (indexed),
			(VALUES ('real[]'), ('double precision[]'), ('integer[]'),
				('numeric[]'), ('smallint[]'), ('bigint[]'), ('vector'))
				AS o (other)
		WHERE indexed <> other AND to_regtype(indexed) IS NOT NULL
		ORDER BY indexed DESC
	LOOP
		FOR metric IN
			SELECT *
			FROM (VALUES
				(1, '<->', 'gpuvec_l2_distance', 'gpuvec_mixed_l2', 'l2',
					'Euclidean distance'),
				(2, '<#>', 'gpuvec_negative_inner_product',
					'gpuvec_mixed_ip', 'ip', 'negative inner product'),
				(3, '<=>', 'gpuvec_cosine_distance', 'gpuvec_mixed_cosine',
					'cosine', 'cosine distance'))
				AS m (strategy, operator, function, symbol, name, comment)
		LOOP
			EXECUTE format($sql$
				CREATE FUNCTION %4$s(%1$s, %2$s)
				RETURNS double precision
				AS 'MODULE_PATHNAME', '%5$s'
				LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE
				SUPPORT %5$s_support;

				CREATE FUNCTION %4$s(%2$s, %1$s)
				RETURNS double precision
				AS 'MODULE_PATHNAME', '%5$s'
				LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE
				SUPPORT %5$s_support;

				CREATE OPERATOR %3$s (
					FUNCTION = %4$s, LEFTARG = %1$s, RIGHTARG = %2$s,
					COMMUTATOR = %3$s
				);

				CREATE OPERATOR %3$s (
					FUNCTION = %4$s, LEFTARG = %2$s, RIGHTARG = %1$s,
					COMMUTATOR = %3$s
				);

				COMMENT ON FUNCTION %4$s(%1$s, %2$s) IS %6$L;
				COMMENT ON FUNCTION %4$s(%2$s, %1$s) IS %6$L;
				COMMENT ON OPERATOR %3$s (%1$s, %2$s) IS %6$L;
				COMMENT ON OPERATOR %3$s (%2$s, %1$s) IS %6$L
				$sql$,
				pair.indexed, pair.other, metric.operator, metric.function,
				metric.symbol, metric.comment);

			-- no access method need know the pair of two vector types
			CONTINUE WHEN pair.other = 'vector';
			EXECUTE format($sql$
				ALTER OPERATOR FAMILY %1$s_%2$s_ops USING gpuivfpq ADD
					OPERATOR %3$s %4$s (%1$s, %5$s) FOR ORDER BY float_ops
				$sql$,
				pair.indexed, metric.name, metric.strategy, metric.operator,
				pair.other);
		END LOOP;
	END LOOP;
END
$$;
