-- gpuvec_pgvector as a whole: all extensions in schemas off the path
\getenv srcdir PG_ABS_SRCDIR
\i :srcdir/sql/include/prologue.sql
CREATE EXTENSION IF NOT EXISTS vector;
DROP EXTENSION gpuvec CASCADE;
DROP EXTENSION vector CASCADE;
CREATE SCHEMA vec;
CREATE SCHEMA gv;
CREATE SCHEMA gvp;
CREATE EXTENSION vector SCHEMA vec;
CREATE EXTENSION gpuvec_pgvector SCHEMA gvp;
CREATE EXTENSION gpuvec SCHEMA gv;
CREATE EXTENSION gpuvec_pgvector SCHEMA gvp;
CREATE TABLE off_path (id int, v vec.vector(3));
CREATE INDEX ON off_path USING gpuivfpq (v);
CREATE INDEX ON off_path USING gpuivfpq (v gvp.vector_cosine_ops);
EXPLAIN (COSTS OFF) SELECT id FROM off_path
ORDER BY v OPERATOR(gvp.<->) '{1,2,3}'::real[] LIMIT 1;
EXPLAIN (COSTS OFF) SELECT id FROM off_path
ORDER BY v OPERATOR(vec.<=>) '[1,2,3]' LIMIT 1;
SELECT '[1,2,3]'::vec.vector OPERATOR(gvp.<->) ARRAY[1,2,5];

-- extensions can be moved
ALTER EXTENSION vector SET SCHEMA gv;
ALTER EXTENSION gpuvec_pgvector SET SCHEMA vec;
SELECT '[1,2,3]'::gv.vector OPERATOR(vec.<->) ARRAY[1,2,5];

-- every object a user meets has a comment
SELECT d.classid::regclass, count(*),
	count(*) FILTER (WHERE obj_description(d.objid, d.classid::regclass::text)
		IS NULL) AS uncommented
FROM pg_depend AS d
WHERE d.deptype = 'e' AND d.classid <> 'pg_opfamily'::regclass
	AND d.refobjid = (SELECT oid FROM pg_extension
		WHERE extname = 'gpuvec_pgvector')
GROUP BY 1 ORDER BY d.classid::regclass::text;

-- functions are everyone's, run with the rights of who calls them, and none is
-- said to leak nothing
SELECT count(*) > 0 AS some, count(*) FILTER (WHERE NOT has_function_privilege('public', p.oid, 'EXECUTE')) AS not_public,
	count(*) FILTER (WHERE prosecdef) AS definer, count(*) FILTER (WHERE proleakproof) AS leakproof,
	count(*) FILTER (WHERE prolang <> (SELECT oid FROM pg_language WHERE lanname = 'c')) AS not_c
FROM pg_depend AS d JOIN pg_proc AS p ON p.oid = d.objid
WHERE d.deptype = 'e' AND d.classid = 'pg_proc'::regclass
	AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'gpuvec_pgvector');

-- and go without a trace
\set VERBOSITY terse
DROP EXTENSION vector;
DROP EXTENSION gpuvec;
\set VERBOSITY default
DROP EXTENSION gpuvec_pgvector CASCADE;
SELECT count(*) FROM pg_index WHERE indrelid = 'off_path'::regclass;
SELECT count(*) FROM pg_opclass
WHERE opcname ~ '^(vector|halfvec)_' AND
	opcmethod = (SELECT oid FROM pg_am WHERE amname = 'gpuivfpq');
SELECT count(*) FROM pg_operator
WHERE oprcode::text LIKE '%gpuvec%' AND oprleft <> 'real[]'::regtype;
DROP TABLE off_path;
DROP EXTENSION gpuvec;
DROP EXTENSION vector;
DROP SCHEMA vec, gv, gvp;
CREATE EXTENSION gpuvec;
CREATE EXTENSION gpuvec_pgvector CASCADE;
