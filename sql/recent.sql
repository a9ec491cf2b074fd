-- a session remembers in which buffers it found pages; tables and indexes change below it
\getenv srcdir PG_ABS_SRCDIR
\i :srcdir/sql/include/prologue.sql

CREATE TABLE remembered (id int, e real[]) WITH (autovacuum_enabled = off);
INSERT INTO remembered SELECT g, ARRAY[g % 50, g / 50, 0, 1] FROM generate_series(1, 2000) AS g;
CREATE INDEX remembered_e ON remembered USING gpuivfpq (e) WITH (lists = 20, probes = 20, candidates = 60);

-- the ten nearest, asked for so often that all buffers' usage counts are at their end
CREATE FUNCTION pg_temp.nearest(of regclass) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	found text;
BEGIN
	FOR i IN 1 .. 8 LOOP
		EXECUTE format('SELECT string_agg(id::text, '' '' ORDER BY distance, id) FROM '
			'(SELECT id, e <-> ARRAY[10.1, 20.2, 0, 1]::real[] AS distance FROM %s '
			'ORDER BY e <-> ARRAY[10.1, 20.2, 0, 1]::real[] LIMIT 10) AS x', of) INTO found;
	END LOOP;
	RETURN found;
END
$$;
SELECT pg_temp.nearest('remembered');

-- deleted, and their places taken by others
DELETE FROM remembered WHERE id IN (1010, 1011, 960);
SELECT pg_temp.nearest('remembered');
VACUUM remembered;
INSERT INTO remembered VALUES (3000, ARRAY[10.1, 20.2, 0, 1]), (3001, ARRAY[500, 500, 0, 1]);
SELECT pg_temp.nearest('remembered');

-- other files
REINDEX INDEX remembered_e;
SELECT pg_temp.nearest('remembered');
VACUUM FULL remembered;
SELECT pg_temp.nearest('remembered');
DELETE FROM remembered WHERE id > 1000;
VACUUM FULL remembered;
SELECT pg_temp.nearest('remembered');
TRUNCATE remembered;
INSERT INTO remembered SELECT g, ARRAY[g % 50, g / 50, 0, 1] FROM generate_series(5001, 7000) AS g;
SELECT pg_temp.nearest('remembered');

-- a table cut short
DELETE FROM remembered WHERE id > 5500;
SELECT pg_temp.nearest('remembered');
VACUUM remembered;
SELECT pg_temp.nearest('remembered');

-- local buffers
CREATE TEMP TABLE mine AS SELECT id, e FROM remembered;
CREATE INDEX mine_e ON mine USING gpuivfpq (e) WITH (lists = 5, probes = 5, train_rows = 100);
SELECT pg_temp.nearest('mine');
TRUNCATE mine;
INSERT INTO mine SELECT g, ARRAY[g % 50, g / 50, 0, 1] FROM generate_series(1, 2000) AS g;
SELECT pg_temp.nearest('mine');

-- reads from shared buffers are counted as ever
SELECT pg_stat_force_next_flush();
SELECT heap_blks_hit AS hit FROM pg_statio_all_tables WHERE relname = 'remembered' \gset
SELECT pg_temp.nearest('remembered') IS NOT NULL AS found;
SELECT pg_stat_force_next_flush();
SELECT heap_blks_hit - :hit > 8 AS counted FROM pg_statio_all_tables WHERE relname = 'remembered';

DROP TABLE remembered, mine;
