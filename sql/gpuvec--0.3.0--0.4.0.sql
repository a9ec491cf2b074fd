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
