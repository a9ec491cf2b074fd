/* sql/gpuvec_pgvector--0.2.0--1.0.0.sql */

-- complain if script is sourced in psql, rather than via ALTER EXTENSION
\echo Use "ALTER EXTENSION gpuvec_pgvector UPDATE TO '1.0.0'" to load this file. \quit

--
-- From here on both extensions have gpuvec's version.
--
-- But the scripts before took operators and functions as they found them, be it
-- somebody's who may create objects beside gpuvec's: those of an index run with
-- the rights of whoever inserts a row.
--
DO $$
DECLARE
	strange text;
BEGIN
	PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
	WITH owned AS (
		SELECT d.classid, d.objid, x.extname
		FROM pg_depend AS d JOIN pg_extension AS x ON x.oid = d.refobjid
		WHERE d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e'
			AND x.extname IN ('vector', 'gpuvec', 'gpuvec_pgvector')
	), taken (family, classid, objid) AS (
		SELECT amopfamily, 'pg_operator'::regclass, amopopr FROM pg_amop
		UNION ALL
		SELECT amprocfamily, 'pg_proc'::regclass, amproc FROM pg_amproc
	)
	SELECT string_agg(DISTINCT pg_describe_object(t.classid, t.objid, 0), ', ')
	INTO strange
	FROM taken AS t JOIN owned AS f
		ON f.classid = 'pg_opfamily'::regclass AND f.objid = t.family
			AND f.extname = 'gpuvec_pgvector'
	WHERE NOT EXISTS (SELECT FROM owned AS o
		WHERE o.classid = t.classid AND o.objid = t.objid);
	IF strange IS NOT NULL THEN
		RAISE EXCEPTION 'operator classes of gpuvec_pgvector use what belongs to no extension: %', strange
			USING HINT = 'Ask who made it; then drop gpuvec_pgvector and its indexes, and create it again.';
	END IF;
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
