-- The fixture's tables.  Numbers that floats hold exactly, so that rows are
-- the same on every machine; PLAIN, so that they lie in line, uncompressed.
CREATE FUNCTION fixture(g int, dims int) RETURNS real[]
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
	SELECT array_agg(((g % 20 * 131 + i * 17) % 97 - 48
		+ ((g * 7919 + i * 10477 + g * i * 31) % 257) / 64.0)::real ORDER BY i)
	FROM generate_series(1, dims) AS i
$$;
CREATE TABLE refined (id int, e real[]);
CREATE TABLE cosine (id int, e real[]);
CREATE TABLE product (id int, e real[]);
CREATE TABLE untrained (id int, e real[]);
CREATE TABLE inplace (id int, e real[]);
ALTER TABLE refined ALTER e SET STORAGE PLAIN;
ALTER TABLE cosine ALTER e SET STORAGE PLAIN;
ALTER TABLE product ALTER e SET STORAGE PLAIN;
ALTER TABLE untrained ALTER e SET STORAGE PLAIN;
ALTER TABLE inplace ALTER e SET STORAGE PLAIN;
