/* sql/gpuvec_pgvector--1.0.0.sql */

-- complain if script is sourced in psql, rather than via CREATE EXTENSION
\echo Use "CREATE EXTENSION gpuvec_pgvector" to load this file. \quit

-- vector may be in any schema, and others may create objects in the one that
-- this script fills: it takes names from nowhere but pg_catalog and, with their
-- schema, from pgvector and this extension.

--
-- Of the operators below, with another type on one side: they put pgvector's
-- operator and a cast in the place of such a one.
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
	home name := current_schema;
	vector name := (SELECT s.nspname
		FROM pg_catalog.pg_namespace AS s JOIN pg_catalog.pg_extension AS x
			ON s.oid OPERATOR(pg_catalog.=) x.extnamespace
		WHERE x.extname OPERATOR(pg_catalog.=) 'vector');
	indexed name;
	pair record;
	metric record;
BEGIN
	PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
	-- Operator classes on pgvector's own types and operators, named like
	-- pgvector's, so that only the access method changes in CREATE INDEX
	FOREACH indexed IN ARRAY '{vector, halfvec}'::name[] LOOP
		-- pgvector has halfvec from 0.7
		IF to_regtype(format('%I.%I', vector, indexed)) IS NULL THEN
			-- CREATE EXTENSION would keep it from the user
			SET LOCAL client_min_messages = notice;
			RAISE NOTICE 'type halfvec does not exist, leaving out its operator classes'
				USING HINT = 'After ALTER EXTENSION vector UPDATE, drop and create gpuvec_pgvector again.';
			SET LOCAL client_min_messages = warning;
			CONTINUE;
		END IF;
		FOR metric IN
			SELECT *
			FROM (VALUES
				(1, '<->', 'l2', 'DEFAULT', 'Euclidean distance'),
				(2, '<#>', 'ip', '', 'negative inner product'),
				(3, '<=>', 'cosine', '', 'cosine distance'))
				AS m (strategy, operator, name, standing, comment)
		LOOP
			EXECUTE format($sql$
				CREATE OPERATOR CLASS %1$I.%3$s_%4$s_ops
				%7$s FOR TYPE %2$I.%3$s USING gpuivfpq AS
					OPERATOR %5$s %2$I.%6$s (%2$I.%3$s, %2$I.%3$s)
						FOR ORDER BY pg_catalog.float_ops,
					FUNCTION 1 %2$I.%3$s_to_float4(%2$I.%3$s, integer, boolean);

				COMMENT ON OPERATOR CLASS %1$I.%3$s_%4$s_ops USING gpuivfpq IS %8$L
				$sql$,
				home, vector, indexed, metric.name, metric.strategy,
				metric.operator, metric.standing,
				metric.comment || ' of ' || indexed);
		END LOOP;
	END LOOP;

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
	FOR pair IN
		SELECT i.name, format('%I.%I', vector, i.name) AS indexed,
			CASE o.other WHEN 'vector' THEN format('%I.vector', vector)
				ELSE o.other END AS other
		FROM (VALUES ('vector'), ('halfvec')) AS i (name),
			(VALUES ('real[]'), ('double precision[]'), ('integer[]'),
				('numeric[]'), ('smallint[]'), ('bigint[]'), ('vector'))
				AS o (other)
		WHERE i.name <> o.other
			AND to_regtype(format('%I.%I', vector, i.name)) IS NOT NULL
		ORDER BY i.name DESC
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
				CREATE FUNCTION %7$I.%4$s(%1$s, %2$s)
				RETURNS double precision
				AS 'MODULE_PATHNAME', '%5$s'
				LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE
				SUPPORT %7$I.%5$s_support;

				CREATE FUNCTION %7$I.%4$s(%2$s, %1$s)
				RETURNS double precision
				AS 'MODULE_PATHNAME', '%5$s'
				LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE
				SUPPORT %7$I.%5$s_support;

				CREATE OPERATOR %7$I.%3$s (
					FUNCTION = %7$I.%4$s, LEFTARG = %1$s, RIGHTARG = %2$s,
					COMMUTATOR = OPERATOR(%7$I.%3$s)
				);

				CREATE OPERATOR %7$I.%3$s (
					FUNCTION = %7$I.%4$s, LEFTARG = %2$s, RIGHTARG = %1$s,
					COMMUTATOR = OPERATOR(%7$I.%3$s)
				);

				COMMENT ON FUNCTION %7$I.%4$s(%1$s, %2$s) IS %6$L;
				COMMENT ON FUNCTION %7$I.%4$s(%2$s, %1$s) IS %6$L;
				COMMENT ON OPERATOR %7$I.%3$s (%1$s, %2$s) IS %6$L;
				COMMENT ON OPERATOR %7$I.%3$s (%2$s, %1$s) IS %6$L
				$sql$,
				pair.indexed, pair.other, metric.operator, metric.function,
				metric.symbol, metric.comment, home);

			-- no access method need know the pair of two vector types
			CONTINUE WHEN pair.other = format('%I.vector', vector);
			EXECUTE format($sql$
				ALTER OPERATOR FAMILY %6$I.%1$s_%2$s_ops USING gpuivfpq ADD
					OPERATOR %3$s %6$I.%4$s (%7$s, %5$s)
						FOR ORDER BY pg_catalog.float_ops
				$sql$,
				pair.name, metric.name, metric.strategy, metric.operator,
				pair.other, home, pair.indexed);
		END LOOP;
	END LOOP;
END
$$;

-- Arrays of vectors, as what functions take for queries: ARRAY(SELECT embedding
-- FROM asked) needs no cast of its elements.
DO $$
DECLARE
	-- not current_schema, which the block above has changed
	home name := (SELECT s.nspname
		FROM pg_catalog.pg_namespace AS s JOIN pg_catalog.pg_extension AS x
			ON s.oid OPERATOR(pg_catalog.=) x.extnamespace
		WHERE x.extname OPERATOR(pg_catalog.=) 'gpuvec_pgvector');
	vector name := (SELECT s.nspname
		FROM pg_catalog.pg_namespace AS s JOIN pg_catalog.pg_extension AS x
			ON s.oid OPERATOR(pg_catalog.=) x.extnamespace
		WHERE x.extname OPERATOR(pg_catalog.=) 'vector');
	element name;
BEGIN
	PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
	FOREACH element IN ARRAY '{vector, halfvec}'::name[] LOOP
		CONTINUE WHEN to_regtype(format('%I.%I', vector, element)) IS NULL;
		EXECUTE format($sql$
			CREATE FUNCTION %1$I.gpuvec_vectors_to_real(%2$I.%3$I[])
			RETURNS real[]
			AS 'MODULE_PATHNAME' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;

			COMMENT ON FUNCTION %1$I.gpuvec_vectors_to_real(%2$I.%3$I[]) IS
				'an array of vectors as a real[] of two dimensions';

			CREATE CAST (%2$I.%3$I[] AS real[])
			WITH FUNCTION %1$I.gpuvec_vectors_to_real(%2$I.%3$I[])
			AS IMPLICIT;

			COMMENT ON CAST (%2$I.%3$I[] AS real[]) IS
				'for functions that are given queries'
			$sql$, home, vector, element);
	END LOOP;
END
$$;
