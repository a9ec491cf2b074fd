-- The answers of the indexes: at the recall that is the default where nothing but
-- the index decides, and exactly.  Statistics are lost on the way, so a condition
-- may be asked of other depths.
SET enable_seqscan = off;
SET enable_sort = off;
SET timezone = 'UTC';
SELECT tab, condition, n, ids(a, n, false) FROM asked AS a, generate_series(1, 3) AS n
WHERE condition = 'true' ORDER BY 1, 2, 3;
SET gpuvec.recall = 1;
SELECT tab, condition, n, ids(a, n, false) FROM asked AS a, generate_series(1, 3) AS n ORDER BY 1, 2, 3;
