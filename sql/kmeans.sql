-- k-means of the vectors of a table
\getenv srcdir PG_ABS_SRCDIR
\i :srcdir/sql/include/prologue.sql
RESET client_min_messages;

-- four heaps around the corners of a square
CREATE TABLE heaps (id int, v real[]) WITH (autovacuum_enabled = off);
INSERT INTO heaps
SELECT i, ARRAY[10 * (i & 1) + (i >> 2) % 3 - 1, 20 * (i >> 1 & 1) + (i >> 2) % 5 - 2]
FROM generate_series(0, 59) AS i;
SELECT * FROM gpuvec_kmeans('heaps', 'v', 1, 1);
INSERT INTO heaps VALUES (60, NULL);
SELECT * FROM gpuvec_kmeans('heaps', 'v', 1, 0);
SET client_min_messages = warning;
SELECT count(*) > 0 AS found
FROM (SELECT seed, array_agg((centroid, size)::text ORDER BY centroid) AS clusters
	FROM generate_series(0, 9) AS seed, gpuvec_kmeans('heaps', 'v', 4, 20, seed)
	GROUP BY seed) AS c
WHERE clusters = '{"(\"{0,0}\",15)","(\"{0,20}\",15)","(\"{10,0}\",15)","(\"{10,20}\",15)"}';

-- the oracle: sizes and the sum of squares are those of the centroids returned
CREATE FUNCTION place(seed int, n int) RETURNS real[]
LANGUAGE sql IMMUTABLE AS $$
	SELECT array_agg((8 * sin(seed % 10 * 131 + i * 17)
		+ (hashint4(seed * 64 + i) & 1023) / 1024.0)::real ORDER BY i)
	FROM generate_series(1, n) AS i
$$;
CREATE TABLE points AS
SELECT i AS id, place(i, 8) AS v FROM generate_series(1, 3000) AS i;
CREATE TABLE centroids AS
SELECT * FROM gpuvec_kmeans('points', 'v', 25, 5, 42);
SELECT count(*), sum(size), min(centroid_id), max(centroid_id), count(DISTINCT centroid)
FROM centroids;
SELECT count(*) FILTER (WHERE c.size IS DISTINCT FROM n.n) AS wrong
FROM centroids AS c FULL JOIN (
	SELECT centroid_id, count(*) AS n
	FROM points, LATERAL (SELECT centroid_id FROM centroids
		ORDER BY v <-> centroid, centroid_id LIMIT 1) AS nearest
	GROUP BY centroid_id) AS n USING (centroid_id);

-- as often as one likes: the same for a seed, another for another
SELECT count(*) AS same
FROM centroids JOIN gpuvec_kmeans('points', 'v', 25, 5, 42) USING (centroid_id, centroid, size);
SELECT count(*) < 25 AS other
FROM centroids JOIN gpuvec_kmeans('points', 'v', 25, 5, 43) USING (centroid_id, centroid, size);
-- rows in a file: the same
CREATE TABLE wide AS
SELECT i AS id, place(i, 1200) AS v FROM generate_series(1, 400) AS i;
CREATE TABLE wide_centroids AS SELECT * FROM gpuvec_kmeans('wide', 'v', 7, 3);
SET maintenance_work_mem = '1MB';
SELECT count(*) AS same
FROM wide_centroids JOIN gpuvec_kmeans('wide', 'v', 7, 3) USING (centroid_id, centroid, size);
RESET maintenance_work_mem;
-- no iteration: first centroids are rows, all different
SELECT count(*) AS rows, count(DISTINCT centroid) AS different
FROM gpuvec_kmeans('points', 'v', 200, 0) AS c
WHERE EXISTS (SELECT FROM points WHERE v = centroid);

-- equal rows: no more clusters than different ones
CREATE TABLE equal AS
SELECT i AS id, ARRAY[i % 3, 1]::real[] AS v FROM generate_series(1, 90) AS i;
SELECT centroid, size FROM gpuvec_kmeans('equal', 'v', 3, 5) ORDER BY centroid;
SELECT centroid, size FROM gpuvec_kmeans('equal', 'v', 10, 5) ORDER BY centroid;
-- as many clusters as rows
SELECT count(*), sum(size) FROM gpuvec_kmeans('points', 'v', 3000, 1);

-- balanced: no cluster of a handful of rows
CREATE TABLE lopsided AS
SELECT i AS id, ARRAY[CASE WHEN i % 100 = 0 THEN 1000 + i ELSE (hashint4(i) & 255) END, 0]::real[] AS v
FROM generate_series(1, 2000) AS i;
SELECT count(*), sum(size) FROM gpuvec_kmeans('lopsided', 'v', 20, 10, 0, true);
SELECT (SELECT max(size) FROM gpuvec_kmeans('lopsided', 'v', 20, 10, 0, true))
	<= (SELECT max(size) FROM gpuvec_kmeans('lopsided', 'v', 20, 10, 0)) AS smaller;
RESET client_min_messages;

-- the error of each iteration
CREATE TABLE six (v real[]);
INSERT INTO six VALUES ('{0}'), ('{1}'), ('{2}'), ('{10}'), ('{11}'), ('{12}');
SELECT centroid, size FROM gpuvec_kmeans('six', 'v', 2, 4) ORDER BY centroid;
SELECT centroid, size FROM gpuvec_kmeans('six', 'v', 6, 0) ORDER BY centroid;

-- numbers whose squares are beyond single precision, or below it
CREATE TABLE magnitude (v real[]);
DO $$
DECLARE
	m float8;
	found text;
BEGIN
	FOREACH m IN ARRAY '{2.5e38,1e20,1e-25,8e-45}'::float8[] LOOP
		TRUNCATE magnitude;
		INSERT INTO magnitude
		SELECT ARRAY[x * m]::real[] FROM unnest('{1,1.25,-1,-1.25}'::float8[]) AS x;
		SELECT string_agg((centroid, size)::text, ' ' ORDER BY centroid) INTO found
		FROM gpuvec_kmeans('magnitude', 'v', 2, 3);
		RAISE NOTICE '%: %', m, found;
	END LOOP;
END $$;
-- one that is beyond all does not make the others equal
TRUNCATE magnitude;
INSERT INTO magnitude SELECT ARRAY[x]::real[]
FROM generate_series(1, 20), unnest('{1,1.25,-1,-1.25}'::float8[]) AS x
UNION ALL SELECT '{3e38}';
SELECT centroid, size FROM gpuvec_kmeans('magnitude', 'v', 5, 4) ORDER BY centroid;

-- what cannot be
SELECT * FROM gpuvec_kmeans('six', 'v', 7);
SELECT * FROM gpuvec_kmeans('six', 'v', 0);
SELECT * FROM gpuvec_kmeans('six', 'v', 100000000);
SELECT * FROM gpuvec_kmeans('six', 'v', 2, -1);
SELECT * FROM gpuvec_kmeans('six', 'v', 2, 1001);
SELECT * FROM gpuvec_kmeans('six', 'v', NULL);
SELECT * FROM gpuvec_kmeans('six', 'w', 2);
SELECT * FROM gpuvec_kmeans('heaps', 'id', 2);
CREATE TABLE nobody (v real[]);
SELECT * FROM gpuvec_kmeans('nobody', 'v', 1);
INSERT INTO nobody VALUES ('{1,1}'), ('{1}');
SELECT * FROM gpuvec_kmeans('nobody', 'v', 1);
CREATE ROLE gpuvec_reader;
SET ROLE gpuvec_reader;
SELECT * FROM gpuvec_kmeans('six', 'v', 2);
RESET ROLE;
CREATE VIEW looking AS SELECT * FROM six;
SELECT * FROM gpuvec_kmeans('looking', 'v', 2);

DROP VIEW looking;
DROP TABLE heaps, points, centroids, wide, wide_centroids, equal, lopsided, six, magnitude, nobody;
DROP FUNCTION place;
DROP ROLE gpuvec_reader;
