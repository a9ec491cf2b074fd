/* sql/gpuvec--1.0.0.sql */

-- complain if script is sourced in psql, rather than via CREATE EXTENSION
\echo Use "CREATE EXTENSION gpuvec" to load this file. \quit

--
-- Access method
--

CREATE FUNCTION gpuivfpqhandler(internal)
RETURNS index_am_handler
AS 'MODULE_PATHNAME'
LANGUAGE C;

COMMENT ON FUNCTION gpuivfpqhandler(internal) IS
	'gpuivfpq index access method handler';

CREATE ACCESS METHOD gpuivfpq TYPE INDEX HANDLER gpuivfpqhandler;

COMMENT ON ACCESS METHOD gpuivfpq IS
	'inverted-file product-quantization index for nearest-neighbor search';

--
-- Distances of real[].  The other types on the right are there because
-- drivers send them (psycopg 3 sends a list of numbers as the narrowest of
-- smallint[], integer[] and bigint[] that holds them), and because
-- ARRAY[0.5, 1] is a numeric[].
--

CREATE FUNCTION gpuvec_l2_distance(real[], real[])
RETURNS double precision
AS 'MODULE_PATHNAME', 'gpuvec_l2_distance'
LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;

CREATE FUNCTION gpuvec_l2_distance(real[], double precision[])
RETURNS double precision
AS 'MODULE_PATHNAME', 'gpuvec_l2_distance'
LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;

CREATE FUNCTION gpuvec_l2_distance(real[], integer[])
RETURNS double precision
AS 'MODULE_PATHNAME', 'gpuvec_l2_distance'
LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;

CREATE FUNCTION gpuvec_l2_distance(real[], numeric[])
RETURNS double precision
AS 'MODULE_PATHNAME', 'gpuvec_l2_distance'
LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;

CREATE FUNCTION gpuvec_l2_distance(real[], smallint[])
RETURNS double precision
AS 'MODULE_PATHNAME', 'gpuvec_l2_distance'
LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;

CREATE FUNCTION gpuvec_l2_distance(real[], bigint[])
RETURNS double precision
AS 'MODULE_PATHNAME', 'gpuvec_l2_distance'
LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;

COMMENT ON FUNCTION gpuvec_l2_distance(real[], real[]) IS
	'Euclidean distance';
COMMENT ON FUNCTION gpuvec_l2_distance(real[], double precision[]) IS
	'Euclidean distance';
COMMENT ON FUNCTION gpuvec_l2_distance(real[], integer[]) IS
	'Euclidean distance';
COMMENT ON FUNCTION gpuvec_l2_distance(real[], numeric[]) IS
	'Euclidean distance';
COMMENT ON FUNCTION gpuvec_l2_distance(real[], smallint[]) IS
	'Euclidean distance';
COMMENT ON FUNCTION gpuvec_l2_distance(real[], bigint[]) IS
	'Euclidean distance';

CREATE FUNCTION gpuvec_negative_inner_product(real[], real[])
RETURNS double precision
AS 'MODULE_PATHNAME', 'gpuvec_negative_inner_product'
LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;

CREATE FUNCTION gpuvec_negative_inner_product(real[], double precision[])
RETURNS double precision
AS 'MODULE_PATHNAME', 'gpuvec_negative_inner_product'
LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;

CREATE FUNCTION gpuvec_negative_inner_product(real[], integer[])
RETURNS double precision
AS 'MODULE_PATHNAME', 'gpuvec_negative_inner_product'
LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;

CREATE FUNCTION gpuvec_negative_inner_product(real[], numeric[])
RETURNS double precision
AS 'MODULE_PATHNAME', 'gpuvec_negative_inner_product'
LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;

CREATE FUNCTION gpuvec_negative_inner_product(real[], smallint[])
RETURNS double precision
AS 'MODULE_PATHNAME', 'gpuvec_negative_inner_product'
LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;

CREATE FUNCTION gpuvec_negative_inner_product(real[], bigint[])
RETURNS double precision
AS 'MODULE_PATHNAME', 'gpuvec_negative_inner_product'
LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;

COMMENT ON FUNCTION gpuvec_negative_inner_product(real[], real[]) IS
	'negative inner product';
COMMENT ON FUNCTION gpuvec_negative_inner_product(real[], double precision[]) IS
	'negative inner product';
COMMENT ON FUNCTION gpuvec_negative_inner_product(real[], integer[]) IS
	'negative inner product';
COMMENT ON FUNCTION gpuvec_negative_inner_product(real[], numeric[]) IS
	'negative inner product';
COMMENT ON FUNCTION gpuvec_negative_inner_product(real[], smallint[]) IS
	'negative inner product';
COMMENT ON FUNCTION gpuvec_negative_inner_product(real[], bigint[]) IS
	'negative inner product';

CREATE FUNCTION gpuvec_cosine_distance(real[], real[])
RETURNS double precision
AS 'MODULE_PATHNAME', 'gpuvec_cosine_distance'
LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;

CREATE FUNCTION gpuvec_cosine_distance(real[], double precision[])
RETURNS double precision
AS 'MODULE_PATHNAME', 'gpuvec_cosine_distance'
LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;

CREATE FUNCTION gpuvec_cosine_distance(real[], integer[])
RETURNS double precision
AS 'MODULE_PATHNAME', 'gpuvec_cosine_distance'
LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;

CREATE FUNCTION gpuvec_cosine_distance(real[], numeric[])
RETURNS double precision
AS 'MODULE_PATHNAME', 'gpuvec_cosine_distance'
LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;

CREATE FUNCTION gpuvec_cosine_distance(real[], smallint[])
RETURNS double precision
AS 'MODULE_PATHNAME', 'gpuvec_cosine_distance'
LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;

CREATE FUNCTION gpuvec_cosine_distance(real[], bigint[])
RETURNS double precision
AS 'MODULE_PATHNAME', 'gpuvec_cosine_distance'
LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;

COMMENT ON FUNCTION gpuvec_cosine_distance(real[], real[]) IS
	'cosine distance';
COMMENT ON FUNCTION gpuvec_cosine_distance(real[], double precision[]) IS
	'cosine distance';
COMMENT ON FUNCTION gpuvec_cosine_distance(real[], integer[]) IS
	'cosine distance';
COMMENT ON FUNCTION gpuvec_cosine_distance(real[], numeric[]) IS
	'cosine distance';
COMMENT ON FUNCTION gpuvec_cosine_distance(real[], smallint[]) IS
	'cosine distance';
COMMENT ON FUNCTION gpuvec_cosine_distance(real[], bigint[]) IS
	'cosine distance';

CREATE OPERATOR <-> (
	FUNCTION = gpuvec_l2_distance,
	LEFTARG = real[],
	RIGHTARG = real[],
	COMMUTATOR = <->
);

CREATE OPERATOR <-> (
	FUNCTION = gpuvec_l2_distance,
	LEFTARG = real[],
	RIGHTARG = double precision[]
);

CREATE OPERATOR <-> (
	FUNCTION = gpuvec_l2_distance,
	LEFTARG = real[],
	RIGHTARG = integer[]
);

CREATE OPERATOR <-> (
	FUNCTION = gpuvec_l2_distance,
	LEFTARG = real[],
	RIGHTARG = numeric[]
);

CREATE OPERATOR <-> (
	FUNCTION = gpuvec_l2_distance,
	LEFTARG = real[],
	RIGHTARG = smallint[]
);

CREATE OPERATOR <-> (
	FUNCTION = gpuvec_l2_distance,
	LEFTARG = real[],
	RIGHTARG = bigint[]
);

COMMENT ON OPERATOR <-> (real[], real[]) IS
	'Euclidean distance';
COMMENT ON OPERATOR <-> (real[], double precision[]) IS
	'Euclidean distance';
COMMENT ON OPERATOR <-> (real[], integer[]) IS
	'Euclidean distance';
COMMENT ON OPERATOR <-> (real[], numeric[]) IS
	'Euclidean distance';
COMMENT ON OPERATOR <-> (real[], smallint[]) IS
	'Euclidean distance';
COMMENT ON OPERATOR <-> (real[], bigint[]) IS
	'Euclidean distance';

CREATE OPERATOR <#> (
	FUNCTION = gpuvec_negative_inner_product,
	LEFTARG = real[],
	RIGHTARG = real[],
	COMMUTATOR = <#>
);

CREATE OPERATOR <#> (
	FUNCTION = gpuvec_negative_inner_product,
	LEFTARG = real[],
	RIGHTARG = double precision[]
);

CREATE OPERATOR <#> (
	FUNCTION = gpuvec_negative_inner_product,
	LEFTARG = real[],
	RIGHTARG = integer[]
);

CREATE OPERATOR <#> (
	FUNCTION = gpuvec_negative_inner_product,
	LEFTARG = real[],
	RIGHTARG = numeric[]
);

CREATE OPERATOR <#> (
	FUNCTION = gpuvec_negative_inner_product,
	LEFTARG = real[],
	RIGHTARG = smallint[]
);

CREATE OPERATOR <#> (
	FUNCTION = gpuvec_negative_inner_product,
	LEFTARG = real[],
	RIGHTARG = bigint[]
);

COMMENT ON OPERATOR <#> (real[], real[]) IS
	'negative inner product';
COMMENT ON OPERATOR <#> (real[], double precision[]) IS
	'negative inner product';
COMMENT ON OPERATOR <#> (real[], integer[]) IS
	'negative inner product';
COMMENT ON OPERATOR <#> (real[], numeric[]) IS
	'negative inner product';
COMMENT ON OPERATOR <#> (real[], smallint[]) IS
	'negative inner product';
COMMENT ON OPERATOR <#> (real[], bigint[]) IS
	'negative inner product';

CREATE OPERATOR <=> (
	FUNCTION = gpuvec_cosine_distance,
	LEFTARG = real[],
	RIGHTARG = real[],
	COMMUTATOR = <=>
);

CREATE OPERATOR <=> (
	FUNCTION = gpuvec_cosine_distance,
	LEFTARG = real[],
	RIGHTARG = double precision[]
);

CREATE OPERATOR <=> (
	FUNCTION = gpuvec_cosine_distance,
	LEFTARG = real[],
	RIGHTARG = integer[]
);

CREATE OPERATOR <=> (
	FUNCTION = gpuvec_cosine_distance,
	LEFTARG = real[],
	RIGHTARG = numeric[]
);

CREATE OPERATOR <=> (
	FUNCTION = gpuvec_cosine_distance,
	LEFTARG = real[],
	RIGHTARG = smallint[]
);

CREATE OPERATOR <=> (
	FUNCTION = gpuvec_cosine_distance,
	LEFTARG = real[],
	RIGHTARG = bigint[]
);

COMMENT ON OPERATOR <=> (real[], real[]) IS
	'cosine distance';
COMMENT ON OPERATOR <=> (real[], double precision[]) IS
	'cosine distance';
COMMENT ON OPERATOR <=> (real[], integer[]) IS
	'cosine distance';
COMMENT ON OPERATOR <=> (real[], numeric[]) IS
	'cosine distance';
COMMENT ON OPERATOR <=> (real[], smallint[]) IS
	'cosine distance';
COMMENT ON OPERATOR <=> (real[], bigint[]) IS
	'cosine distance';

--
-- Operator classes of vectors: one family for each metric
--

CREATE OPERATOR CLASS real_l2_ops
DEFAULT FOR TYPE real[] USING gpuivfpq AS
	OPERATOR 1 <-> (real[], real[]) FOR ORDER BY float_ops;

ALTER OPERATOR FAMILY real_l2_ops USING gpuivfpq ADD
	OPERATOR 1 <-> (real[], double precision[]) FOR ORDER BY float_ops,
	OPERATOR 1 <-> (real[], integer[]) FOR ORDER BY float_ops,
	OPERATOR 1 <-> (real[], numeric[]) FOR ORDER BY float_ops,
	OPERATOR 1 <-> (real[], smallint[]) FOR ORDER BY float_ops,
	OPERATOR 1 <-> (real[], bigint[]) FOR ORDER BY float_ops;

COMMENT ON OPERATOR CLASS real_l2_ops USING gpuivfpq IS
	'Euclidean distance of real[]';

CREATE OPERATOR CLASS real_ip_ops
FOR TYPE real[] USING gpuivfpq AS
	OPERATOR 2 <#> (real[], real[]) FOR ORDER BY float_ops;

ALTER OPERATOR FAMILY real_ip_ops USING gpuivfpq ADD
	OPERATOR 2 <#> (real[], double precision[]) FOR ORDER BY float_ops,
	OPERATOR 2 <#> (real[], integer[]) FOR ORDER BY float_ops,
	OPERATOR 2 <#> (real[], numeric[]) FOR ORDER BY float_ops,
	OPERATOR 2 <#> (real[], smallint[]) FOR ORDER BY float_ops,
	OPERATOR 2 <#> (real[], bigint[]) FOR ORDER BY float_ops;

COMMENT ON OPERATOR CLASS real_ip_ops USING gpuivfpq IS
	'negative inner product of real[]';

CREATE OPERATOR CLASS real_cosine_ops
FOR TYPE real[] USING gpuivfpq AS
	OPERATOR 3 <=> (real[], real[]) FOR ORDER BY float_ops;

ALTER OPERATOR FAMILY real_cosine_ops USING gpuivfpq ADD
	OPERATOR 3 <=> (real[], double precision[]) FOR ORDER BY float_ops,
	OPERATOR 3 <=> (real[], integer[]) FOR ORDER BY float_ops,
	OPERATOR 3 <=> (real[], numeric[]) FOR ORDER BY float_ops,
	OPERATOR 3 <=> (real[], smallint[]) FOR ORDER BY float_ops,
	OPERATOR 3 <=> (real[], bigint[]) FOR ORDER BY float_ops;

COMMENT ON OPERATOR CLASS real_cosine_ops USING gpuivfpq IS
	'cosine distance of real[]';

--
-- Operator classes of keys, the columns of an index behind the vector.
-- Ordered ones have btree's operators and strategy numbers.
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

COMMENT ON OPERATOR CLASS int2_ops USING gpuivfpq IS 'keys of smallint';
COMMENT ON OPERATOR CLASS int4_ops USING gpuivfpq IS 'keys of integer';
COMMENT ON OPERATOR CLASS int8_ops USING gpuivfpq IS 'keys of bigint';

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

COMMENT ON OPERATOR CLASS float4_ops USING gpuivfpq IS 'keys of real';
COMMENT ON OPERATOR CLASS float8_ops USING gpuivfpq IS 'keys of double precision';

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

COMMENT ON OPERATOR CLASS date_ops USING gpuivfpq IS 'keys of date';
COMMENT ON OPERATOR CLASS timestamp_ops USING gpuivfpq IS 'keys of timestamp';
COMMENT ON OPERATOR CLASS timestamptz_ops USING gpuivfpq IS 'keys of timestamptz';

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

COMMENT ON OPERATOR CLASS bool_ops USING gpuivfpq IS 'keys of boolean';
COMMENT ON OPERATOR CLASS oid_ops USING gpuivfpq IS 'keys of oid';
COMMENT ON OPERATOR CLASS numeric_ops USING gpuivfpq IS 'keys of numeric';
COMMENT ON OPERATOR CLASS enum_ops USING gpuivfpq IS 'keys of enumerated types';

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

COMMENT ON OPERATOR CLASS text_ops USING gpuivfpq IS 'keys of text and varchar';
COMMENT ON OPERATOR CLASS bpchar_ops USING gpuivfpq IS 'keys of char(n)';
COMMENT ON OPERATOR CLASS uuid_ops USING gpuivfpq IS 'keys of uuid';
COMMENT ON OPERATOR CLASS bytea_ops USING gpuivfpq IS 'keys of bytea';
COMMENT ON OPERATOR CLASS inet_ops USING gpuivfpq IS 'keys of inet and cidr';

--
-- Sets: an image is a signature of their elements, or of a document's scalars
--

CREATE FUNCTION gpuvec_signature(anyarray)
RETURNS bigint
AS 'MODULE_PATHNAME', 'gpuvec_array_signature'
LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;

COMMENT ON FUNCTION gpuvec_signature(anyarray) IS 'compute the signature of an array key';

CREATE FUNCTION gpuvec_signature(jsonb)
RETURNS bigint
AS 'MODULE_PATHNAME', 'gpuvec_jsonb_signature'
LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;

COMMENT ON FUNCTION gpuvec_signature(jsonb) IS 'compute the signature of a jsonb key';

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

COMMENT ON OPERATOR CLASS int2_array_ops USING gpuivfpq IS 'keys of smallint[]';
COMMENT ON OPERATOR CLASS int4_array_ops USING gpuivfpq IS 'keys of integer[]';
COMMENT ON OPERATOR CLASS int8_array_ops USING gpuivfpq IS 'keys of bigint[]';
COMMENT ON OPERATOR CLASS text_array_ops USING gpuivfpq IS 'keys of text[]';
COMMENT ON OPERATOR CLASS jsonb_ops USING gpuivfpq IS 'keys of jsonb';

--
-- Looking into an index
--

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
	OUT key_bytes bigint,
	OUT recall_measured double precision,
	OUT recall_low double precision,
	OUT recall_high double precision,
	OUT recall_target double precision,
	OUT recall_k integer,
	OUT recall_queries integer,
	OUT recall_at timestamp with time zone)
AS 'MODULE_PATHNAME'
LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

COMMENT ON FUNCTION gpuvec_index_info(regclass) IS
	'size and state of a gpuivfpq index, with advice';

CREATE FUNCTION gpuvec_list_stats(index regclass)
RETURNS TABLE (
	list integer,
	rows bigint,
	dead bigint,
	blocks bigint,
	generation bigint)
AS 'MODULE_PATHNAME'
LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

COMMENT ON FUNCTION gpuvec_list_stats(regclass) IS 'inverted lists of a gpuivfpq index';

CREATE FUNCTION gpuvec_verify_index(index regclass, mirror boolean DEFAULT false)
RETURNS TABLE (
	severity text,
	block bigint,
	list integer,
	problem text)
AS 'MODULE_PATHNAME'
LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE;

COMMENT ON FUNCTION gpuvec_verify_index(regclass, boolean) IS
	'check a gpuivfpq index for corruption';

--
-- Training an index that is in use
--

CREATE FUNCTION gpuvec_train(index regclass, again boolean DEFAULT false)
RETURNS bigint
AS 'MODULE_PATHNAME'
LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE;

COMMENT ON FUNCTION gpuvec_train(regclass, boolean) IS
	'train a gpuivfpq index, or move its pending rows into lists';

--
-- Recall targets.  A user's own queries are an array of vectors, or a table and
-- its column.
--

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
	'measure recall@k of a gpuivfpq index, with a 95 % confidence interval';

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
	calibrated_for text)
AS 'MODULE_PATHNAME'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION gpuvec_calibrate(regclass, real[], regclass, name) IS
	'measure and store the probes (lists read) and candidates (rows reranked) that find the first k rows at each recall';

CREATE FUNCTION gpuvec_calibration(index regclass)
RETURNS TABLE (
	k integer,
	recall double precision,
	probes integer,
	candidates integer,
	calibrated_for text)
AS 'MODULE_PATHNAME'
LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

COMMENT ON FUNCTION gpuvec_calibration(regclass) IS
	'probes (lists read) and candidates (rows reranked) that find the first k rows at each recall';

CREATE FUNCTION gpuvec_live_queries(index regclass)
RETURNS TABLE (
	asked timestamptz,
	query real[])
AS 'MODULE_PATHNAME'
LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

COMMENT ON FUNCTION gpuvec_live_queries(regclass) IS
	'last 1,000 queries of a gpuivfpq index, if they are kept';

CREATE FUNCTION gpuvec_forget_queries(index regclass)
RETURNS boolean
AS 'MODULE_PATHNAME'
LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

COMMENT ON FUNCTION gpuvec_forget_queries(regclass) IS
	'discard the queries that are kept of a gpuivfpq index';

--
-- What scans have done
--

CREATE FUNCTION gpuvec_last_scan(
	OUT index regclass,
	OUT recall double precision,
	OUT probes integer,
	OUT candidates integer,
	OUT batches integer,
	OUT lists bigint,
	OUT postings bigint,
	OUT refined bigint,
	OUT reranked bigint,
	OUT returned bigint,
	OUT out_of_order bigint,
	OUT full_pass boolean,
	OUT engine text,
	OUT batch_size integer,
	OUT stale_lists bigint,
	OUT tail_postings bigint,
	OUT queued_us bigint,
	OUT engine_us bigint,
	OUT trip_us bigint,
	OUT fallback text,
	OUT matched bigint)
AS 'MODULE_PATHNAME'
LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

COMMENT ON FUNCTION gpuvec_last_scan() IS
	'statistics of the session''s last scan of a gpuivfpq index';

CREATE FUNCTION gpuvec_index_counters(
	index oid,
	OUT scans bigint,
	OUT batches bigint,
	OUT lists bigint,
	OUT postings bigint,
	OUT matched bigint,
	OUT reranked bigint,
	OUT returned bigint,
	OUT out_of_order bigint,
	OUT full_passes bigint,
	OUT since timestamptz)
AS 'MODULE_PATHNAME'
LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

COMMENT ON FUNCTION gpuvec_index_counters(oid) IS
	'statistics of scans of a gpuivfpq index';

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
	'statistics of scans of each gpuivfpq index of this database';

COMMENT ON COLUMN gpuvec_stat_indexes.relid IS 'OID of the table';
COMMENT ON COLUMN gpuvec_stat_indexes.indexrelid IS 'OID of the index';
COMMENT ON COLUMN gpuvec_stat_indexes.schemaname IS 'schema of the table and the index';
COMMENT ON COLUMN gpuvec_stat_indexes.relname IS 'name of the table';
COMMENT ON COLUMN gpuvec_stat_indexes.indexrelname IS 'name of the index';
COMMENT ON COLUMN gpuvec_stat_indexes.scans IS
	'number of scans; NULL, as the following, if scans are not counted';
COMMENT ON COLUMN gpuvec_stat_indexes.batches IS
	'number of batches; NULL, as the following except since, if rows are hidden from the user';
COMMENT ON COLUMN gpuvec_stat_indexes.lists IS 'number of lists read';
COMMENT ON COLUMN gpuvec_stat_indexes.postings IS 'number of postings in these lists';
COMMENT ON COLUMN gpuvec_stat_indexes.matched IS
	'number of postings that match key conditions, of scans that have these';
COMMENT ON COLUMN gpuvec_stat_indexes.reranked IS 'number of rows reranked';
COMMENT ON COLUMN gpuvec_stat_indexes.returned IS 'number of rows returned';
COMMENT ON COLUMN gpuvec_stat_indexes.out_of_order IS
	'number of rows dropped because they were out of order';
COMMENT ON COLUMN gpuvec_stat_indexes.full_passes IS
	'number of scans that ended in a full pass over the table';
COMMENT ON COLUMN gpuvec_stat_indexes.since IS
	'time since which scans are counted; NULL if there was none';

GRANT SELECT ON gpuvec_stat_indexes TO PUBLIC;

CREATE FUNCTION gpuvec_stat_reset(index regclass DEFAULT NULL)
RETURNS void
AS 'MODULE_PATHNAME'
LANGUAGE C VOLATILE PARALLEL RESTRICTED;

COMMENT ON FUNCTION gpuvec_stat_reset(regclass) IS
	'reset the statistics of a gpuivfpq index, or of all in this database';

REVOKE ALL ON FUNCTION gpuvec_stat_reset(regclass) FROM PUBLIC;

--
-- gpuvecd: mirrors of indexes in a server's memory
--

CREATE FUNCTION gpuvec_prewarm(index regclass) RETURNS bigint
AS 'MODULE_PATHNAME'
LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE;

COMMENT ON FUNCTION gpuvec_prewarm(regclass) IS
	'load a gpuivfpq index into gpuvecd and wait for it';

CREATE FUNCTION gpuvec_mirrors(
	OUT database name,
	OUT index regclass,
	OUT state text,
	OUT device integer,
	OUT bytes bigint,
	OUT lists integer,
	OUT postings bigint,
	OUT behind bigint,
	OUT loading_percent double precision,
	OUT searches bigint,
	OUT last_used timestamptz,
	OUT error text,
	OUT shards integer,
	OUT replicas integer,
	OUT rows boolean)
RETURNS SETOF record
AS 'MODULE_PATHNAME'
LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

COMMENT ON FUNCTION gpuvec_mirrors() IS
	'indexes that are loaded, or requested to be loaded, into gpuvecd';

CREATE VIEW gpuvec_mirrors AS SELECT * FROM gpuvec_mirrors();

COMMENT ON VIEW gpuvec_mirrors IS
	'indexes that are loaded, or requested to be loaded, into gpuvecd';

COMMENT ON COLUMN gpuvec_mirrors.database IS 'database of the index';
COMMENT ON COLUMN gpuvec_mirrors.index IS
	'the index; NULL if it belongs to another database';
COMMENT ON COLUMN gpuvec_mirrors.state IS 'ready, loading, waiting or failed';
COMMENT ON COLUMN gpuvec_mirrors.device IS
	'number of the GPU, or of the first of several GPUs';
COMMENT ON COLUMN gpuvec_mirrors.bytes IS 'memory of the mirror on all GPUs';
COMMENT ON COLUMN gpuvec_mirrors.lists IS 'number of lists';
COMMENT ON COLUMN gpuvec_mirrors.postings IS 'number of postings in the mirror';
COMMENT ON COLUMN gpuvec_mirrors.behind IS
	'number of postings that the mirror lacks; NULL if unknown';
COMMENT ON COLUMN gpuvec_mirrors.loading_percent IS
	'percentage of the mirror that is loaded';
COMMENT ON COLUMN gpuvec_mirrors.searches IS 'number of searches of the mirror';
COMMENT ON COLUMN gpuvec_mirrors.last_used IS 'time of the last search';
COMMENT ON COLUMN gpuvec_mirrors.error IS
	'reason why it could not be loaded the last time';
COMMENT ON COLUMN gpuvec_mirrors.shards IS
	'number of GPUs among which each replica is divided';
COMMENT ON COLUMN gpuvec_mirrors.replicas IS 'number of replicas';
COMMENT ON COLUMN gpuvec_mirrors.rows IS
	'whether it also has the vectors of the table''s rows';

GRANT SELECT ON gpuvec_mirrors TO PUBLIC;

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
	OUT jobs_by_server bigint,
	OUT jobs_failed bigint,
	OUT scans bigint,
	OUT out_of_order bigint,
	OUT full_passes bigint)
RETURNS SETOF record
AS 'MODULE_PATHNAME'
LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

COMMENT ON FUNCTION gpuvec_stat() IS 'statistics of gpuvecd';

CREATE VIEW gpuvec_stat AS SELECT * FROM gpuvec_stat();

COMMENT ON VIEW gpuvec_stat IS 'statistics of gpuvecd';

COMMENT ON COLUMN gpuvec_stat.pid IS 'process ID of gpuvecd; NULL if it is not running';
COMMENT ON COLUMN gpuvec_stat.state IS
	'off, starting, up, down, no GPU, other version or suspended';
COMMENT ON COLUMN gpuvec_stat.engine IS 'engine of gpuvecd: cuda or cpu';
COMMENT ON COLUMN gpuvec_stat.device IS 'names of the GPUs or processors of gpuvecd';
COMMENT ON COLUMN gpuvec_stat.started IS 'start time of gpuvecd';
COMMENT ON COLUMN gpuvec_stat.restarts IS 'number of restarts';
COMMENT ON COLUMN gpuvec_stat.searches_by_server IS 'number of searches done by gpuvecd';
COMMENT ON COLUMN gpuvec_stat.searches_in_sessions IS
	'number of searches done by sessions';
COMMENT ON COLUMN gpuvec_stat.fallbacks IS
	'number of searches that gpuvecd failed to do, the sum of the following nine';
COMMENT ON COLUMN gpuvec_stat.down IS '... because it was not running';
COMMENT ON COLUMN gpuvec_stat.suspended IS
	'... because it had not responded to other sessions in time';
COMMENT ON COLUMN gpuvec_stat.not_mirrored IS
	'... because it had no mirror of the index';
COMMENT ON COLUMN gpuvec_stat.loading IS
	'... because the mirror was not loaded yet';
COMMENT ON COLUMN gpuvec_stat.timed_out IS
	'... because it did not respond within gpuvec.request_timeout';
COMMENT ON COLUMN gpuvec_stat.broken IS
	'... because the connection was lost or a response was invalid';
COMMENT ON COLUMN gpuvec_stat.refused IS
	'... because it refused them for its version, connections or memory';
COMMENT ON COLUMN gpuvec_stat.engine_failed IS '... because its engine failed';
COMMENT ON COLUMN gpuvec_stat.stale IS
	'... because the mirror was too far behind the index';
COMMENT ON COLUMN gpuvec_stat.batches IS 'number of batches in which gpuvecd searched';
COMMENT ON COLUMN gpuvec_stat.mean_batch IS 'mean number of searches in a batch';
COMMENT ON COLUMN gpuvec_stat.largest_batch IS 'number of searches in the largest batch';
COMMENT ON COLUMN gpuvec_stat.bytes_sent IS 'number of bytes sent to gpuvecd';
COMMENT ON COLUMN gpuvec_stat.bytes_received IS 'number of bytes received from gpuvecd';
COMMENT ON COLUMN gpuvec_stat.mirrors IS 'number of mirrors';
COMMENT ON COLUMN gpuvec_stat.mirror_bytes IS 'memory of mirrors';
COMMENT ON COLUMN gpuvec_stat.memory IS 'maximum memory of mirrors on all GPUs';
COMMENT ON COLUMN gpuvec_stat.latency_p50_us IS
	'median latency of searches by gpuvecd, in microseconds';
COMMENT ON COLUMN gpuvec_stat.latency_p99_us IS
	'99th percentile of that latency, in microseconds';
COMMENT ON COLUMN gpuvec_stat.jobs_by_server IS
	'number of whole-table jobs done by gpuvecd';
COMMENT ON COLUMN gpuvec_stat.jobs_failed IS
	'number of whole-table jobs that gpuvecd failed to do';
COMMENT ON COLUMN gpuvec_stat.scans IS 'number of index scans';
COMMENT ON COLUMN gpuvec_stat.out_of_order IS
	'number of rows that scans dropped because they were out of order';
COMMENT ON COLUMN gpuvec_stat.full_passes IS
	'number of scans that ended in a full pass over the table';

GRANT SELECT ON gpuvec_stat TO PUBLIC;

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
	'report problems of gpuvec and its indexes in this database, with advice';

CREATE FUNCTION gpuvec_doctor(query text)
RETURNS TABLE (
	subject text,
	state text,
	advice text)
AS 'MODULE_PATHNAME', 'gpuvec_doctor_statement'
LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE;

COMMENT ON FUNCTION gpuvec_doctor(text) IS
	'explain why a SELECT does not use a gpuivfpq index, without executing it';

--
-- Selection
--

CREATE FUNCTION gpuvec_select(vals anyarray, k integer, method text DEFAULT 'auto')
RETURNS TABLE (
	pos integer,
	val anyelement)
AS 'MODULE_PATHNAME'
LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;

COMMENT ON FUNCTION gpuvec_select(anyarray, integer, text) IS
	'k smallest elements of an array, ascending, with their subscripts';

CREATE FUNCTION gpuvec_quantiles(
	vals anyarray,
	ranks bigint[],
	approximate boolean DEFAULT false)
RETURNS TABLE (
	rank bigint,
	val anyelement,
	rank_error bigint)
AS 'MODULE_PATHNAME'
LANGUAGE C STABLE STRICT PARALLEL SAFE;

COMMENT ON FUNCTION gpuvec_quantiles(anyarray, bigint[], boolean) IS
	'elements of an array at given ranks of its sorted order';

CREATE FUNCTION gpuvec_percentiles(
	rel regclass,
	value_column name,
	fractions double precision[],
	approximate boolean DEFAULT false)
RETURNS TABLE (
	fraction double precision,
	val double precision,
	rank bigint,
	rank_error bigint)
AS 'MODULE_PATHNAME'
LANGUAGE C STABLE STRICT PARALLEL RESTRICTED;

COMMENT ON FUNCTION gpuvec_percentiles(regclass, name, double precision[], boolean) IS
	'values of a column at given fractions of its sorted order';

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
	'k nearest rows to each query, by an index';

CREATE FUNCTION gpuvec_search(
	index regclass,
	queries real[][],
	k integer,
	VARIADIC keys "any")
RETURNS TABLE (
	query integer,
	tid tid,
	distance double precision)
AS 'MODULE_PATHNAME'
LANGUAGE C STABLE PARALLEL RESTRICTED;

COMMENT ON FUNCTION gpuvec_search(regclass, real[], integer, "any") IS
	'k nearest rows to each query among those with these keys, by an index';

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
	'exact k nearest rows to each query, without an index';

CREATE FUNCTION gpuvec_knn_graph(
	rel regclass,
	key_column name,
	vector_column name,
	k integer,
	metric text DEFAULT 'l2',
	method text DEFAULT 'exact')
RETURNS TABLE (
	key bigint,
	neighbor bigint,
	rank integer,
	distance double precision)
AS 'MODULE_PATHNAME'
LANGUAGE C STABLE STRICT PARALLEL RESTRICTED;

COMMENT ON FUNCTION gpuvec_knn_graph(regclass, name, name, integer, text, text) IS
	'k nearest other rows of each row of a table';

CREATE FUNCTION gpuvec_knn_graph_arrays(
	rel regclass,
	key_column name,
	vector_column name,
	k integer,
	metric text DEFAULT 'l2',
	method text DEFAULT 'exact')
RETURNS TABLE (
	key bigint,
	neighbors bigint[],
	distances double precision[])
AS 'MODULE_PATHNAME'
LANGUAGE C STABLE STRICT PARALLEL RESTRICTED;

COMMENT ON FUNCTION gpuvec_knn_graph_arrays(regclass, name, name, integer, text, text) IS
	'k nearest other rows of each row of a table, as arrays';

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
	neighbor bigint,
	rank integer,
	distance double precision)
AS 'MODULE_PATHNAME'
LANGUAGE C STABLE STRICT PARALLEL RESTRICTED;

COMMENT ON FUNCTION gpuvec_knn_join(regclass, name, name, regclass, name, name, integer, text, text) IS
	'k nearest rows of one table to each row of another';

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
	'k-means clusters of the vectors of a table';

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

COMMENT ON FUNCTION gpuvec_progress() IS 'progress of whole-table functions';

CREATE VIEW gpuvec_progress AS SELECT * FROM gpuvec_progress();

COMMENT ON VIEW gpuvec_progress IS 'progress of whole-table functions';

COMMENT ON COLUMN gpuvec_progress.pid IS 'process ID of the session';
COMMENT ON COLUMN gpuvec_progress.datname IS 'database of the session';
COMMENT ON COLUMN gpuvec_progress.relid IS 'the table being processed';
COMMENT ON COLUMN gpuvec_progress.command IS 'function that the session runs';
COMMENT ON COLUMN gpuvec_progress.phase IS 'current phase';
COMMENT ON COLUMN gpuvec_progress.done IS 'units of the phase that are done';
COMMENT ON COLUMN gpuvec_progress.total IS 'units of the phase in total; NULL if unknown';

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
	'path between two keys of a graph whose largest step is smallest';
