/* sql/gpuvec--0.4.0--0.5.0.sql */

-- complain if script is sourced in psql, rather than via ALTER EXTENSION
\echo Use "ALTER EXTENSION gpuvec UPDATE TO '0.5.0'" to load this file. \quit

--
-- Classes of keys, the columns of an index behind the vector.  Ordered ones
-- have btree's operators and strategy numbers.
--

CREATE OPERATOR FAMILY integer_ops USING gpuivfpq;

CREATE OPERATOR CLASS int2_ops
DEFAULT FOR TYPE smallint USING gpuivfpq FAMILY integer_ops AS
	OPERATOR 1 <,
	OPERATOR 2 <=,
	OPERATOR 3 =,
	OPERATOR 4 >=,
	OPERATOR 5 >;

CREATE OPERATOR CLASS int4_ops
DEFAULT FOR TYPE integer USING gpuivfpq FAMILY integer_ops AS
	OPERATOR 1 <,
	OPERATOR 2 <=,
	OPERATOR 3 =,
	OPERATOR 4 >=,
	OPERATOR 5 >;

CREATE OPERATOR CLASS int8_ops
DEFAULT FOR TYPE bigint USING gpuivfpq FAMILY integer_ops AS
	OPERATOR 1 <,
	OPERATOR 2 <=,
	OPERATOR 3 =,
	OPERATOR 4 >=,
	OPERATOR 5 >;

ALTER OPERATOR FAMILY integer_ops USING gpuivfpq ADD
	OPERATOR 1 < (smallint, integer),
	OPERATOR 2 <= (smallint, integer),
	OPERATOR 3 = (smallint, integer),
	OPERATOR 4 >= (smallint, integer),
	OPERATOR 5 > (smallint, integer),
	OPERATOR 1 < (smallint, bigint),
	OPERATOR 2 <= (smallint, bigint),
	OPERATOR 3 = (smallint, bigint),
	OPERATOR 4 >= (smallint, bigint),
	OPERATOR 5 > (smallint, bigint),
	OPERATOR 1 < (integer, smallint),
	OPERATOR 2 <= (integer, smallint),
	OPERATOR 3 = (integer, smallint),
	OPERATOR 4 >= (integer, smallint),
	OPERATOR 5 > (integer, smallint),
	OPERATOR 1 < (integer, bigint),
	OPERATOR 2 <= (integer, bigint),
	OPERATOR 3 = (integer, bigint),
	OPERATOR 4 >= (integer, bigint),
	OPERATOR 5 > (integer, bigint),
	OPERATOR 1 < (bigint, smallint),
	OPERATOR 2 <= (bigint, smallint),
	OPERATOR 3 = (bigint, smallint),
	OPERATOR 4 >= (bigint, smallint),
	OPERATOR 5 > (bigint, smallint),
	OPERATOR 1 < (bigint, integer),
	OPERATOR 2 <= (bigint, integer),
	OPERATOR 3 = (bigint, integer),
	OPERATOR 4 >= (bigint, integer),
	OPERATOR 5 > (bigint, integer);

CREATE OPERATOR FAMILY float_ops USING gpuivfpq;

CREATE OPERATOR CLASS float4_ops
DEFAULT FOR TYPE real USING gpuivfpq FAMILY float_ops AS
	OPERATOR 1 <,
	OPERATOR 2 <=,
	OPERATOR 3 =,
	OPERATOR 4 >=,
	OPERATOR 5 >;

CREATE OPERATOR CLASS float8_ops
DEFAULT FOR TYPE double precision USING gpuivfpq FAMILY float_ops AS
	OPERATOR 1 <,
	OPERATOR 2 <=,
	OPERATOR 3 =,
	OPERATOR 4 >=,
	OPERATOR 5 >;

ALTER OPERATOR FAMILY float_ops USING gpuivfpq ADD
	OPERATOR 1 < (real, double precision),
	OPERATOR 2 <= (real, double precision),
	OPERATOR 3 = (real, double precision),
	OPERATOR 4 >= (real, double precision),
	OPERATOR 5 > (real, double precision),
	OPERATOR 1 < (double precision, real),
	OPERATOR 2 <= (double precision, real),
	OPERATOR 3 = (double precision, real),
	OPERATOR 4 >= (double precision, real),
	OPERATOR 5 > (double precision, real);

CREATE OPERATOR FAMILY datetime_ops USING gpuivfpq;

CREATE OPERATOR CLASS date_ops
DEFAULT FOR TYPE date USING gpuivfpq FAMILY datetime_ops AS
	OPERATOR 1 <,
	OPERATOR 2 <=,
	OPERATOR 3 =,
	OPERATOR 4 >=,
	OPERATOR 5 >;

CREATE OPERATOR CLASS timestamp_ops
DEFAULT FOR TYPE timestamp USING gpuivfpq FAMILY datetime_ops AS
	OPERATOR 1 <,
	OPERATOR 2 <=,
	OPERATOR 3 =,
	OPERATOR 4 >=,
	OPERATOR 5 >;

CREATE OPERATOR CLASS timestamptz_ops
DEFAULT FOR TYPE timestamptz USING gpuivfpq FAMILY datetime_ops AS
	OPERATOR 1 <,
	OPERATOR 2 <=,
	OPERATOR 3 =,
	OPERATOR 4 >=,
	OPERATOR 5 >;

ALTER OPERATOR FAMILY datetime_ops USING gpuivfpq ADD
	OPERATOR 1 < (date, timestamp),
	OPERATOR 2 <= (date, timestamp),
	OPERATOR 3 = (date, timestamp),
	OPERATOR 4 >= (date, timestamp),
	OPERATOR 5 > (date, timestamp),
	OPERATOR 1 < (date, timestamptz),
	OPERATOR 2 <= (date, timestamptz),
	OPERATOR 3 = (date, timestamptz),
	OPERATOR 4 >= (date, timestamptz),
	OPERATOR 5 > (date, timestamptz),
	OPERATOR 1 < (timestamp, date),
	OPERATOR 2 <= (timestamp, date),
	OPERATOR 3 = (timestamp, date),
	OPERATOR 4 >= (timestamp, date),
	OPERATOR 5 > (timestamp, date),
	OPERATOR 1 < (timestamp, timestamptz),
	OPERATOR 2 <= (timestamp, timestamptz),
	OPERATOR 3 = (timestamp, timestamptz),
	OPERATOR 4 >= (timestamp, timestamptz),
	OPERATOR 5 > (timestamp, timestamptz),
	OPERATOR 1 < (timestamptz, date),
	OPERATOR 2 <= (timestamptz, date),
	OPERATOR 3 = (timestamptz, date),
	OPERATOR 4 >= (timestamptz, date),
	OPERATOR 5 > (timestamptz, date),
	OPERATOR 1 < (timestamptz, timestamp),
	OPERATOR 2 <= (timestamptz, timestamp),
	OPERATOR 3 = (timestamptz, timestamp),
	OPERATOR 4 >= (timestamptz, timestamp),
	OPERATOR 5 > (timestamptz, timestamp);

CREATE OPERATOR CLASS bool_ops
DEFAULT FOR TYPE boolean USING gpuivfpq AS
	OPERATOR 1 <,
	OPERATOR 2 <=,
	OPERATOR 3 =,
	OPERATOR 4 >=,
	OPERATOR 5 >;

CREATE OPERATOR CLASS oid_ops
DEFAULT FOR TYPE oid USING gpuivfpq AS
	OPERATOR 1 <,
	OPERATOR 2 <=,
	OPERATOR 3 =,
	OPERATOR 4 >=,
	OPERATOR 5 >;

CREATE OPERATOR CLASS numeric_ops
DEFAULT FOR TYPE numeric USING gpuivfpq AS
	OPERATOR 1 <,
	OPERATOR 2 <=,
	OPERATOR 3 =,
	OPERATOR 4 >=,
	OPERATOR 5 >;

CREATE OPERATOR CLASS enum_ops
DEFAULT FOR TYPE anyenum USING gpuivfpq AS
	OPERATOR 1 <,
	OPERATOR 2 <=,
	OPERATOR 3 =,
	OPERATOR 4 >=,
	OPERATOR 5 >;

--
-- Only equality: an image is the hash of the type's own function
--

CREATE OPERATOR CLASS text_ops
DEFAULT FOR TYPE text USING gpuivfpq AS
	OPERATOR 3 =,
	FUNCTION 2 hashtext(text);

CREATE OPERATOR CLASS bpchar_ops
DEFAULT FOR TYPE bpchar USING gpuivfpq AS
	OPERATOR 3 =,
	FUNCTION 2 hashbpchar(bpchar);

CREATE OPERATOR CLASS uuid_ops
DEFAULT FOR TYPE uuid USING gpuivfpq AS
	OPERATOR 3 =,
	FUNCTION 2 uuid_hash(uuid);

CREATE OPERATOR CLASS bytea_ops
DEFAULT FOR TYPE bytea USING gpuivfpq AS
	OPERATOR 3 =,
	FUNCTION 2 hashvarlena(internal);

CREATE OPERATOR CLASS inet_ops
DEFAULT FOR TYPE inet USING gpuivfpq AS
	OPERATOR 3 =,
	FUNCTION 2 hashinet(inet);

--
-- Sets: an image is a signature of their elements, or of a document's scalars
--

CREATE FUNCTION gpuvec_signature(anyarray)
RETURNS bigint
AS 'MODULE_PATHNAME', 'gpuvec_array_signature'
LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;

COMMENT ON FUNCTION gpuvec_signature(anyarray) IS
	'what gpuivfpq keeps of an array that is a key';

CREATE FUNCTION gpuvec_signature(jsonb)
RETURNS bigint
AS 'MODULE_PATHNAME', 'gpuvec_jsonb_signature'
LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;

COMMENT ON FUNCTION gpuvec_signature(jsonb) IS
	'what gpuivfpq keeps of a document that is a key';

CREATE OPERATOR CLASS int2_array_ops
DEFAULT FOR TYPE smallint[] USING gpuivfpq AS
	OPERATOR 6 && (anyarray, anyarray),
	OPERATOR 7 @> (anyarray, anyarray),
	FUNCTION 3 gpuvec_signature(anyarray);

CREATE OPERATOR CLASS int4_array_ops
DEFAULT FOR TYPE integer[] USING gpuivfpq AS
	OPERATOR 6 && (anyarray, anyarray),
	OPERATOR 7 @> (anyarray, anyarray),
	FUNCTION 3 gpuvec_signature(anyarray);

CREATE OPERATOR CLASS int8_array_ops
DEFAULT FOR TYPE bigint[] USING gpuivfpq AS
	OPERATOR 6 && (anyarray, anyarray),
	OPERATOR 7 @> (anyarray, anyarray),
	FUNCTION 3 gpuvec_signature(anyarray);

CREATE OPERATOR CLASS text_array_ops
DEFAULT FOR TYPE text[] USING gpuivfpq AS
	OPERATOR 6 && (anyarray, anyarray),
	OPERATOR 7 @> (anyarray, anyarray),
	FUNCTION 3 gpuvec_signature(anyarray);

CREATE OPERATOR CLASS jsonb_ops
DEFAULT FOR TYPE jsonb USING gpuivfpq AS
	OPERATOR 7 @>,
	FUNCTION 3 gpuvec_signature(jsonb);

COMMENT ON OPERATOR CLASS int2_ops USING gpuivfpq IS 'keys of smallint';
COMMENT ON OPERATOR CLASS int4_ops USING gpuivfpq IS 'keys of integer';
COMMENT ON OPERATOR CLASS int8_ops USING gpuivfpq IS 'keys of bigint';
COMMENT ON OPERATOR CLASS float4_ops USING gpuivfpq IS 'keys of real';
COMMENT ON OPERATOR CLASS float8_ops USING gpuivfpq IS 'keys of double precision';
COMMENT ON OPERATOR CLASS date_ops USING gpuivfpq IS 'keys of date';
COMMENT ON OPERATOR CLASS timestamp_ops USING gpuivfpq IS 'keys of timestamp';
COMMENT ON OPERATOR CLASS timestamptz_ops USING gpuivfpq IS 'keys of timestamptz';
COMMENT ON OPERATOR CLASS bool_ops USING gpuivfpq IS 'keys of boolean';
COMMENT ON OPERATOR CLASS oid_ops USING gpuivfpq IS 'keys of oid';
COMMENT ON OPERATOR CLASS numeric_ops USING gpuivfpq IS 'keys of numeric';
COMMENT ON OPERATOR CLASS enum_ops USING gpuivfpq IS 'keys of enumerated types';
COMMENT ON OPERATOR CLASS text_ops USING gpuivfpq IS 'keys of text and varchar';
COMMENT ON OPERATOR CLASS bpchar_ops USING gpuivfpq IS 'keys of char(n)';
COMMENT ON OPERATOR CLASS uuid_ops USING gpuivfpq IS 'keys of uuid';
COMMENT ON OPERATOR CLASS bytea_ops USING gpuivfpq IS 'keys of bytea';
COMMENT ON OPERATOR CLASS inet_ops USING gpuivfpq IS 'keys of inet and cidr';
COMMENT ON OPERATOR CLASS int2_array_ops USING gpuivfpq IS 'keys of smallint[]';
COMMENT ON OPERATOR CLASS int4_array_ops USING gpuivfpq IS 'keys of integer[]';
COMMENT ON OPERATOR CLASS int8_array_ops USING gpuivfpq IS 'keys of bigint[]';
COMMENT ON OPERATOR CLASS text_array_ops USING gpuivfpq IS 'keys of text[]';
COMMENT ON OPERATOR CLASS jsonb_ops USING gpuivfpq IS 'keys of jsonb';

--
-- An index says which keys it has, and what they take
--

DROP FUNCTION gpuvec_index_info(regclass);

CREATE FUNCTION gpuvec_index_info(
	index regclass,
	OUT lists integer,
	OUT dims integer,
	OUT pq_dim integer,
	OUT rows bigint,
	OUT pending bigint,
	OUT dead bigint,
	OUT bytes bigint,
	OUT rows_at_training bigint,
	OUT advice text,
	OUT keys text[],
	OUT key_bytes bigint)
AS 'MODULE_PATHNAME'
LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

COMMENT ON FUNCTION gpuvec_index_info(regclass) IS
	'size and state of a gpuivfpq index, and what to do about it';
