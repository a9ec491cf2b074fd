--
-- gpuvecd, from a session: settings, views and prewarm.  Without preloading
-- there is none (expected/server.out); where it runs, it has no mirror of
-- these indexes (expected/server_1.out).
--
LOAD 'gpuvec';
SET gpuvec.auto_mirror = off;

-- settings
SELECT name, boot_val, unit, min_val, max_val, enumvals, context
FROM pg_settings
WHERE name IN ('gpuvec.engine', 'gpuvec.on_gpu_error', 'gpuvec.request_timeout', 'gpuvec.auto_mirror')
ORDER BY name;
SET gpuvec.engine = cuda;
SET gpuvec.on_gpu_error = ignore;
-- servers differ in whether ranges have units
\set VERBOSITY sqlstate
SET gpuvec.request_timeout = 0;
SET gpuvec.request_timeout = '11min';
\set VERBOSITY default
SET gpuvec.server = off;

-- views
\d gpuvec_mirrors
\d gpuvec_stat
-- hints depend on whether the machine has a card
\set VERBOSITY terse
SELECT state, engine IN ('cpu', 'cuda') AS known FROM gpuvec_stat;
\set VERBOSITY default
CREATE TABLE server (id int, e real[]);
INSERT INTO server SELECT g, ARRAY[g % 10, g % 7, g % 3, g / 100] FROM generate_series(1, 2000) AS g;
CREATE INDEX server_e ON server USING gpuivfpq (e) WITH (lists = 10);
CREATE INDEX server_id ON server (id);
\set VERBOSITY terse
SELECT count(*) FROM gpuvec_mirrors WHERE index = 'server_e'::regclass;
\set VERBOSITY default

-- what cannot be mirrored
SELECT gpuvec_prewarm('server');
SELECT gpuvec_prewarm('server_id');
SELECT gpuvec_prewarm(NULL);
BEGIN;
REINDEX INDEX server_e;
SELECT gpuvec_prewarm('server_e');
ROLLBACK;
CREATE TABLE few (e real[]);
CREATE INDEX few_e ON few USING gpuivfpq (e);
SELECT gpuvec_prewarm('few_e');
CREATE TEMP TABLE own AS SELECT * FROM server;
CREATE INDEX own_e ON own USING gpuivfpq (e) WITH (lists = 10);
SELECT gpuvec_prewarm('own_e');
CREATE ROLE gpuvec_server_guest;
SET ROLE gpuvec_server_guest;
SELECT gpuvec_prewarm('server_e');
\set VERBOSITY terse
SELECT count(*) FROM gpuvec_mirrors WHERE index = 'server_e'::regclass;
\set VERBOSITY default
RESET ROLE;

-- the same rows, whoever is to answer, and an error if that is wanted
SET enable_seqscan = off;
SET gpuvec.engine = cpu;
SELECT e <-> '{1, 2, 3, 4}' AS distance FROM server ORDER BY 1 LIMIT 3;
SET gpuvec.engine = gpu;
SELECT e <-> '{1, 2, 3, 4}' AS distance FROM server ORDER BY 1 LIMIT 3;
SET gpuvec.on_gpu_error = error;
\set VERBOSITY terse
SELECT e <-> '{1, 2, 3, 4}' AS distance FROM server ORDER BY 1 LIMIT 3;
\set VERBOSITY default
-- nothing failed: it is not for these
SELECT count(*) FROM (SELECT FROM own ORDER BY e <-> '{1, 2, 3, 4}' LIMIT 3) AS x;
SELECT count(*) FROM (SELECT FROM few ORDER BY e <-> '{1, 2, 3, 4}' LIMIT 3) AS x;
SET gpuvec.engine = auto;
SELECT e <-> '{1, 2, 3, 4}' AS distance FROM server ORDER BY 1 LIMIT 3;
RESET gpuvec.on_gpu_error;

-- where it runs, it has a mirror now
\set VERBOSITY terse
SELECT gpuvec_prewarm('server_e') > 0 AS mirrored;
\set VERBOSITY default

DROP TABLE server, few;
DROP ROLE gpuvec_server_guest;
