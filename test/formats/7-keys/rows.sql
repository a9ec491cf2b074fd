-- Rows that are there when the indexes are built.
INSERT INTO ordered SELECT g, fixture(g, 16) FROM generate_series(-499, 1500) AS g;
INSERT INTO hashed SELECT g, fixture(g, 16) FROM generate_series(-499, 1500) AS g;
INSERT INTO sets SELECT g, fixture(g, 16) FROM generate_series(1, 1500) AS g;
INSERT INTO sets VALUES (1501, NULL);
INSERT INTO wide SELECT g, fixture(g, 1100) FROM generate_series(1, 150) AS g;
