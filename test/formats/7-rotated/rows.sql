-- Rows that are there when the indexes are built.
INSERT INTO refined SELECT g, fixture(g, 16) FROM generate_series(-1499, 2500) AS g;
INSERT INTO cosine SELECT g, fixture(g, 16) FROM generate_series(1, 1500) AS g;
INSERT INTO cosine VALUES (1501, NULL);
INSERT INTO product SELECT g, fixture(g, 24) FROM generate_series(1, 150) AS g;
