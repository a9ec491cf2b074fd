-- functions over sets of rows, on vector and halfvec
\getenv srcdir PG_ABS_SRCDIR
\i :srcdir/sql/include/prologue.sql
CREATE EXTENSION IF NOT EXISTS gpuvec_pgvector CASCADE;

-- small integers, which halfvec holds, too
CREATE TABLE vectors AS
SELECT i AS id, v AS r, v::vector(12) AS v, v::vector(12)::halfvec(12) AS h
FROM generate_series(1, 500) AS i, LATERAL (SELECT pg_temp.numbers(i, 12, 63)) AS n (v);
UPDATE vectors SET v = NULL, h = NULL, r = NULL WHERE id % 50 = 0;
CREATE FUNCTION to_arrays(k int) RETURNS real[] LANGUAGE sql AS
$$ SELECT array_agg(pg_temp.numbers(-i, 12, 63) ORDER BY i) FROM generate_series(1, k) AS i $$;

-- as on real[]
SELECT metric, count(*),
	count(*) FILTER (WHERE v.tid IS DISTINCT FROM r.tid OR v.distance <> r.distance) AS vector,
	count(*) FILTER (WHERE h.tid IS DISTINCT FROM r.tid OR h.distance <> r.distance) AS halfvec
FROM unnest('{l2,ip,cosine,pearson}'::text[]) AS metric,
	LATERAL ROWS FROM (gpuvec_exact_search('vectors', 'r', to_arrays(10), 20, metric))
		WITH ORDINALITY AS r (query, tid, distance, o)
	JOIN LATERAL ROWS FROM (gpuvec_exact_search('vectors', 'v', to_arrays(10), 20, metric))
		WITH ORDINALITY AS v (query, tid, distance, o) USING (o)
	JOIN LATERAL ROWS FROM (gpuvec_exact_search('vectors', 'h', to_arrays(10), 20, metric))
		WITH ORDINALITY AS h (query, tid, distance, o) USING (o)
GROUP BY metric ORDER BY metric;

-- as pgvector orders them, but for the last digits
SELECT count(*), bool_and(abs(n.distance - s.distance) < 1e-5 * s.distance) AS near
FROM (SELECT row_number() OVER (), distance
		FROM gpuvec_exact_search('vectors', 'v', pg_temp.numbers(-1, 12, 63), 100)) AS n
	JOIN (SELECT row_number() OVER (ORDER BY v <-> pg_temp.numbers(-1, 12, 63)::vector),
			v <-> pg_temp.numbers(-1, 12, 63)::vector AS distance
		FROM vectors WHERE v IS NOT NULL) AS s USING (row_number);

-- queries of these types, as the README has them
SELECT 'vector' AS type, count(*), count(*) FILTER (WHERE distance = 0) AS themselves
FROM gpuvec_exact_search('vectors', 'v', (SELECT array_agg(v::real[]) FROM vectors WHERE id <= 7), 2)
UNION ALL SELECT 'halfvec', count(*), count(*) FILTER (WHERE distance = 0)
FROM gpuvec_exact_search('vectors', 'h', (SELECT h::real[] FROM vectors WHERE id = 7), 2)
ORDER BY type;

-- graphs, joins between types, k-means
SELECT count(*), count(*) FILTER (WHERE v.distance IS DISTINCT FROM r.distance) AS vector,
	count(*) FILTER (WHERE h.distance IS DISTINCT FROM r.distance) AS halfvec
FROM gpuvec_knn_graph('vectors', 'id', 'r', 5) AS r
	FULL JOIN gpuvec_knn_graph('vectors', 'id', 'v', 5) AS v USING (key, rank)
	FULL JOIN gpuvec_knn_graph('vectors', 'id', 'h', 5) AS h USING (key, rank);
SELECT count(*), count(*) FILTER (WHERE key = neighbor AND distance = 0) AS themselves
FROM gpuvec_knn_join('vectors', 'id', 'h', 'vectors', 'id', 'v', 1);
SELECT count(*) AS same
FROM gpuvec_kmeans('vectors', 'r', 10) AS r
	JOIN gpuvec_kmeans('vectors', 'v', 10) AS v USING (centroid_id, centroid, size)
	JOIN gpuvec_kmeans('vectors', 'h', 10) AS h USING (centroid_id, centroid, size);

-- through indexes, whatever the queries are stored as
CREATE INDEX vectors_v ON vectors USING gpuivfpq (v vector_l2_ops);
CREATE INDEX vectors_h ON vectors USING gpuivfpq (h halfvec_cosine_ops);
SET gpuvec.recall = 1;
RESET client_min_messages;
SELECT count(*), count(*) FILTER (WHERE a.distance IS DISTINCT FROM b.distance) AS different
FROM gpuvec_knn_graph('vectors', 'id', 'v', 5) AS a
	FULL JOIN gpuvec_knn_graph('vectors', 'id', 'v', 5, 'l2', 'index') AS b USING (key, rank);
SELECT count(*), count(*) FILTER (WHERE a.distance IS DISTINCT FROM b.distance) AS different
FROM gpuvec_knn_graph('vectors', 'id', 'h', 5, 'cosine') AS a
	FULL JOIN gpuvec_knn_graph('vectors', 'id', 'h', 5, 'cosine', 'index') AS b USING (key, rank);
SET client_min_messages = warning;
SELECT column_name, count(*), count(*) FILTER (WHERE a.distance IS DISTINCT FROM b.distance) AS different
FROM (VALUES ('r'::name), ('v'), ('h')) AS c (column_name),
	LATERAL gpuvec_knn_join('vectors', 'id', column_name, 'vectors', 'id', 'v', 5) AS a
	FULL JOIN LATERAL gpuvec_knn_join('vectors', 'id', column_name, 'vectors', 'id', 'v', 5, 'l2', 'index') AS b USING (key, rank)
GROUP BY column_name ORDER BY column_name;
RESET client_min_messages;
SELECT * FROM gpuvec_knn_graph('vectors', 'id', 'r', 5, 'l2', 'index');
SELECT * FROM gpuvec_knn_graph('vectors', 'id', 'h', 5, 'l2', 'index');
RESET gpuvec.recall;

-- many queries at once: cast to the column's type, as operators cast them
CREATE TABLE rounded AS SELECT i AS id, v::vector(12) AS v, v::vector(12)::halfvec(12) AS h
FROM generate_series(1, 2000) AS i, LATERAL (SELECT pg_temp.point(i, 12)) AS n (v);
CREATE INDEX rounded_v ON rounded USING gpuivfpq (v vector_cosine_ops) WITH (lists = 10);
CREATE INDEX rounded_h ON rounded USING gpuivfpq (h halfvec_l2_ops) WITH (lists = 10, refine = sq8);
CREATE TABLE asked AS SELECT i AS query, pg_temp.point(-i, 12) AS v FROM generate_series(1, 50) AS i;
CREATE TABLE searched AS
SELECT 'v' AS kind, n.* FROM gpuvec_search('rounded_v', (SELECT array_agg(v ORDER BY query) FROM asked), 10) AS n
UNION ALL
SELECT 'h', n.* FROM gpuvec_search('rounded_h', (SELECT array_agg(v ORDER BY query) FROM asked), 10) AS n;
CREATE TABLE scanned AS
SELECT 'v' AS kind, query, s.* FROM asked AS a,
	LATERAL (SELECT ctid AS tid, r.v <=> a.v AS distance FROM rounded AS r ORDER BY r.v <=> a.v LIMIT 10) AS s
UNION ALL
SELECT 'h', query, s.* FROM asked AS a,
	LATERAL (SELECT ctid, r.h <-> a.v FROM rounded AS r ORDER BY r.h <-> a.v LIMIT 10) AS s;
SELECT kind, count(*), count(DISTINCT query) FROM searched GROUP BY kind ORDER BY kind;
-- the same rows; distances are those of real[], which the operators round
SELECT count(*) AS same, count(*) FILTER (WHERE abs(f.distance - s.distance) < 1e-6) AS near,
	count(*) FILTER (WHERE f.distance = CASE kind WHEN 'v' THEN r.v::real[] <=> a.v ELSE r.h::real[] <-> a.v::halfvec::real[] END) AS exact
FROM searched AS f JOIN scanned AS s USING (kind, query, tid) JOIN asked AS a USING (query) JOIN rounded AS r ON r.ctid = tid;
-- joins whose rows are searched for: the distances of set functions, which the
-- operators round
CREATE TABLE halves AS SELECT -query AS id, v::vector(12) AS v, v::vector(12)::halfvec(12) AS h FROM asked;
SET gpuvec.recall = 1;
SELECT count(*), count(*) FILTER (WHERE i.distance IS DISTINCT FROM e.distance) AS different
FROM gpuvec_knn_join('halves', 'id', 'v', 'rounded', 'id', 'v', 10, 'cosine', 'index') AS i
	FULL JOIN gpuvec_knn_join('halves', 'id', 'v', 'rounded', 'id', 'v', 10, 'cosine') AS e USING (key, rank);
SELECT index, returned FROM gpuvec_last_scan();
SELECT count(*), count(*) FILTER (WHERE i.distance IS DISTINCT FROM e.distance) AS different
FROM gpuvec_knn_join('halves', 'id', 'h', 'rounded', 'id', 'h', 10, 'l2', 'index') AS i
	FULL JOIN gpuvec_knn_join('halves', 'id', 'h', 'rounded', 'id', 'h', 10, 'l2') AS e USING (key, rank);
SELECT index, returned FROM gpuvec_last_scan();
-- to search for others they would be rounded to halves
SELECT count(*) FROM gpuvec_knn_join('halves', 'id', 'v', 'rounded', 'id', 'h', 10, 'l2', 'index');
-- of vectors so long that the operator's sums overflow it says nothing of an order
CREATE TABLE long AS SELECT i AS id, ARRAY(SELECT x * 1e20 FROM unnest(pg_temp.point(i, 12)) AS x)::real[]::vector(12) AS v
FROM generate_series(1, 2000) AS i;
CREATE INDEX long_v ON long USING gpuivfpq (v vector_l2_ops) WITH (lists = 10);
CREATE TABLE of_long AS SELECT -id AS id, v FROM long WHERE id % 100 = 7;
SELECT count(*), count(*) FILTER (WHERE i.distance IS DISTINCT FROM e.distance OR i.neighbor <> e.neighbor) AS different,
	count(DISTINCT i.distance) > 10 AS tells, bool_and(i.distance < 'Infinity') AS finite
FROM gpuvec_knn_join('of_long', 'id', 'v', 'long', 'id', 'v', 10, 'l2', 'index') AS i
	FULL JOIN gpuvec_knn_join('of_long', 'id', 'v', 'long', 'id', 'v', 10, 'l2') AS e USING (key, rank);
SELECT index, returned FROM gpuvec_last_scan();
RESET gpuvec.recall;
DROP TABLE rounded, asked, halves, searched, scanned, long, of_long;

DROP TABLE vectors;
DROP FUNCTION to_arrays;
