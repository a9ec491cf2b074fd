-- a distance and further keys; distances with their sides exchanged
\getenv srcdir PG_ABS_SRCDIR
\i :srcdir/sql/include/prologue.sql
-- full sorts look dear, too; incremental ones do not
SET enable_sort = off;

CREATE TABLE ties (id int, kind int, e real[]) WITH (autovacuum_enabled = off);
INSERT INTO ties SELECT g, g % 7, pg_temp.numbers(g, 4, 3) FROM generate_series(1, 3000) AS g;
CREATE INDEX ties_e ON ties USING gpuivfpq (e) WITH (lists = 20);
ANALYZE ties;

-- nodes of a plan, with what an index scan is asked for
CREATE FUNCTION pg_temp.plan(statement text, line text DEFAULT '^ *->|Presorted|Order By:')
RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE
	l text;
BEGIN
	FOR l IN EXECUTE 'EXPLAIN (VERBOSE, COSTS OFF) ' || statement LOOP
		IF l ~ line THEN
			RETURN NEXT l;
		END IF;
	END LOOP;
END
$$;

-- Is what the statement brings by the index what a sort brings?
CREATE FUNCTION pg_temp.agrees(statement text) RETURNS bool LANGUAGE plpgsql AS $$
DECLARE
	by_index text;
	by_sort text;
BEGIN
	PERFORM set_config('gpuvec.recall', '1', true);
	EXECUTE format('SELECT string_agg(q::text, '' '') FROM (%s) AS q', statement) INTO by_index;
	PERFORM set_config('enable_indexscan', 'off', true);
	PERFORM set_config('gpuvec.enable_custom_scan', 'off', true);
	EXECUTE format('SELECT string_agg(q::text, '' '') FROM (%s) AS q', statement) INTO by_sort;
	PERFORM set_config('enable_indexscan', 'on', true);
	PERFORM set_config('gpuvec.enable_custom_scan', 'on', true);
	RETURN by_index = by_sort;
END
$$;

-- ORDER BY distance, id: the index brings the order of the first
\set first 'SELECT id FROM ties ORDER BY e <-> ''{1,2,3,0}'', id LIMIT 30'
SELECT pg_temp.plan(:'first');
SELECT pg_temp.agrees(:'first');
SELECT pg_temp.plan('SELECT id FROM ties WHERE kind = 3 ORDER BY e <-> ''{1,2,3,0}'', id DESC LIMIT 30');
SELECT pg_temp.agrees('SELECT id FROM ties WHERE kind = 3 ORDER BY e <-> ''{1,2,3,0}'', id DESC LIMIT 30');
SELECT pg_temp.plan('SELECT id, kind FROM ties ORDER BY ''{1,2,3,0}'' <-> e, kind, id LIMIT 30');
SELECT pg_temp.agrees('SELECT id, kind FROM ties ORDER BY ''{1,2,3,0}'' <-> e, kind, id LIMIT 30');
PREPARE first AS SELECT id FROM ties ORDER BY e <-> $1, id LIMIT 5;
SET plan_cache_mode = force_generic_plan;
SELECT pg_temp.plan('EXECUTE first(''{1,2,3,0}'')');
EXECUTE first('{1,2,3,0}');
EXECUTE first(NULL);
RESET plan_cache_mode;
-- not what the index cannot bring
SELECT pg_temp.plan('SELECT id FROM ties ORDER BY e <-> ''{1,2,3,0}'' DESC, id LIMIT 30');
SELECT pg_temp.plan('SELECT id FROM ties ORDER BY e <-> ''{1,2,3,0}'' NULLS FIRST, id LIMIT 30');
SELECT pg_temp.plan('SELECT id FROM ties ORDER BY e <=> ''{1,2,3,0}'', id LIMIT 30');
SELECT pg_temp.plan('SELECT id FROM ties ORDER BY id, e <-> ''{1,2,3,0}'' LIMIT 30');
SELECT pg_temp.plan('SELECT id FROM ties ORDER BY e <-> array_fill(random()::real, ARRAY[4]), id LIMIT 30');
SELECT pg_temp.plan('SELECT a.id FROM ties AS a, ties AS b ORDER BY a.e <-> b.e, a.id LIMIT 30');
-- nor out of order
SET gpuvec.scan_order = relaxed;
SELECT pg_temp.plan(:'first');
SELECT pg_temp.plan('SELECT id FROM ties ORDER BY e <-> ''{1,2,3,0}'', e <-> ''{0,0,0,1}'' LIMIT 30');
SELECT pg_temp.plan('SELECT id FROM ties ORDER BY e <-> ''{1,2,3,0}'' LIMIT 30');
-- ... where anything relies on the order of the only key
CREATE TABLE far (r float8);
INSERT INTO far SELECT DISTINCT e <-> '{1,2,3,0}' FROM ties;
ANALYZE far;
SET enable_hashjoin = off;
SET enable_nestloop = off;
SELECT s, EXISTS (SELECT FROM pg_temp.plan(replace(s, '#', 'e <-> ''{1,2,3,0}'''), 'Order By:')) AS by_index FROM unnest(ARRAY[
	'SELECT DISTINCT # AS d FROM ties ORDER BY d LIMIT 5', 'SELECT DISTINCT ON (#) id FROM ties', 'SELECT #, count(*) FROM ties GROUP BY 1 ORDER BY 1 LIMIT 5',
	'SELECT array_agg(id ORDER BY #) FROM ties', 'SELECT id, rank() OVER (ORDER BY #) FROM ties LIMIT 5', 'SELECT id, count(*) OVER (PARTITION BY #) FROM ties LIMIT 5',
	'SELECT id, rank() OVER (ORDER BY 1, 2), rank() OVER (ORDER BY #) FROM ties LIMIT 5', 'SELECT id FROM ties ORDER BY # FETCH FIRST 5 ROWS WITH TIES',
	'SELECT id FROM ties JOIN far ON r = # ORDER BY # LIMIT 5', 'SELECT id FROM far RIGHT JOIN ties ON r = # ORDER BY # LIMIT 5',
	'SELECT id FROM ties FULL JOIN far ON r = # ORDER BY # LIMIT 5', 'SELECT # FROM ties UNION SELECT r FROM far']) AS s;
-- for a limit alone
SELECT s, EXISTS (SELECT FROM pg_temp.plan(replace(s, '#', 'e <-> ''{1,2,3,0}'''), 'Order By:')) AS by_index FROM unnest(ARRAY[
	'SELECT id, count(*) OVER () FROM ties ORDER BY # LIMIT 5', 'SELECT id FROM ties WHERE # < 4 ORDER BY #', 'SELECT min(#) FROM ties',
	'SELECT id FROM ties JOIN far ON r = kind ORDER BY # LIMIT 5']) AS s;
RESET enable_hashjoin;
RESET enable_nestloop;
-- late rows there are
CREATE TABLE thrice AS SELECT g AS id, pg_temp.point(g % 1000, 8, spread => 0) AS e FROM generate_series(1, 3000) AS g;
CREATE INDEX ON thrice USING gpuivfpq (e) WITH (lists = 30, pq_dim = 2);
ANALYZE thrice;
SET gpuvec.probes = 1;
SET gpuvec.candidates = 1;
SET enable_hashagg = off;
\set d 'e <-> ''{.1,.2,.3,.4,.5,.6,.7,.8}'''
SELECT bool_or(d < before) AS late FROM (SELECT d, lag(d) OVER () AS before FROM (SELECT :d AS d FROM thrice ORDER BY d) AS x) AS x;
SELECT count(*) FROM (SELECT DISTINCT :d AS d FROM thrice) AS x;
SELECT count(*), sum(n) FROM (SELECT :d AS d, count(*) AS n FROM thrice GROUP BY d) AS x;
SELECT count(DISTINCT :d) FROM thrice;
SELECT count(DISTINCT n) FROM (SELECT rank() OVER (ORDER BY :d) AS n FROM thrice) AS x;
SELECT count(*) FROM (SELECT :d AS d FROM thrice UNION SELECT -1) AS x;
SELECT count(*) FROM ((SELECT :d AS d FROM thrice ORDER BY d LIMIT 3000) UNION SELECT -1) AS x;
RESET enable_hashagg;
RESET gpuvec.probes;
RESET gpuvec.candidates;
RESET gpuvec.scan_order;
SELECT s, EXISTS (SELECT FROM pg_temp.plan(replace(s, '#', 'e <-> ''{1,2,3,0}'''), 'Order By:')) AS by_index FROM unnest(ARRAY[
	'SELECT DISTINCT # AS d FROM ties ORDER BY d LIMIT 5', 'SELECT id, rank() OVER (ORDER BY #) FROM ties LIMIT 5',
	'SELECT id FROM ties ORDER BY # FETCH FIRST 5 ROWS WITH TIES']) AS s;

-- partitions, each by its index
CREATE TABLE parts (id int, e real[]) PARTITION BY RANGE (id);
CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (1500);
CREATE TABLE parts_2 PARTITION OF parts FOR VALUES FROM (1500) TO (4000);
INSERT INTO parts SELECT id, e FROM ties;
CREATE INDEX parts_e ON parts USING gpuivfpq (e) WITH (lists = 10);
ANALYZE parts;
SELECT pg_temp.plan('SELECT id FROM parts ORDER BY e <-> ''{1,2,3,0}'', id LIMIT 30', 'Scan|Order By:');
SELECT pg_temp.agrees('SELECT id FROM parts ORDER BY e <-> ''{1,2,3,0}'', id LIMIT 30');
SELECT pg_temp.agrees('SELECT id FROM parts WHERE id % 5 = 0 ORDER BY e <-> ''{1,2,3,0}'', id LIMIT 30');
-- a partial index, where its predicate holds
CREATE TABLE few AS SELECT * FROM ties;
CREATE INDEX few_e ON few USING gpuivfpq (e) WITH (lists = 20) WHERE kind = 1;
ANALYZE few;
SELECT pg_temp.plan('SELECT id FROM few WHERE kind = 1 ORDER BY e <-> ''{1,2,3,0}'', id LIMIT 3');
SELECT pg_temp.plan('SELECT id FROM few WHERE kind = 2 ORDER BY e <-> ''{1,2,3,0}'', id LIMIT 3');
-- no rows, and rows that take values of other tables
SELECT id FROM ties WHERE false ORDER BY e <-> '{1,2,3,0}', id LIMIT 3;
SELECT f.id, x.id, x.sum - f.kind AS kind FROM few AS f
LEFT JOIN LATERAL (SELECT t.id, t.e, coalesce(t.kind + f.kind, 1) AS sum FROM ties AS t WHERE t.kind < 3) AS x ON true
WHERE f.id BETWEEN 100 AND 102 ORDER BY x.e <-> '{1,2,3,0}', x.id, f.id LIMIT 4;

-- a sample is drawn before
SELECT id FROM ties TABLESAMPLE BERNOULLI (0) ORDER BY e <-> '{1,2,3,0}', id LIMIT 3;

-- sides exchanged: the distance is a column of the scan all the same
\i :srcdir/sql/include/counted.sql
DROP INDEX ties_e;
CREATE INDEX ties_counted ON ties USING gpuivfpq (e counted_ops) WITH (lists = 20);
SELECT pg_temp.plan('SELECT id, ''{1,2,3,0}'' <~> e AS d FROM ties WHERE kind = 3 ORDER BY d LIMIT 3', 'Output|Order By|Scan');
SELECT pg_temp.more_calls('SELECT id, ''{1,2,3,0}'' <~> e AS d FROM ties WHERE kind = 3 ORDER BY d LIMIT 3');
SELECT pg_temp.more_calls('SELECT id, ''{1,2,3,0}'' <~> e AS d, e <~> ''{1,2,3,0}'' AS c FROM ties WHERE kind = 3 ORDER BY d LIMIT 3');
SELECT pg_temp.more_calls('SELECT id, ''{1,2,3,0}'' <~> e AS d FROM ties WHERE kind = 3 AND ''{1,2,3,0}'' <~> e >= 0 ORDER BY e <~> ''{1,2,3,0}'' LIMIT 3');
SELECT id, '{1,2,3,0}' <~> e AS d, e <~> '{1,2,3,0}' AS c FROM ties WHERE kind = 3 ORDER BY d, id LIMIT 3;
SELECT pg_temp.more_calls('SELECT id FROM ties WHERE kind = 3 ORDER BY ''{1,2,3,0}'' <~> e LIMIT 3');
-- without conditions, where nobody reads it
SELECT pg_temp.more_calls('SELECT id FROM ties ORDER BY ''{1,2,3,0}'' <~> e LIMIT 3');
DROP TABLE ties, parts, few, far, thrice;
DROP OPERATOR FAMILY counted_ops USING gpuivfpq;
DROP OPERATOR <~> (real[], real[]);
DROP FUNCTION counted_distance;
DROP SEQUENCE calls;
