-- Two copies and records of halves; records of bytes, cosine; blocks of two pages,
-- inner product, one copy, halves; an untrained one; one that is trained in place,
-- with halves.
CREATE INDEX refined_e ON refined USING gpuivfpq (e) WITH (lists = 25, refine = half);
CREATE INDEX cosine_e ON cosine USING gpuivfpq (e real_cosine_ops) WITH (refine = sq8);
CREATE INDEX wide_e ON wide USING gpuivfpq (e real_ip_ops)
	WITH (lists = 4, pq_dim = 900, spill = 0, dims = 1100, refine = half);
CREATE INDEX untrained_e ON untrained USING gpuivfpq (e);
CREATE INDEX inplace_e ON inplace USING gpuivfpq (e) WITH (lists = 10, refine = half);
