/* sql/gpuvec--0.1.0--0.2.0.sql */

-- complain if script is sourced in psql, rather than via ALTER EXTENSION
\echo Use "ALTER EXTENSION gpuvec UPDATE TO '0.2.0'" to load this file. \quit

--
-- Recall targets
--

CREATE FUNCTION gpuvec_calibrate(index regclass)
RETURNS TABLE (
	k integer,
	recall double precision,
	probes integer,
	candidates integer)
AS 'MODULE_PATHNAME'
LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE;

COMMENT ON FUNCTION gpuvec_calibrate(regclass) IS
	'measure what each recall takes on a gpuivfpq index, and store it';

CREATE FUNCTION gpuvec_calibration(index regclass)
RETURNS TABLE (
	k integer,
	recall double precision,
	probes integer,
	candidates integer)
AS 'MODULE_PATHNAME'
LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

COMMENT ON FUNCTION gpuvec_calibration(regclass) IS
	'probes and candidates that a gpuivfpq index takes for each recall';

CREATE FUNCTION gpuvec_last_scan(
	OUT index regclass,
	OUT recall double precision,
	OUT probes integer,
	OUT candidates integer,
	OUT batches integer,
	OUT lists bigint,
	OUT copies bigint,
	OUT refined bigint,
	OUT measured bigint,
	OUT given bigint,
	OUT late bigint,
	OUT finished boolean,
	OUT engine text,
	OUT batch_size integer,
	OUT stale_lists bigint,
	OUT tail_copies bigint,
	OUT queued_us bigint,
	OUT engine_us bigint,
	OUT trip_us bigint,
	OUT fallback text)
AS 'MODULE_PATHNAME'
LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

COMMENT ON FUNCTION gpuvec_last_scan() IS
	'what the last gpuivfpq scan of this session did';

--
-- Checking mirrors, too
--

DROP FUNCTION gpuvec_verify_index(regclass);

CREATE FUNCTION gpuvec_verify_index(index regclass, mirror boolean DEFAULT false)
RETURNS TABLE (
	severity text,
	block bigint,
	list integer,
	problem text)
AS 'MODULE_PATHNAME'
LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE;

COMMENT ON FUNCTION gpuvec_verify_index(regclass, boolean) IS
	'faults of a gpuivfpq index, and of its mirror, no row if there are none';

--
-- Training an index that is in use
--

CREATE FUNCTION gpuvec_train(index regclass) RETURNS bigint
AS 'MODULE_PATHNAME'
LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE;

COMMENT ON FUNCTION gpuvec_train(regclass) IS
	'train a gpuivfpq index, or put its pending rows into lists; how many went there';

--
-- gpuvecd: mirrors of indexes in a server's memory
--

CREATE FUNCTION gpuvec_prewarm(index regclass) RETURNS bigint
AS 'MODULE_PATHNAME'
LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE;

COMMENT ON FUNCTION gpuvec_prewarm(regclass) IS
	'have gpuvecd mirror a gpuivfpq index, and wait for it; how many copies it holds';

CREATE FUNCTION gpuvec_mirrors(
	OUT database name,
	OUT index regclass,
	OUT state text,
	OUT device integer,
	OUT bytes bigint,
	OUT lists integer,
	OUT copies bigint,
	OUT behind bigint,
	OUT loading_percent double precision,
	OUT searches bigint,
	OUT last_used timestamptz,
	OUT error text)
RETURNS SETOF record
AS 'MODULE_PATHNAME'
LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

COMMENT ON FUNCTION gpuvec_mirrors() IS
	'indexes that gpuvecd mirrors, or is to; see the view';

CREATE VIEW gpuvec_mirrors AS SELECT * FROM gpuvec_mirrors();

COMMENT ON VIEW gpuvec_mirrors IS 'indexes that gpuvecd mirrors, or is to';

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
	OUT sets_failed bigint)
RETURNS SETOF record
AS 'MODULE_PATHNAME'
LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

COMMENT ON FUNCTION gpuvec_stat() IS
	'how gpuvecd is, and what became of searches; see the view';

CREATE VIEW gpuvec_stat AS SELECT * FROM gpuvec_stat();

COMMENT ON VIEW gpuvec_stat IS 'how gpuvecd is, and what became of searches';

GRANT SELECT ON gpuvec_mirrors, gpuvec_stat TO PUBLIC;

--
-- Selection
--

CREATE FUNCTION gpuvec_select(vals real[], k integer, method text DEFAULT 'auto')
RETURNS TABLE (
	pos integer,
	val real)
AS 'MODULE_PATHNAME'
LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;

COMMENT ON FUNCTION gpuvec_select(real[], integer, text) IS
	'the k smallest elements of an array, ascending, and their subscripts';

CREATE FUNCTION gpuvec_quantiles(
	vals real[],
	ranks bigint[],
	approximate boolean DEFAULT false)
RETURNS TABLE (
	rank bigint,
	val real,
	rank_error bigint)
AS 'MODULE_PATHNAME'
LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;

COMMENT ON FUNCTION gpuvec_quantiles(real[], bigint[], boolean) IS
	'the elements of an array that would stand at ranks if it were sorted';

--
-- Sets of rows
--

CREATE FUNCTION gpuvec_exact_search(
	rel regclass,
	vector_column name,
	queries real[][],
	k integer,
	metric text DEFAULT 'l2')
RETURNS TABLE (
	query integer,
	tid tid,
	distance double precision)
AS 'MODULE_PATHNAME'
LANGUAGE C STABLE STRICT PARALLEL RESTRICTED;

COMMENT ON FUNCTION gpuvec_exact_search(regclass, name, real[], integer, text) IS
	'the k rows of a table nearest to each query, exactly, without an index';

CREATE FUNCTION gpuvec_knn_graph(
	rel regclass,
	key_column name,
	vector_column name,
	k integer,
	metric text DEFAULT 'l2',
	method text DEFAULT 'exact')
RETURNS TABLE (
	key bigint,
	neighbour bigint,
	rank integer,
	distance double precision)
AS 'MODULE_PATHNAME'
LANGUAGE C STABLE STRICT PARALLEL RESTRICTED;

COMMENT ON FUNCTION gpuvec_knn_graph(regclass, name, name, integer, text, text) IS
	'the k nearest other rows of each row of a table';

CREATE FUNCTION gpuvec_knn_join(
	left_rel regclass,
	left_key name,
	left_vector name,
	right_rel regclass,
	right_key name,
	right_vector name,
	k integer,
	metric text DEFAULT 'l2',
	method text DEFAULT 'exact')
RETURNS TABLE (
	key bigint,
	neighbour bigint,
	rank integer,
	distance double precision)
AS 'MODULE_PATHNAME'
LANGUAGE C STABLE STRICT PARALLEL RESTRICTED;

COMMENT ON FUNCTION gpuvec_knn_join(regclass, name, name, regclass, name, name, integer, text, text) IS
	'the k nearest rows of one table to each row of another';

CREATE FUNCTION gpuvec_kmeans(
	rel regclass,
	vector_column name,
	k integer,
	iterations integer DEFAULT 10,
	seed integer DEFAULT 0,
	balanced boolean DEFAULT false)
RETURNS TABLE (
	centroid_id integer,
	centroid real[],
	size bigint)
AS 'MODULE_PATHNAME'
LANGUAGE C STABLE STRICT PARALLEL RESTRICTED;

COMMENT ON FUNCTION gpuvec_kmeans(regclass, name, integer, integer, integer, boolean) IS
	'k-means of the vectors of a table: centroids, and how many rows are nearest to each';

CREATE FUNCTION gpuvec_progress(
	OUT pid integer,
	OUT datname name,
	OUT relid regclass,
	OUT command text,
	OUT phase text,
	OUT done bigint,
	OUT total bigint)
RETURNS SETOF record
AS 'MODULE_PATHNAME'
LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

COMMENT ON FUNCTION gpuvec_progress() IS
	'sessions that run functions over sets of rows; see the view';

CREATE VIEW gpuvec_progress AS SELECT * FROM gpuvec_progress();

COMMENT ON VIEW gpuvec_progress IS
	'sessions that run functions over sets of rows, and how far they are';

GRANT SELECT ON gpuvec_progress TO PUBLIC;

--
-- Paths
--

CREATE FUNCTION gpuvec_smoothest_path(
	graph regclass,
	source bigint,
	target bigint)
RETURNS TABLE (
	step integer,
	key bigint,
	distance double precision)
AS 'MODULE_PATHNAME'
LANGUAGE C STABLE STRICT PARALLEL RESTRICTED;

COMMENT ON FUNCTION gpuvec_smoothest_path(regclass, bigint, bigint) IS
	'the path between two keys of a graph whose largest step is smallest';
