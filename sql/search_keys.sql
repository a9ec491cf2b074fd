-- gpuvec_search under conditions on keys: the rows of a sort under the same
-- conditions, exactly at recall 1 and where few match, else nearly all
\getenv srcdir PG_ABS_SRCDIR
\i :srcdir/sql/include/prologue.sql

CREATE TYPE color AS ENUM ('red', 'green', 'blue');
CREATE DOMAIN tenant AS bigint;
CREATE TABLE keyed (id int, e real[], tenant tenant, name varchar(20), tags text[], doc jsonb, color color, price numeric,
	free int) WITH (autovacuum_enabled = off, fillfactor = 70);
CREATE FUNCTION add_rows(first int, last int) RETURNS void LANGUAGE sql AS $$
INSERT INTO keyed SELECT i, CASE WHEN i % 50 <> 0 THEN pg_temp.point(i, 8) END, CASE WHEN i % 9 > 0 THEN i % 40 END,
	CASE WHEN i % 7 > 0 THEN 'name ' || i % 10 END, ARRAY['a' || i % 70, 'b' || i % 3], jsonb_build_object('a', i % 60, 'b', i % 2),
	(enum_range(NULL::color))[1 + i % 3], i % 6 / 4.0 FROM generate_series(first, last) AS i
$$;
CREATE TABLE asked AS SELECT q AS query, pg_temp.point(-q, 8) AS v FROM generate_series(1, 60) AS q;
CREATE FUNCTION all_asked() RETURNS real[] LANGUAGE sql STABLE AS 'SELECT array_agg(v ORDER BY query) FROM asked';

-- of each condition on keys the same in SQL
CREATE TABLE conditions (id int, keys text, condition text);
INSERT INTO conditions VALUES (1, '3', 'tenant = 3'), (2, 'NULL', 'true'), (3, 'ARRAY[3, 4, NULL, 500]', 'tenant IN (3, 4)'),
	(4, '-1', 'false'), (5, '''{}''::int[]', 'false'), (6, 'NULL, ''name 3''', 'name = ''name 3'''),
	(7, '''5'', ''{name 3,name 5}''::text[]', 'tenant = 5 AND name IN (''name 3'', ''name 5'')'),
	(8, 'NULL, NULL, ARRAY[''a3'', ''a4'']', 'tags && ''{a3,a4}'''), (9, 'NULL, NULL, NULL, ''{"a": 3}''', 'doc @> ''{"a": 3}'''),
	(10, 'NULL, NULL, NULL, NULL, ''blue''', 'color = ''blue'''), (11, 'NULL, NULL, NULL, NULL, ''{red,blue}''::color[]', 'color <> ''green'''),
	(12, 'NULL, NULL, ''{b1}''::text[], ''{"b": 1}'', ''green'', 0.25', 'tags && ''{b1}'' AND doc @> ''{"b": 1}'' AND color = ''green'' AND price = .25'),
	(13, 'VARIADIC ARRAY[3]', 'tenant = 3'), (14, 'VARIADIC ARRAY[''3'', ''name 3'']', 'tenant = 3 AND name = ''name 3'''),
	(15, 'VARIADIC NULL::int[]', 'true'), (16, '3::numeric', 'tenant = 3'), (17, 'NULL, NULL, NULL, NULL, NULL, 1', 'price = 1');

-- how many rows a sort finds for all queries; how many of these gpuvec_search
-- does not find, and how many it finds besides
CREATE FUNCTION differ(k int) RETURNS TABLE (id int, rows bigint, missing bigint, wrong bigint) LANGUAGE plpgsql AS $$
DECLARE
	c record;
BEGIN
	FOR c IN SELECT * FROM conditions ORDER BY conditions.id LOOP
		EXECUTE format('CREATE TEMP TABLE found AS SELECT * FROM gpuvec_search(''keyed_e'', all_asked(), %s, %s)', k, c.keys);
		EXECUTE format('CREATE TEMP TABLE sorted AS SELECT a.query, s.* FROM asked AS a, LATERAL (SELECT ctid AS tid, (e <-> v) + 0 AS distance
			FROM keyed WHERE e IS NOT NULL AND %s ORDER BY 2, 1 LIMIT %s) AS s', c.condition, k);
		RETURN QUERY SELECT c.id, count(s.query), count(*) FILTER (WHERE f.query IS NULL), count(*) FILTER (WHERE s.query IS NULL)
			FROM found AS f FULL JOIN sorted AS s USING (query, tid, distance);
		DROP TABLE found, sorted;
	END LOOP;
END
$$;
-- whether these are all, of conditions that leave any out; and nearly all
CREATE FUNCTION nearly_same(k int) RETURNS TABLE (rows bigint, same boolean, nearly boolean) LANGUAGE sql AS $$
SELECT sum(rows), sum(missing + wrong) FILTER (WHERE condition <> 'true') = 0,
	sum(missing) <= .05 * sum(rows) AND sum(wrong) = sum(missing) FROM differ(k) JOIN conditions USING (id)
$$;

-- untrained, so that all rows are pending
CREATE INDEX keyed_e ON keyed USING gpuivfpq (e, tenant, name, tags, doc, color, price) WITH (lists = 40);
SELECT add_rows(1, 300);
SELECT * FROM nearly_same(10);

-- few match: all of their rows are reranked
SELECT add_rows(301, 4000);
REINDEX INDEX keyed_e;
VACUUM ANALYZE keyed;
SELECT id, rows, missing = 0 AND wrong = 0 OR condition = 'true' AS same FROM differ(10) JOIN conditions USING (id) ORDER BY id;
SELECT count(*) > 0 AS found, max(batches) AS batches, max(engine) AS engine
FROM (SELECT count(*) FROM gpuvec_search('keyed_e', all_asked(), 10, 3) OFFSET 0) AS n, gpuvec_last_scan();
-- too many do, or the lists are limited: query by query
SET gpuvec.max_probes = 1000;
SELECT rows, nearly FROM nearly_same(10);
SELECT rows, nearly FROM nearly_same(150);
SELECT min(batches) FROM (SELECT count(*) FROM gpuvec_search('keyed_e', all_asked(), 10, 3) OFFSET 0) AS n, gpuvec_last_scan();
SET gpuvec.recall = 1;
SELECT * FROM nearly_same(10);
RESET gpuvec.recall;
RESET gpuvec.max_probes;
-- too many of few dimensions, too
CREATE TABLE narrow AS SELECT ARRAY[sin(i), cos(i * 3.7)]::real[] AS e, 3 AS key FROM generate_series(1, 30000) AS i;
CREATE INDEX narrow_e ON narrow USING gpuivfpq (e, key) WITH (lists = 16);
SELECT min(batches) FROM (SELECT count(*) FROM gpuvec_search('narrow_e', (SELECT array_agg(v[1:2]) FROM asked), 10, 3) OFFSET 0) AS n,
	gpuvec_last_scan();
DROP TABLE narrow;

-- rows changed in place and elsewhere, new, and gone
UPDATE keyed SET free = 1 WHERE id % 3 = 0;
UPDATE keyed SET tenant = 3 WHERE id % 41 = 0;
DELETE FROM keyed WHERE id % 5 = 0;
SELECT add_rows(4001, 4200);
SELECT * FROM nearly_same(10);
SET gpuvec.max_probes = 1000;
SELECT rows, nearly FROM nearly_same(10);
DELETE FROM keyed WHERE id % 4 > 0;
SELECT rows, nearly FROM nearly_same(10);
RESET gpuvec.max_probes;
SELECT * FROM nearly_same(10000);

-- refine records; expressions and a predicate
DROP INDEX keyed_e;
VACUUM keyed;
SELECT add_rows(5001, 8000);
CREATE INDEX keyed_e ON keyed USING gpuivfpq (e, tenant, name, tags, doc, color, price) WITH (lists = 40, refine = sq8);
DELETE FROM keyed WHERE id % 8 = 1;
SELECT * FROM nearly_same(10);
SET gpuvec.max_probes = 1000;
SELECT rows, nearly FROM nearly_same(10);
RESET gpuvec.max_probes;
DROP INDEX keyed_e;
CREATE INDEX keyed_e ON keyed USING gpuivfpq ((e[1:8]), tenant, name, tags, doc, color, (price + 0)) WITH (lists = 40, dims = 8) WHERE id > 0;
SELECT * FROM nearly_same(10);
SET gpuvec.max_probes = 1000;
SELECT rows, nearly FROM nearly_same(10);
RESET gpuvec.max_probes;

-- nothing in, nothing out
SELECT * FROM gpuvec_search('keyed_e', '{}', 3, 1);
SELECT * FROM gpuvec_search('keyed_e', NULL, 3, 1);
SELECT * FROM gpuvec_search(NULL, '{1}', 3, 1);
SELECT * FROM gpuvec_search('keyed_e', '{1}', NULL, 1);

-- errors
\set VERBOSITY default
SELECT * FROM gpuvec_search('keyed_e', '{1,2}', 3, 1);
SELECT * FROM gpuvec_search('keyed_e', all_asked(), 3, 'x');
SELECT * FROM gpuvec_search('keyed_e', all_asked(), 3, 1.5);
SELECT * FROM gpuvec_search('keyed_e', all_asked(), 3, NULL, NULL, 'a3');
SELECT * FROM gpuvec_search('keyed_e', all_asked(), 3, 1, 2, '{3}', 4, 'red', 6, 7);
CREATE INDEX keyed_none ON keyed USING gpuivfpq (e) WITH (lists = 4);
SELECT * FROM gpuvec_search('keyed_none', all_asked(), 3, 1);

-- rights: a key's column is one of the index's
CREATE ROLE regress_search_keys;
GRANT SELECT ON asked TO regress_search_keys;
GRANT SELECT (e) ON keyed TO regress_search_keys;
DROP INDEX keyed_e;
CREATE INDEX keyed_e ON keyed USING gpuivfpq (e, tenant) WITH (lists = 4);
SET ROLE regress_search_keys;
SELECT count(*) FROM gpuvec_search('keyed_e', all_asked(), 1, 3);
RESET ROLE;
GRANT SELECT (tenant) ON keyed TO regress_search_keys;
SET ROLE regress_search_keys;
SELECT count(*) FROM gpuvec_search('keyed_e', all_asked(), 1, 3);
RESET ROLE;

DROP TABLE keyed, asked, conditions;
DROP FUNCTION add_rows, all_asked, differ, nearly_same;
DROP DOMAIN tenant;
DROP TYPE color;
DROP ROLE regress_search_keys;
