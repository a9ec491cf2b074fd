-- Images of every width and kind, exact ones and others, whole and with NULLs:
-- two copies; records of halves; one copy, cosine, rotated, records of bytes; blocks
-- of two pages, inner product; an untrained one; one that is trained in place.
CREATE INDEX ordered_e ON ordered USING gpuivfpq (e, flag, small, tenant, big, score, price, created) WITH (lists = 25);
CREATE INDEX hashed_e ON hashed USING gpuivfpq (e, day, owner, feeling, key, name, bytes, host)
	WITH (lists = 25, refine = half);
CREATE INDEX sets_e ON sets USING gpuivfpq (e real_cosine_ops, tags, words, doc, code, label, weight, at)
	WITH (spill = 0, refine = sq8, rotate);
CREATE INDEX wide_e ON wide USING gpuivfpq (e real_ip_ops, tenant)
	WITH (lists = 4, pq_dim = 900, spill = 0, dims = 1100);
CREATE INDEX untrained_e ON untrained USING gpuivfpq (e, tenant);
CREATE INDEX inplace_e ON inplace USING gpuivfpq (e, tenant) WITH (lists = 10);
