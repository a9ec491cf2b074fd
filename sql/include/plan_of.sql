\set ECHO none
-- a query's plan, where it may have what is disabled: PostgreSQL 18 says so,
-- others show it in the costs
CREATE FUNCTION pg_temp.plan_of(query text) RETURNS SETOF text
LANGUAGE plpgsql AS $$
DECLARE
	line text;
BEGIN
	FOR line IN EXECUTE 'EXPLAIN (COSTS OFF) ' || query LOOP
		IF line NOT LIKE '%Disabled: true' THEN
			RETURN NEXT line;
		END IF;
	END LOOP;
END
$$;
\set ECHO all
