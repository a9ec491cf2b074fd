-- records of halves under pgvector's operators, which sum in single precision:
-- what they return is within a row's bounds, so no row comes too late or too soon
\getenv srcdir PG_ABS_SRCDIR
\i :srcdir/sql/include/prologue.sql
CREATE EXTENSION IF NOT EXISTS gpuvec_pgvector CASCADE;

-- rows that the index gives out of place, all rows asked for at once
CREATE FUNCTION pg_temp.misplaced(col text, operator text, query text)
RETURNS bigint
LANGUAGE plpgsql SET gpuvec.probes = 100000 SET gpuvec.candidates = 5000 AS $$
DECLARE
	result bigint;
BEGIN
	EXECUTE format('SELECT count(*) FILTER (WHERE a.d IS DISTINCT FROM b.d)
		FROM (SELECT d, row_number() OVER () AS n FROM
			(SELECT %1$s %2$s %3$s AS d FROM embedded ORDER BY %1$s %2$s %3$s LIMIT 1600) AS x) AS a
		FULL JOIN (SELECT d, row_number() OVER () AS n FROM
			(SELECT (%1$s %2$s %3$s) + 0 AS d FROM embedded ORDER BY 1) AS y) AS b USING (n)',
		col, operator, query) INTO result;
	RETURN result;
END
$$;

CREATE TABLE embedded (id int, v vector(100), h halfvec(100), f vector(100));
INSERT INTO embedded SELECT g, pg_temp.point(g, 100), pg_temp.point(g, 100)::vector::halfvec,
	pg_temp.point(g, 100, origin => 5000) FROM generate_series(1, 1500) AS g;
CREATE INDEX embedded_v_l2 ON embedded USING gpuivfpq (v) WITH (lists = 10, refine = half);
CREATE INDEX embedded_v_ip ON embedded USING gpuivfpq (v vector_ip_ops) WITH (lists = 10, refine = half);
CREATE INDEX embedded_v_cosine ON embedded USING gpuivfpq (v vector_cosine_ops) WITH (lists = 10, refine = half);
CREATE INDEX embedded_h_l2 ON embedded USING gpuivfpq (h halfvec_l2_ops) WITH (lists = 10, refine = half);
CREATE INDEX embedded_h_ip ON embedded USING gpuivfpq (h halfvec_ip_ops) WITH (lists = 10, refine = half);
CREATE INDEX embedded_h_cosine ON embedded USING gpuivfpq (h halfvec_cosine_ops) WITH (lists = 10, refine = half);
CREATE INDEX embedded_f_l2 ON embedded USING gpuivfpq (f) WITH (lists = 10, refine = half);
CREATE INDEX embedded_f_ip ON embedded USING gpuivfpq (f vector_ip_ops) WITH (lists = 10, refine = half);
CREATE INDEX embedded_f_cosine ON embedded USING gpuivfpq (f vector_cosine_ops) WITH (lists = 10, refine = half);
INSERT INTO embedded SELECT g, pg_temp.point(g, 100), pg_temp.point(g, 100)::vector::halfvec,
	pg_temp.point(g, 100, origin => 5000) FROM generate_series(1501, 1600) AS g;

-- queries: one that is a row, one that is none; arrays, too
SELECT c, o, n, pg_temp.misplaced(c, o, format('%L::%s', pg_temp.point(n, 100, origin => far)::vector, t))
FROM (VALUES ('v', 'vector', 0), ('h', 'halfvec', 0), ('f', 'vector', 5000)) AS v (c, t, far),
	unnest(ARRAY['<->', '<#>', '<=>']) AS o, unnest(ARRAY[7, 7919]) AS n
ORDER BY 1, 2, 3;
SELECT c, o, pg_temp.misplaced(c, o, format('%L::real[]', pg_temp.point(7919, 100)))
FROM unnest(ARRAY['v', 'h']) AS c, unnest(ARRAY['<->', '<#>', '<=>']) AS o ORDER BY 1, 2;
SELECT relname, p.* FROM pg_class, gpuvec_verify_index(oid) AS p WHERE relname LIKE 'embedded\_%';
-- a query whose type is known only when the statement runs
PREPARE nearest AS SELECT id FROM embedded ORDER BY h <-> $1 LIMIT 3;
EXECUTE nearest (pg_temp.point(77, 100)::vector::halfvec);
EXECUTE nearest (pg_temp.point(78, 100)::vector);
DROP TABLE embedded;

-- vectors whose sums lose their digits in single precision, or overflow: the
-- operators return what no record bounds, so these rows are measured
CREATE FUNCTION pg_temp.scaled(g int, scale float8) RETURNS vector
LANGUAGE sql IMMUTABLE AS $$
	SELECT array_agg((x * scale)::real ORDER BY i)::vector
	FROM unnest(pg_temp.point(g, 16)) WITH ORDINALITY AS u (x, i)
$$;
CREATE TABLE embedded (id int, v vector(16), w vector(16), x vector(16));
INSERT INTO embedded SELECT g, pg_temp.scaled(g, (ARRAY[1, 1e-23, 1e-24, 1e-41, 1e36])[1 + g % 5]),
	pg_temp.scaled(g, 1e-23), pg_temp.scaled(g, (ARRAY[1, 1e18, 2e18])[1 + g % 3]) FROM generate_series(1, 1500) AS g;
CREATE INDEX embedded_v ON embedded USING gpuivfpq (v vector_cosine_ops) WITH (lists = 10, refine = half);
CREATE INDEX embedded_w ON embedded USING gpuivfpq (w vector_cosine_ops) WITH (lists = 10, refine = half);
CREATE INDEX embedded_x ON embedded USING gpuivfpq (x vector_ip_ops) WITH (lists = 10, refine = half);
INSERT INTO embedded SELECT g, pg_temp.scaled(g, (ARRAY[1, 1e-23, 1e-24, 1e-41, 1e36])[1 + g % 5]),
	pg_temp.scaled(g, 1e-23), pg_temp.scaled(g, (ARRAY[1, 1e18, 2e18])[1 + g % 3]) FROM generate_series(1501, 1600) AS g;
SELECT c, scale, pg_temp.misplaced(c, o, format('%L::vector', pg_temp.scaled(7919, scale)))
FROM (VALUES ('v', '<=>'), ('w', '<=>'), ('x', '<#>')) AS v (c, o), unnest(ARRAY[1, 1e-23, 1e-24, 1e-41, 1e18]::float8[]) AS scale
ORDER BY 1, 2;
SELECT relname, p.* FROM pg_class, gpuvec_verify_index(oid) AS p WHERE relname LIKE 'embedded\_%';
-- others are bounded as before
SET gpuvec.probes = 100;
SET gpuvec.candidates = 1000;
SELECT count(*) FROM (SELECT id FROM embedded ORDER BY v <=> pg_temp.scaled(7919, 1) LIMIT 10) AS q;
SELECT reranked BETWEEN 700 AND 900 AS bounded FROM gpuvec_last_scan();
RESET gpuvec.probes;
RESET gpuvec.candidates;
DROP TABLE embedded;
