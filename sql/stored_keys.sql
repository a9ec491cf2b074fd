-- Keys in the index: whatever makes, moves or removes copies, their images are
-- those of the table's values, and heads of blocks tell of them; which
-- gpuvec_verify_index compares.
\getenv srcdir PG_ABS_SRCDIR
\i :srcdir/sql/include/prologue.sql

CREATE TABLE items (id int, v real[], a int, b text, c bigint, d bool, e smallint, note text)
	WITH (fillfactor = 60, autovacuum_enabled = off);
-- every key is NULL in some rows, all of them in a few, and so is the vector
CREATE PROCEDURE pg_temp.add(first int, last int, dims int)
LANGUAGE sql AS $$
INSERT INTO items
SELECT i, CASE WHEN i % 101 > 0 THEN pg_temp.wave(i, dims) END,
	CASE WHEN i % 7 > 0 THEN i - 1000 END, CASE WHEN i % 11 > 0 THEN 'x' || i % 50 END,
	CASE WHEN i % 7 > 0 THEN i * 10000000000 END, CASE WHEN i % 13 > 0 THEN i % 2 = 0 END,
	CASE WHEN i % 77 > 0 THEN i % 30000 - 15000 END
FROM generate_series(first, last) i
$$;
CALL pg_temp.add(1, 3000, 9);

-- built, with bytes as they should be: a head, and an image a copy, for each
CREATE INDEX items_v ON items USING gpuivfpq (v, a, b, c, d, e) WITH (lists = 30, pq_dim = 5);
SELECT * FROM gpuvec_verify_index('items_v');
SELECT rows, keys, key_bytes = (5 * 24 + 32 * (4 + 4 + 8 + 1 + 2)) *
	(SELECT sum(blocks) FROM gpuvec_list_stats('items_v')) AS bytes
FROM gpuvec_index_info('items_v');

-- rows come, change and go
INSERT INTO items VALUES (0, NULL, 1, 'x', 1, true, 1), (0, NULL, NULL, NULL, NULL, NULL, NULL);
CALL pg_temp.add(3001, 4000, 9);
COPY items (id, v, a, b) FROM stdin;
9001	{1,2,3,4,5,6,7,8,9}	2147483647	\N
9002	{1,2,3,4,5,6,7,8,9}	-2147483648	
\.
SELECT * FROM gpuvec_verify_index('items_v');
UPDATE items SET note = 'in place' WHERE id % 5 = 0;
UPDATE items SET a = a + 1 WHERE id % 6 = 0;
UPDATE items SET a = NULL, d = NOT d WHERE id % 9 = 0;
DELETE FROM items WHERE id % 3 = 0;
SELECT * FROM gpuvec_verify_index('items_v');
BEGIN;
CALL pg_temp.add(4001, 5000, 9);
SELECT * FROM gpuvec_verify_index('items_v');
ROLLBACK;
-- marks copies dead, and rewrites lists
VACUUM items;
SELECT sum(generation) > 0 AS rewritten FROM gpuvec_list_stats('items_v');
SELECT * FROM gpuvec_verify_index('items_v');
-- slots of other lists are used again
CALL pg_temp.add(5001, 8000, 9);
SELECT * FROM gpuvec_verify_index('items_v');
REINDEX INDEX items_v;
SELECT * FROM gpuvec_verify_index('items_v');
REINDEX INDEX CONCURRENTLY items_v;
SELECT * FROM gpuvec_verify_index('items_v');
DROP INDEX items_v;

-- one copy a row, refine records, copies that do not fit into memory
CALL pg_temp.add(10001, 18000, 9);
CREATE INDEX items_v ON items USING gpuivfpq (v, e, d) WITH (lists = 30, spill = 0, refine = sq8);
SELECT * FROM gpuvec_verify_index('items_v');
DROP INDEX items_v;
SET maintenance_work_mem = '1MB';
CREATE INDEX items_v ON items USING gpuivfpq (v, a, b, c, d, e) WITH (lists = 30, refine = sq8);
RESET maintenance_work_mem;
SELECT * FROM gpuvec_verify_index('items_v');
DELETE FROM items WHERE id % 4 = 0;
VACUUM items;
SELECT * FROM gpuvec_verify_index('items_v');
DROP INDEX items_v;

-- by three processes, in memory and not, while others write
SET min_parallel_table_scan_size = 0;
SET max_parallel_maintenance_workers = 2;
CREATE INDEX items_v ON items USING gpuivfpq (v, a, b, c, d, e) WITH (lists = 30, refine = sq8);
SELECT * FROM gpuvec_verify_index('items_v');
DROP INDEX items_v;
SET maintenance_work_mem = '1MB';
CREATE INDEX CONCURRENTLY items_v ON items USING gpuivfpq (v, b, c) WITH (lists = 30);
RESET maintenance_work_mem;
RESET max_parallel_maintenance_workers;
RESET min_parallel_table_scan_size;
SELECT * FROM gpuvec_verify_index('items_v');

-- vector and key are expressions, or one of them, in a part of the table
CREATE INDEX items_key ON items USING gpuivfpq (v, (a % 10), b) WITH (lists = 30) WHERE d;
CREATE INDEX items_both ON items USING gpuivfpq ((v[2:7]), (lower(b)), (id + 0)) WITH (lists = 30);
SELECT keys FROM gpuvec_index_info('items_key');
CALL pg_temp.add(20001, 21000, 9);
SELECT * FROM gpuvec_verify_index('items_key');
SELECT * FROM gpuvec_verify_index('items_both');

-- trained in place: the rows' keys come from the table
TRUNCATE items;
DROP INDEX items_v, items_key, items_both;
CREATE INDEX items_v ON items USING gpuivfpq (v, a, b, c, d, e) WITH (lists = 20);
CREATE INDEX items_key ON items USING gpuivfpq (v, (a % 10)) WITH (lists = 20, refine = sq8);
CALL pg_temp.add(1, 2000, 9);
SELECT lists, pending, keys, key_bytes FROM gpuvec_index_info('items_v');
SELECT * FROM gpuvec_verify_index('items_v');
SELECT gpuvec_train('items_v'), gpuvec_train('items_key');
SELECT lists, pending, keys, key_bytes > 0 AS bytes FROM gpuvec_index_info('items_v');
SELECT * FROM gpuvec_verify_index('items_v');
SELECT * FROM gpuvec_verify_index('items_key');

-- blocks of two parts
TRUNCATE items;
DROP INDEX items_v, items_key;
CALL pg_temp.add(1, 300, 1100);
CREATE INDEX items_v ON items USING gpuivfpq (v, a, b, c, d, e) WITH (lists = 5, pq_dim = 900);
SELECT * FROM gpuvec_verify_index('items_v');
CALL pg_temp.add(301, 400, 1100);
UPDATE items SET a = a + 1 WHERE id % 6 = 0;
DELETE FROM items WHERE id % 3 = 1;
SELECT * FROM gpuvec_verify_index('items_v');
VACUUM items;
SELECT * FROM gpuvec_verify_index('items_v');
CALL pg_temp.add(401, 500, 1100);
SELECT * FROM gpuvec_verify_index('items_v');
DROP TABLE items;

-- seven keys of 8 bytes leave less room for codes
CREATE TABLE items (v real[], a bigint, b bigint, c bigint, d bigint, e bigint, f bigint, g bigint)
	WITH (autovacuum_enabled = off);
INSERT INTO items SELECT pg_temp.wave(i, 1000), i, -i, i * i, NULL, 0, i % 2, i FROM generate_series(1, 60) i;
CREATE INDEX items_v ON items USING gpuivfpq (v, a, b, c, d, e, f, g) WITH (lists = 2, pq_dim = 861, train_rows = 50);
CREATE INDEX items_v ON items USING gpuivfpq (v, a, b, c, d, e, f, g) WITH (lists = 2, pq_dim = 860, train_rows = 50);
SELECT lists, pq_dim, keys FROM gpuvec_index_info('items_v');
SELECT * FROM gpuvec_verify_index('items_v');

-- sub-quantizers that are left to us: one key takes some, so that as many
-- blocks share a page
CREATE TABLE wide AS SELECT pg_temp.wave(i, 384) AS v, i AS a, i AS b, i AS c FROM generate_series(1, 60) i;
CREATE INDEX wide_0 ON wide USING gpuivfpq (v) WITH (lists = 2, train_rows = 50);
CREATE INDEX wide_1 ON wide USING gpuivfpq (v, a) WITH (lists = 2, train_rows = 50);
CREATE INDEX wide_2 ON wide USING gpuivfpq (v, a, b) WITH (lists = 2, train_rows = 50);
CREATE INDEX wide_3 ON wide USING gpuivfpq (v, a, b, c) WITH (lists = 2, train_rows = 50);
SELECT name, pq_dim FROM unnest('{wide_0,wide_1,wide_2,wide_3}'::text[]) AS name,
	gpuvec_index_info(name);
DROP TABLE items, wide;
