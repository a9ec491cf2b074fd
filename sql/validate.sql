-- operator classes, sound and unsound
\getenv srcdir PG_ABS_SRCDIR
\i :srcdir/sql/include/prologue.sql
RESET client_min_messages;

-- the extension's own
SELECT opcname, opcintype::regtype, opcdefault, amvalidate(c.oid)
FROM pg_opclass AS c JOIN pg_am AS a ON a.oid = c.opcmethod
	JOIN pg_depend AS d ON d.objid = c.oid AND d.classid = 'pg_opclass'::regclass
	JOIN pg_extension AS e ON e.oid = d.refobjid AND extname = 'gpuvec'
WHERE amname = 'gpuivfpq'
ORDER BY 1;
SELECT opfname, amoplefttype::regtype, amoprighttype::regtype, amopstrategy,
	amoppurpose, amopopr::regoperator
FROM pg_amop AS o JOIN pg_opfamily AS f ON f.oid = o.amopfamily
	JOIN pg_am AS a ON a.oid = f.opfmethod
WHERE amname = 'gpuivfpq' AND amoplefttype = 'real[]'::regtype
ORDER BY amopstrategy, amoprighttype;
-- keys' families hold what btree's of the same name do, but where there is
-- only equality
SELECT opfname, count(*), count(amopopr) FILTER (WHERE b.amopstrategy IS NULL) AS others,
	string_agg(DISTINCT o.amopstrategy::text, ' ' ORDER BY o.amopstrategy::text) AS strategies,
	string_agg(DISTINCT o.amoplefttype::regtype::text, ', ' ORDER BY o.amoplefttype::regtype::text) AS types
FROM pg_amop AS o JOIN pg_opfamily AS f ON f.oid = o.amopfamily
	JOIN pg_am AS a ON a.oid = f.opfmethod
	LEFT JOIN (SELECT opfname, amopopr, amopstrategy FROM pg_amop AS o JOIN pg_opfamily AS f ON f.oid = o.amopfamily
		JOIN pg_am AS a ON a.oid = f.opfmethod AND amname = 'btree') AS b USING (opfname, amopopr, amopstrategy)
WHERE amname = 'gpuivfpq' AND amoppurpose = 's'
GROUP BY 1 ORDER BY 1;

SELECT a.amname, p.name, pg_indexam_has_property(a.oid, p.name)
FROM pg_am AS a,
	unnest(ARRAY['can_order', 'can_unique', 'can_multi_col', 'can_exclude',
		'can_include']) AS p (name)
WHERE a.amname = 'gpuivfpq' ORDER BY 2;

CREATE SCHEMA broken;
SET search_path = broken, public;

CREATE FUNCTION validate(class text) RETURNS boolean
LANGUAGE sql STABLE
RETURN (SELECT amvalidate(c.oid)
	FROM pg_opclass AS c JOIN pg_am AS a ON a.oid = c.opcmethod
	WHERE amname = 'gpuivfpq' AND opcname = class);

-- a type of one's own: any that has a distance and turns into real[]
CREATE FUNCTION int8_distance(int8, int8) RETURNS float8
LANGUAGE sql IMMUTABLE STRICT RETURN abs($1 - $2);
CREATE FUNCTION int8_distance4(int8, int8) RETURNS float4
LANGUAGE sql IMMUTABLE STRICT RETURN abs($1 - $2);
CREATE FUNCTION int84_distance(int8, int4) RETURNS float8
LANGUAGE sql IMMUTABLE STRICT RETURN abs($1 - $2);
CREATE FUNCTION int4_distance(int4, int4) RETURNS float8
LANGUAGE sql IMMUTABLE STRICT RETURN abs($1 - $2);
CREATE FUNCTION int8_real(int8, int4, bool) RETURNS real[]
LANGUAGE sql IMMUTABLE STRICT RETURN ARRAY[$1::real];
CREATE FUNCTION int8_real1(int8) RETURNS real[]
LANGUAGE sql IMMUTABLE STRICT RETURN ARRAY[$1::real];
CREATE FUNCTION real_real(real[], int4, bool) RETURNS real[]
LANGUAGE sql IMMUTABLE STRICT RETURN $1;
CREATE OPERATOR <-> (FUNCTION = int8_distance, LEFTARG = int8, RIGHTARG = int8);
CREATE OPERATOR <~> (FUNCTION = int8_distance4, LEFTARG = int8, RIGHTARG = int8);
CREATE OPERATOR <#> (FUNCTION = int8_distance, LEFTARG = int8, RIGHTARG = int8);
CREATE OPERATOR <-> (FUNCTION = int84_distance, LEFTARG = int8, RIGHTARG = int4);
CREATE OPERATOR <-> (FUNCTION = int4_distance, LEFTARG = int4, RIGHTARG = int4);

CREATE OPERATOR CLASS sound FOR TYPE int8 USING gpuivfpq AS
	OPERATOR 1 <-> (int8, int8) FOR ORDER BY float_ops,
	FUNCTION 1 int8_real(int8, int4, bool);
ALTER OPERATOR FAMILY sound USING gpuivfpq ADD
	OPERATOR 1 <-> (int8, int4) FOR ORDER BY float_ops;
SELECT validate('sound');

-- without the support function
CREATE OPERATOR CLASS no_support FOR TYPE int8 USING gpuivfpq AS
	OPERATOR 1 <-> (int8, int8) FOR ORDER BY float_ops;
SELECT validate('no_support');

-- with one of the wrong form
CREATE OPERATOR CLASS wrong_support FOR TYPE int8 USING gpuivfpq AS
	OPERATOR 1 <-> (int8, int8) FOR ORDER BY float_ops,
	FUNCTION 1 int8_real1(int8);
SELECT validate('wrong_support');

-- with one for real[], which needs none
CREATE OPERATOR CLASS real_support FOR TYPE real[] USING gpuivfpq AS
	OPERATOR 1 <-> (real[], real[]) FOR ORDER BY float_ops,
	FUNCTION 1 real_real(real[], int4, bool);
SELECT validate('real_support');

-- with support for another type, or for two
CREATE OPERATOR CLASS other_support FOR TYPE int8 USING gpuivfpq AS
	OPERATOR 1 <-> (int8, int8) FOR ORDER BY float_ops,
	FUNCTION 1 (real[], real[]) real_real(real[], int4, bool),
	FUNCTION 1 (int8, int4) int8_real(int8, int4, bool);
SELECT validate('other_support');

-- without an operator
CREATE OPERATOR CLASS no_operator FOR TYPE int8 USING gpuivfpq AS
	FUNCTION 1 int8_real(int8, int4, bool);
SELECT validate('no_operator');

-- with only a loose one
CREATE OPERATOR CLASS only_loose FOR TYPE int8 USING gpuivfpq AS
	OPERATOR 1 <-> (int8, int4) FOR ORDER BY float_ops,
	FUNCTION 1 int8_real(int8, int4, bool);
SELECT validate('only_loose');

-- numbers that core refuses, numbers of keys, and two metrics in one family
CREATE OPERATOR CLASS strategy_8 FOR TYPE int8 USING gpuivfpq AS
	OPERATOR 8 <-> (int8, int8) FOR ORDER BY float_ops;
CREATE OPERATOR CLASS support_4 FOR TYPE int8 USING gpuivfpq AS
	FUNCTION 4 int8_real(int8, int4, bool);
CREATE OPERATOR CLASS key_numbers FOR TYPE int8 USING gpuivfpq AS
	OPERATOR 4 <-> (int8, int8) FOR ORDER BY float_ops,
	FUNCTION 2 hashint8(int8),
	FUNCTION 1 int8_real(int8, int4, bool);
SELECT validate('key_numbers');
CREATE OPERATOR CLASS two_metrics FOR TYPE int8 USING gpuivfpq AS
	OPERATOR 1 <-> (int8, int8) FOR ORDER BY float_ops,
	OPERATOR 2 <#> (int8, int8) FOR ORDER BY float_ops,
	FUNCTION 1 int8_real(int8, int4, bool);
SELECT validate('two_metrics');
CREATE TABLE ints (i int8);
CREATE INDEX ON ints USING gpuivfpq (i two_metrics) WITH (dims = 1);
CREATE INDEX ON ints USING gpuivfpq (i only_loose) WITH (dims = 1);
DROP TABLE ints;

-- an operator for searching, not for ordering
CREATE OPERATOR CLASS searching FOR TYPE int8 USING gpuivfpq AS
	OPERATOR 1 <(int8, int8) FOR SEARCH,
	FUNCTION 1 int8_real(int8, int4, bool);
SELECT validate('searching');

-- a distance that is not double precision, ordered as something else
CREATE OPERATOR CLASS real_distance FOR TYPE int8 USING gpuivfpq AS
	OPERATOR 1 <~> (int8, int8) FOR ORDER BY float_ops,
	FUNCTION 1 int8_real(int8, int4, bool);
SELECT validate('real_distance');
CREATE OPERATOR CLASS int_order FOR TYPE int8 USING gpuivfpq AS
	OPERATOR 1 <-> (int8, int8) FOR ORDER BY integer_ops,
	FUNCTION 1 int8_real(int8, int4, bool);
SELECT validate('int_order');

-- an operator with another type on its left
CREATE OPERATOR CLASS other_left FOR TYPE int8 USING gpuivfpq AS
	OPERATOR 1 <-> (int8, int8) FOR ORDER BY float_ops,
	OPERATOR 1 <-> (int4, int4) FOR ORDER BY float_ops,
	FUNCTION 1 int8_real(int8, int4, bool);
SELECT validate('other_left');

-- keys: ordered ones of a type that is known, and a type of one's own, by its
-- hash; what a family lacks, and what it has too much
CREATE TYPE pair AS (a int, b int);
CREATE FUNCTION pair_equal(pair, pair) RETURNS bool
LANGUAGE sql IMMUTABLE STRICT RETURN ($1).a = ($2).a AND ($1).b = ($2).b;
CREATE FUNCTION pair_hash(pair) RETURNS int4
LANGUAGE sql IMMUTABLE STRICT RETURN hashint4(($1).a);
CREATE FUNCTION pair_bits(pair) RETURNS int8
LANGUAGE sql IMMUTABLE STRICT RETURN 1 << (($1).a & 15);
CREATE OPERATOR === (FUNCTION = pair_equal, LEFTARG = pair, RIGHTARG = pair);
CREATE OPERATOR CLASS key_sound FOR TYPE int8 USING gpuivfpq AS
	OPERATOR 3 =,
	OPERATOR 5 >;
SELECT validate('key_sound');
CREATE OPERATOR CLASS key_hash DEFAULT FOR TYPE pair USING gpuivfpq AS
	OPERATOR 3 ===,
	FUNCTION 2 pair_hash(pair);
SELECT validate('key_hash');
CREATE OPERATOR CLASS key_bits FOR TYPE pair USING gpuivfpq AS
	OPERATOR 6 ===,
	FUNCTION 3 pair_bits(pair);
SELECT validate('key_bits');
CREATE OPERATOR CLASS key_unknown FOR TYPE pair USING gpuivfpq AS
	OPERATOR 3 ===;
SELECT validate('key_unknown');
CREATE OPERATOR CLASS key_no_operator FOR TYPE pair USING gpuivfpq AS
	FUNCTION 2 pair_hash(pair);
SELECT validate('key_no_operator');
CREATE OPERATOR CLASS key_both FOR TYPE pair USING gpuivfpq AS
	OPERATOR 3 ===,
	FUNCTION 2 pair_hash(pair),
	FUNCTION 3 pair_bits(pair);
SELECT validate('key_both');
CREATE OPERATOR CLASS key_swapped FOR TYPE pair USING gpuivfpq AS
	OPERATOR 3 ===,
	FUNCTION 3 pair_hash(pair);
SELECT validate('key_swapped');
CREATE OPERATOR CLASS key_two_types FOR TYPE pair USING gpuivfpq AS
	OPERATOR 3 ===,
	FUNCTION 2 (pair, int8) pair_hash(pair),
	FUNCTION 2 (pair, pair) pair_hash(pair);
SELECT validate('key_two_types');
CREATE OPERATOR CLASS key_wrong_order FOR TYPE int8 USING gpuivfpq AS
	OPERATOR 1 >,
	OPERATOR 3 =,
	OPERATOR 6 <;
SELECT validate('key_wrong_order');
CREATE TABLE pairs (v real[], p pair, i int8);
CREATE INDEX ON pairs USING gpuivfpq (v, p) WITH (dims = 1);
CREATE INDEX ON pairs USING gpuivfpq (v, p key_unknown) WITH (dims = 1);
CREATE INDEX ON pairs USING gpuivfpq (v, i sound) WITH (dims = 1);
DROP TABLE pairs;

-- loose operators can go, essential ones only with their class
ALTER OPERATOR FAMILY sound USING gpuivfpq DROP OPERATOR 1 (int8, int4);
ALTER OPERATOR FAMILY sound USING gpuivfpq DROP OPERATOR 1 (int8, int8);
ALTER OPERATOR FAMILY sound USING gpuivfpq DROP FUNCTION 1 (int8, int8);
SELECT validate('sound');

SET client_min_messages = warning;
DROP SCHEMA broken CASCADE;
