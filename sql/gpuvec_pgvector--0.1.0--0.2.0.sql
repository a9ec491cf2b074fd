/* sql/gpuvec_pgvector--0.1.0--0.2.0.sql */

-- complain if script is sourced in psql, rather than via ALTER EXTENSION
\echo Use "ALTER EXTENSION gpuvec_pgvector UPDATE TO '0.2.0'" to load this file. \quit

--
-- Operators with smallint[] or bigint[] on one side, as 0.1.0 has them for
-- the other arrays of numbers: psycopg 3 sends a list of numbers as the
-- narrowest of smallint[], integer[] and bigint[] that holds them.
--
-- A pair is (indexed type, other type); both orders are made, commutators of
-- each other.
--
DO $$
DECLARE
	pair record;
	metric record;
BEGIN
	FOR pair IN
		SELECT indexed, other
		FROM (VALUES ('vector'), ('halfvec')) AS i (indexed),
			(VALUES ('smallint[]'), ('bigint[]')) AS o (other)
		-- halfvec's are missing where pgvector was older than 0.7
		WHERE EXISTS (SELECT FROM pg_opfamily AS f
			JOIN pg_am AS a ON a.oid = f.opfmethod
			WHERE a.amname = 'gpuivfpq' AND f.opfname = indexed || '_l2_ops'
			AND f.opfnamespace = current_schema()::regnamespace)
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
