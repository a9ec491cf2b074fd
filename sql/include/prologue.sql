\set ECHO none
-- What the SQL tests begin with: of this file their output shows the line
-- above alone.  pg_regress says where the files are, for a build in another
-- folder too; who runs a test with psql sets PG_ABS_SRCDIR to where sql/ is.

-- only a test that is about notices has them, after RESET
SET client_min_messages = warning;
-- pg_regress has made it, where no test before failed half-way
CREATE EXTENSION IF NOT EXISTS gpuvec;
-- the index is used wherever it can be; a plan without it, which then looks
-- dear, is not compiled
SET enable_seqscan = off;
SET jit = off;

-- rows of clusters, the same wherever this runs; spread = 0: no clusters,
-- numbers between 0 and 1
CREATE FUNCTION pg_temp.point(g int, dims int, clusters int DEFAULT 20,
	spread float8 DEFAULT 10, origin float8 DEFAULT 0) RETURNS real[]
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
	v real[];
	n float8;
BEGIN
	FOR i IN 1 .. dims LOOP
		n = abs(sin(g * 12.9898::float8 + i * 78.233::float8)) * 43758.5453;
		v[i] = origin + spread * sin(g % clusters * 131 + i * 17) + n - floor(n);
	END LOOP;
	RETURN v;
END
$$;

-- rows without clusters that look alike in few dimensions
CREATE FUNCTION pg_temp.wave(g int, dims int) RETURNS real[]
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
	v real[];
BEGIN
	FOR i IN 1 .. dims LOOP
		v[i] = sin(g * (i + 0.3::float8));
	END LOOP;
	RETURN v;
END
$$;

-- small integers, so that many distances are equal; mask is the largest
CREATE FUNCTION pg_temp.numbers(seed int, n int, mask int DEFAULT 7)
RETURNS real[]
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
	v real[];
BEGIN
	FOR i IN 1 .. n LOOP
		v[i] = hashint4(seed * 64 + i) & mask;
	END LOOP;
	RETURN v;
END
$$;

-- rows reached through an index on column e, all lists, in any order
CREATE FUNCTION pg_temp.reached(tab regclass, dims int)
RETURNS TABLE (rows bigint, distinct_rows bigint)
LANGUAGE plpgsql SET gpuvec.scan_order = relaxed AS $$
BEGIN
	RETURN QUERY EXECUTE format('SELECT count(*), count(DISTINCT id)
		FROM (SELECT id FROM %s ORDER BY e <-> %L) AS q',
		tab, array_fill(1::real, ARRAY[dims]));
END
$$;
\set ECHO all
