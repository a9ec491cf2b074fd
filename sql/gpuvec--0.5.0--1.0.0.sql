/* sql/gpuvec--0.5.0--1.0.0.sql */

-- complain if script is sourced in psql, rather than via ALTER EXTENSION
\echo Use "ALTER EXTENSION gpuvec UPDATE TO '1.0.0'" to load this file. \quit

--
-- What the last scan did: also copies that fulfil conditions on keys
--

DROP FUNCTION gpuvec_last_scan();

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
	OUT fallback text,
	OUT matched bigint)
AS 'MODULE_PATHNAME'
LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

COMMENT ON FUNCTION gpuvec_last_scan() IS
	'what this session''s last scan of a gpuivfpq index did';

--
-- Mirrors: also on how many cards they are
--

DROP VIEW gpuvec_mirrors;
DROP FUNCTION gpuvec_mirrors();

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
	OUT error text,
	OUT shards integer,
	OUT replicas integer)
RETURNS SETOF record
AS 'MODULE_PATHNAME'
LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

COMMENT ON FUNCTION gpuvec_mirrors() IS
	'indexes that gpuvecd mirrors, or is to; see the view';

CREATE VIEW gpuvec_mirrors AS SELECT * FROM gpuvec_mirrors();

COMMENT ON VIEW gpuvec_mirrors IS 'indexes that gpuvecd mirrors, or is to';

GRANT SELECT ON gpuvec_mirrors TO PUBLIC;

--
-- Many queries at once
--

CREATE FUNCTION gpuvec_search(
	index regclass,
	queries real[][],
	k integer)
RETURNS TABLE (
	query integer,
	tid tid,
	distance double precision)
AS 'MODULE_PATHNAME'
LANGUAGE C STABLE STRICT PARALLEL RESTRICTED;

COMMENT ON FUNCTION gpuvec_search(regclass, real[], integer) IS
	'the k rows of an index nearest to each query, all queries at once';

--
-- Graphs in arrays
--

CREATE FUNCTION gpuvec_knn_graph_arrays(
	rel regclass,
	key_column name,
	vector_column name,
	k integer,
	metric text DEFAULT 'l2',
	method text DEFAULT 'exact')
RETURNS TABLE (
	key bigint,
	neighbours bigint[],
	distances double precision[])
AS 'MODULE_PATHNAME'
LANGUAGE C STABLE STRICT PARALLEL RESTRICTED;

COMMENT ON FUNCTION gpuvec_knn_graph_arrays(regclass, name, name, integer, text, text) IS
	'the k nearest other rows of each row of a table, in arrays';

--
-- What scans of each index have done
--

CREATE FUNCTION gpuvec_index_counters(
	index oid,
	OUT scans bigint,
	OUT batches bigint,
	OUT lists bigint,
	OUT copies bigint,
	OUT matched bigint,
	OUT measured bigint,
	OUT given bigint,
	OUT late bigint,
	OUT passes bigint,
	OUT since timestamptz)
AS 'MODULE_PATHNAME'
LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

COMMENT ON FUNCTION gpuvec_index_counters(oid) IS
	'what scans of a gpuivfpq index have done; see gpuvec_stat_indexes';

CREATE VIEW gpuvec_stat_indexes AS
	SELECT i.indrelid AS relid, i.indexrelid, n.nspname AS schemaname,
		t.relname, c.relname AS indexrelname, s.*
	FROM pg_catalog.pg_index AS i
		JOIN pg_catalog.pg_class AS c ON c.oid = i.indexrelid
		JOIN pg_catalog.pg_am AS a ON a.oid = c.relam
		JOIN pg_catalog.pg_class AS t ON t.oid = i.indrelid
		JOIN pg_catalog.pg_namespace AS n ON n.oid = t.relnamespace
		CROSS JOIN LATERAL gpuvec_index_counters(i.indexrelid) AS s
	WHERE a.amname = 'gpuivfpq' AND c.relkind = 'i';

COMMENT ON VIEW gpuvec_stat_indexes IS
	'what scans of each gpuivfpq index of this database have done';

GRANT SELECT ON gpuvec_stat_indexes TO PUBLIC;

CREATE FUNCTION gpuvec_stat_reset(index regclass DEFAULT NULL)
RETURNS void
AS 'MODULE_PATHNAME'
LANGUAGE C VOLATILE PARALLEL RESTRICTED;

COMMENT ON FUNCTION gpuvec_stat_reset(regclass) IS
	'set counters of one gpuivfpq index, or of all in this database, to zero';

REVOKE ALL ON FUNCTION gpuvec_stat_reset(regclass) FROM PUBLIC;

--
-- The doctor: what is not as it should be, and why a statement does without
-- its index
--

CREATE FUNCTION gpuvec_doctor()
RETURNS TABLE (
	subject text,
	state text,
	advice text)
AS 'MODULE_PATHNAME'
LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE;

COMMENT ON FUNCTION gpuvec_doctor() IS
	'how gpuvec and its indexes are in this database, and what to do about it';

CREATE FUNCTION gpuvec_doctor(query text)
RETURNS TABLE (
	subject text,
	state text,
	advice text)
AS 'MODULE_PATHNAME', 'gpuvec_doctor_statement'
LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE;

COMMENT ON FUNCTION gpuvec_doctor(text) IS
	'why a SELECT does not use its gpuivfpq index; it is planned, not executed';

--
-- What columns of views mean
--

COMMENT ON COLUMN gpuvec_stat.pid IS
	'process id of gpuvecd; NULL: it does not run';
COMMENT ON COLUMN gpuvec_stat.state IS
	'off, starting, up, down, no card, other version or suspended';
COMMENT ON COLUMN gpuvec_stat.engine IS 'what gpuvecd runs on: cuda or cpu';
COMMENT ON COLUMN gpuvec_stat.device IS
	'the cards or processors that it runs on, by name';
COMMENT ON COLUMN gpuvec_stat.started IS 'when this gpuvecd was started';
COMMENT ON COLUMN gpuvec_stat.restarts IS 'how often it was started again';
COMMENT ON COLUMN gpuvec_stat.searches_by_server IS
	'searches that gpuvecd answered';
COMMENT ON COLUMN gpuvec_stat.searches_in_sessions IS
	'searches that sessions did themselves';
COMMENT ON COLUMN gpuvec_stat.fallbacks IS
	'searches that gpuvecd should have answered and did not: the sum of the following nine';
COMMENT ON COLUMN gpuvec_stat.down IS '... because it did not run';
COMMENT ON COLUMN gpuvec_stat.suspended IS
	'... because it had not answered other sessions in time';
COMMENT ON COLUMN gpuvec_stat.not_mirrored IS
	'... because it had no mirror of the index';
COMMENT ON COLUMN gpuvec_stat.loading IS
	'... because the mirror was not loaded yet';
COMMENT ON COLUMN gpuvec_stat.timed_out IS
	'... because it did not answer within gpuvec.request_timeout';
COMMENT ON COLUMN gpuvec_stat.broken IS
	'... because the connection ended, or made no sense';
COMMENT ON COLUMN gpuvec_stat.refused IS
	'... because of its version, connections or memory';
COMMENT ON COLUMN gpuvec_stat.engine_failed IS '... because its engine failed';
COMMENT ON COLUMN gpuvec_stat.stale IS
	'... because the mirror was too far behind the index';
COMMENT ON COLUMN gpuvec_stat.batches IS
	'batches of searches that gpuvecd did at once';
COMMENT ON COLUMN gpuvec_stat.mean_batch IS 'searches a batch, on average';
COMMENT ON COLUMN gpuvec_stat.largest_batch IS 'searches of the largest batch';
COMMENT ON COLUMN gpuvec_stat.bytes_sent IS 'bytes sent to gpuvecd';
COMMENT ON COLUMN gpuvec_stat.bytes_received IS 'bytes received from gpuvecd';
COMMENT ON COLUMN gpuvec_stat.mirrors IS 'indexes that it mirrors';
COMMENT ON COLUMN gpuvec_stat.mirror_bytes IS 'what mirrors take';
COMMENT ON COLUMN gpuvec_stat.memory IS 'what mirrors may take, on all cards';
COMMENT ON COLUMN gpuvec_stat.latency_p50_us IS
	'median time of answered searches, in microseconds';
COMMENT ON COLUMN gpuvec_stat.latency_p99_us IS
	'99th percentile of their time, in microseconds';
COMMENT ON COLUMN gpuvec_stat.sets_by_server IS
	'work on sets of rows that gpuvecd finished';
COMMENT ON COLUMN gpuvec_stat.sets_failed IS
	'... that it should have done and did not';
COMMENT ON COLUMN gpuvec_stat.scans IS 'scans of indexes, whoever searched';
COMMENT ON COLUMN gpuvec_stat.late_rows IS
	'rows that they left out because they came too late for their place';
COMMENT ON COLUMN gpuvec_stat.passes IS
	'scans that ended in a pass over the whole table';

COMMENT ON COLUMN gpuvec_mirrors.database IS 'database of the index';
COMMENT ON COLUMN gpuvec_mirrors.index IS
	'the index; NULL if it is of another database';
COMMENT ON COLUMN gpuvec_mirrors.state IS 'ready, loading, waiting or failed';
COMMENT ON COLUMN gpuvec_mirrors.device IS
	'number of the card that has the mirror, of several the first';
COMMENT ON COLUMN gpuvec_mirrors.bytes IS 'what the mirror takes, on all cards';
COMMENT ON COLUMN gpuvec_mirrors.lists IS 'lists of the index';
COMMENT ON COLUMN gpuvec_mirrors.copies IS 'copies of rows in the mirror';
COMMENT ON COLUMN gpuvec_mirrors.behind IS
	'copies that the index has and the mirror has not; NULL: not known';
COMMENT ON COLUMN gpuvec_mirrors.loading_percent IS
	'how much of the mirror is loaded';
COMMENT ON COLUMN gpuvec_mirrors.searches IS
	'searches that the mirror answered';
COMMENT ON COLUMN gpuvec_mirrors.last_used IS 'when it was searched last';
COMMENT ON COLUMN gpuvec_mirrors.error IS
	'why it could not be loaded, the last time';
COMMENT ON COLUMN gpuvec_mirrors.shards IS
	'cards that the mirror is divided among; 1: none has a part only';
COMMENT ON COLUMN gpuvec_mirrors.replicas IS
	'cards of which each has all of the mirror';

COMMENT ON COLUMN gpuvec_progress.pid IS 'process id of the session';
COMMENT ON COLUMN gpuvec_progress.datname IS 'database of the session';
COMMENT ON COLUMN gpuvec_progress.relid IS 'the table that is worked on';
COMMENT ON COLUMN gpuvec_progress.command IS 'what the session does';
COMMENT ON COLUMN gpuvec_progress.phase IS 'how far it is, in a word';
COMMENT ON COLUMN gpuvec_progress.done IS 'units of the phase that are done';
COMMENT ON COLUMN gpuvec_progress.total IS
	'units of the phase in all; NULL: not known';

COMMENT ON COLUMN gpuvec_stat_indexes.relid IS 'the table';
COMMENT ON COLUMN gpuvec_stat_indexes.indexrelid IS 'the index';
COMMENT ON COLUMN gpuvec_stat_indexes.schemaname IS
	'schema of table and index';
COMMENT ON COLUMN gpuvec_stat_indexes.relname IS 'name of the table';
COMMENT ON COLUMN gpuvec_stat_indexes.indexrelname IS 'name of the index';
COMMENT ON COLUMN gpuvec_stat_indexes.scans IS
	'scans of the index; this and all that follow NULL: nothing is counted';
COMMENT ON COLUMN gpuvec_stat_indexes.batches IS
	'batches that they searched; this and what follows but since NULL: rows are hidden from you';
COMMENT ON COLUMN gpuvec_stat_indexes.lists IS 'lists that they read';
COMMENT ON COLUMN gpuvec_stat_indexes.copies IS 'copies of rows in these';
COMMENT ON COLUMN gpuvec_stat_indexes.matched IS
	'copies that fulfil conditions on keys, of scans with such';
COMMENT ON COLUMN gpuvec_stat_indexes.measured IS
	'rows whose exact distance was computed';
COMMENT ON COLUMN gpuvec_stat_indexes.given IS 'rows that were given out';
COMMENT ON COLUMN gpuvec_stat_indexes.late IS
	'rows that were left out because they came too late for their place';
COMMENT ON COLUMN gpuvec_stat_indexes.passes IS
	'scans that ended in a pass over the whole table';
COMMENT ON COLUMN gpuvec_stat_indexes.since IS
	'since when is counted; NULL: no scan yet';
