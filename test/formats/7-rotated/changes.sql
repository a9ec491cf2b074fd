-- Rows that come and go while there are indexes.  None comes after a VACUUM,
-- so that rows lie in the same places on every version of PostgreSQL.
INSERT INTO refined SELECT g, fixture(g, 16) FROM generate_series(2501, 3000) AS g;
INSERT INTO cosine SELECT g, fixture(g, 16) FROM generate_series(1502, 1700) AS g;
INSERT INTO product SELECT g, fixture(g, 24) FROM generate_series(151, 170) AS g;
INSERT INTO untrained SELECT g, fixture(g, 4) FROM generate_series(1, 4000) AS g;
INSERT INTO inplace SELECT g, fixture(g, 8) FROM generate_series(1, 1500) AS g;
DELETE FROM refined WHERE id % 7 = 0 OR id % 20 = 3;
DELETE FROM cosine WHERE id % 5 = 0;
DELETE FROM untrained WHERE id <= 1500 OR id BETWEEN 2000 AND 2100;
VACUUM (INDEX_CLEANUP ON, TRUNCATE OFF) refined;
VACUUM (INDEX_CLEANUP ON, TRUNCATE OFF) cosine;
VACUUM (INDEX_CLEANUP ON, TRUNCATE OFF) untrained;
