-- distances between pgvector's types and arrays, and how they are resolved
\getenv srcdir PG_ABS_SRCDIR
\i :srcdir/sql/include/prologue.sql
\i :srcdir/sql/include/plan_of.sql
CREATE EXTENSION IF NOT EXISTS vector;
CREATE EXTENSION IF NOT EXISTS gpuvec_pgvector;

SELECT opcname, opcintype::regtype, opcdefault, amvalidate(c.oid)
FROM pg_opclass AS c JOIN pg_am AS a ON a.oid = c.opcmethod
WHERE amname = 'gpuivfpq' AND opcintype IN ('vector'::regtype, 'halfvec'::regtype)
ORDER BY 1;
SELECT opfname, amopstrategy, amopopr::regoperator
FROM pg_amop AS o JOIN pg_opfamily AS f ON f.oid = o.amopfamily
	JOIN pg_am AS a ON a.oid = f.opfmethod
WHERE amname = 'gpuivfpq' AND amoplefttype IN ('vector'::regtype, 'halfvec'::regtype)
ORDER BY opfname, amoprighttype::regtype::text COLLATE "C";

CREATE TABLE mixed (id int, v vector(3), h halfvec(3), e real[]);
INSERT INTO mixed VALUES (1, '[1,2,3]', '[1,2,3]', '{1,2,3}'),
	(2, '[0.1,0.2,0.3]', '[0.1,0.2,0.3]', '{0.1,0.2,0.3}'), (3, NULL, NULL, NULL);

-- all pairs, both orders, all metrics: the same as pgvector's own operator
CREATE FUNCTION pg_temp.compare(indexed text, other text)
RETURNS TABLE (pair text, l2 bool, ip bool, cosine bool, commutes bool)
LANGUAGE plpgsql AS $$
BEGIN
	RETURN QUERY EXECUTE format('
		SELECT %L, bool_and(a <-> b = a <-> b::real[]::%2$s),
			bool_and(a <#> b = a <#> b::real[]::%2$s),
			bool_and(a <=> b = a <=> b::real[]::%2$s),
			bool_and(a <-> b = b <-> a AND a <#> b = b <#> a
				AND a <=> b = b <=> a)
		FROM (SELECT v::%2$s AS a FROM mixed) AS m,
			(VALUES (''[1,3,5]''::vector::real[]::text::%3$s),
				(''[4,4,9]''::vector::real[]::text::%3$s)) AS q (b)',
		indexed || ', ' || other, indexed, other);
END
$$;
SELECT c.*
FROM unnest(ARRAY['vector', 'halfvec']) AS i,
	unnest(ARRAY['real[]', 'float8[]', 'int2[]', 'int[]', 'int8[]', 'numeric[]']) AS o,
	pg_temp.compare(i, o) AS c;
SELECT id, h <-> v AS hv, v <-> h AS vh, h <-> h AS hh,
	h <-> '[1,1,1]'::vector = h <-> '[1,1,1]'::halfvec AS same
FROM mixed ORDER BY id;

-- literals and parameters without a type are pgvector's, as ever
SELECT v <-> '[1,2,4]' AS l2, '[1,2,4]' <-> h AS l2_half FROM mixed WHERE id = 1;
PREPARE untyped AS SELECT v <-> $1 FROM mixed WHERE id = 1;
SELECT parameter_types FROM pg_prepared_statements WHERE name = 'untyped';
EXECUTE untyped('[1,2,4]');

-- plans: an index on v or h serves them all
CREATE INDEX mixed_v ON mixed USING gpuivfpq (v);
CREATE INDEX mixed_h ON mixed USING gpuivfpq (h halfvec_cosine_ops);
EXPLAIN (COSTS OFF) SELECT id FROM mixed ORDER BY v <-> '[1,2,3]' LIMIT 1;
EXPLAIN (COSTS OFF) SELECT id FROM mixed ORDER BY v <-> ARRAY[1,2,3] LIMIT 1;
EXPLAIN (COSTS OFF) SELECT id FROM mixed ORDER BY v <-> ARRAY[0.1,0.2,0.3] LIMIT 1;
EXPLAIN (COSTS OFF) SELECT id FROM mixed ORDER BY v <-> '{1,2,3}'::real[] LIMIT 1;
EXPLAIN (COSTS OFF) SELECT id FROM mixed ORDER BY v <-> '{1,2,3}'::float8[] LIMIT 1;
EXPLAIN (COSTS OFF) SELECT id FROM mixed ORDER BY v <-> '{1,2,3}'::smallint[] LIMIT 1;
EXPLAIN (COSTS OFF) SELECT id FROM mixed ORDER BY v <-> '{1,2,3}'::bigint[] LIMIT 1;
EXPLAIN (COSTS OFF) SELECT id FROM mixed ORDER BY ARRAY[1,2,3] <-> v LIMIT 1;
EXPLAIN (COSTS OFF) SELECT id FROM mixed ORDER BY '{1,2,3}'::smallint[] <=> h LIMIT 1;
EXPLAIN (COSTS OFF) SELECT id FROM mixed ORDER BY h <=> '{1,2,3}'::real[] LIMIT 1;
EXPLAIN (COSTS OFF) SELECT id FROM mixed ORDER BY h <=> '[1,2,3]'::vector LIMIT 1;
EXPLAIN (COSTS OFF) SELECT id FROM mixed ORDER BY '[1,2,3]'::vector <=> h LIMIT 1;
SELECT id FROM mixed ORDER BY v <-> '{1,2,3}'::real[];
SELECT id FROM mixed ORDER BY ARRAY[0.1,0.2,0.3] <-> v;
SELECT id FROM mixed ORDER BY h <=> '{1,2,3}'::float8[] LIMIT 1;
SELECT id FROM mixed ORDER BY h <=> '{1,2,3}'::smallint[] LIMIT 1;
SELECT id FROM mixed ORDER BY '{1,2,3}'::bigint[] <-> v;

-- with parameters and from another table
SET plan_cache_mode = force_generic_plan;
PREPARE nearest(real[]) AS SELECT id FROM mixed ORDER BY v <-> $1;
EXPLAIN (COSTS OFF) EXECUTE nearest('{1,2,3}');
EXECUTE nearest('{1,2,3}');
EXECUTE nearest('{0,0,0}');
PREPARE nearest8(float8[]) AS SELECT id FROM mixed ORDER BY v <-> $1;
EXPLAIN (COSTS OFF) EXECUTE nearest8('{1,2,3}');
EXECUTE nearest8('{0,0,0}');
PREPARE nearest2(smallint[]) AS SELECT id FROM mixed ORDER BY v <-> $1;
EXPLAIN (COSTS OFF) EXECUTE nearest2('{1,2,3}');
EXECUTE nearest2('{1,2,3}');
EXECUTE nearest2('{0,0,0}');
EXECUTE nearest2(NULL);
PREPARE nearest_half(bigint[]) AS SELECT id FROM mixed ORDER BY h <=> $1;
EXPLAIN (COSTS OFF) EXECUTE nearest_half('{1,2,3}');
EXECUTE nearest_half('{1,2,3}');
RESET plan_cache_mode;
EXPLAIN (COSTS OFF)
SELECT g, b.id FROM generate_series(0, 2) AS g,
	LATERAL (SELECT id FROM mixed ORDER BY v <-> ARRAY[g, g, g] LIMIT 1) AS b;
SELECT g, b.id FROM generate_series(0, 2) AS g,
	LATERAL (SELECT id FROM mixed ORDER BY v <-> ARRAY[g, g, g] LIMIT 1) AS b;

-- an index on real[] serves values of pgvector's types
CREATE INDEX mixed_e ON mixed USING gpuivfpq (e);
EXPLAIN (COSTS OFF) SELECT id FROM mixed ORDER BY e <-> '[1,2,3]'::vector LIMIT 1;
EXPLAIN (COSTS OFF) SELECT id FROM mixed ORDER BY '[1,2,3]'::halfvec <-> e LIMIT 1;
SELECT * FROM pg_temp.plan_of($q$SELECT id FROM mixed ORDER BY e <=> '[1,2,3]'::vector LIMIT 1$q$);
SELECT id, e <-> '[1,2,3]'::vector AS d FROM mixed ORDER BY e <-> '[1,2,3]'::vector;
SELECT id FROM mixed ORDER BY e <-> '[0.1,0.2,0.3]'::halfvec;
SELECT id FROM mixed ORDER BY e <-> '[1,2]'::vector;
SELECT * FROM pg_temp.plan_of($q$SELECT m.id, b.id FROM mixed AS m,
	LATERAL (SELECT id FROM mixed ORDER BY e <-> m.v LIMIT 1) AS b$q$);
SELECT m.id, b.id FROM mixed AS m,
	LATERAL (SELECT id FROM mixed ORDER BY e <-> m.v LIMIT 1) AS b;
-- both from a table: the array is cast
SELECT id, e <-> v AS d FROM mixed ORDER BY id;
DROP INDEX mixed_e;

-- pgvector's own indexes serve them as well
DROP INDEX mixed_v, mixed_h;
CREATE INDEX mixed_v ON mixed USING hnsw (v vector_l2_ops);
CREATE INDEX mixed_h ON mixed USING hnsw (h halfvec_l2_ops);
EXPLAIN (COSTS OFF) SELECT id FROM mixed ORDER BY v <-> '{1,2,3}'::real[] LIMIT 1;
EXPLAIN (COSTS OFF) SELECT id FROM mixed ORDER BY h <-> '[1,2,3]'::vector LIMIT 1;
DROP INDEX mixed_v, mixed_h;

-- without the planner's help: the functions themselves, and the families'
-- operators with arrays
BEGIN;
UPDATE pg_proc SET prosupport = 0
WHERE prosupport IN ('gpuvec_mixed_l2_support'::regproc,
	'gpuvec_mixed_ip_support'::regproc,
	'gpuvec_mixed_cosine_support'::regproc);
SELECT c.*
FROM unnest(ARRAY['vector', 'halfvec']) AS i,
	unnest(ARRAY['real[]', 'float8[]', 'int2[]', 'int[]', 'int8[]', 'numeric[]']) AS o,
	pg_temp.compare(i, o) AS c;
SELECT id, h <-> v AS hv, v <-> h AS vh FROM mixed ORDER BY id;
CREATE INDEX mixed_v ON mixed USING gpuivfpq (v);
EXPLAIN (COSTS OFF) SELECT id FROM mixed ORDER BY v <-> '{1,2,3}'::real[] LIMIT 1;
EXPLAIN (COSTS OFF) SELECT id FROM mixed ORDER BY v <-> ARRAY[0.1,0.2,0.3] LIMIT 1;
EXPLAIN (COSTS OFF) SELECT id FROM mixed ORDER BY v <-> '{1,2,3}'::smallint[] LIMIT 1;
EXPLAIN (COSTS OFF) SELECT id FROM mixed ORDER BY v <-> '{1,2,3}'::bigint[] LIMIT 1;
SELECT id FROM mixed ORDER BY v <-> '{1,2,3}'::smallint[];
SELECT id FROM mixed ORDER BY v <-> '{0,0,0}'::bigint[];
SELECT id FROM mixed ORDER BY v <-> '{1,2,3}'::real[];
SELECT id FROM mixed ORDER BY v <-> '{0,0,0}'::float8[];
SELECT id FROM mixed ORDER BY v <-> ARRAY[1,2,3];
SELECT id FROM mixed ORDER BY ARRAY[0.1,0.2,0.3] <-> v;
-- queries that change from row to row, and such as lie out of line
SELECT g, v <-> ARRAY[1,2,3 + g] AS d
FROM mixed, generate_series(0, 4) AS g WHERE id = 1;
SELECT g, v <-> ARRAY[1,2,3 + g / 2]::smallint[] AS d2, ARRAY[1,2,3 + g]::bigint[] <-> v AS d8
FROM mixed, generate_series(0, 4) AS g WHERE id = 1;
CREATE TABLE wide (id int, v vector, e real[]);
ALTER TABLE wide ALTER e SET STORAGE EXTERNAL;
INSERT INTO wide SELECT g, array_fill(g::real, ARRAY[2000]),
	array_fill(g::real, ARRAY[2000]) FROM generate_series(1, 3) AS g;
SELECT a.id, b.id, (a.v <-> b.e)::numeric(8,3) AS d
FROM wide AS a, wide AS b ORDER BY 1, 2;
ROLLBACK;

-- what is no vector
SELECT v <-> '{1,2}'::real[] FROM mixed WHERE id = 1;
SELECT v <-> '{1,NULL,2}'::float8[] FROM mixed WHERE id = 1;
SELECT v <-> '{1,NaN,2}'::real[] FROM mixed WHERE id = 1;
SELECT v <-> '{{1,2,3}}'::real[] FROM mixed WHERE id = 1;
SELECT v <-> '{1,NULL,2}'::smallint[] FROM mixed WHERE id = 1;
SELECT v <-> '{{1,2,3}}'::bigint[] FROM mixed WHERE id = 1;
SELECT v <-> '{}'::real[] FROM mixed WHERE id = 1;
SELECT v <-> NULL::real[] FROM mixed WHERE id = 1;

-- columns
CREATE TABLE cols (v vector, h halfvec, v3 vector(3), h16 halfvec(16000));
CREATE INDEX ON cols USING gpuivfpq (v);
CREATE INDEX ON cols USING gpuivfpq (h halfvec_ip_ops);
CREATE INDEX ON cols USING gpuivfpq (v) WITH (dims = 3);
CREATE INDEX ON cols USING gpuivfpq (v3) WITH (dims = 3);
CREATE INDEX ON cols USING gpuivfpq (v3) WITH (dims = 4);
CREATE INDEX ON cols USING gpuivfpq (h16);
CREATE INDEX ON cols USING gpuivfpq ((v::vector(5)) vector_ip_ops);
CREATE DOMAIN embedding AS vector(4);
CREATE TABLE domains (e embedding, r real[]);
CREATE INDEX ON domains USING gpuivfpq (e);
CREATE INDEX ON domains USING gpuivfpq (e) WITH (dims = 3);
CREATE INDEX ON domains USING gpuivfpq (r vector_l2_ops);
DROP TABLE cols, domains;
DROP DOMAIN embedding;
DROP TABLE mixed;
