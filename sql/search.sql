-- gpuvec_search: many queries at once find what each finds by ORDER BY
\getenv srcdir PG_ABS_SRCDIR
\i :srcdir/sql/include/prologue.sql

-- rows of small integers, so that many distances are equal; some without a
-- vector, some gone, some changed in place, some changed later
CREATE TABLE many (id int, e real[]) WITH (autovacuum_enabled = off, fillfactor = 70);
INSERT INTO many SELECT i, CASE WHEN i % 50 <> 0 THEN pg_temp.numbers(i, 12) END FROM generate_series(1, 3000) AS i;
CREATE TABLE asked AS SELECT q AS query, pg_temp.numbers(-q, 12) AS v FROM generate_series(1, 150) AS q;
CREATE FUNCTION all_asked() RETURNS real[] LANGUAGE sql STABLE AS 'SELECT array_agg(v ORDER BY query) FROM asked';

-- rows that differ from those of a statement for each query, and those farther
-- away
CREATE FUNCTION pg_temp.differ(index regclass, k int, statement text) RETURNS TABLE (rows bigint, differ bigint, farther bigint)
LANGUAGE plpgsql AS $$
BEGIN
	CREATE TEMP TABLE found AS SELECT n.*, row_number() OVER (PARTITION BY query ORDER BY distance, tid) AS rank
		FROM gpuvec_search(index, all_asked(), k) AS n;
	EXECUTE format('CREATE TEMP TABLE scanned AS SELECT a.query, s.*, row_number() OVER (PARTITION BY a.query ORDER BY s.distance, s.tid) AS rank
		FROM asked AS a, LATERAL (%s LIMIT %s) AS s (tid, distance)', statement, k);
	RETURN QUERY SELECT count(*), count(*) FILTER (WHERE f.tid IS DISTINCT FROM s.tid
			OR f.distance IS DISTINCT FROM s.distance),
			count(*) FILTER (WHERE f.distance IS NULL OR f.distance > s.distance)
		FROM found AS f FULL JOIN scanned AS s USING (query, rank);
	DROP TABLE found, scanned;
END
$$;
-- the same for each metric, and which of them were scanned by the index
CREATE INDEX many_l2 ON many USING gpuivfpq (e) WITH (lists = 30);
CREATE INDEX many_ip ON many USING gpuivfpq (e real_ip_ops) WITH (lists = 30);
CREATE INDEX many_cosine ON many USING gpuivfpq (e real_cosine_ops) WITH (lists = 30);
SELECT index, k, d.* FROM (VALUES ('many_l2', '<->'), ('many_ip', '<#>'), ('many_cosine', '<=>')) AS m (index, operator),
	(VALUES (1), (7), (10)) AS k (k),
	pg_temp.differ(index, k, format('SELECT ctid, e %1$s a.v FROM many ORDER BY e %1$s a.v', operator)) AS d;

-- in the order of queries and of distances, numbered from 1
SELECT count(*), min(query), max(query), bool_and(query >= query_before) AS by_query,
	bool_and(query <> query_before OR distance >= distance_before) AS by_distance
FROM (SELECT query, distance, lag(query, 1, 0) OVER (ORDER BY o) AS query_before,
		lag(distance, 1, 0) OVER (ORDER BY o) AS distance_before
	FROM gpuvec_search('many_l2', all_asked(), 5) WITH ORDINALITY AS n (query, tid, distance, o)) AS n;

-- more rows than a scan's first batch has: those of so many rows' effort
SELECT k, count(*) = 150 * k AS all_rows, avg((distance <= kth)::int) > 0.9 AS found
FROM (VALUES (30), (100), (400)) AS k (k), gpuvec_search('many_l2', all_asked(), k) AS n
	JOIN asked AS a USING (query),
	LATERAL (SELECT max(d) AS kth FROM (SELECT m.e <-> a.v AS d FROM many AS m WHERE e IS NOT NULL ORDER BY (m.e <-> a.v) + 0 LIMIT k) AS s) AS t
GROUP BY k ORDER BY k;

-- exact at recall 1, as deep as the table is
SET gpuvec.recall = 1;
SELECT * FROM pg_temp.differ('many_l2', 10, 'SELECT ctid, e <-> a.v FROM many WHERE e IS NOT NULL ORDER BY (e <-> a.v) + 0, ctid');
SELECT count(*), count(DISTINCT tid) FROM gpuvec_search('many_cosine', all_asked(), 10000);
RESET gpuvec.recall;

-- rows changed in place, changed elsewhere, new (in lists, but not compact),
-- gone; what is gone is still in lists
UPDATE many SET id = -id WHERE id % 3 = 0;
UPDATE many SET e = pg_temp.numbers(id + 5000, 12) WHERE id % 11 = 0;
INSERT INTO many SELECT i, pg_temp.numbers(i, 12) FROM generate_series(3001, 3300) AS i;
DELETE FROM many WHERE abs(id) % 7 = 0;
-- (where a scan's first batch lacks many rows its second one brings some too
-- late for their place)
-- (by rows in a mirror a scan does not know how many of its candidates are gone)
SET gpuvec.mirror_rows = off;
SELECT rows, differ < 150 AS few, farther FROM pg_temp.differ('many_l2', 10, 'SELECT ctid, e <-> a.v FROM many ORDER BY e <-> a.v');
SELECT rows, differ < 150 AS few, farther FROM pg_temp.differ('many_cosine', 10, 'SELECT ctid, e <=> a.v FROM many ORDER BY e <=> a.v');
RESET gpuvec.mirror_rows;
-- most are gone: queries go on until they have the rows that they want
DELETE FROM many WHERE abs(id) % 10 <> 0;
SELECT count(*) = 150 * 20 AS all_rows, count(DISTINCT query) AS queries FROM gpuvec_search('many_l2', all_asked(), 20);
SELECT batches > 1 AS went_on FROM gpuvec_last_scan();
SELECT count(DISTINCT query) AS queries, count(*) = 150 * (SELECT count(*) FROM many WHERE e IS NOT NULL) AS all_rows
FROM gpuvec_search('many_l2', all_asked(), 10000);
SET gpuvec.max_probes = 3;
SELECT count(*) > 0 AS some, count(*) < 150 * (SELECT count(*) FROM many WHERE e IS NOT NULL) AS not_all
FROM gpuvec_search('many_l2', all_asked(), 10000);
RESET gpuvec.max_probes;

-- what the statement's snapshot sees
BEGIN;
DECLARE before CURSOR FOR SELECT count(*) FROM gpuvec_search('many_l2', '{{9,9,9,9,9,9,9,9,9,9,9,9}}', 1) WHERE distance = 0;
INSERT INTO many VALUES (0, array_fill(9::real, ARRAY[12]));
FETCH before;
SELECT id FROM gpuvec_search('many_l2', '{9,9,9,9,9,9,9,9,9,9,9,9}', 1) AS n JOIN many ON many.ctid = n.tid;
ROLLBACK;
DROP TABLE many;

-- refine records: few rows are fetched, the same ones come
CREATE TABLE many (id int, e real[]) WITH (autovacuum_enabled = off);
INSERT INTO many SELECT i, pg_temp.point(i, 20) FROM generate_series(1, 2000) AS i;
DELETE FROM asked;
INSERT INTO asked SELECT q, pg_temp.point(-q, 20) FROM generate_series(1, 150) AS q;
CREATE INDEX many_e ON many USING gpuivfpq (e) WITH (lists = 20, refine = sq8);
SELECT * FROM pg_temp.differ('many_e', 10, 'SELECT ctid, e <-> a.v FROM many ORDER BY e <-> a.v');
SELECT reranked < candidates * 150 AS few FROM (SELECT count(*) FROM gpuvec_search('many_e', all_asked(), 10) OFFSET 0) AS n, gpuvec_last_scan();
DELETE FROM many WHERE id % 4 <> 0;
SELECT count(*) = 1500 AS all_rows FROM gpuvec_search('many_e', all_asked(), 10);
VACUUM many;
INSERT INTO many SELECT i, pg_temp.point(i, 20) FROM generate_series(2001, 2900) AS i;
ANALYZE many;
SELECT * FROM pg_temp.differ('many_e', 10, 'SELECT ctid, e <-> a.v FROM many ORDER BY e <-> a.v');
DROP INDEX many_e;
CREATE INDEX many_e ON many USING gpuivfpq (e) WITH (lists = 20, refine = half);
SELECT * FROM pg_temp.differ('many_e', 10, 'SELECT ctid, e <-> a.v FROM many ORDER BY e <-> a.v');
SELECT reranked < 2 * 1500 AS few FROM (SELECT count(*) FROM gpuvec_search('many_e', all_asked(), 10) OFFSET 0) AS n, gpuvec_last_scan();
DELETE FROM many WHERE id % 5 = 0;
SELECT * FROM pg_temp.differ('many_e', 10, 'SELECT ctid, e <-> a.v FROM many ORDER BY e <-> a.v');
DROP INDEX many_e;

-- keys, predicates, expressions
CREATE INDEX many_keys ON many USING gpuivfpq (e, id) WITH (lists = 20);
SELECT * FROM pg_temp.differ('many_keys', 10, 'SELECT ctid, e <-> a.v FROM many ORDER BY e <-> a.v');
DROP INDEX many_keys;
CREATE INDEX many_part ON many USING gpuivfpq (e) WITH (lists = 20) WHERE id > 1000;
SELECT * FROM pg_temp.differ('many_part', 10, 'SELECT ctid, e <-> a.v FROM many WHERE id > 1000 ORDER BY e <-> a.v');
DROP INDEX many_part;
CREATE INDEX many_half ON many USING gpuivfpq ((e[1:10])) WITH (lists = 20, dims = 10);
CREATE TABLE kept AS TABLE asked;
UPDATE asked SET v = v[1:10];
SELECT * FROM pg_temp.differ('many_half', 10, 'SELECT ctid, e[1:10] <-> a.v FROM many ORDER BY e[1:10] <-> a.v');
DROP TABLE asked;
ALTER TABLE kept RENAME TO asked;

-- columns that are gone, came later or are computed; queries one by one, through
-- a CTE, and numbered otherwise
CREATE TABLE odd (gone int, e real[], also_gone text) WITH (autovacuum_enabled = off);
INSERT INTO odd SELECT id, e, 'x' FROM many WHERE id <= 1000;
ALTER TABLE odd DROP gone, DROP also_gone, ADD later text DEFAULT 'y', ADD f real[] GENERATED ALWAYS AS (e[11:20] || e[1:10]) STORED;
INSERT INTO odd SELECT e FROM many WHERE id > 1000;
CREATE INDEX odd_e ON odd USING gpuivfpq (e) WITH (lists = 20);
CREATE INDEX odd_f ON odd USING gpuivfpq (f) WITH (lists = 20);
SELECT * FROM pg_temp.differ('odd_e', 10, 'SELECT ctid, e <-> a.v FROM odd ORDER BY e <-> a.v');
SELECT * FROM pg_temp.differ('odd_f', 10, 'SELECT ctid, f <-> a.v FROM odd ORDER BY f <-> a.v');
WITH together AS MATERIALIZED (SELECT * FROM gpuvec_search('odd_f', all_asked(), 3)),
	apart AS (SELECT a.query, n.tid, n.distance FROM asked AS a, LATERAL gpuvec_search('odd_f', ARRAY[a.v], 3) AS n),
	shifted AS (SELECT a.query, n.tid, n.distance FROM asked AS a,
		LATERAL gpuvec_search('odd_f', ('[0:0][5:24]={' || a.v::text || '}')::real[], 3) AS n)
SELECT count(*), count(o.later), (SELECT count(*) FROM (TABLE together EXCEPT ALL TABLE apart) AS x) AS apart,
	(SELECT count(*) FROM (TABLE together EXCEPT ALL TABLE shifted) AS x) AS shifted
FROM together AS t JOIN odd AS o ON o.ctid = t.tid;
DROP TABLE odd;

-- untrained, and empty; pending rows of a trained one
CREATE TABLE few (e real[]);
CREATE INDEX few_e ON few USING gpuivfpq (e);
SELECT count(*) FROM gpuvec_search('few_e', all_asked(), 10);
INSERT INTO few SELECT e FROM many LIMIT 30;
SELECT * FROM pg_temp.differ('few_e', 10, 'SELECT ctid, e <-> a.v FROM few ORDER BY e <-> a.v');
SELECT count(*) FROM gpuvec_search('few_e', all_asked(), 100);

-- unlogged and temporary tables, long vectors
CREATE UNLOGGED TABLE unlogged AS TABLE many;
CREATE INDEX unlogged_e ON unlogged USING gpuivfpq (e) WITH (lists = 20);
SELECT * FROM pg_temp.differ('unlogged_e', 10, 'SELECT ctid, e <-> a.v FROM unlogged ORDER BY e <-> a.v');
CREATE TEMP TABLE brief AS TABLE many;
CREATE INDEX brief_e ON brief USING gpuivfpq (e) WITH (lists = 20);
SELECT * FROM pg_temp.differ('brief_e', 10, 'SELECT ctid, e <-> a.v FROM brief ORDER BY e <-> a.v');
DROP INDEX brief_e;
ALTER TABLE brief ALTER e SET STORAGE EXTERNAL;
UPDATE brief SET e = e || array_fill(0::real, ARRAY[1000]);
CREATE INDEX brief_long ON brief USING gpuivfpq ((e[1:1020])) WITH (lists = 5, dims = 1020);
CREATE TABLE kept AS TABLE asked;
UPDATE asked SET v = v || array_fill(0::real, ARRAY[1000]);
SET enable_sort = off;
SELECT * FROM pg_temp.differ('brief_long', 3, 'SELECT ctid, e[1:1020] <-> a.v FROM brief ORDER BY e[1:1020] <-> a.v');
RESET enable_sort;
DROP TABLE asked, brief;
ALTER TABLE kept RENAME TO asked;

-- little memory, several portions, the same answer
CREATE INDEX many_e ON many USING gpuivfpq (e) WITH (lists = 20);
SET maintenance_work_mem = '1MB';
CREATE TABLE crowd AS SELECT array_agg(pg_temp.point(-q, 20) ORDER BY q) AS queries FROM generate_series(1, 3000) AS q;
CREATE TABLE narrow AS SELECT n.* FROM crowd, gpuvec_search('many_e', queries, 10) AS n;
RESET maintenance_work_mem;
CREATE TABLE wide AS SELECT n.* FROM crowd, gpuvec_search('many_e', queries, 10) AS n;
SELECT count(*) FROM narrow;
SELECT count(*) FROM ((TABLE narrow EXCEPT ALL TABLE wide) UNION ALL (TABLE wide EXCEPT ALL TABLE narrow)) AS different;

-- nothing in, nothing out
SELECT * FROM gpuvec_search('many_e', '{}', 3);
SELECT * FROM gpuvec_search('many_e', NULL, 3);
SELECT * FROM gpuvec_search(NULL, '{1}', 3);
SELECT * FROM gpuvec_search('many_e', '{1}', NULL);
-- zeros have no cosine
CREATE INDEX many_cosine ON many USING gpuivfpq (e real_cosine_ops) WITH (lists = 20);
SELECT query, distance FROM gpuvec_search('many_cosine', array_fill(0::real, ARRAY[2, 20]), 1);
-- in a prepared statement, more than once in a query, in parallel queries
PREPARE search (real[]) AS SELECT count(*) FROM gpuvec_search('many_e', $1, 1) AS a, gpuvec_search('many_e', $1, 2) AS b;
EXECUTE search (all_asked());
SELECT proparallel, provolatile, proisstrict FROM pg_proc WHERE proname = 'gpuvec_search' ORDER BY proisstrict;

-- it counts as a scan for each query
SELECT pg_stat_force_next_flush();
SELECT idx_scan AS before FROM pg_stat_user_indexes WHERE indexrelname = 'many_e' \gset
SELECT count(*) FROM gpuvec_search('many_e', all_asked(), 1);
SELECT pg_stat_force_next_flush();
SELECT idx_scan - :before AS scans FROM pg_stat_user_indexes WHERE indexrelname = 'many_e';
SELECT index, recall, batches, returned, full_pass FROM gpuvec_last_scan();

-- errors
\set VERBOSITY default
SELECT * FROM gpuvec_search('many_e', '{1,2}', 3);
SELECT * FROM gpuvec_search('many_e', '{{1,NULL}}', 3);
SELECT * FROM gpuvec_search('many_e', '{{1,NaN}}', 3);
SELECT * FROM gpuvec_search('many_e', '{{{1,2}}}', 3);
SELECT * FROM gpuvec_search('many_e', '{1,2}', 0);
SELECT * FROM gpuvec_search('many_e', '{1,2}', 10001);
SELECT * FROM gpuvec_search('many_e', '{1,2}', -2147483648);
SELECT * FROM gpuvec_search('many_e', '{1,Infinity}', 3);
SELECT * FROM gpuvec_search(0, '{1,2}', 3);
SELECT * FROM gpuvec_search('many', '{1,2}', 3);
SELECT * FROM gpuvec_search('few_e', '{1,2}', 3);
CREATE TABLE parted (e real[]) PARTITION BY RANGE ((e[1]));
CREATE INDEX parted_e ON parted USING gpuivfpq (e);
SELECT * FROM gpuvec_search('parted_e', '{1,2}', 3);
CREATE INDEX many_id ON many (id);
SELECT * FROM gpuvec_search('many_id', '{1,2}', 3);
SET LOCAL statement_timeout = 50 \;
SELECT count(*) FROM gpuvec_search('many_e', (SELECT array_agg(pg_temp.point(1, 20)) FROM generate_series(1, 100000)), 10000);

-- rights: SELECT on what the index is made of; policies are not passed by; code
-- of others does not run as the owner
CREATE ROLE regress_search_reader;
SET ROLE regress_search_reader;
SELECT count(*) FROM gpuvec_search('many_e', all_asked(), 1);
RESET ROLE;
GRANT SELECT (id) ON many TO regress_search_reader;
GRANT SELECT ON asked TO regress_search_reader;
SET ROLE regress_search_reader;
SELECT count(*) FROM gpuvec_search('many_e', all_asked(), 1);
RESET ROLE;
GRANT SELECT (e) ON many TO regress_search_reader;
SET ROLE regress_search_reader;
SELECT count(*) FROM gpuvec_search('many_e', all_asked(), 1);
RESET ROLE;
ALTER TABLE many ENABLE ROW LEVEL SECURITY;
CREATE POLICY odd ON many USING (id % 2 = 1);
SET ROLE regress_search_reader;
SELECT count(*) FROM gpuvec_search('many_e', all_asked(), 1);
RESET ROLE;
SET ROLE regress_search_reader;
SET row_security = off;
SELECT count(*) FROM gpuvec_search('many_e', all_asked(), 1);
RESET row_security;
RESET ROLE;
-- who no policy holds for
ALTER ROLE regress_search_reader BYPASSRLS;
SET ROLE regress_search_reader;
SELECT count(*) FROM gpuvec_search('many_e', all_asked(), 1);
RESET ROLE;
ALTER TABLE many DISABLE ROW LEVEL SECURITY;
ALTER ROLE regress_search_reader NOBYPASSRLS;
-- a predicate's columns are among what the index is made of
REVOKE SELECT (id) ON many FROM regress_search_reader;
CREATE INDEX many_part ON many USING gpuivfpq (e) WITH (lists = 20) WHERE id > 1000;
SET ROLE regress_search_reader;
SELECT count(*) FROM gpuvec_search('many_part', all_asked(), 1);
SELECT count(*) FROM gpuvec_search('many_e', all_asked(), 1);
RESET ROLE;
CREATE FUNCTION doubled(real[]) RETURNS real[] LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN $1 || $1; END';
CREATE INDEX many_doubled ON many USING gpuivfpq ((public.doubled(e))) WITH (lists = 20, dims = 40);
SELECT count(*) FROM gpuvec_search('many_doubled', array_fill(1::real, ARRAY[40]), 1);
SET ROLE regress_search_reader;
SELECT count(*) FROM gpuvec_search('many_doubled', array_fill(1::real, ARRAY[40]), 1);
RESET ROLE;

DROP TABLE many, asked, few, unlogged, crowd, narrow, wide, parted;
DROP FUNCTION all_asked, doubled;
DROP ROLE regress_search_reader;
