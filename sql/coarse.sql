-- the nearest lists of many, most of them told by the codes of their centroids
\getenv srcdir PG_ABS_SRCDIR
\i :srcdir/sql/include/prologue.sql
SET max_parallel_maintenance_workers = 0;

-- 600 clusters of 20 rows, an odd number of dimensions and of sub-quantizers
CREATE FUNCTION pg_temp.place(a int, b int) RETURNS real[] LANGUAGE sql IMMUTABLE AS $$
	SELECT array_agg((hashint4extended(a, d) % 1000)::real / 100 +
		(hashint4extended(b, 1000 + d) % 1000)::real / 400 ORDER BY d)
	FROM generate_series(1, 21) AS d
$$;
CREATE TABLE many (id int, e real[]) WITH (autovacuum_enabled = off);
INSERT INTO many SELECT g, pg_temp.place(g % 600, g) FROM generate_series(1, 12000) AS g;
CREATE INDEX many_l2 ON many USING gpuivfpq (e real_l2_ops) WITH (lists = 600, pq_dim = 15);
CREATE INDEX many_ip ON many USING gpuivfpq (e real_ip_ops) WITH (lists = 600, pq_dim = 15);
CREATE INDEX many_cosine ON many USING gpuivfpq (e real_cosine_ops) WITH (lists = 600, pq_dim = 15);
CREATE INDEX many_once ON many USING gpuivfpq (e real_l2_ops) WITH (lists = 600, pq_dim = 15, spill = 0);

-- inserted rows look for their lists in the same way, by L2 in any case
INSERT INTO many SELECT g, pg_temp.place(g % 600, g) FROM generate_series(12001, 14000) AS g;
SET gpuvec.candidates = 60;
SET gpuvec.probes = 6;
SELECT index, recall > .985 AS finds FROM unnest(ARRAY['many_l2', 'many_cosine', 'many_once']) AS index, gpuvec_recall(index::regclass, 10, 1000);
SET gpuvec.probes = 40;
SELECT recall > .985 AS finds FROM gpuvec_recall('many_ip', 10, 1000);

-- an inserted row is found in the very nearest list
SET gpuvec.probes = 1;
SELECT count(*) > 190 AS found FROM generate_series(12001, 12200) AS g
WHERE g = (SELECT id FROM many ORDER BY e <-> pg_temp.place(g % 600, g) LIMIT 1);

SELECT count(*) FROM unnest(ARRAY['many_l2', 'many_ip', 'many_cosine', 'many_once']) AS index, gpuvec_verify_index(index::regclass);
DROP TABLE many;
