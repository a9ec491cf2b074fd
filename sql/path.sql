-- the smoothest path between two keys of a graph
\getenv srcdir PG_ABS_SRCDIR
\i :srcdir/sql/include/prologue.sql
RESET client_min_messages;

-- 1 - 2 - 3 - 6 has steps of 3 at most, 1 - 6 and 1 - 4 - 6 longer ones; the
-- edges 3 - 2 and 6 - 3 are there from their other ends only
CREATE TABLE graph (key bigint, neighbor bigint, distance float8);
INSERT INTO graph VALUES (1, 2, 1), (3, 2, 3), (6, 3, 2), (1, 6, 9),
	(1, 4, 0.5), (4, 6, 3.5), (7, 8, 1);
SELECT * FROM gpuvec_smoothest_path('graph', 1, 6);
SELECT * FROM gpuvec_smoothest_path('graph', 6, 1);
SELECT step, key FROM gpuvec_smoothest_path(target => 4, source => 3,
	graph => 'graph');

-- from a key to itself; no path
SELECT * FROM gpuvec_smoothest_path('graph', 8, 8);
SELECT * FROM gpuvec_smoothest_path('graph', 1, 7);
SELECT * FROM gpuvec_smoothest_path('graph', NULL, 7);
SELECT * FROM gpuvec_smoothest_path('graph', 1, NULL);
SELECT * FROM gpuvec_smoothest_path(NULL, 1, 6);

-- a key that is nowhere
SELECT * FROM gpuvec_smoothest_path('graph', 1, 5);
SELECT * FROM gpuvec_smoothest_path('graph', -9223372036854775808, 6);
SELECT * FROM gpuvec_smoothest_path('graph', 5, 5);

-- the fewest steps as long as the largest stays: with an edge of 3 from 1 to 3
-- that is two; then the smallest keys, and they are compared as numbers
INSERT INTO graph VALUES (3, 1, 3);
SELECT * FROM gpuvec_smoothest_path('graph', 1, 6);
INSERT INTO graph VALUES (10, 1, 3), (6, 10, 3), (-5, 1, 3), (6, -5, 3);
SELECT * FROM gpuvec_smoothest_path('graph', 1, 6);
SELECT * FROM gpuvec_smoothest_path('graph', 6, 1);

-- of two edges the shorter one; of a key with itself none
INSERT INTO graph VALUES (-5, 1, 2.5), (1, -5, 2.75), (1, -5, 8), (1, 1, 0),
	(11, 11, 0);
SELECT * FROM gpuvec_smoothest_path('graph', 1, 6);
SELECT * FROM gpuvec_smoothest_path('graph', 11, 11);
SELECT * FROM gpuvec_smoothest_path('graph', 11, 1);

-- a NULL makes no edge, and no key
INSERT INTO graph VALUES (20, NULL, 1);
SELECT * FROM gpuvec_smoothest_path('graph', 1, 2);
INSERT INTO graph VALUES (NULL, 20, 1), (20, 1, NULL);
SELECT * FROM gpuvec_smoothest_path('graph', 1, 2);
SELECT * FROM gpuvec_smoothest_path('graph', 1, 20);

-- -Infinity first, zeros of both signs alike, Infinity and then NaN last
TRUNCATE graph;
INSERT INTO graph VALUES (1, 2, '-Infinity'), (2, 3, '-0'), (3, 1, 0),
	(3, 4, -1), (4, 5, 'Infinity'), (4, 6, 'NaN'), (6, 5, 1), (5, 7, 'NaN'),
	(4, 7, 'NaN');
SELECT * FROM gpuvec_smoothest_path('graph', 2, 4);
SELECT * FROM gpuvec_smoothest_path('graph', 1, 4);
SELECT * FROM gpuvec_smoothest_path('graph', 1, 6);
SELECT * FROM gpuvec_smoothest_path('graph', 1, 7);

-- the same in arrays; a key without neighbors; a row whose arrays have a NULL
CREATE TABLE arrays AS
SELECT key::int, array_agg(neighbor::smallint) AS neighbors,
	array_agg(distance::real) AS distances
FROM graph GROUP BY key;
INSERT INTO arrays VALUES (8, '{}', '{}'), (9, '{1,NULL}', '{1,2}'),
	(9, '{1,2}', '{1,NULL}'), (9, '{1}', NULL);
SELECT * FROM gpuvec_smoothest_path('arrays', 2, 4);
SELECT * FROM gpuvec_smoothest_path('arrays', 1, 7);
SELECT * FROM gpuvec_smoothest_path('arrays', 8, 8);
SELECT * FROM gpuvec_smoothest_path('arrays', 8, 1);
SELECT * FROM gpuvec_smoothest_path('arrays', 9, 1);
INSERT INTO arrays VALUES (9, '{1,2}', '{1}');
SELECT * FROM gpuvec_smoothest_path('arrays', 9, 1);
ALTER TABLE arrays ALTER neighbors TYPE text[];
SELECT * FROM gpuvec_smoothest_path('arrays', 9, 1);
ALTER TABLE arrays DROP neighbors, ADD neighbors int[],
	DROP distances, ADD distances int[];
SELECT * FROM gpuvec_smoothest_path('arrays', 9, 1);
ALTER TABLE arrays DROP distances, ADD distances real;
SELECT * FROM gpuvec_smoothest_path('arrays', 9, 1);
ALTER TABLE arrays DROP distances;
SELECT * FROM gpuvec_smoothest_path('arrays', 9, 1);
DROP TABLE arrays;

-- other integers, real, columns in another order, dropped ones, domains, a
-- materialized view; a row that is not there any more
CREATE DOMAIN length AS real CHECK (VALUE >= 0);
CREATE TABLE small (distance length, gone int, neighbor smallint, note text,
	key int);
ALTER TABLE small DROP COLUMN gone;
INSERT INTO small VALUES (0.25, -3, 'x', 70000), (0.5, -3, NULL, 9),
	(0.125, 9, 'y', 70000);
DELETE FROM small WHERE note = 'y';
SELECT * FROM gpuvec_smoothest_path('small', 70000, 9);
CREATE MATERIALIZED VIEW seen AS SELECT key, neighbor, distance FROM small
WITH NO DATA;
SELECT * FROM gpuvec_smoothest_path('seen', 70000, 9);
REFRESH MATERIALIZED VIEW seen;
SELECT * FROM gpuvec_smoothest_path('seen', 70000, 9);
CREATE TEMP TABLE nothing (key int, neighbor int, distance real);
SELECT * FROM gpuvec_smoothest_path('nothing', 1, 2);

-- as the definition says: of all ways from a to b without a key twice, the
-- first by largest step, number of steps, keys; in arrays, too, where half of
-- the keys are negative
CREATE TABLE random_graph (number int, key int, neighbor int, distance real);
INSERT INTO random_graph
SELECT number, abs(hashint4(number * 100 + i)) % 9,
	abs(hashint4(number * 100 + i + 50)) % 9,
	CASE WHEN hashint4(number * 100 - i) % 31 = 0 THEN 'NaN'::real
	ELSE abs(hashint4(number * 100 - i)) % (1 + number % 7) - 2 END
FROM generate_series(11, 25) AS number, generate_series(1, 16) AS i;
CREATE TABLE one (key int, neighbor int, distance real);
CREATE TABLE same (key int, neighbors int[], distances real[]);
CREATE FUNCTION by_definition(source int, target int)
RETURNS TABLE (largest float8, keys bigint[])
LANGUAGE sql AS $$
	WITH RECURSIVE both_ways AS (
		SELECT key, neighbor, min(distance) AS distance
		FROM (SELECT key, neighbor, distance FROM one
			UNION ALL SELECT neighbor, key, distance FROM one) AS e
		GROUP BY key, neighbor),
	way AS (
		SELECT source AS at, '-Infinity'::float8 AS largest,
			ARRAY[source::bigint] AS keys
		UNION ALL
		SELECT e.neighbor, greatest(w.largest, e.distance), keys || e.neighbor
		FROM way AS w JOIN both_ways AS e ON e.key = w.at
		WHERE e.neighbor <> ALL (keys))
	SELECT way.largest, way.keys FROM way WHERE at = target
	ORDER BY way.largest, cardinality(way.keys), way.keys LIMIT 1
$$;
DO $$
DECLARE
	pairs int := 0;
	unconnected int := 0;
	wrong int := 0;
	pair record;
	truth record;
	found record;
	in_arrays bigint[];
BEGIN
	FOR n IN 11 .. 25 LOOP
		TRUNCATE one;
		INSERT INTO one SELECT key, neighbor, distance FROM random_graph
		WHERE number = n;
		TRUNCATE same;
		INSERT INTO same
		SELECT key - 4, array_agg(neighbor - 4), array_agg(distance)
		FROM one GROUP BY key;
		FOR pair IN
			SELECT a.key AS source, b.key AS target
			FROM (SELECT key FROM one UNION SELECT neighbor FROM one) AS a,
				(SELECT key FROM one UNION SELECT neighbor FROM one) AS b
			WHERE (a.key + b.key * 3) % 5 = n % 5
		LOOP
			SELECT INTO truth * FROM by_definition(pair.source, pair.target);
			SELECT INTO found
				coalesce(max(distance), '-Infinity') AS largest,
				array_agg(key ORDER BY step) AS keys
			FROM gpuvec_smoothest_path('one', pair.source, pair.target);
			SELECT INTO in_arrays array_agg(key + 4 ORDER BY step)
			FROM gpuvec_smoothest_path('same', pair.source - 4,
				pair.target - 4);
			pairs := pairs + 1;
			IF truth.keys IS NULL THEN
				unconnected := unconnected + 1;
			END IF;
			IF truth.keys IS DISTINCT FROM found.keys OR
				truth.keys IS DISTINCT FROM in_arrays OR
				truth.largest <> found.largest THEN
				wrong := wrong + 1;
				RAISE NOTICE '%: % not %', n, found, truth;
			END IF;
		END LOOP;
	END LOOP;
	RAISE NOTICE 'at least 200 pairs: %, unconnected ones: %, wrong: %',
		pairs >= 200, unconnected > 0, wrong;
END $$;

-- a grid of 40 x 40: what is reached by edges no longer than the largest step,
-- in so many steps, is not reached in fewer, nor by shorter edges at all
CREATE TABLE grid AS
SELECT key, neighbor, abs(hashint8(key * 2000 + neighbor)) % 100 / 10.0::real
	AS distance
FROM generate_series(0, 1599) AS key,
	LATERAL (VALUES (key + 1), (key + 40)) AS n (neighbor)
WHERE neighbor < 1600 AND (neighbor % 40 <> 0 OR neighbor = key + 40);
CREATE FUNCTION steps_within(source bigint, target bigint, longest float8)
RETURNS int
LANGUAGE plpgsql AS $$
DECLARE
	seen bigint[] := ARRAY[source];
	edge bigint[] := ARRAY[source];
	steps int := 0;
BEGIN
	WHILE edge <> '{}' AND NOT target = ANY (edge) LOOP
		SELECT INTO edge coalesce(array_agg(DISTINCT e.next), '{}')
		FROM (SELECT neighbor AS next FROM grid
			WHERE key = ANY (edge) AND distance <= longest
			UNION SELECT key FROM grid
			WHERE neighbor = ANY (edge) AND distance <= longest) AS e
		WHERE e.next <> ALL (seen);
		seen := seen || edge;
		steps := steps + 1;
	END LOOP;
	RETURN CASE WHEN edge <> '{}' THEN steps END;
END $$;
CREATE INDEX ON grid (key);
CREATE INDEX ON grid (neighbor);
ANALYZE grid;
SELECT count(*) AS pairs, bool_and(
		p.keys[1] = source AND p.keys[steps + 1] = target AND
		steps = steps_within(source, target, largest)) AS fewest_steps,
	count(steps_within(source, target, p.largest - 0.01)) AS by_shorter_edges,
	bool_and(p.edges = steps) AS along_edges
FROM (SELECT abs(hashint4(i)) % 1600 AS source,
		abs(hashint4(-i)) % 1600 AS target FROM generate_series(1, 6) AS i)
		AS pair,
	LATERAL (SELECT max(s.distance) AS largest, max(step) AS steps,
			array_agg(s.key ORDER BY step) AS keys,
			count(g.distance) AS edges
		FROM (SELECT *, lag(key) OVER (ORDER BY step) AS before
			FROM gpuvec_smoothest_path('grid', source, target)) AS s
		LEFT JOIN grid AS g ON g.key = least(s.key, before)
			AND g.neighbor = greatest(s.key, before)
			AND g.distance = s.distance) AS p;

-- the same in buckets on disk, whatever the order of rows: at random; first
-- edges longer than all others, so that one bucket has those and is divided
CREATE TABLE mixed AS SELECT g.* FROM grid AS g, generate_series(1, 20)
ORDER BY hashint8(key * 3000 + neighbor);
CREATE TABLE longer AS
SELECT key, neighbor, distance + 100 AS distance FROM mixed
UNION ALL SELECT * FROM mixed;
CREATE TABLE whole AS
SELECT key, array_agg(neighbor) AS neighbors, array_agg(distance) AS distances
FROM longer GROUP BY key;
SELECT name, count(*) > 1 AS path,
	array_agg(m ORDER BY step) = (SELECT array_agg(g ORDER BY step)
		FROM gpuvec_smoothest_path('grid', 0, 1599) AS g) AS same
FROM unnest('{mixed,longer,whole}'::text[]) AS name,
	gpuvec_smoothest_path(name::regclass, 0, 1599) AS m GROUP BY name;

-- a chain of 100,000 keys, and a statement that is canceled: what is set for its
-- message alone cancels nothing behind it (how soon it ends: test/t/cancel.pl)
CREATE TABLE chain AS
SELECT i AS key, i + 1 AS neighbor, 1.0::real AS distance
FROM generate_series(1, 100000) AS i;
SELECT count(*), sum(key - step), min(distance), max(distance)
FROM gpuvec_smoothest_path('chain', 1, 100001);
INSERT INTO chain VALUES (-1, -2, 5);
SELECT * FROM gpuvec_smoothest_path('chain', 1, -2);
SET LOCAL statement_timeout = '100ms' \;
DO $$
BEGIN
	FOR i IN 1..1000 LOOP
		PERFORM count(*) FROM gpuvec_smoothest_path('chain', 1, 100001);
	END LOOP;
	RAISE NOTICE 'not canceled';
EXCEPTION WHEN query_canceled THEN
	RAISE NOTICE 'canceled';
END $$;

-- rows of the statement's snapshot
BEGIN;
CREATE TABLE growing (key int, neighbor int, distance real);
INSERT INTO growing VALUES (1, 2, 1);
WITH more AS (INSERT INTO growing VALUES (1, 2, 0.5) RETURNING 1)
SELECT p.* FROM more, gpuvec_smoothest_path('growing', 1, 2) AS p;
SELECT * FROM gpuvec_smoothest_path('growing', 1, 2);
ROLLBACK;

-- who may read the three columns may ask
CREATE ROLE regress_gpuvec_path;
CREATE TABLE secret AS SELECT 1 AS key, 2 AS neighbor, 0.5::real AS distance,
	'x' AS other;
SET ROLE regress_gpuvec_path;
SELECT * FROM gpuvec_smoothest_path('secret', 1, 2);
RESET ROLE;
GRANT SELECT (key, neighbor, other) ON secret TO regress_gpuvec_path;
SET ROLE regress_gpuvec_path;
SELECT * FROM gpuvec_smoothest_path('secret', 1, 2);
RESET ROLE;
GRANT SELECT (distance) ON secret TO regress_gpuvec_path;
REVOKE SELECT (other) ON secret FROM regress_gpuvec_path;
SET ROLE regress_gpuvec_path;
SELECT * FROM gpuvec_smoothest_path('secret', 1, 2);
RESET ROLE;

-- row-level security: where it is active for the caller
ALTER TABLE secret ENABLE ROW LEVEL SECURITY;
SELECT * FROM gpuvec_smoothest_path('secret', 1, 2);
SET ROLE regress_gpuvec_path;
SELECT * FROM gpuvec_smoothest_path('secret', 1, 2);
SET row_security = off;
SELECT * FROM gpuvec_smoothest_path('secret', 1, 2);
RESET row_security;
RESET ROLE;

-- what is no graph
CREATE VIEW looked AS SELECT * FROM graph;
SELECT * FROM gpuvec_smoothest_path('looked', 1, 2);
CREATE TABLE parted (key int, neighbor int, distance real)
PARTITION BY LIST (key);
SELECT * FROM gpuvec_smoothest_path('parted', 1, 2);
CREATE FOREIGN DATA WRAPPER path_nowhere;
CREATE SERVER path_server FOREIGN DATA WRAPPER path_nowhere;
CREATE FOREIGN TABLE away (key int, neighbor int, distance real)
SERVER path_server;
SELECT * FROM gpuvec_smoothest_path('away', 1, 2);
CREATE INDEX graph_key ON graph (key);
SELECT * FROM gpuvec_smoothest_path('graph_key', 1, 2);
SELECT * FROM gpuvec_smoothest_path('absent', 1, 2);
SELECT * FROM gpuvec_smoothest_path(0::regclass, 1, 2);
CREATE TABLE shape (key int, "Neighbor" int, distance real);
SELECT * FROM gpuvec_smoothest_path('shape', 1, 2);
ALTER TABLE shape RENAME "Neighbor" TO neighbor;
ALTER TABLE shape ALTER key TYPE text;
SELECT * FROM gpuvec_smoothest_path('shape', 1, 2);
ALTER TABLE shape DROP key, ADD key int, ALTER distance TYPE numeric;
SELECT * FROM gpuvec_smoothest_path('shape', 1, 2);
ALTER TABLE shape ALTER distance TYPE int, ALTER neighbor TYPE float8;
SELECT * FROM gpuvec_smoothest_path('shape', 1, 2);

-- edges in the order of their distances: few temporary files, so they are divided evenly
CREATE TABLE in_order AS SELECT i AS key, i + 1 AS neighbor, i::real AS distance FROM generate_series(1, 400000) AS i;
CREATE VIEW temporary_files AS SELECT temp_files FROM pg_stat_database WHERE datname = current_database();
SELECT pg_stat_force_next_flush();
SELECT temp_files AS before FROM temporary_files \gset
SELECT count(*), max(distance) FROM gpuvec_smoothest_path('in_order', 1, 400001);
SELECT pg_stat_force_next_flush();
SELECT temp_files - :before < 8 AS few FROM temporary_files;

SELECT p.oid::regprocedure, provolatile, proisstrict, proparallel
FROM pg_proc AS p WHERE proname = 'gpuvec_smoothest_path';

SET client_min_messages = warning;
DROP MATERIALIZED VIEW seen;
DROP VIEW looked, temporary_files;
DROP TABLE graph, small, nothing, random_graph, one, same, grid, mixed, longer,
	whole, chain, secret, parted, shape, in_order;
DROP FUNCTION by_definition, steps_within;
DROP DOMAIN length;
DROP FOREIGN DATA WRAPPER path_nowhere CASCADE;
DROP ROLE regress_gpuvec_path;
