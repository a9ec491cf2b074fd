-- k-NN graphs in arrays: those in pairs, a row for each key
\getenv srcdir PG_ABS_SRCDIR
\i :srcdir/sql/include/prologue.sql
RESET client_min_messages;
RESET enable_seqscan;

CREATE TABLE dots (id int PRIMARY KEY, v real[]);
INSERT INTO dots VALUES (1, '{0,0}'), (2, '{1,0}'), (3, '{3,0}'), (4, '{3,1}'),
	(5, NULL), (60, '{1,0}');
SELECT * FROM gpuvec_knn_graph_arrays('dots', 'id', 'v', 2);
SELECT * FROM gpuvec_knn_graph_arrays('dots', 'id', 'v', 1, 'ip');
SELECT key, neighbors, distances[1] FROM gpuvec_knn_graph_arrays('dots', 'id', 'v', 100, metric => 'cosine');
-- arrays as others are
SELECT pg_typeof(key), pg_typeof(neighbors), pg_typeof(distances), array_dims(neighbors), array_dims(distances),
	array_send(neighbors) = array_send(ARRAY[neighbors[1], neighbors[2]]) AS same,
	array_send(distances) = array_send(ARRAY[distances[1], distances[2]]) AS same
FROM gpuvec_knn_graph_arrays('dots', 'id', 'v', 2) LIMIT 1;
SELECT pg_typeof(gpuvec_knn_graph_arrays('dots', 'id', 'v', 1)) LIMIT 1;
SELECT (gpuvec_knn_graph_arrays('dots', 'id', 'v', 1)).neighbors;

-- what pairs say: fewer neighbors than k, keys of other types
CREATE TABLE crowd (small smallint, id int, big bigint, v real[])
	WITH (autovacuum_enabled = off);
INSERT INTO crowd
SELECT -i, i * 3, i * 10000000000, CASE WHEN i % 40 <> 0 THEN pg_temp.numbers(i, 10) END
FROM generate_series(1, 600) AS i;
DELETE FROM crowd WHERE id % 9 = 0;
UPDATE crowd SET v = pg_temp.numbers(id + 5000, 10) WHERE id % 11 = 0 AND v IS NOT NULL;
SET client_min_messages = warning;
CREATE TABLE metrics AS SELECT * FROM (VALUES ('l2'), ('ip'), ('cosine'), ('pearson')) AS m (metric);
CREATE INDEX crowd_l2 ON crowd USING gpuivfpq (v) WITH (dims = 10, lists = 30);
CREATE INDEX crowd_ip ON crowd USING gpuivfpq (v real_ip_ops) WITH (dims = 10, lists = 3);
CREATE INDEX crowd_cosine ON crowd USING gpuivfpq (v real_cosine_ops) WITH (dims = 10, lists = 3);
-- (the number of a row, as they come, too)
CREATE FUNCTION pg_temp.different(rel regclass, key_column name, k int, metric text, method text)
RETURNS TABLE (keys bigint, elements bigint, fewest int, different bigint)
LANGUAGE SQL AS $$
	WITH a AS (SELECT row_number() OVER () AS n, g.* FROM gpuvec_knn_graph_arrays($1, $2, 'v', $3, $4, $5) AS g),
	p AS (
		SELECT row_number() OVER (ORDER BY min(n)) AS n, key, array_agg(neighbor ORDER BY rank) AS neighbors,
			array_agg(distance ORDER BY rank) AS distances
		FROM (SELECT row_number() OVER () AS n, g.* FROM gpuvec_knn_graph($1, $2, 'v', $3, $4, $5) AS g) AS g
		GROUP BY key)
	SELECT count(a), sum(cardinality(neighbors)), min(cardinality(neighbors)), count(*) FILTER (WHERE p IS DISTINCT FROM a)
	FROM a FULL JOIN p USING (n, key, neighbors, distances);
$$;
SELECT k, metric, d.* FROM (VALUES (1), (10), (1000)) AS k (k), metrics,
	pg_temp.different('crowd', 'id', k, metric, 'exact') AS d ORDER BY k, metric;
SELECT column_name, d.* FROM (VALUES ('small'), ('big')) AS c (column_name),
	pg_temp.different('crowd', column_name, 4, 'l2', 'exact') AS d;
SET gpuvec.recall = 1;
SELECT metric, d.* FROM metrics, pg_temp.different('crowd', 'id', 7, metric, 'index') AS d
WHERE metric <> 'pearson' ORDER BY metric;
RESET gpuvec.recall;
SET maintenance_work_mem = '1MB';
SET work_mem = '64kB';
SELECT d.* FROM pg_temp.different('crowd', 'id', 200, 'l2', 'exact') AS d;
RESET maintenance_work_mem;
RESET work_mem;

-- they are stored, sorted, compressed and compared as others are
CREATE TABLE stored AS SELECT * FROM gpuvec_knn_graph_arrays('crowd', 'id', 'v', 200);
SELECT count(*) AS different FROM (TABLE stored EXCEPT SELECT * FROM gpuvec_knn_graph_arrays('crowd', 'id', 'v', 200)) AS d;
CREATE TABLE short AS SELECT * FROM gpuvec_knn_graph_arrays('crowd', 'id', 'v', 3);
CREATE UNIQUE INDEX ON short (neighbors, distances, key);
SET enable_seqscan = off;
SELECT count(*) FROM short AS s, gpuvec_knn_graph_arrays('crowd', 'id', 'v', 3) AS g
WHERE s.neighbors = g.neighbors AND s.distances = g.distances AND s.key = g.key;
RESET enable_seqscan;
UPDATE short SET key = -key, neighbors = neighbors[:2] || neighbors[3:];
SELECT count(*) FROM short AS s JOIN gpuvec_knn_graph_arrays('crowd', 'id', 'v', 3) AS g ON g.key = -s.key
WHERE (s.neighbors, s.distances) = (g.neighbors, g.distances)
	AND record_image_eq(ROW(s.neighbors, s.distances), ROW(g.neighbors, g.distances));
SELECT count(*) AS different
FROM (SELECT key, neighbor, rank::bigint, distance FROM gpuvec_knn_graph('crowd', 'id', 'v', 3)
	EXCEPT SELECT -key, u.* FROM short, unnest(neighbors, distances) WITH ORDINALITY AS e (neighbor, distance, rank),
		LATERAL (SELECT neighbor, rank, distance) AS u) AS d;
DROP TABLE stored, short;
-- read to and fro, and again
BEGIN;
DECLARE c SCROLL CURSOR FOR SELECT key, neighbors FROM gpuvec_knn_graph_arrays('dots', 'id', 'v', 2);
MOVE 3 FROM c;
FETCH BACKWARD 2 FROM c;
FETCH LAST FROM c;
COMMIT;
SELECT n, sum(cardinality(neighbors)) FROM generate_series(1, 3) AS n, gpuvec_knn_graph_arrays('dots', 'id', 'v', n)
GROUP BY n ORDER BY n;
RESET client_min_messages;

-- a row that nothing is found for has empty arrays, and no pairs
CREATE TABLE lonely (id int, v real[]);
INSERT INTO lonely SELECT i, ARRAY[CASE WHEN i > 2700 THEN -90000 ELSE 0 END, i % 50, i % 7 + i]::real[] FROM generate_series(1, 3000) AS i;
SET client_min_messages = warning;
CREATE INDEX lonely_v ON lonely USING gpuivfpq (v) WITH (dims = 3, lists = 30);
DELETE FROM lonely WHERE id BETWEEN 2702 AND 3000;
SET gpuvec.probes = 1;
SELECT keys, fewest, elements > 10000 AS most, different FROM pg_temp.different('lonely', 'id', 20, 'l2', 'index');
SELECT * FROM gpuvec_knn_graph_arrays('lonely', 'id', 'v', 5, 'l2', 'index') WHERE key = 2701;
SELECT count(*), sum(n) AS keys FROM (SELECT cardinality(neighbors) AS size, count(*) AS n
	FROM gpuvec_knn_graph_arrays('lonely', 'id', 'v', 20, 'l2', 'index') GROUP BY 1) AS s;
RESET gpuvec.probes;
RESET client_min_messages;

-- tables of no row, of one, of no vector
CREATE TABLE nobody (id int, v real[]);
SELECT * FROM gpuvec_knn_graph_arrays('nobody', 'id', 'v', 3);
INSERT INTO nobody VALUES (NULL, NULL);
SELECT * FROM gpuvec_knn_graph_arrays('nobody', 'id', 'v', 3);
INSERT INTO nobody VALUES (11, '{1,1}');
SELECT *, neighbors = '{}' AS empty, distances = '{}' AS empty FROM gpuvec_knn_graph_arrays('nobody', 'id', 'v', 3);
SELECT * FROM gpuvec_knn_graph_arrays('nobody', 'id', 'v', 3, 'l2', 'index');
SELECT * FROM gpuvec_knn_graph_arrays('dots', 'id', 'v', NULL);

-- rows searched for through an index; some without a direction
SET client_min_messages = warning;
SET gpuvec.engine = cpu;
CREATE TABLE wide AS
SELECT i AS id, CASE WHEN i % 3000 = 0 THEN array_fill(0::real, '{256}') ELSE
	(SELECT array_agg((sin(i % 100 * 131 + j * 17) + (hashint4(i * 256 + j) & 1023) / 1024.0)::real ORDER BY j)
	FROM generate_series(1, 256) AS j) END AS v
FROM generate_series(1, 12000) AS i;
CREATE INDEX wide_v ON wide USING gpuivfpq (v real_cosine_ops) WITH (dims = 256, lists = 200);
SET gpuvec.candidates = 10;
SET gpuvec.recall = 0.5;
SELECT * FROM pg_temp.different('wide', 'id', 5, 'cosine', 'index');
SELECT index FROM gpuvec_last_scan();
SELECT key, neighbors, distances FROM gpuvec_knn_graph_arrays('wide', 'id', 'v', 2, 'cosine', 'index')
WHERE key % 3000 = 0 ORDER BY key;
RESET gpuvec.candidates;
RESET gpuvec.recall;
RESET gpuvec.engine;
RESET client_min_messages;

-- keys, arguments
INSERT INTO nobody VALUES (11, '{2,2}');
SELECT * FROM gpuvec_knn_graph_arrays('nobody', 'id', 'v', 3);
UPDATE nobody SET id = NULL;
SELECT * FROM gpuvec_knn_graph_arrays('nobody', 'id', 'v', 3);
ALTER TABLE nobody ADD t text DEFAULT 'x';
SELECT * FROM gpuvec_knn_graph_arrays('nobody', 't', 'v', 3);
SELECT * FROM gpuvec_knn_graph_arrays('nobody', 'v', 'v', 3);
SELECT * FROM gpuvec_knn_graph_arrays('nobody', 'nothing', 'v', 3);
SELECT * FROM gpuvec_knn_graph_arrays('dots', 'id', 'v', 0);
SELECT * FROM gpuvec_knn_graph_arrays('dots', 'id', 'v', 2000000);
SELECT * FROM gpuvec_knn_graph_arrays('dots', 'id', 'v', 1, 'l1');
SELECT * FROM gpuvec_knn_graph_arrays('dots', 'id', 'v', 1, 'l2', 'hnsw');
SELECT * FROM gpuvec_knn_graph_arrays('dots', 'id', 'v', 1, 'l2', 'index');

-- who may
CREATE ROLE gpuvec_reader;
GRANT SELECT (v) ON dots TO gpuvec_reader;
SET ROLE gpuvec_reader;
SELECT count(*) FROM gpuvec_knn_graph_arrays('dots', 'id', 'v', 1);
RESET ROLE;
GRANT SELECT (id) ON dots TO gpuvec_reader;
SET ROLE gpuvec_reader;
SELECT count(*) FROM gpuvec_knn_graph_arrays('dots', 'id', 'v', 1);
RESET ROLE;

SET client_min_messages = warning;
DROP TABLE dots, crowd, metrics, lonely, nobody, wide;
DROP ROLE gpuvec_reader;
