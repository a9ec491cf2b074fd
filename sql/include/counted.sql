\set ECHO none
-- an operator that counts its calls, cheap enough to be asked early; the test
-- drops it at its end
CREATE SEQUENCE calls;
CREATE FUNCTION counted_distance(real[], real[]) RETURNS float8 LANGUAGE plpgsql IMMUTABLE STRICT COST 10 AS $$
BEGIN
	PERFORM nextval('calls');
	RETURN $1 <-> $2;
END
$$;
CREATE OPERATOR <~> (FUNCTION = counted_distance, LEFTARG = real[], RIGHTARG = real[], COMMUTATOR = <~>);
CREATE OPERATOR CLASS counted_ops FOR TYPE real[] USING gpuivfpq AS
	OPERATOR 1 <~> FOR ORDER BY float_ops;

-- calls that a statement makes beyond those that its last scan measures with
CREATE FUNCTION pg_temp.more_calls(statement text) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
	n int;
BEGIN
	PERFORM setval('calls', 1);
	EXECUTE statement;
	SELECT last_value - 1 INTO n FROM calls;
	RETURN n - (SELECT reranked FROM gpuvec_last_scan());
END
$$;
\set ECHO all
