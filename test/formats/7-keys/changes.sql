-- Rows that come and go while there are indexes.  None comes after a VACUUM,
-- so that rows lie in the same places on every version of PostgreSQL.
INSERT INTO ordered SELECT g, fixture(g, 16) FROM generate_series(1501, 1900) AS g;
INSERT INTO hashed SELECT g, fixture(g, 16) FROM generate_series(1501, 1900) AS g;
INSERT INTO sets SELECT g, fixture(g, 16) FROM generate_series(1502, 1700) AS g;
INSERT INTO wide SELECT g, fixture(g, 1100) FROM generate_series(151, 170) AS g;
INSERT INTO untrained SELECT g, fixture(g, 4) FROM generate_series(1, 2000) AS g;
INSERT INTO inplace SELECT g, fixture(g, 8) FROM generate_series(1, 1500) AS g;
DELETE FROM ordered WHERE id % 7 = 0 OR id % 20 = 3;
DELETE FROM hashed WHERE id % 7 = 0 OR id % 20 = 3;
DELETE FROM sets WHERE id % 5 = 0;
DELETE FROM untrained WHERE id <= 500;
VACUUM (INDEX_CLEANUP ON, TRUNCATE OFF) ordered;
VACUUM (INDEX_CLEANUP ON, TRUNCATE OFF) hashed;
VACUUM (INDEX_CLEANUP ON, TRUNCATE OFF) sets;
VACUUM (INDEX_CLEANUP ON, TRUNCATE OFF) untrained;
