-- inserting into an index: untrained, trained, and made on an empty table
\getenv srcdir PG_ABS_SRCDIR
\i :srcdir/sql/include/prologue.sql

-- how many rows of a range are their own nearest neighbor, by the index
CREATE FUNCTION pg_temp.found(tab regclass, low int, high int) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
	n bigint;
BEGIN
	EXECUTE format('SELECT count(*) FILTER (WHERE b.id = a.id)
		FROM %1$s AS a, LATERAL (SELECT id FROM %1$s ORDER BY e <-> a.e LIMIT 1) AS b
		WHERE a.id BETWEEN %2$s AND %3$s', tab, low, high) INTO n;
	RETURN n;
END
$$;

-- an index without training
CREATE TABLE inserted (id int, e real[]);
CREATE INDEX inserted_e ON inserted USING gpuivfpq (e);
INSERT INTO inserted SELECT g, pg_temp.point(g, 6) FROM generate_series(1, 100) AS g;
EXPLAIN (COSTS OFF) SELECT id FROM inserted ORDER BY e <-> '{1,1,1,1,1,1}' LIMIT 1;
SELECT pg_temp.found('inserted', 1, 100);
SELECT lists, dims, rows, pending FROM gpuvec_index_info('inserted_e');
-- ... takes no other length
INSERT INTO inserted VALUES (101, '{1,2,3}');
SELECT id FROM inserted ORDER BY e <-> '{1,1,1}' LIMIT 1;
SELECT id FROM inserted ORDER BY e <-> '{1,1,1,1,1,1}' LIMIT 1;
-- many pages of it
INSERT INTO inserted SELECT g, pg_temp.point(g, 6) FROM generate_series(101, 3000) AS g;
SELECT pg_temp.found('inserted', 2951, 3000);
SELECT rows, pending FROM gpuvec_index_info('inserted_e');
SELECT * FROM gpuvec_verify_index('inserted_e');

-- with training; new clusters, too, that training never saw
REINDEX INDEX inserted_e;
SELECT lists, rows, pending FROM gpuvec_index_info('inserted_e');
SELECT pg_temp.found('inserted', 1, 100);
INSERT INTO inserted SELECT g, pg_temp.point(g, 6) FROM generate_series(3001, 3500) AS g;
INSERT INTO inserted SELECT g, ARRAY[100 + g % 7, g, g % 3, g, g, -g]
FROM generate_series(3501, 3530) AS g;
SELECT pg_temp.found('inserted', 3401, 3530);
SELECT lists, rows, pending FROM gpuvec_index_info('inserted_e');
SELECT * FROM gpuvec_verify_index('inserted_e');

-- one list that grows over many blocks
INSERT INTO inserted SELECT g, '{1,2,3,4,5,6}' FROM generate_series(4001, 4500) AS g;
SELECT count(*) FROM (SELECT id FROM inserted ORDER BY e <-> '{1,2,3,4,5,6}' LIMIT 500) AS q
WHERE id > 4000;
DELETE FROM inserted WHERE id > 4000;

-- COPY
COPY inserted FROM stdin;
4001	{7,7,7,7,7,7}
4002	{7,7,7,7,7,8}
\.
SELECT id FROM inserted ORDER BY e <-> '{7,7,7,7,7,8}' LIMIT 2;

-- seen in its own transaction, gone with it
BEGIN;
INSERT INTO inserted VALUES (5001, '{50,50,50,50,50,50}');
SELECT id FROM inserted ORDER BY e <-> '{50,50,50,50,50,50}' LIMIT 1;
SAVEPOINT s;
INSERT INTO inserted VALUES (5002, '{50,50,50,50,50,51}');
SELECT id FROM inserted ORDER BY e <-> '{50,50,50,50,50,51}' LIMIT 1;
ROLLBACK TO s;
SELECT id FROM inserted ORDER BY e <-> '{50,50,50,50,50,51}' LIMIT 1;
UPDATE inserted SET e = '{60,60,60,60,60,60}' WHERE id = 5001;
SELECT id, e FROM inserted ORDER BY e <-> '{50,50,50,50,50,50}' LIMIT 1 OFFSET 0;
ROLLBACK;
SELECT id > 5000 AS ghost FROM inserted ORDER BY e <-> '{50,50,50,50,50,50}' LIMIT 1;
SELECT * FROM gpuvec_verify_index('inserted_e');

-- a statement sees what a data-modifying WITH beside it inserts only later
WITH i AS (INSERT INTO inserted VALUES (5003, '{70,70,70,70,70,70}') RETURNING id)
SELECT i.id AS inserted, q.id = 5003 AS seen
FROM i, (SELECT id FROM inserted ORDER BY e <-> '{70,70,70,70,70,70}' LIMIT 1) AS q;
SELECT id FROM inserted ORDER BY e <-> '{70,70,70,70,70,70}' LIMIT 1;

-- NULL, and what is no vector
INSERT INTO inserted VALUES (6000, NULL);
INSERT INTO inserted VALUES (6001, '{1,2,3,4,5}');
INSERT INTO inserted VALUES (6001, '{1,2,3,4,5,6,7}');
INSERT INTO inserted VALUES (6001, '{1,2,3,NaN,5,6}');
INSERT INTO inserted VALUES (6001, '{1,2,3,-Infinity,5,6}');
INSERT INTO inserted VALUES (6001, '{1,2,3,NULL,5,6}');
INSERT INTO inserted VALUES (6001, '{{1,2,3},{4,5,6}}');
INSERT INTO inserted VALUES (6001, '{}');
UPDATE inserted SET e = '{1}' WHERE id = 1;
SELECT count(*) FROM inserted WHERE id > 6000;
SELECT * FROM gpuvec_verify_index('inserted_e');

-- large and tiny numbers find their place
INSERT INTO inserted VALUES (7001, '{1e18,-1e18,1e18,-1e18,1e18,-1e18}'),
	(7002, '{1e-40,1e-40,1e-40,1e-40,1e-40,1e-40}'), (7003, '{0,0,0,0,0,-0}');
SELECT id FROM inserted ORDER BY e <-> '{1e18,-1e18,1e18,-1e18,1e18,-1e18}' LIMIT 1;
SET gpuvec.probes = 10000;
SET gpuvec.candidates = 10000;
SELECT array_agg(id ORDER BY id)
FROM (SELECT id FROM inserted ORDER BY e <-> '{0,0,0,0,0,0}' LIMIT 2) AS q;
RESET gpuvec.probes;
RESET gpuvec.candidates;
DROP TABLE inserted;

-- the dimension fixed beforehand
CREATE TABLE fixed (id int, e real[]);
CREATE INDEX fixed_e ON fixed USING gpuivfpq (e) WITH (dims = 3);
INSERT INTO fixed VALUES (1, '{1,2,3,4}');
INSERT INTO fixed VALUES (1, '{1,2,3}');
SELECT id FROM fixed ORDER BY e <-> '{1,2,3}';
SELECT id FROM fixed ORDER BY e <-> '{1,2}';
DROP TABLE fixed;

-- the first row decides on it, as long as it or another one is there (of a
-- temporary table, so that no other session may still see a deleted one)
CREATE TEMP TABLE first (id int, e real[]);
CREATE INDEX first_e ON first USING gpuivfpq (e);
SELECT id FROM first ORDER BY e <-> '{1,2}';
INSERT INTO first VALUES (1, '{1,2,3}'), (2, '{1,2}');
SELECT dims FROM gpuvec_index_info('first_e');
INSERT INTO first VALUES (3, '{1,2}');
SELECT dims, pending FROM gpuvec_index_info('first_e');
BEGIN;
INSERT INTO first VALUES (4, '{1,2,3}');
ROLLBACK;
DELETE FROM first;
-- nor do rows that are gone say how long a query is
SELECT id FROM first ORDER BY e <-> '{1,2,3,4}';
INSERT INTO first VALUES (5, '{1,2,3,4}');
DELETE FROM first;
VACUUM first;
SELECT dims, pending FROM gpuvec_index_info('first_e');
INSERT INTO first VALUES (6, '{1,2,3}');
INSERT INTO first VALUES (7, '{1,2,3,4}');
TRUNCATE first;
INSERT INTO first VALUES (7, '{1,2,3,4}');
SELECT id FROM first ORDER BY e <-> '{1,2,3,4}';
SELECT dims, advice IS NULL AS no_advice FROM gpuvec_index_info('first_e');
SELECT * FROM gpuvec_verify_index('first_e');
-- ... and an option only where it was there when the index was built
ALTER INDEX first_e SET (dims = 5);
INSERT INTO first VALUES (8, '{1,2,3,4}');
INSERT INTO first VALUES (9, '{1,2,3,4,5}');
DELETE FROM first;
VACUUM first;
INSERT INTO first VALUES (10, '{1,2}');
DELETE FROM first;
REINDEX INDEX first_e;
INSERT INTO first VALUES (11, '{1,2,3,4}');
INSERT INTO first VALUES (12, '{1,2,3,4,5}');
ALTER INDEX first_e RESET (dims);
DELETE FROM first;
VACUUM first;
INSERT INTO first VALUES (13, '{1,2,3,4}');
-- a trained index keeps its own
REINDEX INDEX first_e;
INSERT INTO first SELECT g, ARRAY[g % 10, g, g % 7] FROM generate_series(1, 1200) AS g;
SELECT gpuvec_train('first_e');
ALTER INDEX first_e SET (dims = 5);
INSERT INTO first VALUES (2001, '{1,2,3,4,5}');
INSERT INTO first VALUES (2001, '{1,2,3}');
DELETE FROM first;
VACUUM first;
INSERT INTO first VALUES (2002, '{1,2,3,4,5}');
DROP TABLE first;
-- ... which an option does not change before it is trained, either
CREATE TEMP TABLE first (id int, e real[]);
CREATE INDEX first_e ON first USING gpuivfpq (e) WITH (dims = 3);
INSERT INTO first SELECT g, ARRAY[g % 10, g, g % 7] FROM generate_series(1, 1200) AS g;
ALTER INDEX first_e SET (dims = 5);
SELECT gpuvec_train('first_e');
-- ... nor does it keep others from being changed afterwards
ALTER INDEX first_e SET (probes = 2);
ALTER INDEX first_e RESET (probes);
SELECT lists > 0 AS trained, dims, pending FROM gpuvec_index_info('first_e');
-- built of rows, without training
ALTER INDEX first_e RESET (dims);
TRUNCATE first;
INSERT INTO first VALUES (1, '{1,2,3}');
REINDEX INDEX first_e;
INSERT INTO first VALUES (2, '{1,2}');
DROP TABLE first;

-- inner product, and cosine with zero vectors, which have no direction
CREATE TABLE directions (id int, e real[]);
INSERT INTO directions SELECT g, pg_temp.point(g, 6) FROM generate_series(1, 500) AS g;
CREATE INDEX directions_ip ON directions USING gpuivfpq (e real_ip_ops) WITH (lists = 10);
CREATE INDEX directions_cosine ON directions USING gpuivfpq (e real_cosine_ops)
	WITH (lists = 10);
INSERT INTO directions VALUES (501, '{0,0,0,0,0,0}'), (502, '{100,1,1,1,1,1}'),
	(503, '{-3,-3,-3,-3,-3,-3}');
SELECT id FROM directions ORDER BY e <#> '{1,0,0,0,0,0}' LIMIT 1;
SELECT id FROM directions ORDER BY e <=> '{-1,-1,-1,-1,-1,-1}' LIMIT 1;
SET gpuvec.scan_order = relaxed;
SELECT count(*) FROM (SELECT id FROM directions ORDER BY e <#> '{1,1,1,1,1,1}') AS q;
SELECT count(*) FROM (SELECT id FROM directions ORDER BY e <=> '{1,1,1,1,1,1}') AS q;
RESET gpuvec.scan_order;
SELECT rows FROM gpuvec_index_info('directions_ip');
SELECT rows FROM gpuvec_index_info('directions_cosine');
SELECT * FROM gpuvec_verify_index('directions_cosine');
DROP TABLE directions;

-- blocks of two and of three pages
CREATE TABLE wide (id int, e real[]);
INSERT INTO wide SELECT g, pg_temp.point(g, 1500) FROM generate_series(1, 20) AS g;
CREATE INDEX wide_2 ON wide USING gpuivfpq (e) WITH (lists = 2, pq_dim = 600);
INSERT INTO wide SELECT g, pg_temp.point(g, 1500) FROM generate_series(21, 90) AS g;
SELECT pg_temp.found('wide', 1, 90);
SELECT * FROM gpuvec_verify_index('wide_2');
DROP INDEX wide_2;
CREATE INDEX wide_3 ON wide USING gpuivfpq (e) WITH (lists = 2, pq_dim = 900);
INSERT INTO wide SELECT g, pg_temp.point(g, 1500) FROM generate_series(91, 130) AS g;
SELECT pg_temp.found('wide', 61, 130);
SELECT * FROM gpuvec_verify_index('wide_3');
DROP TABLE wide;
