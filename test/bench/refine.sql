-- Refine records side by side: what ten rows take from an index without, with
-- bytes and with halves, in one session, in turns.
--
--	test/cluster.sh psql -X -v rows=50000 -v dims=384 -f test/bench/refine.sql
--
-- Three tables with the same rows, clusters that overlap; vectors of more than
-- some 500 dimensions lie out of line.  Each query is asked of all three, one
-- after the other, five times each, the distance not selected and selected.
-- Then medians, in microseconds, and each as a part of that without records;
-- recall of the first 100 queries, rows fetched by the access method a query,
-- and megabytes.  No figure is told unless the machine has nothing else to do.
\if :{?rows}
\else
\set rows 20000
\endif
\if :{?dims}
\else
\set dims 384
\endif
\if :{?queries}
\else
\set queries 300
\endif
\set QUIET on
SET client_min_messages = warning;
SET enable_seqscan = off;
SET jit = off;
SELECT setseed(.5) \g /dev/null
DROP SCHEMA IF EXISTS refine_bench CASCADE;
CREATE SCHEMA refine_bench;
SET search_path = refine_bench, public;

CREATE TABLE centers AS SELECT c, array_agg(random() - .5 ORDER BY i) AS v
FROM generate_series(0, 199) AS c, generate_series(1, :dims) AS i GROUP BY c;
CREATE FUNCTION make(first int, last int) RETURNS TABLE (id int, v vector) LANGUAGE sql AS $$
	SELECT g, (SELECT array_agg(((x + y) / 2 + (random() + random() - 1) * .7)::real)::vector
		FROM unnest(a.v, b.v) AS u (x, y))
	FROM (SELECT g, (random() * 199)::int AS i, (random() * 199)::int AS j FROM generate_series(first, last) AS g) AS r
		JOIN centers AS a ON a.c = r.i JOIN centers AS b ON b.c = r.j
$$;
CREATE TABLE none AS SELECT id, v FROM make(1, :rows) ORDER BY id;
CREATE TABLE sq8 AS SELECT * FROM none;
CREATE TABLE half AS SELECT * FROM none;
CREATE TABLE queries AS SELECT * FROM make(1, :queries);
CREATE INDEX ON none USING gpuivfpq (v) WITH (dims = :dims);
CREATE INDEX ON sq8 USING gpuivfpq (v) WITH (dims = :dims, refine = sq8);
CREATE INDEX ON half USING gpuivfpq (v) WITH (dims = :dims, refine = half);
VACUUM ANALYZE none, sq8, half;
SELECT count(*) FROM pg_class WHERE relname IN ('none_v_idx', 'sq8_v_idx', 'half_v_idx') \g /dev/null

-- static statements, so that their plans are kept
CREATE TABLE times (kind text, selected bool, us float8, measured float8);
DO $do$
DECLARE
	kind text;
BEGIN
	FOREACH kind IN ARRAY '{none,sq8,half}'::text[] LOOP
		EXECUTE format($f$
			CREATE FUNCTION ask_%1$s(q vector, selected bool) RETURNS float8 LANGUAGE plpgsql AS $$
			DECLARE
				began timestamptz = clock_timestamp();
			BEGIN
				IF selected THEN
					PERFORM sum(d) FROM (SELECT id, v <-> q AS d FROM %1$s ORDER BY v <-> q LIMIT 10) AS x;
				ELSE
					PERFORM sum(id) FROM (SELECT id FROM %1$s ORDER BY v <-> q LIMIT 10) AS x;
				END IF;
				RETURN extract(epoch FROM clock_timestamp() - began) * 1e6;
			END
			$$$f$, kind);
	END LOOP;
END
$do$;
CREATE PROCEDURE run(keep bool) LANGUAGE plpgsql AS $$
DECLARE
	q vector;
	us float8;
	fetched bigint;
BEGIN
	FOR q IN SELECT v FROM queries LOOP
		FOR turn IN 1 .. 5 LOOP
			FOR s IN 0 .. 1 LOOP
				us = ask_none(q, s = 1);
				SELECT reranked INTO fetched FROM gpuvec_last_scan();
				IF keep THEN INSERT INTO times VALUES ('none', s = 1, us, fetched); END IF;
				us = ask_sq8(q, s = 1);
				SELECT reranked INTO fetched FROM gpuvec_last_scan();
				IF keep THEN INSERT INTO times VALUES ('sq8', s = 1, us, fetched); END IF;
				us = ask_half(q, s = 1);
				SELECT reranked INTO fetched FROM gpuvec_last_scan();
				IF keep THEN INSERT INTO times VALUES ('half', s = 1, us, fetched); END IF;
			END LOOP;
		END LOOP;
	END LOOP;
END
$$;
CALL run(false);
CALL run(true);
WITH medians AS (
	SELECT kind, selected, percentile_cont(.5) WITHIN GROUP (ORDER BY us) AS us, avg(measured) AS fetched
	FROM times GROUP BY 1, 2)
SELECT m.kind, m.selected, round(m.us) AS us, round((m.us / n.us)::numeric, 3) AS ratio,
	round(m.fetched::numeric, 1) AS fetched,
	round(pg_relation_size(m.kind || '_v_idx') / 1048576.0, 1) AS mb
FROM medians AS m JOIN medians AS n ON n.kind = 'none' AND n.selected = m.selected
ORDER BY m.selected, m.us DESC;
SELECT kind, recall FROM unnest('{none,sq8,half}'::text[]) AS kind,
	LATERAL gpuvec_recall((kind || '_v_idx')::regclass, 10, 100);
DROP SCHEMA refine_bench CASCADE;
