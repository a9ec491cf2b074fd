-- Rotated: two copies and records of halves; records of bytes, cosine; inner
-- product, one copy, halves, fewer sub-quantizers; an untrained one; one that is
-- trained in place, with halves.
CREATE INDEX refined_e ON refined USING gpuivfpq (e) WITH (lists = 25, refine = half, rotate);
CREATE INDEX cosine_e ON cosine USING gpuivfpq (e real_cosine_ops) WITH (refine = sq8, rotate);
CREATE INDEX product_e ON product USING gpuivfpq (e real_ip_ops)
	WITH (lists = 4, pq_dim = 9, spill = 0, dims = 24, refine = half, rotate);
CREATE INDEX untrained_e ON untrained USING gpuivfpq (e) WITH (rotate);
CREATE INDEX inplace_e ON inplace USING gpuivfpq (e) WITH (lists = 10, refine = half, rotate);
