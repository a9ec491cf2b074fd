/* sql/gpuvec--0.3.0--0.4.0.sql */

-- complain if script is sourced in psql, rather than via ALTER EXTENSION
\echo Use "ALTER EXTENSION gpuvec UPDATE TO '0.4.0'" to load this file. \quit

--
-- A user's own queries to measure and calibrate with: an array of vectors, or
-- a table and its column
--

DROP FUNCTION gpuvec_recall(regclass, integer, integer);

CREATE FUNCTION gpuvec_recall(
	index regclass,
	k integer DEFAULT 10,
	samples integer DEFAULT 100,
	queries real[] DEFAULT NULL,
	queries_table regclass DEFAULT NULL,
	queries_column name DEFAULT NULL,
	OUT recall double precision,
	OUT low double precision,
	OUT high double precision)
AS 'MODULE_PATHNAME'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION gpuvec_recall(regclass, integer, integer, real[], regclass,
	name) IS
	'measured recall@k of a gpuivfpq index with a 95 % interval';

DROP FUNCTION gpuvec_calibrate(regclass);

CREATE FUNCTION gpuvec_calibrate(
	index regclass,
	queries real[] DEFAULT NULL,
	queries_table regclass DEFAULT NULL,
	queries_column name DEFAULT NULL)
RETURNS TABLE (
	k integer,
	recall double precision,
	probes integer,
	candidates integer,
	targets_for text)
AS 'MODULE_PATHNAME'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION gpuvec_calibrate(regclass, real[], regclass, name) IS
	'measure what each recall takes on a gpuivfpq index, and store it';

DROP FUNCTION gpuvec_calibration(regclass);

CREATE FUNCTION gpuvec_calibration(index regclass)
RETURNS TABLE (
	k integer,
	recall double precision,
	probes integer,
	candidates integer,
	targets_for text)
AS 'MODULE_PATHNAME'
LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

COMMENT ON FUNCTION gpuvec_calibration(regclass) IS
	'probes and candidates that a gpuivfpq index takes for each recall';

--
-- What was really asked: queries of an index, as far as they are kept, and
-- numbers of scans
--

CREATE FUNCTION gpuvec_live_queries(index regclass)
RETURNS TABLE (
	asked timestamptz,
	query real[])
AS 'MODULE_PATHNAME'
LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

COMMENT ON FUNCTION gpuvec_live_queries(regclass) IS
	'the last 1,000 queries that a gpuivfpq index was asked, if they are kept';

CREATE FUNCTION gpuvec_forget_queries(index regclass)
RETURNS boolean
AS 'MODULE_PATHNAME'
LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

COMMENT ON FUNCTION gpuvec_forget_queries(regclass) IS
	'forget the queries that are kept of a gpuivfpq index';

DROP VIEW gpuvec_stat;
DROP FUNCTION gpuvec_stat();

CREATE FUNCTION gpuvec_stat(
	OUT pid integer,
	OUT state text,
	OUT engine text,
	OUT device text,
	OUT started timestamptz,
	OUT restarts bigint,
	OUT searches_by_server bigint,
	OUT searches_in_sessions bigint,
	OUT fallbacks bigint,
	OUT down bigint,
	OUT suspended bigint,
	OUT not_mirrored bigint,
	OUT loading bigint,
	OUT timed_out bigint,
	OUT broken bigint,
	OUT refused bigint,
	OUT engine_failed bigint,
	OUT stale bigint,
	OUT batches bigint,
	OUT mean_batch double precision,
	OUT largest_batch bigint,
	OUT bytes_sent bigint,
	OUT bytes_received bigint,
	OUT mirrors bigint,
	OUT mirror_bytes bigint,
	OUT memory bigint,
	OUT latency_p50_us double precision,
	OUT latency_p99_us double precision,
	OUT sets_by_server bigint,
	OUT sets_failed bigint,
	OUT scans bigint,
	OUT late_rows bigint,
	OUT passes bigint)
RETURNS SETOF record
AS 'MODULE_PATHNAME'
LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

COMMENT ON FUNCTION gpuvec_stat() IS
	'how gpuvecd is, and what became of searches; see the view';

CREATE VIEW gpuvec_stat AS SELECT * FROM gpuvec_stat();

COMMENT ON VIEW gpuvec_stat IS 'how gpuvecd is, and what became of searches';

GRANT SELECT ON gpuvec_stat TO PUBLIC;
