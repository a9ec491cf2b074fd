-- Where plans may have a scan in the order of a distance: below nodes that hand
-- on rows one by one, in a query level that stops early.  Anywhere else a join, a
-- group or a count would lose rows (src/planner/custompath.c).
SET client_min_messages = warning;
SELECT setseed(.5);

CREATE TABLE doc (id int PRIMARY KEY, tenant int, e real[]);
INSERT INTO doc SELECT i, i % 100, (SELECT array_agg((random() + random())::real)
	FROM generate_series(1, 64) WHERE i > 0) FROM generate_series(1, 10000) AS i;
-- two of a tenant have no vector, and are not in the index
UPDATE doc SET e = NULL WHERE id IN (507, 1007);
CREATE INDEX doc_e ON doc USING gpuivfpq (e real_cosine_ops, tenant) WITH (lists = 50);
CREATE TABLE note (doc int, word text);
INSERT INTO note SELECT 7 + i * 100, 'w' FROM generate_series(0, 99) AS i;
CREATE INDEX ON note (doc);
CREATE TABLE word AS SELECT id AS doc FROM doc;
CREATE INDEX ON word (doc);
VACUUM ANALYZE doc;
ANALYZE note, word;

-- is an index of ours in the plan, and are the rows those without it?
CREATE FUNCTION pg_temp.told(statement text, OUT by_index bool, OUT same bool)
LANGUAGE plpgsql AS $$
DECLARE
	line text;
	rows text;
	exact text;
BEGIN
	statement := replace(statement, 'NEAR', 'e <=> (SELECT e FROM doc WHERE id = 7)');
	by_index := false;
	FOR line IN EXECUTE 'EXPLAIN (COSTS OFF) ' || statement LOOP
		by_index := by_index OR line ~ 'using \w+_e';
	END LOOP;
	EXECUTE format('SELECT string_agg(q::text, '','' ORDER BY q::text) FROM (%s) AS q', statement) INTO rows;
	SET LOCAL enable_indexscan = off;
	EXECUTE format('SELECT string_agg(q::text, '','' ORDER BY q::text) FROM (%s) AS q', statement) INTO exact;
	SET LOCAL enable_indexscan = on;
	same := rows IS NOT DISTINCT FROM exact;
END $$;

-- no LIMIT: all rows are wanted.  Rows are dear here: by costs the index would be
-- the way to a tenant, and only rules keep it away.
SET cpu_tuple_cost = 1;
SELECT statement, (pg_temp.told(statement)).* FROM unnest(ARRAY[
	'SELECT id FROM doc WHERE tenant = 7 ORDER BY NEAR',
	'SELECT doc, id FROM note LEFT JOIN doc ON id = doc AND tenant = 7 ORDER BY NEAR',
	'SELECT doc FROM note LEFT JOIN doc ON id = doc AND tenant = 7 WHERE id IS NULL ORDER BY NEAR',
	'SELECT doc FROM note LEFT JOIN doc ON id = doc AND tenant = 7 WHERE id IS NULL ORDER BY NEAR LIMIT 50',
	'SELECT doc, id FROM note LEFT JOIN doc ON id = doc AND tenant = 7 ORDER BY NEAR LIMIT 150',
	'SELECT doc, id FROM note FULL JOIN (SELECT * FROM doc WHERE tenant = 7) AS d ON id = doc ORDER BY NEAR LIMIT 150',
	'SELECT count(*) FROM doc WHERE tenant = 7 GROUP BY tenant',
	'SELECT tenant, count(*) FROM doc WHERE tenant = 7 GROUP BY tenant, NEAR ORDER BY NEAR LIMIT 1000',
	'SELECT id, count(*) OVER () FROM doc WHERE tenant = 7 ORDER BY NEAR LIMIT 5',
	'SELECT id, ntile(4) OVER (ORDER BY NEAR) FROM doc WHERE tenant = 7 ORDER BY NEAR LIMIT 5',
	'SELECT id, rank() OVER (PARTITION BY id % 2 ORDER BY NEAR) FROM doc WHERE tenant = 7 ORDER BY NEAR LIMIT 5',
	'SELECT id, count(*) OVER (ORDER BY NEAR ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING) FROM doc WHERE tenant = 7 ORDER BY NEAR LIMIT 5',
	'SELECT min(NEAR) FROM doc WHERE tenant = 7',
	'SELECT id, unnest(ARRAY[1, 2]) FROM doc WHERE tenant = 7 ORDER BY NEAR LIMIT 5',
	'SELECT doc FROM note WHERE doc NOT IN (SELECT id FROM doc WHERE tenant = 7 ORDER BY NEAR)',
	'SELECT doc FROM note WHERE doc NOT IN (SELECT id FROM (SELECT id FROM doc WHERE tenant = 7 ORDER BY NEAR) AS s WHERE id > 0)',
	'SELECT doc FROM note WHERE doc NOT IN (SELECT id FROM doc WHERE tenant = 7 ORDER BY NEAR OFFSET 3)',
	'SELECT doc FROM note WHERE doc NOT IN (SELECT id FROM (SELECT id FROM doc WHERE tenant = 7 ORDER BY NEAR OFFSET 0) AS s WHERE id > 0)',
	'SELECT count(*) FROM (SELECT id FROM doc WHERE tenant = 7 ORDER BY NEAR OFFSET 0) AS s',
	'WITH s AS MATERIALIZED (SELECT id FROM doc WHERE tenant = 7 ORDER BY NEAR) SELECT id FROM s LIMIT 1000',
	'(SELECT id FROM doc WHERE tenant = 7 ORDER BY NEAR) UNION (SELECT 0) LIMIT 1000',
	'SELECT id, count(*) OVER () FROM (SELECT id FROM doc WHERE tenant = 7 ORDER BY NEAR OFFSET 0) AS s LIMIT 5'
	]) AS statement;

-- DISTINCT may hash the cheapest way to a tenant, which is not to be the index
SELECT (pg_temp.told('SELECT DISTINCT NEAR AS d, id FROM doc WHERE tenant = 7 ORDER BY d, id DESC LIMIT 200')).*;
RESET cpu_tuple_cost;

-- LIMIT, and rows that are handed on one by one
SELECT statement, (pg_temp.told(statement)).by_index FROM unnest(ARRAY[
	'SELECT id FROM doc ORDER BY NEAR LIMIT 5',
	'SELECT id FROM doc WHERE tenant = 7 ORDER BY NEAR, id LIMIT 5',
	'SELECT id FROM doc WHERE tenant = 7 ORDER BY NEAR LIMIT (SELECT 5)',
	'SELECT id FROM doc WHERE tenant = 7 ORDER BY NEAR FETCH FIRST 5 ROWS WITH TIES',
	'SELECT id FROM (SELECT id FROM doc WHERE tenant = 7 ORDER BY NEAR OFFSET 0) AS s LIMIT 5',
	'SELECT id FROM doc JOIN word ON doc = id ORDER BY NEAR LIMIT 5',
	'SELECT id FROM doc LEFT JOIN word ON doc = id JOIN word AS n ON n.doc = id ORDER BY NEAR LIMIT 5',
	'SELECT id FROM doc WHERE EXISTS (SELECT FROM word WHERE doc = id) ORDER BY NEAR LIMIT 5',
	'SELECT id FROM doc WHERE NOT EXISTS (SELECT FROM note WHERE doc = id) ORDER BY NEAR LIMIT 5',
	'SELECT DISTINCT ON (NEAR) id FROM doc ORDER BY NEAR LIMIT 5',
	'SELECT DISTINCT NEAR AS d FROM doc ORDER BY d LIMIT 5',
	'SELECT id, rank() OVER (ORDER BY NEAR) FROM doc ORDER BY NEAR LIMIT 5',
	'SELECT id, sum(id) OVER (ORDER BY NEAR, id) FROM doc ORDER BY NEAR LIMIT 5',
	'SELECT id, e FROM (SELECT id, e FROM doc UNION ALL SELECT id, e FROM doc) AS s ORDER BY NEAR LIMIT 5',
	'SELECT n.doc, s.id FROM note AS n, LATERAL (SELECT id FROM doc WHERE tenant = n.doc % 100 ORDER BY NEAR LIMIT 2) AS s'
	]) AS statement;

-- a cursor
BEGIN;
SET LOCAL cursor_tuple_fraction = .0001;
EXPLAIN (COSTS OFF) DECLARE c CURSOR FOR SELECT id FROM doc ORDER BY e <=> '{1,2}';
ROLLBACK;

-- enable_seqscan = off asks for the index without LIMIT, but not below a group
SET enable_seqscan = off;
SET enable_bitmapscan = off;
SELECT statement, (pg_temp.told(statement)).by_index FROM unnest(ARRAY[
	'SELECT id FROM doc ORDER BY NEAR',
	'SELECT tenant, count(*) FROM doc WHERE tenant = 7 GROUP BY tenant, NEAR ORDER BY NEAR LIMIT 1000',
	'SELECT min(NEAR) FROM doc WHERE tenant = 7',
	'SELECT id, count(*) OVER () FROM doc WHERE tenant = 7 ORDER BY NEAR LIMIT 5'
	]) AS statement;
RESET enable_seqscan;
RESET enable_bitmapscan;

-- partitions: what is refused costs a number
CREATE TABLE part (id int, tenant int, e real[]) PARTITION BY RANGE (id);
CREATE TABLE part_1 PARTITION OF part FOR VALUES FROM (0) TO (5000);
CREATE TABLE part_2 PARTITION OF part FOR VALUES FROM (5000) TO (20000);
INSERT INTO part SELECT * FROM doc;
CREATE INDEX part_e ON part USING gpuivfpq (e real_cosine_ops, tenant) WITH (lists = 25);
CREATE INDEX ON part_1 (id);
VACUUM ANALYZE part;
SELECT statement, (pg_temp.told(statement)).* FROM unnest(ARRAY[
	'SELECT doc, id FROM note LEFT JOIN part ON id = doc AND tenant = 7 ORDER BY NEAR',
	'SELECT doc FROM note LEFT JOIN part ON id = doc AND tenant = 7 WHERE doc IN (507, 1007) ORDER BY NEAR',
	'SELECT doc FROM note LEFT JOIN part ON id = doc AND tenant = 7 WHERE id IS NULL ORDER BY NEAR LIMIT 50'
	]) AS statement;
EXPLAIN (COSTS OFF) SELECT id FROM part ORDER BY e <=> '{1,2}', id LIMIT 5;
EXPLAIN (COSTS OFF) SELECT id FROM part JOIN word ON doc = id ORDER BY e <=> '{1,2}' LIMIT 5;
SELECT (pg_temp.told('SELECT id FROM part JOIN note ON doc = id ORDER BY NEAR LIMIT 5')).same;

-- workers: a parameter of a join's outer side, which they do not get, and a
-- function that they may not call
SET parallel_setup_cost = 0;
SET parallel_tuple_cost = 0;
SET min_parallel_table_scan_size = 0;
SET parallel_leader_participation = off;
CREATE FUNCTION pg_temp.query() RETURNS real[] LANGUAGE plpgsql STABLE PARALLEL RESTRICTED
	AS $$ BEGIN RETURN (SELECT e FROM doc WHERE id = 7); END $$;
CREATE TABLE large AS SELECT i % 10000 AS doc, repeat('p', 100) AS pad FROM generate_series(1, 100000) AS i;
ANALYZE large;
SELECT q.id, count(s.id) FROM doc AS q, LATERAL (SELECT d.id FROM doc AS d JOIN large ON doc = d.id
	WHERE d.tenant = 7 ORDER BY d.e <=> q.e LIMIT 20) AS s WHERE q.id <= 3 GROUP BY q.id ORDER BY q.id;
SELECT q.id, count(s.id) FROM doc AS q, LATERAL (SELECT d.id FROM part AS d JOIN note ON doc = d.id
	WHERE d.tenant = 7 AND d.id % 3 = 1 ORDER BY d.e <=> q.e LIMIT 20) AS s WHERE q.id <= 3 GROUP BY q.id ORDER BY q.id;
SELECT count(*) FROM (SELECT id FROM part WHERE tenant = 7 AND id BETWEEN 10 AND 9000 ORDER BY e <=> pg_temp.query()) AS s;
SET enable_seqscan = off;
SELECT set_config(name, 'on', false) FROM pg_settings WHERE name IN ('force_parallel_mode', 'debug_parallel_query');
SELECT count(*) FROM (SELECT id FROM part WHERE tenant = 7 AND id BETWEEN 10 AND 9000 ORDER BY e <=> pg_temp.query() LIMIT 5) AS s;
-- functions in the index's predicate and keys, which the statements do not name
CREATE FUNCTION pg_temp.leaders(int) RETURNS int LANGUAGE plpgsql IMMUTABLE PARALLEL RESTRICTED
	AS $$ BEGIN RETURN $1; END $$;
CREATE FUNCTION pg_temp.planned(statement text, OUT by_index bool, OUT by_worker bool)
LANGUAGE plpgsql AS $$
DECLARE
	line text;
BEGIN
	by_index := false;
	by_worker := false;
	FOR line IN EXECUTE 'EXPLAIN (COSTS OFF) ' || statement LOOP
		by_index := by_index OR line ~ 'using \w+_e';
		by_worker := by_worker OR line ~ 'Gather';
	END LOOP;
END $$;
CREATE TABLE partial AS SELECT * FROM doc WHERE id <= 1500;
CREATE TABLE keyed AS SELECT * FROM partial;
CREATE INDEX partial_e ON partial USING gpuivfpq (e real_cosine_ops) WHERE id > 0 OR pg_temp.leaders(id) > 0;
CREATE INDEX keyed_e ON keyed USING gpuivfpq (e real_cosine_ops, pg_temp.leaders(tenant));
SELECT statement, (pg_temp.planned(statement)).* FROM unnest(ARRAY[
	'SELECT id FROM doc WHERE id > 0 ORDER BY e <=> ''{1,2}'' LIMIT 5',
	'SELECT id FROM partial WHERE id > 0 ORDER BY e <=> ''{1,2}'' LIMIT 5',
	'SELECT id FROM keyed WHERE id > 0 ORDER BY e <=> ''{1,2}'' LIMIT 5'
	]) AS statement;
DROP TABLE doc, note, word, part, large, partial, keyed;
