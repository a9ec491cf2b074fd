-- k-NN graphs and joins
\getenv srcdir PG_ABS_SRCDIR
\i :srcdir/sql/include/prologue.sql
RESET client_min_messages;
RESET enable_seqscan;

CREATE TABLE dots (id int PRIMARY KEY, v real[]);
INSERT INTO dots VALUES (1, '{0,0}'), (2, '{1,0}'), (3, '{3,0}'), (4, '{3,1}'),
	(5, NULL), (60, '{1,0}');
SELECT * FROM gpuvec_knn_graph('dots', 'id', 'v', 2);
SELECT * FROM gpuvec_knn_graph('dots', 'id', 'v', 1, 'ip');
SELECT count(*) FROM gpuvec_knn_graph('dots', 'id', 'v', 100);

-- rows of small integers, so that many distances are equal
CREATE TABLE crowd (small smallint, id int, big bigint, v real[])
	WITH (autovacuum_enabled = off);
INSERT INTO crowd
SELECT -i, i * 3, i * 10000000000, CASE WHEN i % 40 <> 0 THEN pg_temp.numbers(i, 10) END
FROM generate_series(1, 600) AS i;
DELETE FROM crowd WHERE id % 9 = 0;
UPDATE crowd SET v = pg_temp.numbers(id + 5000, 10) WHERE id % 11 = 0 AND v IS NOT NULL;

-- against sorts
SET client_min_messages = warning;
CREATE TABLE sorted AS
SELECT metric, id AS key, sorted.*
FROM (VALUES ('l2'), ('ip'), ('cosine')) AS m (metric), crowd AS a,
	LATERAL (SELECT array_agg(id::bigint) AS neighbors, array_agg(d) AS distances
		FROM (SELECT id, CASE metric WHEN 'l2' THEN s.v <-> a.v
				WHEN 'ip' THEN s.v <#> a.v ELSE s.v <=> a.v END AS d
			FROM crowd AS s WHERE s.v IS NOT NULL AND s.id <> a.id
			ORDER BY d, ctid) AS s) AS sorted;
SELECT k, m.metric, count(*), bool_and(g.neighbors = s.neighbors[:k] AND g.distances = s.distances[:k]) AS same
FROM (VALUES (1), (10), (1000)) AS k (k),
	(VALUES ('l2'), ('ip'), ('cosine')) AS m (metric),
	LATERAL (SELECT key, array_agg(neighbor ORDER BY rank) AS neighbors,
			array_agg(distance ORDER BY rank) AS distances
		FROM gpuvec_knn_graph('crowd', 'id', 'v', k, m.metric) GROUP BY key) AS g,
	sorted AS s
WHERE s.key = g.key AND s.metric = m.metric
GROUP BY k, m.metric ORDER BY k, m.metric;
SELECT count(*), max(abs(distance - (1 - r))) < 1e-12 AS near
FROM (SELECT g.*, (SELECT corr(x, y) FROM unnest(a.v, b.v) AS u (x, y)) AS r
	FROM gpuvec_knn_graph('crowd', 'id', 'v', 5, 'pearson') AS g
		JOIN crowd AS a ON a.id = key JOIN crowd AS b ON b.id = neighbor) AS p;

-- ranks, one of each; keys of other types
SELECT count(*), count(DISTINCT (key, rank)) AS places, min(rank), max(rank),
	count(DISTINCT (key, neighbor)) AS pairs, bool_and(key <> neighbor) AS others
FROM gpuvec_knn_graph('crowd', 'id', 'v', 7);
SELECT (SELECT array_agg((-neighbor * 3)::bigint) FROM gpuvec_knn_graph('crowd', 'small', 'v', 4))
	= (SELECT array_agg(neighbor) FROM gpuvec_knn_graph('crowd', 'id', 'v', 4)) AS small,
	(SELECT array_agg(neighbor / 10000000000 * 3) FROM gpuvec_knn_graph('crowd', 'big', 'v', 4))
	= (SELECT array_agg(neighbor) FROM gpuvec_knn_graph('crowd', 'id', 'v', 4)) AS big;

-- little memory: many readings of the table, the same graph
CREATE TABLE graph AS SELECT * FROM gpuvec_knn_graph('crowd', 'id', 'v', 200);
SET maintenance_work_mem = '1MB';
SET work_mem = '64kB';
CREATE TABLE graph_by_tiles AS SELECT * FROM gpuvec_knn_graph('crowd', 'id', 'v', 200);
RESET maintenance_work_mem;
RESET work_mem;
SELECT count(*), (SELECT count(*) FROM
	((TABLE graph EXCEPT TABLE graph_by_tiles)
	UNION ALL (TABLE graph_by_tiles EXCEPT TABLE graph)) AS d) AS different
FROM graph;
RESET client_min_messages;

-- joins: also with itself, then a row is its own neighbor
CREATE TABLE left_side (k int, e real[]);
INSERT INTO left_side VALUES (7, '{0.9,0}'), (8, NULL), (9, '{3,3}');
SELECT * FROM gpuvec_knn_join('left_side', 'k', 'e', 'dots', 'id', 'v', 3);
SELECT * FROM gpuvec_knn_join('dots', 'id', 'v', 'left_side', 'k', 'e', 1, 'cosine')
WHERE distance <> 'NaN';
SELECT * FROM gpuvec_knn_join('dots', 'id', 'v', 'dots', 'id', 'v', 1);
SET client_min_messages = warning;
SELECT count(*), bool_and(found = sorted) AS same
FROM (SELECT key, array_agg((neighbor, distance)::text ORDER BY rank) AS found
		FROM gpuvec_knn_join('left_side', 'k', 'e', 'dots', 'id', 'v', 4) GROUP BY key) AS g
	JOIN left_side AS a ON a.k = g.key,
	LATERAL (SELECT array_agg((id::bigint, s.v <-> a.e)::text ORDER BY s.v <-> a.e, ctid) AS sorted
		FROM (SELECT * FROM (SELECT id, ctid, v FROM dots WHERE v IS NOT NULL) AS o
			ORDER BY v <-> a.e, ctid LIMIT 4) AS s) AS sorted;

-- through an index: all of it read, the answer is exact
CREATE INDEX crowd_v ON crowd USING gpuivfpq (v) WITH (dims = 10);
CREATE INDEX crowd_ip ON crowd USING gpuivfpq (v real_ip_ops) WITH (dims = 10);
RESET client_min_messages;
SET gpuvec.recall = 1;
CREATE TABLE graph_by_index AS SELECT * FROM gpuvec_knn_graph('crowd', 'id', 'v', 200, 'l2', 'index');
-- (of rows equally far any may be the last)
SELECT count(*), count(*) FILTER (WHERE a.distance IS DISTINCT FROM b.distance) AS different
FROM graph AS a FULL JOIN graph_by_index AS b USING (key, rank);
SELECT count(*) AS different
FROM gpuvec_knn_graph('crowd', 'id', 'v', 3, 'ip', 'index') AS a
	FULL JOIN gpuvec_knn_graph('crowd', 'id', 'v', 3, 'ip') AS b USING (key, rank)
WHERE a.distance IS DISTINCT FROM b.distance;
SELECT count(*), count(*) FILTER (WHERE a.distance IS DISTINCT FROM b.distance) AS different
FROM gpuvec_knn_join('crowd', 'id', 'v', 'crowd', 'id', 'v', 2) AS a
	FULL JOIN gpuvec_knn_join('crowd', 'id', 'v', 'crowd', 'id', 'v', 2, 'l2', 'index') AS b USING (key, rank);
RESET gpuvec.recall;

-- approximate
SET client_min_messages = warning;
CREATE TABLE many (id int, v real[]);
INSERT INTO many
SELECT i, (SELECT array_agg((10 * sin(i % 30 * 131 + j * 17) + (hashint4(i * 16 + j) & 1023) / 1024.0)::real ORDER BY j)
	FROM generate_series(1, 16) AS j)
FROM generate_series(1, 4000) AS i;
CREATE INDEX many_v ON many USING gpuivfpq (v) WITH (dims = 16, lists = 40);
CREATE INDEX many_ip ON many USING gpuivfpq (v real_ip_ops) WITH (dims = 16, lists = 3);
CREATE INDEX many_cosine ON many USING gpuivfpq (v real_cosine_ops) WITH (dims = 16, lists = 40);
CREATE TABLE metrics AS SELECT * FROM (VALUES ('l2'), ('ip'), ('cosine')) AS m (metric);
CREATE TABLE many_exact AS
SELECT metric, e.* FROM metrics, gpuvec_knn_graph('many', 'id', 'v', 10, metric) AS e;
CREATE TABLE many_farthest AS
SELECT metric, key, max(distance) AS farthest FROM many_exact GROUP BY metric, key;
-- rows of all lists: exact
SET gpuvec.probes = 1000;
SELECT count(*) FROM (
	SELECT metric, i.* FROM metrics, gpuvec_knn_graph('many', 'id', 'v', 10, metric, 'index') AS i
	EXCEPT TABLE many_exact) AS different;
SET gpuvec.probes = 0;
SET gpuvec.recall = 0.995;
SELECT count(*) FROM (
	SELECT metric, i.* FROM metrics, gpuvec_knn_join('many', 'id', 'v', 'many', 'id', 'v', 3, metric, 'index') AS i
	EXCEPT SELECT metric, e.* FROM metrics, gpuvec_knn_join('many', 'id', 'v', 'many', 'id', 'v', 3, metric) AS e) AS different;
-- of some lists, as many as the recall takes: right distances, ascending, and
-- never less than the exact ones
SELECT metric, recall, count(*), avg((i.distance <= farthest)::int) >= recall AS finds,
	bool_and(i.key <> i.neighbor) AS others,
	bool_and(i.distance >= e.distance) AS behind,
	bool_and(i.distance = CASE metric WHEN 'l2' THEN a.v <-> b.v WHEN 'ip' THEN a.v <#> b.v ELSE a.v <=> b.v END) AS measured,
	count(*) = count(DISTINCT i.key << 32 | i.neighbor) AS once
FROM (SELECT metric, recall, g.*
		FROM metrics, (VALUES (0.8), (0.95)) AS r (recall),
			LATERAL (SELECT set_config('gpuvec.recall', recall::text, false)) AS s (setting),
			LATERAL gpuvec_knn_graph('many', 'id', 'v', 10, left(metric || setting, length(metric)), 'index') AS g) AS i
	JOIN many_exact AS e USING (metric, key, rank)
	JOIN many_farthest USING (metric, key)
	JOIN many AS a ON a.id = i.key JOIN many AS b ON b.id = i.neighbor
GROUP BY metric, recall ORDER BY metric, recall;
RESET gpuvec.recall;
-- one list finds some, two lists more; whatever memory there is
SET gpuvec.probes = 1;
CREATE TABLE many_one AS SELECT * FROM gpuvec_knn_graph('many', 'id', 'v', 10, 'cosine', 'index');
SET maintenance_work_mem = '1MB';
SELECT count(*) FROM (
	SELECT * FROM gpuvec_knn_graph('many', 'id', 'v', 10, 'cosine', 'index')
	EXCEPT TABLE many_one) AS different;
RESET maintenance_work_mem;
SET gpuvec.probes = 2;
SELECT count(*) > 30000 AS most, bool_and(two.distance <= one.distance) AS better
FROM gpuvec_knn_graph('many', 'id', 'v', 10, 'cosine', 'index') AS two
	JOIN many_one AS one USING (key, rank);
RESET gpuvec.probes;
RESET client_min_messages;
DROP TABLE metrics, many_exact, many_farthest, many_one;
DROP TABLE many;

-- rows in the middle of the table: some in many blocks, and the first of portions
SET client_min_messages = warning;
CREATE TABLE scattered (id int, v real[]) WITH (autovacuum_enabled = off);
INSERT INTO scattered
SELECT i, CASE WHEN i % 7 <> 0 THEN pg_temp.numbers(i, 10) END FROM generate_series(1, 6000) AS i;
DELETE FROM scattered WHERE id BETWEEN 1000 AND 2000 OR id % 5 = 0;
UPDATE scattered SET v = pg_temp.numbers(id + 7000, 10) WHERE id % 11 = 0;
CREATE INDEX scattered_v ON scattered USING gpuivfpq (v) WITH (dims = 10);
CREATE TABLE scattered_exact AS SELECT * FROM gpuvec_knn_graph('scattered', 'id', 'v', 60);
SET gpuvec.probes = 1000;
SET maintenance_work_mem = '1MB';
RESET client_min_messages;
SELECT count(*), count(*) FILTER (WHERE e IS NULL) AS different
FROM gpuvec_knn_graph('scattered', 'id', 'v', 60, 'l2', 'index') AS i
	LEFT JOIN scattered_exact AS e USING (key, neighbor, rank, distance);
RESET maintenance_work_mem;
RESET gpuvec.probes;
DROP TABLE scattered, scattered_exact;

-- which index serves
SELECT * FROM gpuvec_knn_graph('crowd', 'id', 'v', 3, 'cosine', 'index');
SELECT * FROM gpuvec_knn_graph('crowd', 'id', 'v', 3, 'pearson', 'index');
SELECT * FROM gpuvec_knn_graph('dots', 'id', 'v', 3, 'l2', 'index');
SET client_min_messages = warning;
CREATE INDEX dots_some ON dots USING gpuivfpq (v) WITH (dims = 2) WHERE id < 4;
CREATE INDEX dots_same ON dots (v);
RESET client_min_messages;
SELECT * FROM gpuvec_knn_graph('dots', 'id', 'v', 3, 'l2', 'index');
SELECT * FROM gpuvec_knn_join('crowd', 'id', 'v', 'dots', 'id', 'v', 3, 'l2', 'index');
-- no direction, no distance
SET client_min_messages = warning;
CREATE INDEX dots_all ON dots USING gpuivfpq (v real_cosine_ops) WITH (dims = 2);
RESET client_min_messages;
SELECT key, neighbor, rank, round(distance::numeric, 6) AS distance
FROM gpuvec_knn_graph('dots', 'id', 'v', 2, 'cosine', 'index');

-- tables of no row, of one, of no vector
CREATE TABLE nobody (id int, v real[]);
SELECT * FROM gpuvec_knn_graph('nobody', 'id', 'v', 3);
SELECT * FROM gpuvec_knn_join('nobody', 'id', 'v', 'dots', 'id', 'v', 3);
SELECT * FROM gpuvec_knn_join('dots', 'id', 'v', 'nobody', 'id', 'v', 3);
INSERT INTO nobody VALUES (NULL, NULL), (1, '{1,1}');
SELECT * FROM gpuvec_knn_graph('nobody', 'id', 'v', 3);
SELECT * FROM gpuvec_knn_join('nobody', 'id', 'v', 'nobody', 'id', 'v', 3);
SELECT * FROM gpuvec_knn_graph('dots', 'id', 'v', NULL);
SELECT * FROM gpuvec_knn_join('dots', 'id', 'v', 'dots', 'id', NULL, 1);

-- keys that do not ascend, close to each other and far from it
CREATE TABLE close AS SELECT 200 - i AS id, ARRAY[i]::real[] AS v FROM generate_series(1, 200) AS i;
CREATE TABLE far (id bigint, v real[]);
INSERT INTO far VALUES (9223372036854775807, '{1}'), (-9223372036854775808, '{2}'), (5, '{4}');
SELECT count(*), sum(abs(key - neighbor)) FROM gpuvec_knn_graph('close', 'id', 'v', 1);
SELECT key, neighbor FROM gpuvec_knn_graph('far', 'id', 'v', 1);
INSERT INTO close VALUES (101, '{2}');
INSERT INTO far VALUES (5, '{3}');
SELECT * FROM gpuvec_knn_graph('close', 'id', 'v', 1);
SELECT * FROM gpuvec_knn_graph('far', 'id', 'v', 1);
DROP TABLE close, far;
-- keys
INSERT INTO nobody VALUES (1, '{2,2}');
SELECT * FROM gpuvec_knn_graph('nobody', 'id', 'v', 3);
SELECT * FROM gpuvec_knn_join('dots', 'id', 'v', 'nobody', 'id', 'v', 3);
UPDATE nobody SET id = NULL;
SELECT * FROM gpuvec_knn_graph('nobody', 'id', 'v', 3);
ALTER TABLE nobody ADD t text DEFAULT 'x';
SELECT * FROM gpuvec_knn_graph('nobody', 't', 'v', 3);
SELECT * FROM gpuvec_knn_graph('nobody', 'v', 'v', 3);
SELECT * FROM gpuvec_knn_graph('nobody', 'tableoid', 'v', 3);
SELECT * FROM gpuvec_knn_graph('nobody', 'nothing', 'v', 3);

-- arguments
SELECT * FROM gpuvec_knn_graph('dots', 'id', 'v', 0);
SELECT * FROM gpuvec_knn_graph('dots', 'id', 'v', 2000000);
SELECT * FROM gpuvec_knn_graph('dots', 'id', 'v', 1, 'l1');
SELECT * FROM gpuvec_knn_graph('dots', 'id', 'v', 1, 'l2', 'hnsw');
SELECT * FROM gpuvec_knn_join('dots', 'id', 'v', 'dots', 'id', 'v', 0);
SELECT * FROM gpuvec_knn_join('dots', 'id', 'v', 'crowd', 'id', 'v', 1);

-- who may
CREATE ROLE gpuvec_reader;
GRANT SELECT (v) ON dots TO gpuvec_reader;
GRANT SELECT ON left_side TO gpuvec_reader;
SET ROLE gpuvec_reader;
SELECT count(*) FROM gpuvec_knn_graph('dots', 'id', 'v', 1);
SELECT count(*) FROM gpuvec_knn_join('left_side', 'k', 'e', 'dots', 'id', 'v', 1);
SELECT count(*) FROM gpuvec_knn_join('dots', 'id', 'v', 'left_side', 'k', 'e', 1);
RESET ROLE;
GRANT SELECT (id) ON dots TO gpuvec_reader;
SET ROLE gpuvec_reader;
SELECT count(*) FROM gpuvec_knn_graph('dots', 'id', 'v', 1);
SELECT count(*) FROM gpuvec_knn_join('left_side', 'k', 'e', 'dots', 'id', 'v', 1);
RESET ROLE;

SET client_min_messages = warning;
DROP TABLE dots, crowd, sorted, left_side, nobody, graph, graph_by_tiles, graph_by_index;
DROP ROLE gpuvec_reader;
