-- building an index: every metric, every kind of table, every odd shape
\getenv srcdir PG_ABS_SRCDIR
\i :srcdir/sql/include/prologue.sql
RESET client_min_messages;

-- the distances that a query gives, in order, by the index and without
CREATE FUNCTION pg_temp.indexed(query text) RETURNS float8[]
LANGUAGE plpgsql SET enable_seqscan = off SET enable_sort = off AS $$
DECLARE
	line text;
	plan text = '';
	distances float8[];
BEGIN
	FOR line IN EXECUTE 'EXPLAIN (COSTS OFF) ' || query LOOP
		plan = plan || line;
	END LOOP;
	IF plan !~ 'Index Scan' OR plan ~ '-> *(Incremental )?Sort' THEN
		RAISE EXCEPTION 'the index is not used: %', plan;
	END IF;
	EXECUTE format('SELECT array_agg(d) FROM (%s) AS q', query) INTO distances;
	RETURN distances;
END
$$;
CREATE FUNCTION pg_temp.exact(query text) RETURNS float8[]
LANGUAGE plpgsql SET enable_indexscan = off SET enable_seqscan = on AS $$
DECLARE
	distances float8[];
BEGIN
	EXECUTE format('SELECT array_agg(d) FROM (%s) AS q', query) INTO distances;
	RETURN distances;
END
$$;

-- the share of queries whose ten nearest rows are those of exact search,
-- with all lists and enough candidates
CREATE FUNCTION pg_temp.agreement(tab regclass, operator text, dims int)
RETURNS float8
LANGUAGE plpgsql
SET gpuvec.probes = 16777216 SET gpuvec.candidates = 100000 AS $$
DECLARE
	query text;
	same int = 0;
BEGIN
	FOR g IN 1..10 LOOP
		query = format('SELECT e %1$s %2$L AS d FROM %3$s ORDER BY e %1$s %2$L LIMIT 10',
			operator, pg_temp.point(100000 + g, dims), tab);
		same = same + (pg_temp.indexed(query) = pg_temp.exact(query))::int;
	END LOOP;
	RETURN same / 10.0;
END
$$;

-- each metric, with rows that no index holds
CREATE TABLE built (id int, e real[]);
INSERT INTO built SELECT g, pg_temp.point(g, 8) FROM generate_series(1, 2000) AS g;
INSERT INTO built VALUES (2001, NULL), (2002, '{0,0,0,0,0,0,0,0}'), (2003, NULL);
CREATE INDEX built_l2 ON built USING gpuivfpq (e);
SELECT lists, dims, rows, pending, dead, rows_at_training
FROM gpuvec_index_info('built_l2');
SELECT pg_temp.agreement('built', '<->', 8);
CREATE INDEX built_ip ON built USING gpuivfpq (e real_ip_ops) WITH (lists = 7);
SELECT lists, rows FROM gpuvec_index_info('built_ip');
SELECT pg_temp.agreement('built', '<#>', 8);
CREATE INDEX built_cosine ON built USING gpuivfpq (e real_cosine_ops)
	WITH (lists = 30);
SELECT lists, rows FROM gpuvec_index_info('built_cosine');
SELECT pg_temp.agreement('built', '<=>', 8);
EXPLAIN (COSTS OFF) SELECT id FROM built ORDER BY e <-> '{1,1,1,1,1,1,1,1}' LIMIT 5;
EXPLAIN (COSTS OFF) SELECT id FROM built ORDER BY e <#> '{1,1,1,1,1,1,1,1}' LIMIT 5;
EXPLAIN (COSTS OFF) SELECT id FROM built ORDER BY e <=> '{1,1,1,1,1,1,1,1}' LIMIT 5;
SELECT i.relname, v.* FROM pg_class AS i, gpuvec_verify_index(i.oid) AS v
WHERE i.relname IN ('built_l2', 'built_ip', 'built_cosine');

-- the planner's statistics of table and index
SELECT relname, reltuples FROM pg_class WHERE relname ~ '^built_' ORDER BY 1;
-- (where there is no autovacuum, 18 leaves a table's alone)
SELECT reltuples IN (-1, 2003) AS counted FROM pg_class WHERE relname = 'built';

-- empty, and without a vector
CREATE TABLE empty (id int, e real[]);
CREATE INDEX empty_e ON empty USING gpuivfpq (e);
SELECT id FROM empty ORDER BY e <-> '{1,2,3}' LIMIT 1;
DROP INDEX empty_e;
INSERT INTO empty VALUES (1, NULL), (2, NULL);
CREATE INDEX empty_e ON empty USING gpuivfpq (e) WITH (lists = 5);
SELECT id FROM empty ORDER BY e <-> '{1,2,3}' LIMIT 1;
DROP TABLE empty;

-- few rows: answered exactly, whatever lists says
CREATE TABLE small (id int, e real[]);
INSERT INTO small SELECT g, pg_temp.point(g, 5) FROM generate_series(1, 100) AS g;
CREATE INDEX small_e ON small USING gpuivfpq (e);
SELECT lists, dims, rows, pending FROM gpuvec_index_info('small_e');
SELECT pg_temp.agreement('small', '<->', 5);
DROP INDEX small_e;
CREATE INDEX small_e ON small USING gpuivfpq (e) WITH (lists = 1000);
SELECT pg_temp.agreement('small', '<->', 5);
DROP INDEX small_e;
-- ... unless lists asks for training; as many lists as rows are possible
CREATE INDEX small_e ON small USING gpuivfpq (e) WITH (lists = 100);
SELECT lists <= 100 AND lists > 50 AS trained, rows, pending
FROM gpuvec_index_info('small_e');
SELECT pg_temp.agreement('small', '<->', 5);
DROP INDEX small_e;
CREATE INDEX small_e ON small USING gpuivfpq (e) WITH (lists = 1);
SELECT lists, rows FROM gpuvec_index_info('small_e');
SELECT pg_temp.agreement('small', '<->', 5);
SELECT * FROM gpuvec_verify_index('small_e');
DROP TABLE small;

-- fewer distinct rows than lists
CREATE TABLE same (id int, e real[]);
INSERT INTO same SELECT g, '{1,2,3}' FROM generate_series(1, 10) AS g;
CREATE INDEX same_5 ON same USING gpuivfpq (e) WITH (lists = 5);
SELECT count(*) FROM (SELECT id FROM same ORDER BY e <-> '{1,2,3}') AS q;
DROP INDEX same_5;
CREATE INDEX same_10 ON same USING gpuivfpq (e) WITH (lists = 10);
SELECT count(*) FROM (SELECT id FROM same ORDER BY e <-> '{3,2,1}') AS q;
DROP INDEX same_10;
UPDATE same SET e = '{-1,-2,-3}' WHERE id % 2 = 0;
CREATE INDEX same_2 ON same USING gpuivfpq (e) WITH (lists = 10);
SELECT array_agg(id ORDER BY id)
FROM (SELECT id FROM same ORDER BY e <-> '{-1,-2,-3}' LIMIT 5) AS q;
DROP INDEX same_2;
CREATE INDEX same_2 ON same USING gpuivfpq (e real_cosine_ops) WITH (lists = 10);
SELECT array_agg(id ORDER BY id)
FROM (SELECT id FROM same ORDER BY e <=> '{1,2,3}' LIMIT 5) AS q;
SELECT * FROM gpuvec_verify_index('same_2');
-- only zero vectors, of which cosine can place none
UPDATE same SET e = '{0,0,0}';
CREATE INDEX same_0 ON same USING gpuivfpq (e real_cosine_ops) WITH (lists = 5);
CREATE INDEX same_zero ON same USING gpuivfpq (e) WITH (lists = 5);
SELECT count(*) FROM (SELECT id FROM same ORDER BY e <-> '{1,2,3}') AS q;
DROP TABLE same;

-- most rows equal: no list may starve the others
CREATE TABLE skewed (id int, e real[]);
INSERT INTO skewed SELECT g,
	CASE WHEN g % 10 < 9 THEN '{1,1,1,1}' ELSE pg_temp.point(g, 4) END
FROM generate_series(1, 2000) AS g;
CREATE INDEX skewed_e ON skewed USING gpuivfpq (e);
SELECT pg_temp.agreement('skewed', '<->', 4) ;
SELECT count(*) FROM (SELECT id FROM skewed ORDER BY e <-> '{1,1,1,1}' LIMIT 1800) AS q;
SELECT * FROM gpuvec_verify_index('skewed_e');
DROP TABLE skewed;

-- dimensions from 1 to 16,000; blocks of one, two and three pages
CREATE TABLE shapes (id int, e real[]);
INSERT INTO shapes SELECT g, ARRAY[g] FROM generate_series(1, 1200) AS g;
CREATE INDEX shapes_e ON shapes USING gpuivfpq (e);
SELECT dims, pq_dim FROM gpuvec_index_info('shapes_e');
SELECT id FROM shapes ORDER BY e <-> '{777.1}' LIMIT 3;
DROP INDEX shapes_e;
UPDATE shapes SET e = pg_temp.point(id, 7);
CREATE INDEX shapes_3 ON shapes USING gpuivfpq (e) WITH (pq_dim = 3);
SELECT pg_temp.agreement('shapes', '<->', 7);
DROP INDEX shapes_3;
CREATE INDEX shapes_5 ON shapes USING gpuivfpq (e) WITH (pq_dim = 5, dims = 7);
SELECT pg_temp.agreement('shapes', '<->', 7);
DROP INDEX shapes_5;
CREATE INDEX shapes_7 ON shapes USING gpuivfpq (e) WITH (pq_dim = 7);
SELECT dims, pq_dim FROM gpuvec_index_info('shapes_7');
SELECT pg_temp.agreement('shapes', '<->', 7);
DROP INDEX shapes_7;
CREATE INDEX ON shapes USING gpuivfpq (e) WITH (pq_dim = 8);
TRUNCATE shapes;
INSERT INTO shapes SELECT g, pg_temp.point(g, 2050) FROM generate_series(1, 70) AS g;
CREATE INDEX shapes_600 ON shapes USING gpuivfpq (e) WITH (pq_dim = 600, lists = 2);
SELECT pg_temp.agreement('shapes', '<->', 2050);
SELECT * FROM gpuvec_verify_index('shapes_600');
DROP INDEX shapes_600;
CREATE INDEX shapes_900 ON shapes USING gpuivfpq (e real_cosine_ops)
	WITH (pq_dim = 900, lists = 2);
SELECT pg_temp.agreement('shapes', '<=>', 2050);
SELECT * FROM gpuvec_verify_index('shapes_900');
TRUNCATE shapes;
INSERT INTO shapes SELECT g, array_fill(g::real, ARRAY[16000])
FROM generate_series(1, 12) AS g;
REINDEX INDEX shapes_900;
DROP INDEX shapes_900;
CREATE INDEX shapes_16000 ON shapes USING gpuivfpq (e) WITH (lists = 3);
SELECT count(*) AS lists FROM gpuvec_list_stats('shapes_16000');
SELECT id FROM shapes ORDER BY e <-> array_fill(7.4::real, ARRAY[16000]) LIMIT 3;
SELECT * FROM gpuvec_verify_index('shapes_16000');
CREATE INDEX ON shapes USING gpuivfpq (e) WITH (pq_dim = 2000);
DROP TABLE shapes;

-- again and again: REINDEX, CONCURRENTLY, rewrites of the table, TRUNCATE
DROP INDEX built_ip, built_cosine;
REINDEX INDEX built_l2;
SELECT lists, rows, pending FROM gpuvec_index_info('built_l2');
SELECT pg_temp.agreement('built', '<->', 8);
REINDEX INDEX CONCURRENTLY built_l2;
SELECT lists, rows, pending FROM gpuvec_index_info('built_l2');
SELECT pg_temp.agreement('built', '<->', 8);
CREATE INDEX CONCURRENTLY built_again ON built USING gpuivfpq (e) WITH (lists = 5);
DROP INDEX built_l2;
SELECT indisvalid FROM pg_index WHERE indexrelid = 'built_again'::regclass;
SELECT pg_temp.agreement('built', '<->', 8);
SELECT * FROM gpuvec_verify_index('built_again');
DELETE FROM built WHERE id % 6 > 0;
VACUUM FULL built;
SELECT lists, rows, dead FROM gpuvec_index_info('built_again');
SELECT pg_temp.agreement('built', '<->', 8);
ALTER TABLE built ADD PRIMARY KEY (id);
CLUSTER built USING built_pkey;
SELECT pg_temp.agreement('built', '<->', 8);
ALTER TABLE built ALTER id TYPE bigint;
SELECT * FROM gpuvec_verify_index('built_again');
ALTER TABLE built ALTER id TYPE int;
ALTER TABLE built SET UNLOGGED;
SELECT pg_temp.agreement('built', '<->', 8);
ALTER TABLE built SET LOGGED;
SELECT * FROM gpuvec_verify_index('built_again');
TRUNCATE built;
SELECT lists, rows, pending FROM gpuvec_index_info('built_again');
SELECT id FROM built ORDER BY e <-> '{1,1,1,1,1,1,1,1}' LIMIT 5;
INSERT INTO built SELECT g, pg_temp.point(g, 8) FROM generate_series(1, 1100) AS g;
SELECT pg_temp.agreement('built', '<->', 8);
REINDEX TABLE built;
SELECT lists, rows, pending FROM gpuvec_index_info('built_again');
SELECT pg_temp.agreement('built', '<->', 8);
DROP TABLE built;

-- in the transaction that made the table, and rolled back
BEGIN;
CREATE TABLE young (id int, e real[]);
INSERT INTO young SELECT g, pg_temp.point(g, 4) FROM generate_series(1, 1100) AS g;
CREATE INDEX young_e ON young USING gpuivfpq (e);
INSERT INTO young VALUES (2000, '{1,1,1,1}');
SELECT id FROM young ORDER BY e <-> '{1,1,1,1}' LIMIT 1;
SAVEPOINT s;
REINDEX INDEX young_e;
ROLLBACK TO s;
SELECT id FROM young ORDER BY e <-> '{1,1,1,1}' LIMIT 1;
SELECT pg_temp.agreement('young', '<->', 4);
ROLLBACK;

-- unlogged and temporary
CREATE UNLOGGED TABLE unlogged (id int, e real[]);
CREATE INDEX unlogged_e ON unlogged USING gpuivfpq (e) WITH (lists = 4, dims = 4);
INSERT INTO unlogged SELECT g, pg_temp.point(g, 4) FROM generate_series(1, 200) AS g;
SELECT pg_temp.agreement('unlogged', '<->', 4);
REINDEX INDEX unlogged_e;
SELECT pg_temp.agreement('unlogged', '<->', 4);
SELECT * FROM gpuvec_verify_index('unlogged_e');
DROP TABLE unlogged;
CREATE TEMPORARY TABLE temporary (id int, e real[]);
INSERT INTO temporary SELECT g, pg_temp.point(g, 4) FROM generate_series(1, 200) AS g;
CREATE INDEX temporary_e ON temporary USING gpuivfpq (e) WITH (lists = 4);
INSERT INTO temporary SELECT g, pg_temp.point(g, 4) FROM generate_series(201, 300) AS g;
SELECT pg_temp.agreement('temporary', '<->', 4);
DELETE FROM temporary WHERE id < 250;
VACUUM temporary;
SELECT pg_temp.agreement('temporary', '<->', 4);
SELECT * FROM gpuvec_verify_index('temporary_e');
DROP TABLE temporary;
BEGIN;
CREATE TEMPORARY TABLE temporary (id int, e real[]) ON COMMIT DELETE ROWS;
CREATE INDEX temporary_e ON temporary USING gpuivfpq (e) WITH (dims = 4);
INSERT INTO temporary VALUES (1, '{1,2,3,4}');
SELECT id FROM temporary ORDER BY e <-> '{1,2,3,4}';
COMMIT;
SELECT id FROM temporary ORDER BY e <-> '{1,2,3,4}';
DROP TABLE temporary;

-- partial and expression indexes
CREATE TABLE partly (id int, kind int, e real[]);
INSERT INTO partly SELECT g, g % 3, pg_temp.point(g, 4) FROM generate_series(1, 900) AS g;
CREATE INDEX partly_kind ON partly USING gpuivfpq (e) WITH (lists = 6) WHERE kind = 1;
SELECT rows FROM gpuvec_index_info('partly_kind');
EXPLAIN (COSTS OFF) SELECT id FROM partly WHERE kind = 1 ORDER BY e <-> '{1,1,1,1}' LIMIT 3;
SET gpuvec.scan_order = relaxed;
SELECT count(*), count(*) FILTER (WHERE kind <> 1) AS others
FROM (SELECT kind FROM partly WHERE kind = 1 ORDER BY e <-> '{1,1,1,1}') AS q;
UPDATE partly SET kind = 2 WHERE id = 1;
UPDATE partly SET kind = 1 WHERE id = 2;
SELECT count(*), min(id) FROM (SELECT id FROM partly WHERE kind = 1 ORDER BY e <-> '{1,1,1,1}') AS q;
RESET gpuvec.scan_order;
SELECT * FROM gpuvec_verify_index('partly_kind');
CREATE INDEX partly_slice ON partly USING gpuivfpq ((e[1:2]) real_cosine_ops) WITH (lists = 6);
EXPLAIN (COSTS OFF) SELECT id FROM partly ORDER BY e[1:2] <=> '{1,1}' LIMIT 3;
SET gpuvec.candidates = 900;
SELECT array_agg(id) = (SELECT array_agg(id) FROM (SELECT id FROM partly
		ORDER BY (e[1:2] <=> '{1,1}') + 0 LIMIT 3) AS x) AS same
FROM (SELECT id FROM partly ORDER BY e[1:2] <=> '{1,1}' LIMIT 3) AS q;
RESET gpuvec.candidates;
SELECT * FROM gpuvec_verify_index('partly_slice');
DROP TABLE partly;

-- partitions: merged in order
CREATE TABLE parts (id int, e real[]) PARTITION BY RANGE (id);
CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (500);
CREATE TABLE parts_2 PARTITION OF parts FOR VALUES FROM (500) TO (1001);
INSERT INTO parts SELECT g, pg_temp.point(g, 4) FROM generate_series(1, 1000) AS g;
CREATE INDEX parts_e ON parts USING gpuivfpq (e) WITH (lists = 10);
CREATE TABLE parts_3 PARTITION OF parts FOR VALUES FROM (1001) TO (2000);
INSERT INTO parts SELECT g, pg_temp.point(g, 4) FROM generate_series(1001, 1100) AS g;
EXPLAIN (COSTS OFF) SELECT id FROM parts ORDER BY e <-> '{1,1,1,1}' LIMIT 3;
SELECT pg_temp.agreement('parts', '<->', 4);
SET gpuvec.scan_order = relaxed;
SELECT count(*), count(DISTINCT id)
FROM (SELECT id FROM parts ORDER BY e <-> '{1,1,1,1}') AS q;
RESET gpuvec.scan_order;
DROP TABLE parts;

-- not trained: said once, however many indexes a statement makes
CREATE TABLE parts (id int, e real[]) PARTITION BY HASH (id);
SELECT format('CREATE TABLE parts_%s PARTITION OF parts FOR VALUES WITH (MODULUS 9, REMAINDER %s)', i, i)
FROM generate_series(0, 8) AS i \gexec
CREATE INDEX parts_e ON parts USING gpuivfpq (e);
REINDEX TABLE parts;
TRUNCATE parts;
ALTER TABLE parts ALTER e TYPE real[] USING e || '{}';
DO 'BEGIN CREATE INDEX parts_again ON parts USING gpuivfpq (e); END';
DROP TABLE parts;

-- the session's own training: too little memory for a sample, and enough where
-- few rows are to be indexed
SET gpuvec.engine = cpu;
CREATE TABLE wide (id int, e real[], filler text);
ALTER TABLE wide ALTER e SET STORAGE PLAIN, ALTER filler SET STORAGE PLAIN;
INSERT INTO wide SELECT g, array_fill(g::real, ARRAY[384]) FROM generate_series(1, 1500) AS g;
SET maintenance_work_mem = '1MB';
CREATE INDEX wide_e ON wide USING gpuivfpq (e);
SET maintenance_work_mem = '6MB';
CREATE INDEX wide_e ON wide USING gpuivfpq (e);
SELECT lists, rows FROM gpuvec_index_info('wide_e');
DROP INDEX wide_e;
TRUNCATE wide;
INSERT INTO wide SELECT g, CASE WHEN g % 3 = 0 THEN array_fill(g::real, ARRAY[384]) END, repeat('x', 5000)
FROM generate_series(1, 3900) AS g;
CREATE INDEX wide_e ON wide USING gpuivfpq (e);
SELECT lists, rows FROM gpuvec_index_info('wide_e');
DROP INDEX wide_e;
-- the same of an index that is trained later
TRUNCATE wide;
CREATE INDEX wide_e ON wide USING gpuivfpq (e);
INSERT INTO wide SELECT g, array_fill(g::real, ARRAY[384]) FROM generate_series(1, 1500) AS g;
SET maintenance_work_mem = '1MB';
SELECT gpuvec_train('wide_e');
RESET maintenance_work_mem;
SELECT gpuvec_train('wide_e');
DROP TABLE wide;
-- values out of line, so that few blocks hold more rows than the sample, which is
-- 109: a list gets four
CREATE TABLE wide (id int, e real[]);
ALTER TABLE wide ALTER e SET STORAGE EXTERNAL;
INSERT INTO wide SELECT g, array_fill(g::real, ARRAY[600]) FROM generate_series(1, 5700) AS g;
SET maintenance_work_mem = '1MB';
CREATE INDEX wide_e ON wide USING gpuivfpq (e);
SELECT lists, rows FROM gpuvec_index_info('wide_e');
SELECT state, advice FROM gpuvec_doctor() WHERE subject = 'wide_e' AND state ~ 'instead of';
SET maintenance_work_mem = '3MB';
REINDEX INDEX wide_e;
SELECT lists, rows FROM gpuvec_index_info('wide_e');
DROP TABLE wide;
-- memory for 2^31 centroids
CREATE TABLE narrow AS SELECT ARRAY[g, g % 7]::real[] AS e FROM generate_series(1, 1500) AS g;
SET maintenance_work_mem = '64GB';
CREATE INDEX narrow_e ON narrow USING gpuivfpq (e);
SELECT lists, rows FROM gpuvec_index_info('narrow_e');
RESET maintenance_work_mem;
RESET gpuvec.engine;
DROP TABLE narrow;

-- values as far apart as floats can be: sound when built, and when more come
CREATE TABLE far (id int, e real[]) WITH (autovacuum_enabled = off);
CREATE FUNCTION pg_temp.far(opclass text, operator text, options text, dims int, seed float8, OUT problem text, OUT exact bool)
LANGUAGE plpgsql SET gpuvec.recall = 1 AS $$
DECLARE
	value float8[] = '{0.5,1,2,3.4e38,-3.4e38}';
	query real[] = (SELECT array_agg(value[1 + i % 5]) FROM generate_series(1, dims) AS i);
BEGIN
	TRUNCATE far;
	PERFORM setseed(seed);
	INSERT INTO far SELECT g, (SELECT array_agg(value[1 + floor(random() * 5)::int]) FROM generate_series(g, g + dims - 1) AS i)
	FROM generate_series(1, 1500) AS g;
	EXECUTE format('CREATE INDEX far_e ON far USING gpuivfpq (e %s) WITH (%s)', opclass, options);
	INSERT INTO far SELECT g, (SELECT array_agg(value[1 + floor(random() * 5)::int] * .99) FROM generate_series(g, g + dims - 1) AS i)
	FROM generate_series(1501, 1600) AS g;
	SELECT string_agg(v.problem, '; ') INTO problem FROM gpuvec_verify_index('far_e') AS v;
	EXECUTE format('SELECT (SELECT array_agg(d) FROM (SELECT e %1$s %2$L AS d FROM far ORDER BY e %1$s %2$L LIMIT 20) AS x)
		= (SELECT array_agg(d) FROM (SELECT (e %1$s %2$L) + 0 AS d FROM far ORDER BY 1 LIMIT 20) AS y)', operator, query) INTO exact;
	DROP INDEX far_e;
END
$$;
SELECT opclass, dims, options, count(problem) AS problems, bool_and(exact) AS exact
FROM (VALUES ('real_l2_ops', '<->'), ('real_ip_ops', '<#>'), ('real_cosine_ops', '<=>')) AS o (opclass, operator),
	(VALUES (1, 'lists = 3', 5), (3, 'lists = 300', 1), (12, 'lists = 20, refine = sq8, spill = 0', 1),
		(12, 'lists = 20, refine = half, rotate = on', 1)) AS p (dims, options, n),
	generate_series(1, n) AS s, pg_temp.far(opclass, operator, options, dims, s * .1) AS f
GROUP BY opclass, dims, options ORDER BY opclass, dims, options;
DROP TABLE far;

-- refused
CREATE TABLE refused (id int, e real[]);
CREATE INDEX ON refused USING gpuivfpq (e) INCLUDE (id);
CREATE INDEX ON refused USING gpuivfpq (e, e);
CREATE UNIQUE INDEX ON refused USING gpuivfpq (e);
\set VERBOSITY sqlstate
CREATE INDEX ON refused USING gpuivfpq (e NULLS FIRST);
\set VERBOSITY default
CREATE INDEX ON refused USING gpuivfpq (id);
DROP TABLE refused;
