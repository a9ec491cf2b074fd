-- conditions that bound the distance
\getenv srcdir PG_ABS_SRCDIR
\i :srcdir/sql/include/prologue.sql
\i :srcdir/sql/include/plan_of.sql
SET enable_sort = off;

CREATE TABLE spots (id int PRIMARY KEY, kind int, e real[], f real[]) WITH (autovacuum_enabled = off);
INSERT INTO spots SELECT g, g / 20 % 10, v, pg_temp.point(g + 9000, 8)
FROM generate_series(1, 4000) AS g, LATERAL pg_temp.point(g, 8) AS v;
CREATE INDEX spots_l2 ON spots USING gpuivfpq (e) WITH (lists = 40);
CREATE INDEX spots_ip ON spots USING gpuivfpq (e real_ip_ops) WITH (lists = 40);
CREATE INDEX spots_cosine ON spots USING gpuivfpq (e real_cosine_ops) WITH (lists = 40);
ANALYZE spots;
SELECT pg_temp.point(5000, 8) AS q, pg_temp.point(5001, 8) AS other \gset
-- statements name these by letters
CREATE FUNCTION pg_temp.filled(statement text) RETURNS text LANGUAGE sql AS $$
	SELECT replace(replace(statement, 'Q', quote_literal(pg_temp.point(5000, 8)::text)),
		'OTHER', quote_literal(pg_temp.point(5001, 8)::text)) $$;

-- the bound that a scan has, and how it reads
CREATE FUNCTION pg_temp.bound(statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	line text;
	bound text = 'none';
	scan text = 'none';
BEGIN
	FOR line IN EXECUTE 'EXPLAIN (COSTS OFF) ' || pg_temp.filled(statement) LOOP
		IF line ~ 'Scan' AND line !~ 'Replaces:' AND scan = 'none' THEN
			scan = regexp_replace(line, '^[ >-]*| (using|on).*', '', 'g');
		ELSIF line ~ 'Distance Bound' THEN
			bound = replace(trim(line), pg_temp.filled('Q::real[]'), 'Q');
			-- PostgreSQL 17 and later name its column, 19 names it otherwise
			bound = regexp_replace(bound, '\$0|\(InitPlan \w+\)\.col1', 'INITPLAN');
		END IF;
	END LOOP;
	RETURN scan || ', ' || bound;
END
$$;
CREATE FUNCTION pg_temp.work(statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	line text;
	work text = '';
BEGIN
	FOR line IN EXECUTE 'EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF) ' || pg_temp.filled(statement) LOOP
		IF line ~ 'Batches|Rows From' THEN
			work = work || trim(line) || ' ';
		END IF;
	END LOOP;
	RETURN trim(work);
END
$$;
-- Is what a statement brings by the index, at recall 1 and at this one, what a
-- sort brings?  And how many rows is it?
CREATE FUNCTION pg_temp.rows_of(statement text) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
	found text[];
BEGIN
	EXECUTE format('SELECT array_agg(q::text) FROM (%s) AS q', pg_temp.filled(statement)) INTO found;
	RETURN found;
END
$$;
CREATE FUNCTION pg_temp.agrees(statement text, OUT exact bool, OUT missing int, OUT rows int) LANGUAGE plpgsql AS $$
DECLARE
	truth text[];
	found text[];
BEGIN
	found = pg_temp.rows_of(statement);
	PERFORM set_config('enable_indexscan', 'off', true), set_config('gpuvec.enable_custom_scan', 'off', true);
	truth = pg_temp.rows_of(statement);
	PERFORM set_config('enable_indexscan', 'on', true), set_config('gpuvec.enable_custom_scan', 'on', true);
	missing = (SELECT count(*) FROM (SELECT unnest(truth) EXCEPT ALL SELECT unnest(found)) AS x);
	PERFORM set_config('gpuvec.recall', '1', true);
	exact = pg_temp.rows_of(statement) IS NOT DISTINCT FROM truth;
	rows = coalesce(cardinality(truth), 0);
END
$$;

-- each form
CREATE TABLE forms (n serial, condition text, distance text);
INSERT INTO forms (condition, distance) VALUES
	('e <-> Q < 2', 'e <-> Q'), ('e <-> Q <= 2', 'e <-> Q'), ('2 > e <-> Q', 'e <-> Q'), ('2 >= Q <-> e', 'e <-> Q'),
	('e <-> Q < 2', 'Q <-> e'), ('NOT e <-> Q > 2', 'e <-> Q'), ('e <-> Q < 2.5::real', 'e <-> Q'), ('e <-> Q < 2 AND e <-> Q < 1.9', 'e <-> Q'),
	('e <-> Q BETWEEN 0.7 AND 0.9', 'e <-> Q'), ('e <-> Q < 2 AND e <-> OTHER < 100', 'e <-> Q'), ('e <-> Q < (SELECT 4 / 2)', 'e <-> Q'),
	('1 - (e <=> Q) > 0.995', 'e <=> Q'), ('1 - (e <=> Q) >= 0.995', 'e <=> Q'), ('0.995 < 1 - (Q <=> e)', 'e <=> Q'), ('e <=> Q < 0.005', 'e <=> Q'),
	('-(e <#> Q) > 400', 'e <#> Q'), ('(e <#> Q) * -1 >= 400', 'e <#> Q'), ('400 < -1 * (e <#> Q)', 'e <#> Q'), ('e <#> Q < -400', 'e <#> Q');
SELECT condition, distance, pg_temp.bound(format('SELECT id FROM spots WHERE %s ORDER BY %s', condition, distance)),
	a.exact, a.missing <= a.rows / 20 AS found, a.rows
FROM forms, pg_temp.agrees(format('SELECT id FROM spots WHERE %s ORDER BY %s', condition, distance)) AS a ORDER BY n;

-- no bounds of the distance by which rows come
SELECT condition, pg_temp.bound(format('SELECT id FROM spots WHERE %s ORDER BY e <-> Q LIMIT 5', condition)), a.exact
FROM unnest(ARRAY['e <-> Q > 2', '2 <= e <-> Q', 'e <-> Q = 2', 'e <-> OTHER < 20', 'f <-> Q < 20', 'e <=> Q < 0.9', 'e <-> Q < id',
	'e <-> Q < random() + 2', 'e <-> Q < 2 OR kind = 3', '1 - (e <-> Q) < 0.5', '-(e <-> Q) < 0', '(e <-> Q) * 2 < 4', '2 - (e <-> Q) > id',
	'e <-> Q < (SELECT min(s.id) FROM spots AS s WHERE s.kind = spots.kind)', '(e <-> Q < 2) IS NOT FALSE']) AS condition,
	pg_temp.agrees(format('SELECT id FROM spots WHERE %s ORDER BY e <-> Q LIMIT 5', replace(condition, 'random()', '0'))) AS a;
SELECT pg_temp.bound('SELECT kind FROM spots GROUP BY kind HAVING min(e <-> Q) < 2');
SELECT pg_temp.bound('SELECT id FROM spots WHERE e <-> Q < 2 ORDER BY f');

-- the scan ends when all that is within has been read: none, few, and with
-- conditions that hardly a row passes, or none
SELECT pg_temp.work('SELECT id FROM spots WHERE e <-> Q < 0.01 ORDER BY e <-> Q LIMIT 10');
SELECT pg_temp.work('SELECT id FROM spots WHERE e <-> Q < -1 ORDER BY e <-> Q LIMIT 100000');
SELECT pg_temp.work('SELECT id FROM spots WHERE e <-> Q < 0.7 ORDER BY e <-> Q');
SELECT pg_temp.work('SELECT id FROM spots WHERE e <-> Q < 0.6 AND id % 1000 = 999 ORDER BY e <-> Q LIMIT 10');
SELECT pg_temp.work('SELECT id FROM spots WHERE e <-> Q < 0.6 AND id < 0 ORDER BY e <-> Q LIMIT 10');
-- more than a batch is good for
SELECT pg_temp.work('SELECT id FROM spots WHERE e <-> Q < 2 ORDER BY e <-> Q LIMIT 1000');
SELECT * FROM pg_temp.agrees('SELECT id FROM spots WHERE e <-> Q < 0.7 AND kind < 5 ORDER BY e <-> Q');
SELECT * FROM pg_temp.agrees('SELECT id FROM spots WHERE e <-> Q < 2 AND id % 60 = 40 ORDER BY e <-> Q');
SELECT * FROM pg_temp.agrees('SELECT id FROM spots WHERE e <-> Q < 1000 ORDER BY e <-> Q LIMIT 50');
SELECT exact, missing <= 1 AS found, rows FROM pg_temp.agrees('SELECT id, e <-> Q FROM spots WHERE e <-> Q < 2 ORDER BY Q <-> e, id DESC');
-- relaxed
SET gpuvec.scan_order = relaxed;
SELECT pg_temp.work('SELECT id FROM spots WHERE e <-> Q < 0.7 ORDER BY e <-> Q');
SELECT missing <= 1 AS found, rows FROM pg_temp.agrees('SELECT id FROM spots WHERE e <-> Q < 2 ORDER BY e <-> Q');
SELECT count(*), bool_and(e <-> :'q' < 2) FROM (SELECT e FROM spots WHERE e <-> :'q' < 2 ORDER BY e <-> :'q') AS x;
RESET gpuvec.scan_order;

-- parameters, NULL, NaN and infinity, in custom and generic plans
PREPARE within(real[], float8, float8) AS SELECT id FROM spots WHERE e <-> $1 < $2 AND e <-> $1 <= $3 ORDER BY e <-> $1 LIMIT 3;
PREPARE like_it(real[], float8) AS SELECT id FROM spots WHERE $2 < 1 - (e <=> $1) ORDER BY e <=> $1 LIMIT 3;
SET plan_cache_mode = force_generic_plan;
EXPLAIN (COSTS OFF) EXECUTE within(:'q', 2, 2);
EXECUTE within(:'q', 2, 1000);
EXECUTE within(:'q', 1000, 0.6);
EXECUTE within(:'q', NULL, 2);
EXECUTE within(:'q', 2, NULL);
EXECUTE within(NULL, 2, 2);
EXECUTE within(:'q', 'NaN', 'Infinity');
EXECUTE within(:'q', '-Infinity', 2);
EXECUTE within(:'q', 0, 2);
EXECUTE like_it(:'q', 0.99);
EXECUTE like_it(:'q', 1);
EXECUTE like_it(:'q', 'NaN');
EXECUTE like_it(:'q', '-Infinity');
-- a query without direction: NaN, which is greater than all, of any rows
CREATE TEMP TABLE alike AS EXECUTE like_it('{0,0,0,0,0,0,0,0}', 0.5);
SELECT count(*) FROM alike;
SELECT id FROM spots WHERE e <=> '{0,0,0,0,0,0,0,0}' < 0.5 ORDER BY e <=> '{0,0,0,0,0,0,0,0}' LIMIT 3;
SET plan_cache_mode = force_custom_plan;
EXECUTE within(:'q', 2, 1000);
EXECUTE within(:'q', NULL, 2);
RESET plan_cache_mode;

-- a bound for each row of another table
CREATE TABLE asked (n int, r float8, v real[]);
INSERT INTO asked VALUES (1, 0.6, :'q'), (2, NULL, :'q'), (3, 0.8, :'other'), (4, 0, :'q'), (5, 0.7, NULL);
SELECT n, id FROM asked, LATERAL (SELECT id FROM spots WHERE e <-> v < r ORDER BY e <-> v LIMIT 2) AS x ORDER BY n, id;
SELECT n, id FROM asked LEFT JOIN LATERAL (SELECT id FROM spots WHERE e <-> v < r AND kind <> 7 ORDER BY e <-> v LIMIT 1) AS x ON true ORDER BY n, id;
SELECT id FROM spots WHERE e <-> :'q' < (SELECT max(r) FROM asked) ORDER BY e <-> :'q' LIMIT 2;
SELECT id FROM spots WHERE e <-> :'q' < (SELECT r FROM asked WHERE n = 2) ORDER BY e <-> :'q' LIMIT 2;
-- ... not that of the row before, nor is anything read for none
SELECT r, count(id) FROM unnest(ARRAY[0.1, NULL, 0.8]) AS r
LEFT JOIN LATERAL (SELECT id FROM spots WHERE e <-> :'q' < r ORDER BY e <-> :'q' LIMIT 20) AS x ON true GROUP BY r ORDER BY r;
SELECT pg_temp.work('SELECT id FROM spots WHERE e <-> Q < (SELECT r FROM asked WHERE n = 2) ORDER BY e <-> Q LIMIT 2');
-- a row at just that distance is within, also where that is rounded
SET gpuvec.recall = 1;
SELECT bool_and(x.count = d.n) FROM (SELECT row_number() OVER () AS n, d FROM (SELECT e <-> :'q' AS d FROM spots ORDER BY 1 LIMIT 20) AS d) AS d,
	LATERAL (SELECT count(*) FROM (SELECT FROM spots WHERE e <-> :'q' <= d ORDER BY e <-> :'q' LIMIT 30) AS x) AS x;
SELECT bool_and(x.count = d.n) FROM (SELECT row_number() OVER () AS n, d FROM (SELECT e <-> :'q' AS d FROM spots ORDER BY 1 LIMIT 20) AS d) AS d,
	LATERAL (SELECT count(*) FROM (SELECT FROM spots WHERE 100 - (e <-> :'q') >= 100 - d ORDER BY e <-> :'q' LIMIT 30) AS x) AS x;
RESET gpuvec.recall;
-- a query that is written twice, so two parameters: of one value, and of two
CREATE FUNCTION pg_temp.twice(bounded int, ordered int, OUT work text, OUT same bool) LANGUAGE plpgsql AS $$
DECLARE
	statement text = format('SELECT id FROM spots WHERE e <-> (SELECT e FROM spots WHERE id = %s) < 0.7 ORDER BY e <-> (SELECT e FROM spots WHERE id = %s) LIMIT 2000', bounded, ordered);
	rows text[];
BEGIN
	work = pg_temp.work(statement);
	SET LOCAL gpuvec.recall = 1;
	rows = pg_temp.rows_of(statement);
	SET LOCAL enable_indexscan = off;
	same = rows = pg_temp.rows_of(statement);
END $$;
SELECT (pg_temp.twice(5, 5)).*;
SELECT (pg_temp.twice(5, 3000)).same;
SELECT (pg_temp.twice(5, -1)).same;
SELECT count(*) FROM (SELECT e <-> (SELECT e FROM spots WHERE id = 5) AS d FROM spots) AS s WHERE d < 0.1;
-- joined
SELECT exact, missing <= 1 AS found, rows FROM pg_temp.agrees('SELECT s.id, a.n FROM spots AS s, asked AS a WHERE s.e <-> Q < 0.7 AND a.n = s.kind ORDER BY s.e <-> Q, a.n');

-- cursors
BEGIN;
SET LOCAL gpuvec.recall = 1;
DECLARE c CURSOR FOR SELECT id FROM spots WHERE e <-> :'q' < 0.62 ORDER BY e <-> :'q';
FETCH 2 FROM c;
FETCH 100 FROM c;
FETCH 1 FROM c;
ROLLBACK;

-- partitions, refine records, no training, pending rows
CREATE TABLE areas (id int, kind int, e real[]) PARTITION BY LIST (kind);
CREATE TABLE areas_1 PARTITION OF areas FOR VALUES IN (0, 1, 2, 3, 4);
CREATE TABLE areas_2 PARTITION OF areas FOR VALUES IN (5, 6, 7, 8, 9);
INSERT INTO areas SELECT id, kind, e FROM spots;
CREATE INDEX ON areas USING gpuivfpq (e) WITH (lists = 20);
ANALYZE areas;
SELECT pg_temp.plan_of($$SELECT id FROM areas WHERE e <-> '{1,2,3,4,5,6,7,8}' < 2 ORDER BY e <-> '{1,2,3,4,5,6,7,8}'$$);
SELECT exact, missing <= 1 AS found, rows FROM pg_temp.agrees('SELECT id FROM areas WHERE e <-> Q < 0.8 ORDER BY e <-> Q');
CREATE TABLE bytes AS SELECT id, kind, e FROM spots;
CREATE INDEX ON bytes USING gpuivfpq (e) WITH (lists = 40, refine = sq8);
ANALYZE bytes;
SELECT exact, missing <= 1 AS found, rows FROM pg_temp.agrees('SELECT id FROM bytes WHERE e <-> Q < 0.8 ORDER BY e <-> Q');
SELECT pg_temp.work('SELECT id FROM bytes WHERE e <-> Q < 0.6 AND id < 0 ORDER BY e <-> Q LIMIT 10');
SELECT reranked < 10 AS few_reranked, batches FROM gpuvec_last_scan();
CREATE TABLE fresh (id int, kind int, e real[]) WITH (autovacuum_enabled = off);
CREATE INDEX ON fresh USING gpuivfpq (e);
INSERT INTO fresh SELECT id, kind, e FROM spots;
ANALYZE fresh;
SELECT * FROM pg_temp.agrees('SELECT id FROM fresh WHERE e <-> Q < 0.8 ORDER BY e <-> Q');
INSERT INTO spots SELECT id + 10000, kind, e, f FROM spots WHERE kind = 1;
SELECT exact, missing <= 1 AS found, rows FROM pg_temp.agrees('SELECT id FROM spots WHERE e <-> Q < 0.8 ORDER BY e <-> Q, id');

-- policies: the bound comes behind them
CREATE ROLE regress_guest;
GRANT SELECT ON spots TO regress_guest;
ALTER TABLE spots ENABLE ROW LEVEL SECURITY;
CREATE SEQUENCE asks;
CREATE FUNCTION odd(int) RETURNS bool LANGUAGE plpgsql STABLE COST 1 SECURITY DEFINER AS $$
BEGIN
	PERFORM nextval('asks');
	RETURN $1 % 2 = 1;
END
$$;
CREATE POLICY odd ON spots TO regress_guest USING (odd(kind));
CREATE TABLE lows AS SELECT * FROM spots WHERE kind % 2 = 1;
SET ROLE regress_guest;
SELECT pg_temp.bound('SELECT id FROM spots WHERE e <-> Q < 0.7 ORDER BY e <-> Q LIMIT 10');
SELECT count(*) FROM (SELECT id FROM spots WHERE e <-> :'q' < 0.7 ORDER BY e <-> :'q' LIMIT 1000) AS x;
SET gpuvec.radius_recall = 0.99;
SELECT pg_temp.bound('SELECT count(*) FROM spots WHERE e <-> Q < 0.7');
RESET gpuvec.radius_recall;
RESET ROLE;
SELECT count(*) FROM lows WHERE e <-> :'q' < 0.7;
SELECT last_value < 400 AS ended_early FROM asks;
-- no row that it may see tells that all within has been read
SET ROLE regress_guest;
SELECT count(*) FROM (SELECT id FROM spots WHERE e <-> :'q' < 0.7 AND kind = 4 ORDER BY e <-> :'q' LIMIT 10) AS x;
RESET ROLE;
SELECT last_value > 4000 AS read_everything FROM asks;
-- nor behind a condition that is asked of no row, and so may come before policies
CREATE FUNCTION always() RETURNS bool LANGUAGE plpgsql VOLATILE COST 0.0001 AS 'BEGIN RETURN true; END';
SET ROLE regress_guest;
SELECT pg_temp.bound('SELECT id FROM spots WHERE always() AND e <-> Q < 0.7 ORDER BY e <-> Q LIMIT 10');
RESET ROLE;
-- one that is asked late
ALTER POLICY odd ON spots USING (kind = (SELECT s.kind FROM lows AS s WHERE s.id = spots.id));
GRANT SELECT ON lows TO regress_guest;
SET ROLE regress_guest;
SELECT pg_temp.bound('SELECT id FROM spots WHERE e <-> Q < 0.7 ORDER BY e <-> Q LIMIT 10');
RESET ROLE;
ALTER TABLE spots DISABLE ROW LEVEL SECURITY;

-- without ORDER BY: exact, unless the user says otherwise
SELECT pg_temp.bound('SELECT count(*) FROM spots WHERE e <-> Q < 0.7');
SET gpuvec.radius_recall = 0.99;
SELECT pg_temp.bound('SELECT count(*) FROM spots WHERE e <-> Q < 0.7');
SELECT pg_temp.bound('SELECT id FROM spots WHERE Q <-> e < 0.7 AND kind = 3 ORDER BY f LIMIT 10');
SELECT pg_temp.bound('SELECT id FROM spots WHERE e <-> Q < 0.7 ORDER BY e <-> Q');
SELECT pg_temp.bound('SELECT 1 WHERE EXISTS (SELECT 1 FROM spots WHERE 1 - (e <=> Q) > 0.99)');
SELECT pg_temp.bound('SELECT count(*) FROM areas WHERE e <-> Q < 0.7');
SELECT missing <= 1 AS found, rows FROM pg_temp.agrees('SELECT id FROM spots WHERE e <-> Q < 2');
-- not of a sample, which is drawn before
SELECT pg_temp.bound('SELECT count(*) FROM spots TABLESAMPLE BERNOULLI (100) WHERE e <-> Q < 0.7');
-- a sort above wants all of them, whatever the limit
RESET enable_sort;
RESET enable_seqscan;
SELECT pg_temp.bound('SELECT id FROM spots WHERE e <-> Q < 0.7 ORDER BY id + 1 LIMIT 5');
SELECT exact, missing, rows FROM pg_temp.agrees('SELECT id FROM spots WHERE e <-> Q < 0.7 ORDER BY id + 1 LIMIT 5');
SET enable_sort = off;
SET enable_seqscan = off;
SELECT missing <= 1 AS found, rows FROM pg_temp.agrees('SELECT id FROM spots WHERE -(e <#> Q) > 400 AND kind <> 2');
SELECT missing <= 1 AS found, rows FROM pg_temp.agrees('SELECT id FROM areas WHERE e <-> Q < 0.8');
SELECT count(*) FROM spots WHERE e <-> :'q' < NULL;
PREPARE inside AS SELECT count(*) FROM spots WHERE e <-> $1 < $2;
SET plan_cache_mode = force_generic_plan;
EXPLAIN (COSTS OFF) EXECUTE inside(:'q', 2);
-- what a plan brings follows the setting
SET gpuvec.radius_recall = 1;
EXECUTE inside(:'q', 2);
SELECT recall, batches, reranked FROM gpuvec_last_scan();
SET gpuvec.radius_recall = 0.99;
RESET plan_cache_mode;
-- never where rows are changed or locked by it, nor for a lower bound
SELECT pg_temp.bound('SELECT id FROM spots WHERE e <-> Q > 0.7');
SELECT pg_temp.bound('DELETE FROM spots WHERE e <-> Q < 0.7');
SELECT pg_temp.bound('UPDATE spots SET kind = 0 WHERE e <-> Q < 0.7');
SELECT pg_temp.bound('DELETE FROM asked WHERE n IN (SELECT kind FROM spots WHERE e <-> Q < 0.7 LIMIT 5)');
SELECT pg_temp.bound('MERGE INTO asked USING (SELECT kind FROM spots WHERE e <-> Q < 0.7) AS s ON n = kind WHEN MATCHED THEN DELETE');
SELECT pg_temp.bound('SELECT id FROM spots WHERE e <-> Q < 0.7 FOR UPDATE');
SELECT pg_temp.bound('SELECT n FROM asked WHERE n IN (SELECT kind FROM spots WHERE e <-> Q < 0.7 LIMIT 5) FOR UPDATE');
SELECT pg_temp.bound('WITH near AS MATERIALIZED (SELECT kind FROM spots WHERE e <-> Q < 0.7) SELECT n FROM asked WHERE n IN (SELECT kind FROM near) FOR UPDATE');
SELECT pg_temp.bound('WITH near AS MATERIALIZED (SELECT kind FROM spots WHERE e <-> Q < 0.7) SELECT n FROM asked WHERE n IN (SELECT kind FROM near)');
SELECT pg_temp.bound('WITH near AS MATERIALIZED (SELECT kind FROM spots WHERE e <-> Q < 0.7),
	gone AS (DELETE FROM asked USING near WHERE kind = n RETURNING n) SELECT n FROM gone');
CREATE TABLE seen (id int PRIMARY KEY, times int);
SELECT pg_temp.bound('INSERT INTO seen SELECT id, 1 FROM spots WHERE e <-> Q < 0.7 ON CONFLICT (id) DO UPDATE SET times = seen.times + 1');
SELECT pg_temp.bound('INSERT INTO seen SELECT id, 1 FROM spots WHERE e <-> Q < 0.7 ON CONFLICT DO NOTHING');
SELECT pg_temp.bound('SELECT id FROM spots WHERE e <-> Q < 0.7 AND false');
-- nor for one that takes values of another table
SELECT count(*), bool_and(x.sum = a.n + x.kind) FROM asked AS a
LEFT JOIN LATERAL (SELECT coalesce(s.kind + a.n, 1) AS sum, s.kind FROM spots AS s WHERE s.e <-> :'q' < 0.7) AS x ON true;
-- rows that another index's bitmap brings are read, also where no column is wanted
CREATE TABLE spread AS SELECT g AS id, hashint4(g) & 15 AS kind, pg_temp.point(g, 8, 20, 0) AS e
FROM generate_series(1, 40000) AS g;
CREATE INDEX spread_e ON spread USING gpuivfpq (e);
CREATE INDEX spread_kind ON spread (kind);
VACUUM ANALYZE spread;
PREPARE counted (real[], float8) AS SELECT count(*) FROM spread WHERE kind = 3 AND e <-> $1 < $2;
SET plan_cache_mode = force_generic_plan;
SELECT gpuvec_plan ~ 'GpuvecScan' AND gpuvec_plan ~ 'Bitmap Heap Scan' AS both FROM
	(SELECT string_agg(line, ' ') AS gpuvec_plan FROM pg_temp.plan_of('EXECUTE counted(array_fill(.5::real, ARRAY[8]), 2)') AS line) AS p;
SET gpuvec.radius_recall = 1;
EXECUTE counted(array_fill(.5::real, ARRAY[8]), 2);
RESET plan_cache_mode;
SELECT count(*) FROM spread WHERE kind = 3 AND (e <-> array_fill(.5::real, ARRAY[8])) + 0 < 2;
DROP TABLE spread;
DROP POLICY odd ON spots;
DROP TABLE spots, forms, asked, areas, bytes, fresh, lows, seen;
DROP FUNCTION odd, always;
DROP SEQUENCE asks;
DROP ROLE regress_guest;
