-- distances that no node reads are not computed
\getenv srcdir PG_ABS_SRCDIR
\i :srcdir/sql/include/prologue.sql
\i :srcdir/sql/include/counted.sql

CREATE TABLE places (id int PRIMARY KEY, kind int, e real[]) WITH (autovacuum_enabled = off);
INSERT INTO places SELECT g, g % 7, ARRAY[g % 10, g / 100.0, sin(g), cos(g)] FROM generate_series(1, 2000) AS g;
CREATE TABLE notes (id int PRIMARY KEY, note text);
INSERT INTO notes SELECT g, 'note ' || g FROM generate_series(1, 2000) AS g;
CREATE TABLE marks (id int, mark text);
ANALYZE places, notes;

CREATE INDEX places_e ON places USING gpuivfpq (e) WITH (lists = 20);
CREATE INDEX places_counted ON places USING gpuivfpq (e counted_ops) WITH (lists = 20);

-- nodes of a plan, with what joins and the index scans that matter give out
CREATE FUNCTION pg_temp.plan(statement text) RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE
	line text;
	scan bool = false;
BEGIN
	FOR line IN EXECUTE 'EXPLAIN (VERBOSE, COSTS OFF) ' || statement LOOP
		-- PostgreSQL 19 names subqueries otherwise
		line = regexp_replace(line, '"\*SELECT\*.*"|unnamed_subquery(_\d)?', 'a query');
		IF line ~ '^( *->|[^ ])' THEN
			scan = line ~ 'Nested Loop|Index Scan using .* on public.(places|parts|spots)';
			RETURN NEXT line;
		ELSIF scan AND line ~ 'Output:' THEN
			RETURN NEXT line;
		END IF;
	END LOOP;
END
$$;

\set near 'SELECT id FROM places ORDER BY e <~> ''{1,2,3,4}'' LIMIT 5'

-- at the top
SELECT pg_temp.plan(:'near');
SELECT pg_temp.more_calls(:'near');
:near;
SELECT pg_temp.plan('SELECT * FROM places WHERE kind < 3 ORDER BY e <~> ''{1,2,3,4}'' LIMIT 4 OFFSET 3');
SELECT pg_temp.more_calls('SELECT * FROM places WHERE kind < 3 ORDER BY e <~> ''{1,2,3,4}'' LIMIT 4 OFFSET 3');
SELECT id, kind FROM places WHERE kind < 3 ORDER BY e <~> '{1,2,3,4}' LIMIT 4 OFFSET 3;
SELECT pg_temp.plan('CREATE TABLE nearest AS ' || :'near');
SELECT pg_temp.plan('DECLARE c SCROLL CURSOR FOR SELECT id FROM places ORDER BY e <~> ''{1,2,3,4}''');
-- one that is selected, too, is another column
SELECT pg_temp.plan('SELECT id, (e <~> ''{1,2,3,4}'') * 2 AS d FROM places ORDER BY e <~> ''{1,2,3,4}'' LIMIT 5');

-- sub-selects: with a node of their own, or directly below what reads them
SELECT pg_temp.plan('SELECT id + 1 FROM (' || :'near' || ') AS n WHERE id > 100');
SELECT id + 1 FROM (:near) AS n WHERE id > 100;
SELECT pg_temp.plan('SELECT row_to_json(n) FROM (' || :'near' || ') AS n');
SELECT row_to_json(n) FROM (:near) AS n;
SELECT pg_temp.plan('SELECT count(*) FROM (' || :'near' || ') AS n');
SELECT count(*) FROM (:near) AS n;
SELECT pg_temp.plan('SELECT count(*) FROM (' || :'near' || ') AS n WHERE random() >= 0');
SELECT pg_temp.more_calls('SELECT count(*) FROM (' || :'near' || ') AS n WHERE random() >= 0');
SELECT pg_temp.plan('SELECT note FROM (' || :'near' || ') AS n JOIN notes USING (id)');
SELECT pg_temp.more_calls('SELECT note FROM (' || :'near' || ') AS n JOIN notes USING (id)');
SELECT note FROM (:near) AS n JOIN notes USING (id);
SET enable_nestloop = off;
SET enable_mergejoin = off;
SELECT pg_temp.plan('SELECT note FROM (SELECT id FROM places ORDER BY e <~> ''{1,2,3,4}'') AS n LEFT JOIN notes ON notes.id = n.id + 1');
SELECT note FROM (:near) AS n LEFT JOIN notes ON notes.id = n.id + 1 ORDER BY note;
RESET enable_nestloop;
RESET enable_mergejoin;
SELECT trim(plan) AS plan FROM pg_temp.plan('SELECT note FROM notes WHERE id IN (' || :'near' || ')') AS plan WHERE plan ~ 'Limit|places';
SELECT note FROM notes WHERE id IN (:near) ORDER BY note;
SELECT pg_temp.plan('(' || :'near' || ') UNION ALL (SELECT id FROM places ORDER BY e <~> ''{5,5,0,0}'' LIMIT 2)');
(:near) UNION ALL (SELECT id FROM places ORDER BY e <~> '{5,5,0,0}' LIMIT 2);
SELECT pg_temp.plan('SELECT m.id, n.id FROM generate_series(1, 3) AS m (id),
	LATERAL (SELECT id FROM places ORDER BY e <~> ARRAY[m.id, 2, 3, 4]::real[] LIMIT 2) AS n');
SELECT m.id, n.id FROM generate_series(1, 3) AS m (id),
	LATERAL (SELECT id FROM places ORDER BY e <~> ARRAY[m.id, 2, 3, 4]::real[] LIMIT 2) AS n;
SELECT pg_temp.plan('INSERT INTO marks SELECT id FROM places ORDER BY e <~> ''{1,2,3,4}'' LIMIT 2');
INSERT INTO marks SELECT id FROM places ORDER BY e <~> '{1,2,3,4}' LIMIT 2;
SELECT * FROM marks;

-- joins below the same LIMIT
SELECT pg_temp.plan('SELECT note FROM places JOIN notes ON notes.id = kind ORDER BY e <~> ''{1,2,3,4}'' LIMIT 5');
SELECT pg_temp.more_calls('SELECT note FROM places JOIN notes ON notes.id = kind ORDER BY e <~> ''{1,2,3,4}'' LIMIT 5');
SELECT note FROM places JOIN notes ON notes.id = kind ORDER BY e <~> '{1,2,3,4}' LIMIT 5;
SELECT pg_temp.more_calls('SELECT n.note, m.note FROM places JOIN notes AS n ON n.id = kind
	LEFT JOIN notes AS m ON m.id = kind + 1 ORDER BY e <~> ''{1,2,3,4}'' LIMIT 5');
SELECT n.note, m.note FROM places JOIN notes AS n ON n.id = kind
	LEFT JOIN notes AS m ON m.id = kind + 1 ORDER BY e <~> '{1,2,3,4}' LIMIT 5;
SELECT pg_temp.more_calls('SELECT note, e <~> ''{1,2,3,4}'' AS d FROM places JOIN notes ON notes.id = kind ORDER BY d LIMIT 5');
SELECT pg_temp.more_calls('SELECT note FROM places JOIN notes ON notes.id = kind
	ORDER BY e <~> ''{1,2,3,4}'' FETCH FIRST 5 ROWS WITH TIES') > 0 AS kept;

-- sub-selects in expressions, and common table expressions
SELECT pg_temp.plan('SELECT ARRAY(' || :'near' || ')');
SELECT pg_temp.more_calls('SELECT ARRAY(' || :'near' || ')');
SELECT ARRAY(:near);
SELECT pg_temp.plan('SELECT note, (SELECT id FROM places ORDER BY e <~> ARRAY[notes.id, 2, 3, 4]::real[] LIMIT 1) FROM notes');
SELECT note, (SELECT id FROM places ORDER BY e <~> ARRAY[notes.id, 2, 3, 4]::real[] LIMIT 1) FROM notes WHERE id < 4;
SELECT trim(plan) AS plan FROM pg_temp.plan('SELECT note FROM notes WHERE id NOT IN (' || :'near' || ')') AS plan WHERE plan ~ 'Limit|places';
SELECT count(*) FROM notes WHERE id NOT IN (:near);
SELECT pg_temp.plan('WITH n AS MATERIALIZED (' || :'near' || ') SELECT n, note FROM n JOIN notes USING (id)');
WITH n AS MATERIALIZED (:near) SELECT n, note FROM n JOIN notes USING (id);
WITH n AS MATERIALIZED (:near) UPDATE marks SET mark = note FROM n JOIN notes USING (id)
WHERE marks.id = n.id RETURNING marks.*;

-- read: selected, compared, locked, sorted
SELECT pg_temp.plan('SELECT id, e <~> ''{1,2,3,4}'' AS d FROM places ORDER BY d LIMIT 5');
SELECT pg_temp.more_calls('SELECT id, e <~> ''{1,2,3,4}'' AS d FROM places ORDER BY d LIMIT 5');
SELECT id, round((e <~> '{1,2,3,4}')::numeric, 3) AS d FROM places ORDER BY e <~> '{1,2,3,4}' LIMIT 5;
SELECT pg_temp.plan('SELECT id FROM places ORDER BY e <~> ''{1,2,3,4}'' FETCH FIRST 5 ROWS WITH TIES');
SELECT pg_temp.plan('SELECT * FROM (SELECT id FROM places ORDER BY e <~> ''{1,2,3,4}'' FETCH FIRST 5 ROWS WITH TIES) AS n WHERE id > 100');
SELECT id FROM places ORDER BY e <~> '{1,2,3,4}' FETCH FIRST 5 ROWS WITH TIES;
SELECT pg_temp.plan('SELECT id FROM places ORDER BY e <~> ''{1,2,3,4}'' LIMIT 5 FOR UPDATE');
SELECT id FROM places ORDER BY e <~> '{1,2,3,4}' LIMIT 5 FOR UPDATE;
SELECT pg_temp.plan('SELECT DISTINCT ON (e <~> ''{1,2,3,4}'') id FROM places ORDER BY e <~> ''{1,2,3,4}'' LIMIT 5');
SELECT DISTINCT ON (e <~> '{1,2,3,4}') id FROM places ORDER BY e <~> '{1,2,3,4}' LIMIT 5;
SELECT pg_temp.plan('SELECT id, rank() OVER (ORDER BY e <~> ''{1,2,3,4}'') FROM places ORDER BY e <~> ''{1,2,3,4}'' LIMIT 3');
SELECT id, rank() OVER (ORDER BY e <~> '{1,2,3,4}') FROM places ORDER BY e <~> '{1,2,3,4}' LIMIT 3;
SELECT pg_temp.more_calls('SELECT id FROM places ORDER BY e <~> ''{1,2,3,4}'', id LIMIT 5') > 0 AS kept;
SELECT id FROM places ORDER BY e <~> '{1,2,3,4}', id LIMIT 5;

-- partitions are merged by distance; one that is left alone is not
CREATE TABLE parts (id int, kind int, e real[]) PARTITION BY LIST (kind);
CREATE TABLE parts_0 PARTITION OF parts FOR VALUES IN (0, 1, 2);
CREATE TABLE parts_1 PARTITION OF parts FOR VALUES IN (3, 4, 5, 6);
INSERT INTO parts SELECT * FROM places;
CREATE INDEX ON parts USING gpuivfpq (e) WITH (lists = 10);
ANALYZE parts;
SELECT pg_temp.plan('SELECT id FROM parts ORDER BY e <-> ''{1,2,3,4}'' LIMIT 5');
SELECT id FROM parts ORDER BY e <-> '{1,2,3,4}' LIMIT 5;
SELECT pg_temp.plan('SELECT n.id FROM (SELECT id FROM parts ORDER BY e <-> ''{1,2,3,4}'' LIMIT 5) AS n WHERE id > 100');
SELECT pg_temp.plan('SELECT id FROM parts WHERE kind = 2 ORDER BY e <-> ''{1,2,3,4}'' LIMIT 5');
SELECT id FROM parts WHERE kind = 2 ORDER BY e <-> '{1,2,3,4}' LIMIT 5;
DROP TABLE parts;

-- another access method's
CREATE TABLE spots (id int, p point);
INSERT INTO spots SELECT g, point(g, g) FROM generate_series(1, 100) AS g;
CREATE INDEX ON spots USING gist (p);
SELECT pg_temp.plan('SELECT id FROM spots ORDER BY p <-> point(7, 8) LIMIT 2');
SELECT id FROM spots ORDER BY p <-> point(7, 8) LIMIT 2;
DROP TABLE spots;

-- plans that are kept
SET plan_cache_mode = force_generic_plan;
PREPARE nearest(real[], int) AS SELECT id FROM places ORDER BY e <~> $1 LIMIT $2;
SELECT pg_temp.plan('EXECUTE nearest(''{1,2,3,4}'', 5)');
EXECUTE nearest('{1,2,3,4}', 5);
EXECUTE nearest('{5,5,0,0}', 2);
EXECUTE nearest(NULL, 0);
SELECT pg_temp.more_calls('EXECUTE nearest(''{5,5,0,0}'', 7)');
DROP INDEX places_counted;
EXECUTE nearest('{5,5,0,0}', 2);
CREATE INDEX places_counted ON places USING gpuivfpq (e counted_ops) WITH (lists = 20);
EXECUTE nearest('{5,5,0,0}', 2);
SELECT pg_temp.more_calls('EXECUTE nearest(''{5,5,0,0}'', 7)');
DEALLOCATE nearest;
RESET plan_cache_mode;

-- cursors, functions, COPY
BEGIN;
DECLARE c SCROLL CURSOR WITH HOLD FOR :near;
FETCH 3 FROM c;
FETCH BACKWARD 2 FROM c;
COMMIT;
FETCH ALL FROM c;
CLOSE c;
BEGIN;
DECLARE c CURSOR FOR SELECT id FROM places ORDER BY e <~> '{1,2,3,4}';
FETCH 2 FROM c;
UPDATE places SET kind = 100 WHERE CURRENT OF c;
SELECT id FROM places WHERE kind = 100;
ROLLBACK;
CREATE FUNCTION nearest_id(real[]) RETURNS int LANGUAGE sql VOLATILE AS
	'SELECT id FROM places ORDER BY e <~> $1 LIMIT 1';
CREATE FUNCTION nearest_rows(real[], int) RETURNS SETOF places LANGUAGE sql VOLATILE AS
	'SELECT * FROM places ORDER BY e <~> $1 LIMIT $2';
SELECT nearest_id('{1,2,3,4}'), (nearest_rows('{1,2,3,4}', 2)).id;
SELECT id, kind FROM nearest_rows('{1,2,3,4}', 2);
COPY (SELECT id, kind FROM places ORDER BY e <~> '{1,2,3,4}' LIMIT 2) TO STDOUT;
DROP FUNCTION nearest_id, nearest_rows;

DROP TABLE places, notes, marks;
DROP OPERATOR CLASS counted_ops USING gpuivfpq;
DROP OPERATOR FAMILY counted_ops USING gpuivfpq;
DROP OPERATOR <~> (real[], real[]);
DROP FUNCTION counted_distance;
DROP SEQUENCE calls;
