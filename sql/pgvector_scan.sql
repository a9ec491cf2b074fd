-- indexes on pgvector's types, by gpuvec_pgvector
\getenv srcdir PG_ABS_SRCDIR
\i :srcdir/sql/include/prologue.sql
CREATE EXTENSION IF NOT EXISTS gpuvec_pgvector CASCADE;

CREATE TABLE embedded (id int, v vector(8), h halfvec(8));
INSERT INTO embedded SELECT g, e::vector, e::vector::halfvec
FROM generate_series(1, 2000) AS g, LATERAL (VALUES (pg_temp.point(g, 8))) AS p (e);
INSERT INTO embedded VALUES (2001, NULL, NULL),
	(2002, '[0,0,0,0,0,0,0,0]', '[0,0,0,0,0,0,0,0]');
CREATE INDEX embedded_v_l2 ON embedded USING gpuivfpq (v);
CREATE INDEX embedded_v_ip ON embedded USING gpuivfpq (v vector_ip_ops);
CREATE INDEX embedded_v_cosine ON embedded USING gpuivfpq (v vector_cosine_ops);
CREATE INDEX embedded_h_l2 ON embedded USING gpuivfpq (h halfvec_l2_ops);
CREATE INDEX embedded_h_ip ON embedded USING gpuivfpq (h halfvec_ip_ops);
CREATE INDEX embedded_h_cosine ON embedded USING gpuivfpq (h halfvec_cosine_ops);
SELECT relname, i.lists, i.dims, i.rows
FROM pg_class, gpuvec_index_info(oid) AS i WHERE relname LIKE 'embedded\_%' ORDER BY 1;

-- rows without a distance, which come last, are within what is beyond them
CREATE TABLE tiny AS SELECT g AS id, pg_temp.point(g, 8)::vector(8) AS v FROM generate_series(1, 2000) AS g;
INSERT INTO tiny SELECT g, '[1e-30,0,0,0,0,0,0,0]' FROM generate_series(5001, 5003) AS g;
CREATE FUNCTION pg_temp.within(OUT rows int, OUT tiny int, OUT same bool) LANGUAGE plpgsql AS $$
DECLARE
	query text = format('SELECT array_agg(id) FROM (SELECT id FROM tiny WHERE 1 - (v <=> %1$L) > .6
		ORDER BY v <=> %1$L LIMIT 1000) AS q', '[0,3,1,2,-4,5,6,-7]');
	here int[];
	there int[];
BEGIN
	EXECUTE query INTO here;
	SET LOCAL gpuvec.enable_custom_scan = off;
	SET LOCAL enable_indexscan = off;
	EXECUTE query INTO there;
	SET LOCAL enable_indexscan = on;
	SET LOCAL gpuvec.enable_custom_scan = on;
	rows = cardinality(here);
	SELECT count(*) INTO tiny FROM unnest(here) AS id WHERE id > 5000;
	same = (SELECT array_agg(id ORDER BY id) FROM unnest(here) AS id) =
		(SELECT array_agg(id ORDER BY id) FROM unnest(there) AS id);
END
$$;
SET gpuvec.probes = 1000;
SET gpuvec.candidates = 5000;
CREATE INDEX tiny_v ON tiny USING gpuivfpq (v vector_cosine_ops) WITH (lists = 20);
SELECT * FROM pg_temp.within();
DROP INDEX tiny_v;
CREATE INDEX tiny_v ON tiny USING gpuivfpq (v vector_cosine_ops) WITH (lists = 20, refine = sq8);
SELECT * FROM pg_temp.within();
DROP INDEX tiny_v;
CREATE INDEX tiny_v ON tiny USING gpuivfpq (v vector_cosine_ops) WITH (lists = 20, refine = half);
SELECT * FROM pg_temp.within();
RESET gpuvec.probes;
RESET gpuvec.candidates;
DROP TABLE tiny;

-- every class: the index is used, and with all lists it is exact
CREATE FUNCTION pg_temp.check(col text, operator text, type text)
RETURNS TABLE (plan text, exact bool, all_rows bigint)
LANGUAGE plpgsql SET gpuvec.probes = 100000 SET gpuvec.candidates = 5000 AS $$
DECLARE
	line text;
	q text = pg_temp.point(5001, 8)::vector;
BEGIN
	IF type ~ '\[\]' THEN
		q = translate(q, '[]', '{}');
	END IF;
	FOR line IN EXECUTE format('EXPLAIN (COSTS OFF) SELECT id FROM embedded
		ORDER BY %s %s %L::%s LIMIT 10', col, operator, q, type)
	LOOP
		plan = coalesce(plan, substring(line FROM 'Index Scan using \w+'));
	END LOOP;
	EXECUTE format('SELECT array_agg(d) = (SELECT array_agg(d)
			FROM (SELECT (%1$s %2$s %3$L::%4$s) + 0 AS d FROM embedded
				ORDER BY 1 LIMIT 20) AS e)
		FROM (SELECT %1$s %2$s %3$L::%4$s AS d FROM embedded
			ORDER BY %1$s %2$s %3$L::%4$s LIMIT 20) AS a', col, operator, q, type)
		INTO exact;
	EXECUTE format('SELECT count(*) FROM (SELECT id FROM embedded
		ORDER BY %s %s %L::%s) AS a', col, operator, q, type) INTO all_rows;
	RETURN NEXT;
END
$$;
SELECT c.col, o.op, t.type, k.* FROM (VALUES ('v', 'vector'), ('h', 'halfvec')) AS c (col, own),
	unnest(ARRAY['<->', '<#>', '<=>']) AS o (op),
	LATERAL unnest(ARRAY[own, 'real[]', 'float8[]', 'numeric[]']) AS t (type),
	LATERAL pg_temp.check(c.col, o.op, t.type) AS k
ORDER BY 1, 2, 3;
SELECT relname, p.* FROM pg_class, gpuvec_verify_index(oid) AS p WHERE relname LIKE 'embedded\_%';

-- an array parameter is an Index Scan, never a silent sequential one
SET plan_cache_mode = force_generic_plan;
PREPARE array_parameter(real[]) AS SELECT id FROM embedded ORDER BY v <-> $1 LIMIT 3;
EXPLAIN (COSTS OFF) EXECUTE array_parameter('{1,2,3,4,5,6,7,8}');
PREPARE vector_parameter(vector) AS SELECT id FROM embedded ORDER BY v <-> $1 LIMIT 3;
EXPLAIN (COSTS OFF) EXECUTE vector_parameter('[1,2,3,4,5,6,7,8]');
DEALLOCATE ALL;
RESET plan_cache_mode;
EXPLAIN (COSTS OFF) SELECT id FROM embedded ORDER BY v <-> ARRAY[1,2,3,4,5,6,7,8] LIMIT 3;
EXPLAIN (COSTS OFF) SELECT id FROM embedded ORDER BY h <=> ARRAY[1,2,3,4,5,6,7,8.5]::real[] LIMIT 3;
SET enable_seqscan = on;
EXPLAIN (COSTS OFF) SELECT id FROM embedded ORDER BY v <+> '[1,2,3,4,5,6,7,8]' LIMIT 3;
SET enable_seqscan = off;

-- pgvector's semantics: NULL query, zero under cosine, LATERAL
SELECT count(*) FROM (SELECT id FROM embedded ORDER BY v <-> (SELECT NULL::vector)) AS q;
SELECT count(*) FROM (SELECT id FROM embedded ORDER BY v <=> '[0,0,0,0,0,0,0,0]' LIMIT 5) AS q;
SELECT count(*) FROM (SELECT id FROM embedded ORDER BY h <=> (SELECT NULL::halfvec) LIMIT 5) AS q;
SELECT count(*) FILTER (WHERE n.id = a.id) AS own
FROM embedded AS a, LATERAL (SELECT id FROM embedded AS b ORDER BY b.v <-> a.v LIMIT 1) AS n
WHERE a.id <= 50;
SELECT count(*) FILTER (WHERE n.id = a.id) AS own
FROM embedded AS a, LATERAL (SELECT id FROM embedded AS b ORDER BY b.h <=> a.h LIMIT 1) AS n
WHERE a.id <= 50;

-- insert, delete, vacuum
INSERT INTO embedded VALUES (3000, '[9,9,9,9,9,9,9,9]', '[9,9,9,9,9,9,9,9]');
SELECT id FROM embedded ORDER BY v <-> '[9,9,9,9,9,9,9,9]' LIMIT 1;
SELECT id FROM embedded ORDER BY h <-> '[9,9,9,9,9,9,9,9]' LIMIT 1;
DELETE FROM embedded WHERE id = 3000 OR id % 2 = 0;
VACUUM embedded;
SELECT id = 3000 AS ghost FROM embedded ORDER BY h <-> '[9,9,9,9,9,9,9,9]' LIMIT 1;
SELECT relname, p.* FROM pg_class, gpuvec_verify_index(oid) AS p WHERE relname LIKE 'embedded\_%';

-- dimensions
SELECT id FROM embedded ORDER BY v <-> '[1,2,3]' LIMIT 1;
SELECT id FROM embedded ORDER BY h <-> '{1,2,3}'::real[] LIMIT 1;
INSERT INTO embedded VALUES (3001, '[1,2,3]');
DROP TABLE embedded;
CREATE TABLE loose (id int, v vector, h halfvec);
CREATE INDEX ON loose USING gpuivfpq (v);
CREATE INDEX ON loose USING gpuivfpq (h halfvec_l2_ops);
INSERT INTO loose VALUES (1, '[1,2,3]', '[1,2]'), (2, '[4,5]', '[1,2]');
CREATE INDEX ON loose USING gpuivfpq (v) WITH (dims = 3);
CREATE INDEX ON loose USING gpuivfpq ((v::vector(3)));
CREATE INDEX loose_3 ON loose USING gpuivfpq ((v::vector(3))) WHERE vector_dims(v) = 3;
SELECT id FROM loose WHERE vector_dims(v) = 3 ORDER BY v::vector(3) <-> '[1,2,3]' LIMIT 5;
EXPLAIN (COSTS OFF)
SELECT id FROM loose WHERE vector_dims(v) = 3 ORDER BY v::vector(3) <-> '[1,2,3]' LIMIT 5;
CREATE INDEX loose_2 ON loose USING gpuivfpq (h halfvec_l2_ops) WITH (dims = 2);
INSERT INTO loose VALUES (3, NULL, '[1,2,3]');
SELECT id FROM loose ORDER BY h <-> '[1,2]';
SELECT * FROM gpuvec_verify_index('loose_3');
DROP TABLE loose;

-- queries that are given become values of the column's type
CREATE TABLE measured AS SELECT i AS id, v::vector(8), v::vector::halfvec(8) AS h
FROM generate_series(1, 2000) i, pg_temp.wave(i, 8) v;
CREATE INDEX measured_v ON measured USING gpuivfpq (v vector_cosine_ops);
CREATE INDEX measured_h ON measured USING gpuivfpq (h halfvec_l2_ops);
CREATE DOMAIN asked_h AS halfvec(8);
CREATE TABLE asked AS SELECT i AS id, v::vector, v::vector::halfvec::asked_h AS h, v AS r
FROM generate_series(5001, 5300) i, pg_temp.wave(i, 8) v;
SET gpuvec.recall = 1;
SELECT x, c, recall FROM unnest(ARRAY['measured_v', 'measured_h']::regclass[]) AS x, unnest('{v,h,r}'::name[]) AS c,
	gpuvec_recall(x, samples => 50, queries_table => 'asked', queries_column => c);
SELECT recall FROM gpuvec_recall('measured_v', queries => ARRAY(SELECT v::real[] FROM asked LIMIT 50));
-- arrays of them are cast
SELECT array_agg(v)::real[] = array_agg(v::real[]) AS vector, array_agg(h::halfvec)::real[] = array_agg(h::real[]) AS halfvec
FROM asked;
SELECT a.recall = b.recall AS same
FROM gpuvec_recall('measured_v', queries => ARRAY(SELECT v FROM asked ORDER BY v LIMIT 50)) AS a,
	gpuvec_recall('measured_v', queries => ARRAY(SELECT v::real[] FROM asked ORDER BY v LIMIT 50)) AS b;
SELECT recall > 0.9 AS reached FROM gpuvec_recall('measured_h', 5, queries => ARRAY(SELECT h::halfvec FROM asked LIMIT 50));
SELECT DISTINCT calibrated_for FROM gpuvec_calibrate('measured_v', queries => ARRAY(SELECT h::halfvec FROM asked));
SELECT count(*) FROM gpuvec_search('measured_v', ARRAY(SELECT v FROM asked LIMIT 50), 3);
SELECT '{}'::vector[]::real[], '{{"[1,2]"},{"[3,4]"}}'::vector[]::real[];
SELECT gpuvec_recall('measured_v', queries => '{"[1,2]",NULL}'::vector[]);
SELECT gpuvec_recall('measured_v', queries => '{"[1,2]","[1,2,3]"}'::vector[]);
SELECT gpuvec_recall('measured_v', queries => '{}'::vector[]);
RESET gpuvec.recall;
SELECT DISTINCT calibrated_for FROM gpuvec_calibrate('measured_h', queries_table => 'asked', queries_column => 'v');
SELECT recall > 0.9 AS reached FROM gpuvec_recall('measured_h', queries_table => 'asked', queries_column => 'h');
DROP TABLE measured, asked;
DROP DOMAIN asked_h;

-- types that there is no class for
CREATE TABLE others (b bit(8), s sparsevec(8));
CREATE INDEX ON others USING gpuivfpq (b);
CREATE INDEX ON others USING gpuivfpq (s);
DROP TABLE others;
-- more dimensions than pgvector's own indexes take
CREATE TABLE wide (id int, v vector(3000), h halfvec(5000));
INSERT INTO wide SELECT g, array_fill(g::real, ARRAY[3000])::vector,
	array_fill(g::real, ARRAY[5000])::vector::halfvec FROM generate_series(1, 20) AS g;
CREATE INDEX wide_v ON wide USING gpuivfpq (v) WITH (lists = 3);
CREATE INDEX wide_h ON wide USING gpuivfpq (h) WITH (lists = 3);
SELECT id FROM wide ORDER BY v <-> array_fill(7.2::real, ARRAY[3000]) LIMIT 2;
SELECT id FROM wide ORDER BY h <-> array_fill(7.2::real, ARRAY[5000]) LIMIT 2;
DROP TABLE wide;
-- bounds on the distance; zero vectors are not in the index
CREATE TABLE bounded AS SELECT g AS id, e::vector(8) AS v, e::vector(8)::halfvec(8) AS h, e
FROM generate_series(1, 2000) AS g, LATERAL (VALUES (pg_temp.point(g, 8))) AS p (e);
INSERT INTO bounded VALUES (2001, '[0,0,0,0,0,0,0,0]', '[0,0,0,0,0,0,0,0]', '{0,0,0,0,0,0,0,0}');
CREATE INDEX bounded_v ON bounded USING gpuivfpq (v vector_cosine_ops);
CREATE INDEX bounded_h ON bounded USING gpuivfpq (h halfvec_ip_ops);
ANALYZE bounded;
SELECT e AS q, v FROM bounded WHERE id = 1 \gset
EXPLAIN (COSTS OFF) SELECT id, 1 - (v <=> '[1,2,3,4,5,6,7,8]') AS similarity FROM bounded
WHERE 1 - (v <=> '[1,2,3,4,5,6,7,8]') > 0.9 ORDER BY v <=> '[1,2,3,4,5,6,7,8]' LIMIT 3;
EXPLAIN (COSTS OFF) SELECT id, 1 - (v <=> '{1,2,3,4,5,6,7,8}'::real[]) AS similarity FROM bounded
WHERE 1 - (v <=> '{1,2,3,4,5,6,7,8}'::real[]) > 0.9 ORDER BY v <=> '{1,2,3,4,5,6,7,8}'::real[] LIMIT 3;
EXPLAIN (COSTS OFF) SELECT id FROM bounded WHERE (h <#> '[1,2,3,4,5,6,7,8]') * -1 > 100 ORDER BY h <#> '[1,2,3,4,5,6,7,8]' LIMIT 3;
SET gpuvec.recall = 1;
SELECT count(*), count(*) FILTER (WHERE id = 2001) AS zero
FROM (SELECT id FROM bounded WHERE 1 - (v <=> :'v') >= 0.99 ORDER BY v <=> :'v') AS x;
SELECT count(*) FROM (SELECT id FROM bounded WHERE (h <#> :'v') * -1 > 300 ORDER BY h <#> :'v') AS x;
SELECT count(*) FROM (SELECT id FROM bounded WHERE -(h <#> :'q'::real[]) > 300 ORDER BY h <#> :'q'::real[]) AS x;
RESET gpuvec.recall;
SELECT count(*) FROM bounded WHERE 1 - (v <=> :'v') >= 0.99 AND id <= 2000;
SELECT count(*) FROM bounded WHERE (h <#> :'v') * -1 > 300;
DROP TABLE bounded;
