-- what the planner chooses when it may choose
\getenv srcdir PG_ABS_SRCDIR
\i :srcdir/sql/include/prologue.sql
RESET enable_seqscan;
SET max_parallel_workers_per_gather = 0;

-- the first node that reads the table
CREATE FUNCTION pg_temp.chosen(query text) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
	line text;
BEGIN
	FOR line IN EXECUTE 'EXPLAIN (COSTS OFF) ' || query LOOP
		IF line ~ 'Scan' THEN
			RETURN regexp_replace(line, '^[ >-]*', '');
		END IF;
	END LOOP;
	RETURN 'none';
END
$$;

-- 384 dimensions: rows fill pages of the table itself
CREATE TABLE priced (id int PRIMARY KEY, kind int, e real[]) WITH (autovacuum_enabled = off);
ALTER TABLE priced ALTER e SET STORAGE PLAIN;
INSERT INTO priced SELECT g, g % 50, array_fill(sin(g)::real, ARRAY[384]) || cos(g)::real
FROM generate_series(1, 4000) AS g;
CREATE INDEX priced_e ON priced USING gpuivfpq (e) WITH (lists = 50);
CREATE INDEX priced_kind ON priced (kind);
VACUUM ANALYZE priced;
SELECT e AS q FROM priced WHERE id = 1 \gset

SELECT pg_temp.chosen(format('SELECT id FROM priced ORDER BY e <-> %L LIMIT 10', :'q'));
SELECT pg_temp.chosen(format('SELECT id FROM priced ORDER BY e <-> %L LIMIT 100', :'q'));
-- the whole table
SELECT pg_temp.chosen(format('SELECT id FROM priced ORDER BY e <-> %L', :'q'));
SELECT pg_temp.chosen(format('SELECT id FROM priced ORDER BY e <-> %L LIMIT 4000', :'q'));
-- another operator, no order
SELECT pg_temp.chosen(format('SELECT id FROM priced ORDER BY e <=> %L LIMIT 10', :'q'));
SELECT pg_temp.chosen(format('SELECT id FROM priced WHERE e <-> %L < 1 LIMIT 10', :'q'));
-- filters: one that leaves much, one that leaves little and has an index
SELECT pg_temp.chosen(format('SELECT id FROM priced WHERE kind < 40 ORDER BY e <-> %L LIMIT 10', :'q'));
SELECT pg_temp.chosen(format('SELECT id FROM priced WHERE id = 17 ORDER BY e <-> %L LIMIT 10', :'q'));
SELECT pg_temp.chosen(format('SELECT id FROM priced WHERE kind = 17 AND id < 100 ORDER BY e <-> %L LIMIT 10', :'q'));
-- more work makes it dearer
SET gpuvec.candidates = 100000;
SELECT pg_temp.chosen(format('SELECT id FROM priced ORDER BY e <-> %L LIMIT 10', :'q'));
RESET gpuvec.candidates;

-- many rows that wait: each is a heap fetch
INSERT INTO priced SELECT g, g % 50, array_fill(sin(g)::real, ARRAY[384]) || cos(g)::real
FROM generate_series(5001, 5100) AS g;
VACUUM ANALYZE priced;
SELECT pg_temp.chosen(format('SELECT id FROM priced ORDER BY e <-> %L LIMIT 10', :'q'));
CREATE TABLE late (LIKE priced) WITH (autovacuum_enabled = off);
CREATE INDEX late_e ON late USING gpuivfpq (e);
INSERT INTO late SELECT * FROM priced;
VACUUM ANALYZE late;
SELECT pg_temp.chosen(format('SELECT id FROM late ORDER BY e <-> %L LIMIT 10', :'q'));
DROP TABLE late;

-- of two indexes the cheaper
ALTER INDEX priced_e SET (candidates = 40);
CREATE INDEX priced_many ON priced USING gpuivfpq (e) WITH (lists = 50, candidates = 4000);
SELECT pg_temp.chosen(format('SELECT id FROM priced ORDER BY e <-> %L LIMIT 10', :'q'));
-- a partial index where its predicate holds
DROP INDEX priced_kind;
CREATE INDEX priced_kind7 ON priced USING gpuivfpq (e) WITH (lists = 5, candidates = 30) WHERE kind = 7;
SELECT pg_temp.chosen(format('SELECT id FROM priced WHERE kind = 7 ORDER BY e <-> %L LIMIT 5', :'q'));
DROP TABLE priced;

-- 1,536 dimensions: rows lie out of line
CREATE TABLE toasted (id int, e real[]) WITH (autovacuum_enabled = off);
ALTER TABLE toasted ALTER e SET STORAGE EXTERNAL;
INSERT INTO toasted SELECT g, array_fill(sin(g)::real, ARRAY[1535]) || cos(g)::real
FROM generate_series(1, 1000) AS g;
CREATE INDEX toasted_e ON toasted USING gpuivfpq (e) WITH (lists = 30);
VACUUM ANALYZE toasted;
SELECT e AS q FROM toasted WHERE id = 1 \gset
SELECT pg_temp.chosen(format('SELECT id FROM toasted ORDER BY e <-> %L LIMIT 10', :'q'));
-- ... the same before VACUUM has looked at the pages out of line; those of temporary tables it never does by itself
CREATE TEMP TABLE fresh (LIKE toasted INCLUDING STORAGE);
INSERT INTO fresh SELECT * FROM toasted;
CREATE INDEX fresh_e ON fresh USING gpuivfpq (e) WITH (lists = 30);
ANALYZE fresh;
SELECT pg_temp.chosen(format('SELECT id FROM fresh ORDER BY e <-> %L LIMIT 10', :'q'));
DROP TABLE toasted, fresh;

-- a small table
CREATE TABLE little (id int, e real[]);
INSERT INTO little SELECT g, ARRAY[g, 1, 2] FROM generate_series(1, 100) AS g;
CREATE INDEX little_e ON little USING gpuivfpq (e);
ANALYZE little;
SELECT pg_temp.chosen('SELECT id FROM little ORDER BY e <-> ''{1,1,1}'' LIMIT 5');
-- an empty one, whatever it chooses
TRUNCATE little;
SELECT id FROM little ORDER BY e <-> '{1,1,1}' LIMIT 5;
DROP TABLE little;
