-- Rows come and go in every table.
\o /dev/null
SELECT max(id) + 1 AS first, max(id) % 3 AS rest FROM refined \gset
CREATE TEMP TABLE changed AS SELECT DISTINCT CASE WHEN tab LIKE '(%' THEN 'expression' ELSE tab END AS tab, dims
FROM asked WHERE tab <> 'seen';
SELECT format('INSERT INTO %s (id, e) SELECT g, point(g, %s) FROM generate_series(%s, %s + 199) AS g', tab, dims, :first, :first)
FROM changed \gexec
SELECT format('DELETE FROM %s WHERE id %% 5 = %s', tab, :rest) FROM changed \gexec
SELECT format('VACUUM (INDEX_CLEANUP ON) %s', tab) FROM changed \gexec
SELECT format('INSERT INTO %s (id, e) SELECT g, point(g, %s) FROM generate_series(%s + 200, %s + 249) AS g', tab, dims, :first, :first)
FROM changed \gexec
REFRESH MATERIALIZED VIEW seen;
