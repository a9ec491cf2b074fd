--
-- What the two builds differ in, as settings show it: expected/builds.out is
-- the release's, builds_1.out the test build's (make TEST_BUILD=1).
--
LOAD 'gpuvec';
SELECT count(*) > 0 AS is_test_build FROM pg_settings WHERE name = 'gpuvec.fault' \gset
\echo :is_test_build
SELECT enumvals FROM pg_settings WHERE name = 'gpuvec.server';
-- the test build would write it
\if :is_test_build
\else
ALTER SYSTEM SET gpuvec.server = cpu;
\endif
