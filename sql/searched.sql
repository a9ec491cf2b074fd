-- joins and graphs whose rows are searched for through an index
\getenv srcdir PG_ABS_SRCDIR
\i :srcdir/sql/include/prologue.sql
RESET enable_seqscan;
-- a card makes the other way better
SET gpuvec.engine = cpu;

CREATE TABLE metrics AS SELECT * FROM (VALUES ('l2'), ('ip'), ('cosine')) AS m (metric);
CREATE TABLE many (id int, v real[]) WITH (autovacuum_enabled = off);
INSERT INTO many
SELECT i, (SELECT array_agg((10 * sin(i % 30 * 131 + j * 17) + (hashint4(i * 64 + j) & 1023) / 1024.0)::real ORDER BY j)
	FROM generate_series(1, 64) AS j)
FROM generate_series(1, 6000) AS i;
CREATE TABLE few AS SELECT -id AS id, v FROM many WHERE id % 400 = 7;
DELETE FROM many WHERE id % 9 = 0;
UPDATE many SET v = ARRAY(SELECT x + 0.5 FROM unnest(v) AS x)::real[] WHERE id % 11 = 0;
INSERT INTO many VALUES (9001, NULL);
CREATE INDEX many_v ON many USING gpuivfpq (v) WITH (dims = 64, lists = 60);
CREATE INDEX many_ip ON many USING gpuivfpq (v real_ip_ops) WITH (dims = 64, lists = 60, refine = sq8);
CREATE INDEX many_cosine ON many USING gpuivfpq (v real_cosine_ops) WITH (dims = 64, lists = 60);
INSERT INTO many SELECT id + 10000, v FROM many WHERE id % 100 = 7;

-- at recall 1 both ways find what the exact method does
CREATE TABLE exact AS
SELECT metric, e.* FROM metrics, gpuvec_knn_join('few', 'id', 'v', 'many', 'id', 'v', 10, metric) AS e;
RESET client_min_messages;
SET gpuvec.recall = 1;
SELECT metric, count(*), count(*) FILTER (WHERE i.distance IS DISTINCT FROM e.distance) AS different
FROM (SELECT metric, j.* FROM metrics, gpuvec_knn_join('few', 'id', 'v', 'many', 'id', 'v', 10, metric, 'index') AS j) AS i
	FULL JOIN exact AS e USING (metric, key, rank) GROUP BY metric ORDER BY metric;
RESET gpuvec.recall;
SET gpuvec.probes = 1000;
SELECT metric, count(*), count(*) FILTER (WHERE i.distance IS DISTINCT FROM e.distance) AS different
FROM (SELECT metric, j.* FROM metrics, gpuvec_knn_join('few', 'id', 'v', 'many', 'id', 'v', 10, metric, 'index') AS j) AS i
	FULL JOIN exact AS e USING (metric, key, rank) GROUP BY metric ORDER BY metric;
RESET gpuvec.probes;

-- below it: right distances, ascending, one row once; all counts as one search
SELECT count(*), avg((i.distance <= farthest)::int) > 0.9 AS finds,
	bool_and(i.distance >= e.distance) AS behind,
	bool_and(i.distance = a.v <=> b.v) AS measured,
	count(*) = count(DISTINCT (i.key, i.neighbor)) AS once
FROM gpuvec_knn_join('few', 'id', 'v', 'many', 'id', 'v', 10, 'cosine', 'index') AS i
	JOIN exact AS e USING (key, rank) JOIN few AS a ON a.id = i.key JOIN many AS b ON b.id = i.neighbor,
	LATERAL (SELECT max(distance) AS farthest FROM exact AS f WHERE f.metric = 'cosine' AND f.key = i.key) AS f
WHERE e.metric = 'cosine';
SELECT index, returned FROM gpuvec_last_scan();
-- a graph, of so many rows that it is worth it
CREATE TABLE wide AS
SELECT i AS id, (SELECT array_agg((sin(i % 100 * 131 + j * 17) + (hashint4(i * 256 + j) & 1023) / 1024.0)::real ORDER BY j)
	FROM generate_series(1, 256) AS j) AS v
FROM generate_series(1, 12000) AS i;
INSERT INTO wide VALUES (0, NULL);
SET client_min_messages = warning;
CREATE INDEX wide_v ON wide USING gpuivfpq (v) WITH (dims = 256, lists = 200);
SET gpuvec.candidates = 10;
SET gpuvec.recall = 0.5;
SELECT count(*), bool_and(i.distance >= e.distance) AS behind, bool_and(i.key <> i.neighbor) AS others,
	avg((i.distance <= e.distance)::int) > 0.4 AS finds
FROM gpuvec_knn_graph('wide', 'id', 'v', 5, 'l2', 'index') AS i
	JOIN gpuvec_knn_graph('wide', 'id', 'v', 5) AS e USING (key, rank);
RESET gpuvec.candidates;
RESET gpuvec.recall;
SELECT index FROM gpuvec_last_scan();
RESET client_min_messages;

-- little memory: the same in portions
CREATE TABLE whole AS SELECT * FROM gpuvec_knn_join('few', 'id', 'v', 'many', 'id', 'v', 10, 'l2', 'index');
SET maintenance_work_mem = '1MB';
SELECT count(*) FROM (TABLE whole EXCEPT SELECT * FROM gpuvec_knn_join('few', 'id', 'v', 'many', 'id', 'v', 10, 'l2', 'index')) AS d;
-- what is told of it is of all portions
CREATE TABLE part AS SELECT * FROM wide WHERE id <= 1100;
SELECT count(*) FROM gpuvec_knn_join('part', 'id', 'v', 'wide', 'id', 'v', 5, 'l2', 'index');
SELECT index, returned, batches >= 3 AS all_of_them, reranked >= returned AS reranked FROM gpuvec_last_scan();
RESET maintenance_work_mem;

-- rows without a direction are near to none, and others to none of them; who
-- lacks neighbors has them by the whole table
INSERT INTO few SELECT -20000, array_fill(0::real, '{64}');
INSERT INTO many SELECT 20000, array_fill(0::real, '{64}');
SELECT i.*, e.distance IS NOT DISTINCT FROM i.distance AS same
FROM gpuvec_knn_join('few', 'id', 'v', 'many', 'id', 'v', 2, 'cosine', 'index') AS i
	JOIN gpuvec_knn_join('few', 'id', 'v', 'many', 'id', 'v', 2, 'cosine') AS e USING (key, rank)
WHERE i.distance = 'NaN' ORDER BY key, rank;
DELETE FROM few WHERE id = -20000;

-- ... together, however many they are: so often is the table read
CREATE TABLE flat AS
SELECT id, CASE WHEN id % 3 = 0 THEN array_fill(0::real, '{256}') ELSE v END AS v FROM wide WHERE id BETWEEN 1 AND 7500;
CREATE TABLE asked AS SELECT -id AS id, v FROM flat WHERE id % 3 = 0 OR id % 30 = 1;
SET client_min_messages = warning;
CREATE INDEX flat_v ON flat USING gpuivfpq (v real_cosine_ops) WITH (dims = 256, lists = 100);
SET gpuvec.candidates = 10;
SET gpuvec.recall = 0.5;
SET maintenance_work_mem = '1MB';
BEGIN;
SELECT pg_stat_get_xact_numscans('flat'::regclass) AS scans \gset
CREATE TABLE joined AS SELECT * FROM gpuvec_knn_join('asked', 'id', 'v', 'flat', 'id', 'v', 3, 'cosine', 'index');
SELECT pg_stat_get_xact_numscans('flat'::regclass) - :scans AS of_join, pg_stat_get_xact_numscans('flat'::regclass) AS scans \gset
\echo :of_join
CREATE TABLE graph AS SELECT * FROM gpuvec_knn_graph('flat', 'id', 'v', 3, 'cosine', 'index');
SELECT pg_stat_get_xact_numscans('flat'::regclass) - :scans AS of_graph;
COMMIT;
SELECT index FROM gpuvec_last_scan();
RESET maintenance_work_mem;
RESET gpuvec.candidates;
RESET gpuvec.recall;
SELECT count(*), count(*) FILTER (WHERE j.distance = 'NaN') AS far,
	count(*) FILTER (WHERE j.distance = 'NaN' AND j.neighbor <> e.neighbor OR e.distance IS NULL) AS different
FROM joined AS j LEFT JOIN gpuvec_knn_join('asked', 'id', 'v', 'flat', 'id', 'v', 3, 'cosine') AS e USING (key, rank);
SELECT count(*), count(*) FILTER (WHERE g.distance = 'NaN') AS far,
	count(*) FILTER (WHERE g.distance = 'NaN' AND g.neighbor <> e.neighbor OR e.distance IS NULL) AS different
FROM graph AS g LEFT JOIN gpuvec_knn_graph('flat', 'id', 'v', 3, 'cosine') AS e USING (key, rank);
-- others that lack neighbors, since too few rows that have a direction are left
DELETE FROM flat WHERE id % 3 <> 0 AND id > 2;
DELETE FROM asked WHERE id NOT IN (-1, -31);
SELECT count(*), count(j.distance) AS found, count(*) FILTER (WHERE j.distance = 'NaN') AS far,
	count(*) FILTER (WHERE j.neighbor IS DISTINCT FROM e.neighbor) AS different
FROM gpuvec_knn_join('asked', 'id', 'v', 'flat', 'id', 'v', 4, 'cosine', 'index') AS j
	FULL JOIN gpuvec_knn_join('asked', 'id', 'v', 'flat', 'id', 'v', 4, 'cosine') AS e USING (key, rank);
SELECT index FROM gpuvec_last_scan();
DROP TABLE flat, asked, joined, graph;
RESET client_min_messages;

-- a key that is NULL; a vector of another length
UPDATE many SET id = NULL WHERE id = 807;
SELECT count(*) FROM gpuvec_knn_join('few', 'id', 'v', 'many', 'id', 'v', 10, 'l2', 'index');
UPDATE many SET id = 807 WHERE id IS NULL;
CREATE TABLE short (id int, v real[]);
INSERT INTO short VALUES (1, '{1,2}');
SELECT count(*) FROM gpuvec_knn_join('short', 'id', 'v', 'many', 'id', 'v', 10, 'l2', 'index');

-- an index that lacks rows, or has expressions, is not searched
CREATE TABLE odd AS SELECT id, v FROM many WHERE id < 4000;
CREATE INDEX odd_some ON odd USING gpuivfpq (v) WITH (dims = 64) WHERE id > 0;
SELECT count(*) FROM gpuvec_knn_join('few', 'id', 'v', 'odd', 'id', 'v', 3, 'l2', 'index');
CREATE INDEX odd_expression ON odd USING gpuivfpq (v, (id % 7)) WITH (dims = 64, lists = 30);
SET gpuvec.recall = 1;
SELECT count(*) FROM gpuvec_knn_join('few', 'id', 'v', 'odd', 'id', 'v', 3, 'l2', 'index');
RESET gpuvec.recall;

-- who may
CREATE ROLE gpuvec_joiner;
GRANT SELECT ON few TO gpuvec_joiner;
GRANT SELECT (v) ON many TO gpuvec_joiner;
SET ROLE gpuvec_joiner;
SELECT count(*) FROM gpuvec_knn_join('few', 'id', 'v', 'many', 'id', 'v', 3, 'l2', 'index');
RESET ROLE;
GRANT SELECT (id) ON many TO gpuvec_joiner;
SET ROLE gpuvec_joiner;
SELECT count(*) FROM gpuvec_knn_join('few', 'id', 'v', 'many', 'id', 'v', 3, 'l2', 'index');
RESET ROLE;
ALTER TABLE many ENABLE ROW LEVEL SECURITY;
SET ROLE gpuvec_joiner;
SELECT count(*) FROM gpuvec_knn_join('few', 'id', 'v', 'many', 'id', 'v', 3, 'l2', 'index');
RESET ROLE;

SET client_min_messages = warning;
DROP TABLE metrics, exact, many, few, whole, short, odd, wide, part;
DROP ROLE gpuvec_joiner;
