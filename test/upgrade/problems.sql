-- Prints what is wrong: with an index, with an answer, with a plan.
SET enable_seqscan = off;
SET enable_sort = off;
SET timezone = 'UTC';
SELECT c.oid::regclass, v.* FROM pg_class AS c JOIN pg_am AS a ON a.oid = relam AND amname = 'gpuivfpq',
	gpuvec_verify_index(c.oid::regclass) AS v WHERE relkind = 'i';
-- every version adds rows: at some version 'wide' has enough to calibrate its index with
SELECT c.oid::regclass, advice FROM pg_class AS c JOIN pg_am AS a ON a.oid = relam AND amname = 'gpuivfpq',
	gpuvec_index_info(c.oid::regclass) WHERE relkind = 'i' AND advice !~ '^The index is not trained'
		AND NOT (relname = 'wide_e_idx' AND advice ~ '^The index is not calibrated');
SELECT tab, condition, 'is not asked of the index' FROM asked AS a WHERE NOT by_index(a);
SET gpuvec.recall = 1;
SELECT * FROM (SELECT tab, condition, n, ids(a, n, false) AS found, ids(a, n, true) AS truth
	FROM asked AS a, generate_series(1, 3) AS n) AS x WHERE found <> truth;
