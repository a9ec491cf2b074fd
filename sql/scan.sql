-- scanning: what comes, in which order, how much of it
\getenv srcdir PG_ABS_SRCDIR
\i :srcdir/sql/include/prologue.sql

CREATE TABLE scanned (id int, kind int, e real[]) WITH (autovacuum_enabled = off);
INSERT INTO scanned SELECT g, g % 100, pg_temp.point(g, 8) FROM generate_series(1, 4000) AS g;
INSERT INTO scanned VALUES (4001, 0, NULL), (4002, 0, '{0,0,0,0,0,0,0,0}');
CREATE INDEX scanned_l2 ON scanned USING gpuivfpq (e) WITH (lists = 40, probes = 5);
CREATE INDEX scanned_ip ON scanned USING gpuivfpq (e real_ip_ops) WITH (lists = 40, probes = 5);
CREATE INDEX scanned_cosine ON scanned USING gpuivfpq (e real_cosine_ops)
	WITH (lists = 40, probes = 5);
CREATE TABLE queries (q int, e real[]);
INSERT INTO queries SELECT g, pg_temp.point(g + 5000, 8) FROM generate_series(1, 10) AS g;

-- the average share of the k nearest rows that the index gives
CREATE FUNCTION pg_temp.recall(operator text, k int) RETURNS numeric
LANGUAGE plpgsql AS $$
DECLARE
	query record;
	bound float8;
	hits int;
	total int = 0;
BEGIN
	FOR query IN SELECT e FROM queries LOOP
		EXECUTE format('SELECT max(d) FROM (SELECT (e %1$s %2$L::real[]) + 0 AS d FROM scanned
			ORDER BY 1 LIMIT %3$s) AS x', operator, query.e, k) INTO bound;
		EXECUTE format('SELECT count(*) FROM (SELECT e %1$s %2$L AS d FROM scanned
			ORDER BY e %1$s %2$L LIMIT %3$s) AS x WHERE d <= %4$L',
			operator, query.e, k, bound) INTO hits;
		total = total + hits;
	END LOOP;
	RETURN total::numeric / (SELECT count(*) * k FROM queries);
END
$$;

-- rows of a query, and how many of them are nearer than the row before
CREATE FUNCTION pg_temp.ordered(operator text, lim int DEFAULT NULL)
RETURNS TABLE (rows bigint, distinct_rows bigint, out_of_order bigint)
LANGUAGE plpgsql AS $$
BEGIN
	RETURN QUERY EXECUTE format('
		SELECT count(*), count(DISTINCT id), count(*) FILTER (WHERE d < before)
		FROM (SELECT id, d, lag(d) OVER () AS before
			FROM (SELECT id, e %1$s %2$L AS d FROM scanned
				ORDER BY e %1$s %2$L LIMIT %3$L) AS x) AS y',
		operator, pg_temp.point(5001, 8), lim);
END
$$;

-- every operator
EXPLAIN (COSTS OFF) SELECT id FROM scanned ORDER BY e <-> '{1,2,3,4,5,6,7,8}' LIMIT 5;
EXPLAIN (COSTS OFF) SELECT id FROM scanned ORDER BY e <#> '{1,2,3,4,5,6,7,8}' LIMIT 5;
EXPLAIN (COSTS OFF) SELECT id FROM scanned ORDER BY e <=> '{1,2,3,4,5,6,7,8}' LIMIT 5;
SELECT pg_temp.recall('<->', 10) > 0.95 AS l2, pg_temp.recall('<#>', 10) > 0.8 AS ip,
	pg_temp.recall('<=>', 10) > 0.9 AS cosine;

-- all lists and enough candidates: exact
SET gpuvec.probes = 40;
SET gpuvec.candidates = 4002;
SELECT pg_temp.recall('<->', 10)::float AS l2, pg_temp.recall('<#>', 10)::float AS ip,
	pg_temp.recall('<=>', 10)::float AS cosine;
SELECT pg_temp.recall('<->', 500)::float AS l2, pg_temp.recall('<#>', 500)::float AS ip,
	pg_temp.recall('<=>', 500)::float AS cosine;
RESET gpuvec.probes;
RESET gpuvec.candidates;

-- one list and one candidate: poor, but in order, and as many as asked for
SET gpuvec.probes = 1;
SET gpuvec.candidates = 1;
SELECT * FROM pg_temp.ordered('<->', 1);
SELECT rows > 40 AS rows, rows = distinct_rows AS distinct_rows, out_of_order
FROM pg_temp.ordered('<->', 50);
RESET gpuvec.probes;
RESET gpuvec.candidates;

-- LIMIT of any size
SELECT * FROM pg_temp.ordered('<->', 0);
SELECT * FROM pg_temp.ordered('<->', 1);
SELECT * FROM pg_temp.ordered('<->', 10);
SELECT * FROM pg_temp.ordered('<->', 11);
SELECT * FROM pg_temp.ordered('<->', 1000);
SELECT pg_temp.recall('<->', 200) > 0.9 AS far_rows_too;

-- strict order leaves out what comes late, relaxed order nothing
SELECT rows > 3000 AS most, rows = distinct_rows AS distinct_rows, out_of_order
FROM pg_temp.ordered('<->');
SELECT rows > 3000 AS most, rows = distinct_rows AS distinct_rows, out_of_order
FROM pg_temp.ordered('<#>');
SELECT rows > 3000 AS most, rows = distinct_rows AS distinct_rows, out_of_order
FROM pg_temp.ordered('<=>');
SET gpuvec.scan_order = relaxed;
SELECT rows, distinct_rows FROM pg_temp.ordered('<->');
SELECT rows, distinct_rows FROM pg_temp.ordered('<#>');
SELECT rows, distinct_rows FROM pg_temp.ordered('<=>');
SELECT rows, distinct_rows FROM pg_temp.ordered('<->', 3500);
SET gpuvec.candidates = 1;
SET gpuvec.probes = 1;
SELECT rows, distinct_rows FROM pg_temp.ordered('<->');
RESET gpuvec.candidates;
RESET gpuvec.probes;

-- a bound on lists ends the scan early
SET gpuvec.max_probes = 5;
SELECT rows BETWEEN 100 AND 2000 AS bounded FROM pg_temp.ordered('<->');
SET gpuvec.max_probes = 40;
SELECT rows FROM pg_temp.ordered('<->');
RESET gpuvec.max_probes;
RESET gpuvec.scan_order;

-- NULL: rows in any order, but all that the index holds
SELECT count(*) FROM (SELECT id FROM scanned ORDER BY e <-> (SELECT NULL::real[])) AS q;
SELECT count(*) FROM (SELECT id FROM scanned ORDER BY e <-> (SELECT NULL::real[]) LIMIT 7) AS q;
-- zero under cosine: as far from everything
SELECT count(*) FROM (SELECT id FROM scanned ORDER BY e <=> '{0,0,0,0,0,0,0,0}' LIMIT 7) AS q;
SET gpuvec.scan_order = relaxed;
SELECT count(*), count(DISTINCT id)
FROM (SELECT id FROM scanned ORDER BY e <=> '{0,0,0,0,0,0,0,0}') AS q;
RESET gpuvec.scan_order;
SELECT count(*) FROM (SELECT id FROM scanned ORDER BY e <#> '{0,0,0,0,0,0,0,0}' LIMIT 100) AS q;

-- no ORDER BY by distance: not this index
SELECT count(*) FROM scanned;
SET enable_seqscan = on;
EXPLAIN (COSTS OFF) SELECT count(*) FROM scanned;
EXPLAIN (COSTS OFF) SELECT id FROM scanned WHERE e = '{1}';
EXPLAIN (COSTS OFF) SELECT id FROM scanned ORDER BY e LIMIT 1;
EXPLAIN (COSTS OFF) SELECT id FROM scanned ORDER BY e <-> '{1,2,3,4,5,6,7,8}' DESC LIMIT 1;
EXPLAIN (COSTS OFF) SELECT id FROM scanned ORDER BY e <-> e LIMIT 1;
SET enable_seqscan = off;
-- ... while the other side of the operator will do
EXPLAIN (COSTS OFF) SELECT id FROM scanned ORDER BY '{1,2,3,4,5,6,7,8}' <-> e LIMIT 1;
EXPLAIN (COSTS OFF) SELECT e FROM scanned ORDER BY e <-> '{1,2,3,4,5,6,7,8}' LIMIT 1;

-- one scan again and again, with keys that change, are NULL, or are zero
EXPLAIN (COSTS OFF)
SELECT n.id FROM generate_series(1, 3) AS g,
	LATERAL (SELECT id FROM scanned AS s ORDER BY s.e <-> array_fill(g::real, ARRAY[8]) LIMIT 3) AS n;
SELECT count(*), count(DISTINCT n.id) > 20 AS various
FROM queries AS q, LATERAL (SELECT id FROM scanned AS s ORDER BY s.e <-> q.e LIMIT 3) AS n;
SELECT k.k, n.rows, n.own
FROM (VALUES (1, pg_temp.point(17, 8)), (2, NULL), (3, '{0,0,0,0,0,0,0,0}'),
		(4, pg_temp.point(18, 8)), (5, NULL), (6, pg_temp.point(17, 8))) AS k (k, e),
	LATERAL (SELECT count(*) AS rows, bool_or(id IN (17, 18)) AS own
		FROM (SELECT id FROM scanned AS s ORDER BY s.e <=> k.e LIMIT 3) AS x) AS n
ORDER BY k.k;

-- cursors
BEGIN;
DECLARE c CURSOR FOR SELECT id, e <-> '{1,2,3,4,5,6,7,8}' AS d FROM scanned
	ORDER BY e <-> '{1,2,3,4,5,6,7,8}';
FETCH 2 FROM c \g /dev/null
MOVE 2000 IN c;
FETCH 1 FROM c \gset
SELECT count(*) BETWEEN 1900 AND 3000 AS place FROM scanned
WHERE e <-> '{1,2,3,4,5,6,7,8}' < :d;
SAVEPOINT s;
FETCH BACKWARD 1 FROM c;
ROLLBACK TO s;
CLOSE c;
DECLARE c SCROLL CURSOR WITH HOLD FOR SELECT id FROM scanned
	ORDER BY e <-> '{1,2,3,4,5,6,7,8}' LIMIT 5;
FETCH 5 FROM c \g /dev/null
FETCH BACKWARD 5 FROM c \g /dev/null
COMMIT;
MOVE FORWARD ALL IN c;
CLOSE c;

-- filters that leave little: LIMIT is filled all the same
EXPLAIN (COSTS OFF) SELECT id FROM scanned WHERE kind = 7 ORDER BY e <-> '{1,2,3,4,5,6,7,8}' LIMIT 10;
SELECT count(*), bool_and(id % 100 = 7) FROM (SELECT id FROM scanned WHERE kind = 7
	ORDER BY e <-> '{1,2,3,4,5,6,7,8}' LIMIT 10) AS q;
SET gpuvec.scan_order = relaxed;
SELECT count(*) FROM (SELECT id FROM scanned WHERE kind = 7
	ORDER BY e <-> '{1,2,3,4,5,6,7,8}' LIMIT 40) AS q;
SELECT count(*) FROM (SELECT id FROM scanned WHERE id = 1234
	ORDER BY e <-> '{1,2,3,4,5,6,7,8}' LIMIT 5) AS q;
SELECT count(*) FROM (SELECT id FROM scanned WHERE kind = 1000
	ORDER BY e <-> '{1,2,3,4,5,6,7,8}' LIMIT 5) AS q;
RESET gpuvec.scan_order;
SELECT id FROM scanned WHERE e <-> '{1,2,3,4,5,6,7,8}' < 1
ORDER BY e <-> '{1,2,3,4,5,6,7,8}' LIMIT 5;

-- joins, and a second key that sorts what is equal
SELECT count(*) FROM (SELECT s.id FROM scanned AS s JOIN queries AS q ON q.q = s.kind
	ORDER BY s.e <-> '{1,2,3,4,5,6,7,8}' LIMIT 25) AS x;
SET gpuvec.probes = 10000;
SET gpuvec.candidates = 1000;
SELECT array_agg(id) = (SELECT array_agg(id) FROM (SELECT id FROM scanned
		ORDER BY (e <-> '{1,2,3,4,5,6,7,8}') + 0, id LIMIT 5) AS x) AS same
FROM (SELECT id FROM scanned ORDER BY e <-> '{1,2,3,4,5,6,7,8}', id LIMIT 5) AS q;
RESET gpuvec.probes;
RESET gpuvec.candidates;

-- several distances: rows equally near by the first come by the second, then the third
CREATE TABLE grid (id int, e real[]) WITH (autovacuum_enabled = off);
INSERT INTO grid SELECT x * 196 + y * 14 + z, ARRAY[x, y, z]
FROM generate_series(0, 13) AS x, generate_series(0, 13) AS y, generate_series(0, 13) AS z;
INSERT INTO grid VALUES (5000, NULL);
CREATE INDEX grid_e ON grid USING gpuivfpq (e) WITH (lists = 20);
ANALYZE grid;
EXPLAIN (COSTS OFF) SELECT id FROM grid ORDER BY e <-> '{6,6,6}', e <-> '{0,1,4}' LIMIT 30;
-- places at which the index differs from a sort, which + 0 forces
CREATE FUNCTION pg_temp.places(lim text) RETURNS TABLE (rows bigint, other bigint)
LANGUAGE plpgsql AS $$
DECLARE
	query text = 'SELECT row_number() OVER () AS n, d FROM (
		SELECT ARRAY[e <-> ''{6,6,6}'', e <-> ''{0,1,4}'', e <-> ''{9,1,2}''] AS d FROM grid WHERE e IS NOT NULL
		ORDER BY (e <-> ''{6,6,6}'')%1$s, (e <-> ''{0,1,4}'')%1$s, (e <-> ''{9,1,2}'')%1$s LIMIT %2$s) AS x';
BEGIN
	RETURN QUERY EXECUTE format('SELECT count(*), count(*) FILTER (WHERE a.d IS DISTINCT FROM b.d)
		FROM (%s) AS a FULL JOIN (%s) AS b USING (n)', format(query, '', lim), format(query, ' + 0', lim));
END
$$;
SET gpuvec.recall = 1;
SELECT * FROM pg_temp.places('30');
SELECT * FROM pg_temp.places('ALL');
SET enable_incremental_sort = off;
SELECT * FROM pg_temp.places('30');
RESET enable_incremental_sort;
RESET gpuvec.recall;
-- in order, if not all of them
SELECT count(*), count(*) FILTER (WHERE d < before) AS unsorted
FROM (SELECT d, lag(d) OVER () AS before
	FROM (SELECT ARRAY[e <-> '{6.5,6,6}', e <-> '{0,1,4}'] AS d FROM grid
		ORDER BY e <-> '{6.5,6,6}', e <-> '{0,1,4}' LIMIT 500) AS x) AS y;
-- the first is NULL: the second alone
PREPARE two(real[], real[]) AS SELECT id FROM grid ORDER BY e <-> $1, e <-> $2 LIMIT 3;
SET plan_cache_mode = force_generic_plan;
EXPLAIN (COSTS OFF) EXECUTE two(NULL, '{13,0,0.3}');
EXECUTE two(NULL, '{13,0,0.3}');
EXECUTE two('{13,0,0.3}', NULL);
EXECUTE two('{13.5,0.5,0.5}', '{13.1,0.2,0}');
EXECUTE two(NULL, NULL) \g /dev/null
SELECT returned FROM gpuvec_last_scan();
RESET plan_cache_mode;
DEALLOCATE two;
-- the same key twice; a second one that is no distance, or goes down
SELECT id FROM grid ORDER BY e <-> '{13,0,0.3}', e <-> '{13,0,0.3}' LIMIT 3;
SELECT id FROM grid ORDER BY e <-> '{13.5,0.5,0.5}', id DESC LIMIT 3;
SELECT id FROM grid ORDER BY e <-> '{13.5,0.5,0.5}', e <-> '{0,0,0}' DESC, id LIMIT 3;
-- partitions
CREATE TABLE parts (id int, e real[]) PARTITION BY RANGE (id);
CREATE TABLE parts_low PARTITION OF parts FOR VALUES FROM (0) TO (1400);
CREATE TABLE parts_high PARTITION OF parts FOR VALUES FROM (1400) TO (6000);
INSERT INTO parts SELECT * FROM grid;
CREATE INDEX parts_e ON parts USING gpuivfpq (e) WITH (lists = 10);
SELECT id FROM parts ORDER BY e <-> '{6.5,6.5,6.5}', e <-> '{0,1,4.1}' LIMIT 8;
DROP TABLE parts, grid;

-- parameters: real[], other arrays, and without a type; generic plans
SET plan_cache_mode = force_generic_plan;
PREPARE by_real(real[]) AS SELECT id FROM scanned ORDER BY e <-> $1 LIMIT 1;
PREPARE by_float8(float8[]) AS SELECT id FROM scanned ORDER BY e <-> $1 LIMIT 1;
PREPARE by_int(int[]) AS SELECT id FROM scanned ORDER BY e <-> $1 LIMIT 1;
PREPARE by_smallint(smallint[]) AS SELECT id FROM scanned ORDER BY e <-> $1 LIMIT 1;
PREPARE by_bigint(bigint[]) AS SELECT id FROM scanned ORDER BY e <-> $1 LIMIT 1;
PREPARE by_numeric(numeric[]) AS SELECT id FROM scanned ORDER BY e <-> $1 LIMIT 1;
PREPARE by_any AS SELECT id FROM scanned ORDER BY e <-> $1 LIMIT 1;
SELECT name, parameter_types FROM pg_prepared_statements ORDER BY name;
EXPLAIN (COSTS OFF) EXECUTE by_real('{1}');
EXPLAIN (COSTS OFF) EXECUTE by_float8('{1}');
EXPLAIN (COSTS OFF) EXECUTE by_int('{1}');
EXPLAIN (COSTS OFF) EXECUTE by_smallint('{1}');
EXPLAIN (COSTS OFF) EXECUTE by_bigint('{1}');
EXPLAIN (COSTS OFF) EXECUTE by_numeric('{1}');
EXPLAIN (COSTS OFF) EXECUTE by_any('{1}');
SELECT e AS target FROM scanned WHERE id = 3333 \gset
EXECUTE by_real(:'target');
EXECUTE by_float8(:'target');
EXECUTE by_numeric(:'target');
EXECUTE by_any(:'target');
EXECUTE by_real(NULL);
EXECUTE by_real('{1,2,3}');
EXECUTE by_int('{0,0,0,0,0,0,0,0}');
EXECUTE by_smallint('{0,0,0,0,0,0,0,0}');
EXECUTE by_bigint('{0,0,0,0,0,0,0,0}');
RESET plan_cache_mode;
DEALLOCATE ALL;
PREPARE limited(real[], int) AS SELECT count(*) FROM (SELECT id FROM scanned ORDER BY e <-> $1 LIMIT $2) AS q;
EXECUTE limited('{1,2,3,4,5,6,7,8}', 5);
EXECUTE limited('{1,2,3,4,5,6,7,8}', 123);
DEALLOCATE ALL;

-- rows deleted or changed are gone at once; others' snapshots are not needed
DELETE FROM scanned WHERE id = 3333;
SELECT id = 3333 AS ghost FROM scanned ORDER BY e <-> :'target' LIMIT 1;
UPDATE scanned SET e = :'target' WHERE id = 2222;
SELECT id FROM scanned ORDER BY e <-> :'target' LIMIT 1;
BEGIN ISOLATION LEVEL REPEATABLE READ;
DELETE FROM scanned WHERE id = 2222;
SELECT id = 2222 AS ghost FROM scanned ORDER BY e <-> :'target' LIMIT 1;
ROLLBACK;
SELECT id FROM scanned ORDER BY e <-> :'target' LIMIT 1;
DELETE FROM scanned WHERE kind < 95;
SELECT count(*), bool_and(kind >= 95) FROM (SELECT kind FROM scanned ORDER BY e <-> :'target' LIMIT 100) AS q;

-- written down and read by plpgsql, functions, parallel plans
CREATE FUNCTION pg_temp.nearest(real[]) RETURNS int LANGUAGE plpgsql STABLE AS $$
BEGIN
	RETURN (SELECT id FROM scanned ORDER BY e <-> $1 LIMIT 1);
END
$$;
SELECT count(*) FILTER (WHERE pg_temp.nearest(e) = id) = count(*) AS own FROM scanned
WHERE e IS NOT NULL;
SET min_parallel_table_scan_size = 0;
SET parallel_setup_cost = 0;
SET parallel_tuple_cost = 0;
SELECT set_config(name, 'on', false) FROM pg_settings
WHERE name IN ('force_parallel_mode', 'debug_parallel_query');
SELECT count(*) FROM (SELECT id FROM scanned ORDER BY e <-> :'target' LIMIT 10) AS q;
SELECT set_config(name, 'off', false) FROM pg_settings
WHERE name IN ('force_parallel_mode', 'debug_parallel_query');

SELECT * FROM gpuvec_verify_index('scanned_l2');
SELECT * FROM gpuvec_verify_index('scanned_ip');
SELECT * FROM gpuvec_verify_index('scanned_cosine');
DROP TABLE scanned, queries;

-- the vector is not NULL: as many write, and all rows of an index are
CREATE TABLE sparse (id int, e real[]);
INSERT INTO sparse SELECT i, CASE WHEN i % 7 > 0 THEN ARRAY[i % 40, i % 17, i % 11] END
FROM generate_series(1, 2000) AS i;
CREATE INDEX ON sparse USING gpuivfpq (e) WITH (lists = 20);
SET enable_seqscan = off;
EXPLAIN (COSTS OFF)
SELECT id FROM sparse WHERE e IS NOT NULL ORDER BY e <-> '{20,8,5}' LIMIT 5;
SELECT count(*) FROM (SELECT id FROM sparse WHERE e IS NOT NULL
	ORDER BY e <-> '{20,8,5}' LIMIT 5) AS s;
SET gpuvec.recall = 1;
SELECT count(*), bool_and(e IS NOT NULL) FROM (SELECT e FROM sparse WHERE e IS NOT NULL
	ORDER BY e <-> '{20,8,5}' LIMIT 5000) AS s;
RESET gpuvec.recall;
RESET enable_seqscan;
DROP TABLE sparse;
