-- gpuvec_recall: what it measures, and for whom.
\getenv srcdir PG_ABS_SRCDIR
\i :srcdir/sql/include/prologue.sql

-- all lists with enough candidates find everything, one list does not
CREATE TABLE items (id int, v real[]);
INSERT INTO items SELECT i, pg_temp.wave(i, 16) FROM generate_series(1, 3000) i;
CREATE INDEX items_v ON items USING gpuivfpq (v) WITH (lists = 50, pq_dim = 4);
SET gpuvec.probes = 50;
SET gpuvec.candidates = 3000;
SELECT recall, round(low::numeric, 4) AS low, high
FROM gpuvec_recall('items_v');
SELECT recall, round(low::numeric, 4) AS low, high
FROM gpuvec_recall('items_v', 1, 10);
SELECT recall FROM gpuvec_recall('items_v', k => 50, samples => 20);
SET gpuvec.probes = 1;
SET gpuvec.max_probes = 1;
SELECT recall > 0 AND recall < 1 AS partly,
	0 <= low AND low < recall AND recall < high AND high <= 1 AS within
FROM gpuvec_recall('items_v');
SET gpuvec.candidates = 1;
SELECT recall FROM gpuvec_recall('items_v', 1, 600) \gset one_
SET gpuvec.candidates = 100;
SELECT recall > :one_recall AS better FROM gpuvec_recall('items_v', 1, 600);
RESET gpuvec.probes;
RESET gpuvec.max_probes;
RESET gpuvec.candidates;

-- defaults
SELECT recall > 0.9 AS good FROM gpuvec_recall('items_v');

-- queries that do not fit into memory together
SET work_mem = '64kB';
SET gpuvec.probes = 50;
SELECT recall > 0.9 AS good FROM gpuvec_recall('items_v', 100, 90);
RESET gpuvec.probes;
RESET work_mem;

-- queries that are given: an array, a table and its column
CREATE TABLE asked (id int, v real[], wide float8[], lit text);
INSERT INTO asked SELECT i, w, w, w::text
FROM generate_series(5001, 5040) i, pg_temp.wave(i, 16) w;
SET gpuvec.probes = 50;
SET gpuvec.candidates = 3000;
SELECT recall, high FROM gpuvec_recall('items_v', queries => ARRAY(SELECT v FROM asked));
SELECT recall, high FROM gpuvec_recall('items_v', k => 5, queries_table => 'asked', queries_column => 'v');
SELECT recall FROM gpuvec_recall('items_v', queries_table => 'asked', queries_column => 'wide');
SELECT recall FROM gpuvec_recall('items_v', queries_table => 'asked', queries_column => 'lit');
SELECT recall FROM gpuvec_recall('items_v', queries => pg_temp.wave(7, 16));
-- ... a row counts in its own answer: it is the nearest
SET gpuvec.probes = 1;
SET gpuvec.max_probes = 1;
SELECT recall FROM gpuvec_recall('items_v', 1, queries => ARRAY(SELECT v FROM items WHERE id % 100 = 0));
SELECT recall < 1 AS partly FROM gpuvec_recall('items_v', 100, queries => ARRAY(SELECT v FROM asked));
RESET gpuvec.max_probes;
-- ... in more than one batch; as many as samples says
SET gpuvec.probes = 50;
SET work_mem = '64kB';
SELECT recall FROM gpuvec_recall('items_v', 300, queries => ARRAY(SELECT v FROM asked));
RESET work_mem;
SELECT count(*) FROM gpuvec_recall('items_v', samples => 1, queries_table => 'asked', queries_column => 'v')
WHERE recall = 1 AND low < 0.3;
-- ... in a view, through which the row of another length does not come
INSERT INTO asked VALUES (0, '{1,2}'), (0, NULL);
CREATE VIEW some_asked AS SELECT v FROM asked WHERE id > 5020;
SELECT recall FROM gpuvec_recall('items_v', queries_table => 'some_asked', queries_column => 'v');
SELECT * FROM gpuvec_recall('items_v', queries_table => 'asked', queries_column => 'v');
SELECT * FROM gpuvec_recall('items_v', queries => '{1,2}');
SELECT * FROM gpuvec_recall('items_v', queries => '{}');
SELECT * FROM gpuvec_recall('items_v', queries => '{{{1}}}');
SELECT * FROM gpuvec_recall('items_v', queries => '{{1,NULL}}');
SELECT * FROM gpuvec_recall('items_v', queries => '{{1,NaN}}');
SELECT * FROM gpuvec_recall('items_v', queries => '{1}', queries_table => 'asked', queries_column => 'v');
SELECT * FROM gpuvec_recall('items_v', queries_table => 'asked');
SELECT * FROM gpuvec_recall('items_v', queries_column => 'v');
SELECT * FROM gpuvec_recall('items_v', queries_table => 'asked', queries_column => 'nothing');
SELECT * FROM gpuvec_recall('items_v', queries_table => 'asked', queries_column => 'id');
SELECT * FROM gpuvec_recall('items_v', queries_table => 'asked', queries_column => 'v" FROM asked --');
SELECT * FROM gpuvec_recall('items_v', queries_table => 0, queries_column => 'v');
TRUNCATE asked;
SELECT * FROM gpuvec_recall('items_v', queries_table => 'asked', queries_column => 'v');
RESET gpuvec.probes;
RESET gpuvec.candidates;

-- few rows; own rows do not count
CREATE TABLE few (id int, v real[]);
CREATE INDEX few_v ON few USING gpuivfpq (v);
SELECT * FROM gpuvec_recall('few_v');
INSERT INTO few VALUES (0, NULL), (1, '{1,2}');
SELECT * FROM gpuvec_recall('few_v');
INSERT INTO few VALUES (2, '{2,1}');
SELECT recall, high FROM gpuvec_recall('few_v');
INSERT INTO few SELECT i, '{1,2}' FROM generate_series(3, 40) i;
SELECT recall, high FROM gpuvec_recall('few_v', 5);
SELECT recall, high FROM gpuvec_recall('few_v', 10000, 100000);
DELETE FROM few WHERE id > 1;
SELECT * FROM gpuvec_recall('few_v');

-- cosine leaves zero vectors out; inner product; partial; expression
SET gpuvec.candidates = 3000;
SET gpuvec.probes = 50;
DELETE FROM items WHERE id > 500;
INSERT INTO items SELECT 0, array_fill(0::real, '{16}')
FROM generate_series(1, 20);
CREATE INDEX items_cosine ON items USING gpuivfpq (v real_cosine_ops)
	WITH (lists = 20);
CREATE INDEX items_ip ON items USING gpuivfpq (v real_ip_ops)
	WITH (lists = 20);
CREATE INDEX items_even ON items USING gpuivfpq (v) WITH (lists = 20)
	WHERE id % 2 = 0;
CREATE INDEX items_slice ON items USING gpuivfpq ((v[3:9]))
	WITH (lists = 20);
CREATE INDEX items_none ON items USING gpuivfpq (v) WHERE id < 0;
SELECT recall FROM gpuvec_recall('items_cosine', 10, 600);
SELECT recall FROM gpuvec_recall('items_ip');
SELECT recall FROM gpuvec_recall('items_even');
SELECT recall FROM gpuvec_recall('items_slice');
SELECT recall FROM gpuvec_recall('items_none');
SELECT recall FROM gpuvec_recall('items_none', queries => pg_temp.wave(7, 16));
SELECT recall FROM gpuvec_recall('items_ip', queries => array_fill(0::real, '{2,16}'));
SET client_min_messages = notice;
SELECT recall FROM gpuvec_recall('items_cosine', queries => ARRAY(SELECT v FROM items WHERE id < 9));
SELECT recall FROM gpuvec_recall('items_cosine', queries => array_fill(0::real, '{2,16}'));
SET client_min_messages = warning;
RESET gpuvec.candidates;
RESET gpuvec.probes;

-- arguments
SELECT * FROM gpuvec_recall('items_v', 0);
SELECT * FROM gpuvec_recall('items_v', 10001);
SELECT * FROM gpuvec_recall('items_v', 10, 0);
SELECT * FROM gpuvec_recall('items_v', 10, 100001);
SELECT * FROM gpuvec_recall('items_v', NULL);
SELECT * FROM gpuvec_recall('items');
CREATE INDEX items_id ON items (id);
SELECT * FROM gpuvec_recall('items_id');
CREATE TABLE ragged AS SELECT * FROM few;
INSERT INTO ragged VALUES (2, '{1,2,3}');
CREATE INDEX CONCURRENTLY few_bad ON ragged USING gpuivfpq (v)
	WITH (dims = 2);
SELECT * FROM gpuvec_recall('few_bad');
DROP TABLE ragged;

-- whoever may read what the index is made of
CREATE ROLE regress_gpuvec_owner;
CREATE ROLE regress_gpuvec_reader;
ALTER TABLE items OWNER TO regress_gpuvec_owner;
SET ROLE regress_gpuvec_reader;
SELECT recall > 0 AS ok FROM gpuvec_recall('items_v');
RESET ROLE;
GRANT SELECT (v) ON items TO regress_gpuvec_reader;
SET ROLE regress_gpuvec_reader;
SELECT recall > 0 AS ok FROM gpuvec_recall('items_v');
SELECT recall > 0 AS ok FROM gpuvec_recall('items_slice');
SELECT recall > 0 AS ok FROM gpuvec_recall('items_even');
-- ... queries are read with the caller's own rights
SELECT recall > 0 AS ok FROM gpuvec_recall('items_v', queries_table => 'items', queries_column => 'v');
SELECT recall > 0 AS ok FROM gpuvec_recall('items_v', queries_table => 'asked', queries_column => 'v');
RESET ROLE;
INSERT INTO asked SELECT i, pg_temp.wave(i, 16) FROM generate_series(1, 5) i;
ALTER TABLE asked ENABLE ROW LEVEL SECURITY;
GRANT SELECT ON asked TO regress_gpuvec_reader;
SET ROLE regress_gpuvec_reader;
SELECT recall > 0 AS ok FROM gpuvec_recall('items_v', queries_table => 'asked', queries_column => 'v');
SELECT recall > 0 AS ok FROM gpuvec_recall('items_even', queries => pg_temp.wave(7, 16));
RESET ROLE;
GRANT SELECT (id) ON items TO regress_gpuvec_reader;
SET ROLE regress_gpuvec_reader;
SELECT recall > 0 AS ok FROM gpuvec_recall('items_even');
RESET ROLE;

-- row-level security
ALTER TABLE items ENABLE ROW LEVEL SECURITY;
CREATE POLICY some_rows ON items USING (id < 100);
SELECT recall > 0 AS superuser FROM gpuvec_recall('items_v');
SET ROLE regress_gpuvec_owner;
SELECT recall > 0 AS owner FROM gpuvec_recall('items_v');
SET ROLE regress_gpuvec_reader;
SELECT recall > 0 AS reader FROM gpuvec_recall('items_v');
SET row_security = off;
SELECT recall > 0 AS reader FROM gpuvec_recall('items_v');
RESET row_security;
RESET ROLE;
ALTER TABLE items FORCE ROW LEVEL SECURITY;
SET ROLE regress_gpuvec_owner;
SELECT recall > 0 AS owner FROM gpuvec_recall('items_v');
RESET ROLE;

-- the owner's code runs as the owner, confined
CREATE FUNCTION escape(v real[]) RETURNS real[]
LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN RETURN v; END $$;
CREATE TABLE owned AS SELECT pg_temp.wave(i, 3) AS v FROM generate_series(1, 5) i;
CREATE INDEX owned_v ON owned USING gpuivfpq (escape(v));
ALTER TABLE owned OWNER TO regress_gpuvec_owner;
SELECT recall FROM gpuvec_recall('owned_v');
CREATE OR REPLACE FUNCTION escape(v real[]) RETURNS real[]
LANGUAGE plpgsql IMMUTABLE AS
$$ BEGIN
	RAISE WARNING 'I am %', current_user;
	PERFORM set_config('role', 'none', false);
	RETURN v;
END $$;
\set VERBOSITY terse
SELECT recall FROM gpuvec_recall('owned_v');
\set VERBOSITY default
SELECT current_user = session_user AS myself_again;

-- few dimensions, whose codes tell no lists apart
CREATE TABLE lines (id int, v real[]);
INSERT INTO lines SELECT i, ARRAY[(i::bigint * i % 65521)::real / 65521] FROM generate_series(1, 20000) i;
CREATE INDEX lines_v ON lines USING gpuivfpq (v);
SELECT recall > 0.9 AS good FROM gpuvec_recall('lines_v');

DROP TABLE items, few, owned, asked, lines CASCADE;
DROP FUNCTION escape;
DROP ROLE regress_gpuvec_owner, regress_gpuvec_reader;
