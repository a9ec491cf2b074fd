/* sql/gpuvec--0.1.0--0.2.0.sql */

\echo Use "ALTER EXTENSION gpuvec UPDATE TO '0.2.0'" to load this file. \quit

--
-- Training an index that is in use
--

CREATE FUNCTION gpuvec_train(index regclass) RETURNS bigint
AS 'MODULE_PATHNAME'
LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE;

COMMENT ON FUNCTION gpuvec_train(regclass) IS
	'train a gpuivfpq index, or put its pending rows into lists; how many went there';
