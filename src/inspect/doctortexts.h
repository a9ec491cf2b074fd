/*
 * doctortexts.h
 *		The texts of the doctor: findings, advice, and reasons why a statement
 *		does not use an index.
 *
 * A finding, or state, is a phrase without a capital and a period.  Advice is
 * one or more sentences, of which the first says what to do.
 */
#ifndef IVFPQ_DOCTORTEXTS_H
#define IVFPQ_DOCTORTEXTS_H

/* Versions and the server */
#define DOCTOR_VERSION \
	"version %s"
#define DOCTOR_OLD_LIBRARY \
	"%s, files of version %s are installed, but this session runs the library of version %s"
#define DOCTOR_RECONNECT \
	"Reconnect or, if gpuvec is preloaded, restart the server."
#define DOCTOR_OLD_EXTENSION \
	"%s, but the library has version %s"
#define DOCTOR_UPDATE_EXTENSION \
	"Run ALTER EXTENSION %s UPDATE."
#define DOCTOR_FORMAT \
	"this version of gpuvec reads and writes format %d"
#define DOCTOR_NOT_PRELOADED \
	"gpuvec is not preloaded, so there is no gpuvecd and sessions search indexes themselves"
#define DOCTOR_PRELOAD \
	"Set shared_preload_libraries = 'gpuvec' and restart the server."
#define DOCTOR_PRELOADED \
	"gpuvec is preloaded"

/* gpuvecd */
#define DOCTOR_SERVER_NOT_UP \
	"state is %s%s%s"
#define DOCTOR_SERVER_UP \
	"state is %s, process %d on %s%s%s, restarted %lld times"
#define DOCTOR_MIRRORS \
	"%d, which take %s of %s"
#define DOCTOR_MEMORY_FULL \
	"%s if the GPU has more memory.  Memory is nearly full, so the least recently used mirrors are evicted."
#define DOCTOR_MORE_MEMORY_EXTERNAL \
	"Start gpuvecd with a larger --memory"
#define DOCTOR_MORE_MEMORY \
	"Increase gpuvec.gpu_memory"
#define DOCTOR_SERVER_SUSPENDED \
	"See the server's log and gpuvec_stat.  Sessions search indexes themselves until gpuvecd responds in time."
#define DOCTOR_OTHERS_SERVER \
	"Start another gpuvecd for this cluster, in a separate directory."
#define DOCTOR_SERVER_STARTING \
	"Wait a moment and check again."
#define DOCTOR_SERVER_VERSION \
	"Restart the server, which was started before gpuvec was upgraded."
#define DOCTOR_SERVER_VERSION_EXTERNAL \
	"Start gpuvecd of version %s, which is that of the library."
#define DOCTOR_SERVER_DOWN \
	"See the server's log for the reason.  Meanwhile sessions search indexes themselves."
#define DOCTOR_SERVER_DOWN_EXTERNAL \
	"Start gpuvecd with --socket %s.  That directory and its parents must belong to gpuvec.server_owner (by default PostgreSQL's user) or to root, and no other user may have write permission."

/* The machine */
#define DOCTOR_NO_DEVICE \
	"none found"
#define DOCTOR_DEVICE_WITHOUT_DRIVER \
	"found, with a driver of unknown version"
#define DOCTOR_DEVICE \
	"found, with driver version %s"
#define DOCTOR_MACHINE_MEMORY \
	"shared_buffers %s, maintenance_work_mem %s, work_mem %s"
#define DOCTOR_HUGE_PAGES \
	"huge_pages is %s%s%s"
#define DOCTOR_HUGE_PAGES_IN_FORCE \
	", in effect: "
#define DOCTOR_USE_HUGE_PAGES \
	"Set vm.nr_hugepages to the output of postgres -C shared_memory_size_in_huge_pages, and huge_pages to on.  This makes searches of large indexes faster."
#define DOCTOR_WORKERS \
	"max_worker_processes is %d; gpuvec uses up to %d: %d for gpuvecd, %d for training, %d for parallel builds"
#define DOCTOR_MORE_WORKERS \
	"Increase max_worker_processes to at least %d."

/* Settings */
#define DOCTOR_SERVER_SETTINGS_WITHOUT_EFFECT \
	"gpuvec.server, gpuvec.gpu_memory, gpuvec.devices, gpuvec.replicas and gpuvec.matmul have no effect because gpuvec is not preloaded"
#define DOCTOR_PRELOAD_OR_RESET \
	"Set shared_preload_libraries = 'gpuvec' and restart the server, or reset these settings."
#define DOCTOR_WITHOUT_EFFECT \
	"settings have no effect because gpuvec.server is %sexternal: %s"
#define DOCTOR_USE_SERVER_OPTIONS \
	"Reset these settings and use the options --memory, --devices, --replicas and --matmul of gpuvecd."
#define DOCTOR_USE_EXTERNAL \
	"Set gpuvec.server = external, or reset these settings."
#define DOCTOR_QUERIES_NOT_KEPT \
	"gpuvec.keep_queries has no effect because gpuvec is not preloaded"
#define DOCTOR_PRELOAD_OR_TURN_OFF \
	"Set shared_preload_libraries = 'gpuvec' and restart the server, or turn the setting off."
#define DOCTOR_SEARCHES_FAIL \
	"gpuvec.on_gpu_error is error and %s, so searches of mirrored indexes fail"
#define DOCTOR_USE_FALLBACK \
	"Set gpuvec.on_gpu_error = fallback or gpuvec.engine = cpu."
#define DOCTOR_ENGINE_MISSING \
	"gpuvec.engine is gpu and %s, so sessions search indexes themselves"
#define DOCTOR_USE_AUTO_ENGINE \
	"Set gpuvec.engine = auto, or start gpuvecd."
#define DOCTOR_PROBES_SET \
	"gpuvec.probes is %d, so gpuvec.recall (%g) does not determine how many lists are read"
#define DOCTOR_RESET_PROBES \
	"Reset gpuvec.probes, unless it is set for a measurement."
#define DOCTOR_CANDIDATES_SET \
	"gpuvec.candidates is %d, so gpuvec.recall (%g) does not determine how many rows are reranked"
#define DOCTOR_RESET_CANDIDATES \
	"Reset gpuvec.candidates, unless it is set for a measurement."
#define DOCTOR_MAX_PROBES_SET \
	"gpuvec.max_probes is %d, so scans may end before they reach gpuvec.recall (%g) or LIMIT"
#define DOCTOR_RESET_MAX_PROBES \
	"Reset gpuvec.max_probes, unless time matters more than rows."
#define DOCTOR_RECALL_IS_1 \
	"gpuvec.recall is 1, so each search reads the whole index"
#define DOCTOR_LESS_THAN_1 \
	"Set gpuvec.recall to 0.99 or less, unless results must be exact."
#define DOCTOR_INDEXSCAN_OFF_SETTING \
	"enable_indexscan is off, so the planner avoids all indexes"
#define DOCTOR_ENABLE_INDEXSCAN \
	"Set enable_indexscan = on."
#define DOCTOR_USE_INDEX_NEVER_SETTING \
	"gpuvec.use_index is never, so no plan uses a gpuivfpq index"
#define DOCTOR_RESET_USE_INDEX \
	"Reset gpuvec.use_index, unless it is set for a comparison."
#define DOCTOR_CUSTOM_SCAN_OFF \
	"gpuvec.enable_custom_scan is off, so conditions are checked only after rows are reranked"
#define DOCTOR_ENABLE_CUSTOM_SCAN \
	"Set gpuvec.enable_custom_scan = on."
#define DOCTOR_NO_TRAINING_WORKERS \
	"gpuvec.max_training_workers is 0, so VACUUM does not train indexes"
#define DOCTOR_MORE_TRAINING_WORKERS \
	"Increase gpuvec.max_training_workers, or call gpuvec_train."
#define DOCTOR_PORTABLE \
	"gpuvec.simd is portable, so searches are slower than necessary on this processor"
#define DOCTOR_RESET_SIMD \
	"Reset gpuvec.simd, unless it is set for a measurement."
#define DOCTOR_AUTO_MIRROR_OFF \
	"gpuvec.auto_mirror is off, so only gpuvec_prewarm loads indexes into gpuvecd"
#define DOCTOR_ENABLE_AUTO_MIRROR \
	"Set gpuvec.auto_mirror = on, or call gpuvec_prewarm for each index."
#define DOCTOR_SETTINGS_AGREE \
	"no conflicts"

/* Indexes */
#define DOCTOR_UNTRAINED_TEMPORARY \
	"not trained, searches are exact; gpuvec_train can train it from %d rows on"
#define DOCTOR_UNTRAINED \
	"not trained, searches are exact; VACUUM trains it from %d rows on, gpuvec_train from %d rows on"
#define DOCTOR_TRAINING \
	"not trained, searches are exact; a background worker is training it, or does so next"
#define DOCTOR_READS_ALL \
	"a search at recall %g reads all %d lists"
#define DOCTOR_FIRST_BATCH \
	"a search at recall %g begins with %d of %d lists and %d candidates"
#define DOCTOR_PROBES_OPTION \
	"option probes of the index is %d, so gpuvec.recall (%g) does not determine how many lists are read"
#define DOCTOR_RESET_PROBES_OPTION \
	"Run ALTER INDEX %s RESET (probes)."
#define DOCTOR_BEYOND_CALIBRATION \
	"recall %g exceeds the calibration, so each search reads the whole index"
#define DOCTOR_BEYOND_CALIBRATION_OF_10 \
	"recall %g exceeds the calibration for more than ten rows, so each search for more reads the whole index"
#define DOCTOR_RECALIBRATE \
	"Reduce gpuvec.recall, or run SELECT * FROM gpuvec_calibrate(%s)."
#define DOCTOR_LESS_RECALL \
	"Reduce gpuvec.recall."
#define DOCTOR_FEW_LISTS_OF_COPIES \
	"index has %d lists instead of %d because many of its rows are equal"
#define DOCTOR_FEW_LISTS \
	"index has %d lists instead of %d because maintenance_work_mem was lower when it was built, or because it had few distinct vectors"
#define DOCTOR_REINDEX \
	"Run REINDEX INDEX CONCURRENTLY %s."
#define DOCTOR_FEW_LISTS_OF_MEMORY \
	"index has %d lists instead of %d because maintenance_work_mem was too low"
#define DOCTOR_REINDEX_WITH_MEMORY \
	"Set maintenance_work_mem = '%lld MB' and run REINDEX INDEX CONCURRENTLY %s."
#define DOCTOR_FULL_PASSES \
	"%lld of %lld scans ended in a full pass over the table"
#define DOCTOR_INDEX_CONDITIONS \
	"Create an index for conditions that few rows satisfy, or add their columns to this index as keys."
#define DOCTOR_OUT_OF_ORDER \
	"%lld rows were out of order, and %lld rows were returned"
#define DOCTOR_ALLOW_OUT_OF_ORDER \
	"For queries that request many rows, increase gpuvec.recall or set gpuvec.scan_order = relaxed."
#define DOCTOR_NOT_MIRRORED \
	"gpuvecd has no mirror of the index"
#define DOCTOR_EVICTED \
	"gpuvecd evicted the mirror of the index"
#define DOCTOR_MIRROR_TOO_LARGE \
	"%s, or let sessions search the index.  The mirror takes about %lld MB and does not fit into %lld MB."
#define DOCTOR_PREWARM \
	"Search the index, or run SELECT gpuvec_prewarm(%s)."
#define DOCTOR_MIRROR_FAILED \
	"could not load the index into gpuvecd: %s"
#define DOCTOR_MIRROR_FAILED_MEMORY \
	"%s if the GPU has more memory.  Meanwhile sessions search the index."
#define DOCTOR_MIRROR_FAILED_LOG \
	"See %s log.  Meanwhile sessions search the index."
#define DOCTOR_MIRROR_STATE \
	"mirror is %s"
#define DOCTOR_NOT_VALID \
	"not valid, so no query uses it: its build failed or is still running"
#define DOCTOR_NOT_READY \
	"not valid and not kept up to date: its build failed or is still running"
#define DOCTOR_REINDEX_OR_DROP \
	"Unless a build is running, run REINDEX INDEX CONCURRENTLY %s, or drop the index."
#define DOCTOR_UNLOGGED \
	"unlogged, so it is empty on a standby"
#define DOCTOR_NO_RIGHTS \
	"not inspected: only the table's owner and members of pg_monitor may inspect it"
#define DOCTOR_INDEX_STATE \
	"format %d, %lld rows, %s%s"
#define DOCTOR_INDEX_SCANS \
	", %lld scans, %lld full passes"
#define DOCTOR_TABLE_LOCKED \
	"not inspected: its table is locked"
#define DOCTOR_INDEX_LOCKED \
	"not inspected: it is locked"
#define DOCTOR_DAMAGED_INDEX \
	"Run REINDEX INDEX %s, which reads only the table, and look for the cause of the damage."
#define DOCTOR_DAMAGED_TABLE \
	"Restore table %s from a backup, and look for the cause of the damage.  REINDEX does not help, because the table itself is damaged."
#define DOCTOR_NO_INDEXES \
	"this database has no gpuivfpq index"

/* Statements */
#define DOCTOR_USED \
	"used"
#define DOCTOR_NOT_USED \
	"not used: %s"
#define DOCTOR_INVALID_INDEX \
	"the index is not valid because its build failed or is still running"
#define DOCTOR_REINDEX_INVALID \
	"Unless a build is running, run REINDEX INDEX CONCURRENTLY %s."
#define DOCTOR_YOUNG_INDEX \
	"the index is newer than this transaction, and rows changed while it was built"
#define DOCTOR_NEW_TRANSACTION \
	"Begin a new transaction."
#define DOCTOR_LEFT_OUT \
	"the planner ignores the index"
#define DOCTOR_NO_INDEX \
	"the table has no gpuivfpq index, and the query orders by a distance of one of its columns"
#define DOCTOR_CREATE_INDEX \
	"Run CREATE INDEX ON %s USING gpuivfpq (%s %s)."
#define DOCTOR_NO_TABLE \
	"the query reads no table for which a gpuivfpq index is useful"
#define DOCTOR_NOT_SENT \
	"the foreign server does not provide the order, so all rows are fetched and sorted locally"
#define DOCTOR_ORDER_BY_CONSTANT \
	"Order by a distance to a constant, a parameter or a subquery, with functions that the foreign server has, too."
#define DOCTOR_ALTER_SERVER \
	"Run ALTER SERVER %s OPTIONS (%s extensions %s)."
#define DOCTOR_FOREIGN_ORDER \
	"the foreign server provides the order"
#define DOCTOR_FOREIGN_COSTS \
	"the foreign server could provide the order, but the planner estimates that fetching and sorting all rows costs less"

/* Costs */
#define DOCTOR_SAME_ORDER \
	"that index, of method %s, provides the same order"
#define DOCTOR_USE_ALWAYS \
	"Set gpuvec.use_index = always and compare the times."
#define DOCTOR_LIMIT_UNKNOWN \
	"LIMIT is not known at planning time, so the planner assumes a tenth of all rows"
#define DOCTOR_WRITE_LIMIT \
	"Write LIMIT as a number, or set plan_cache_mode = force_custom_plan."
#define DOCTOR_NO_LIMIT_COSTS \
	"the query has no LIMIT and requests all rows"
#define DOCTOR_LEFT_JOIN \
	"Move the table with its conditions, ORDER BY and LIMIT into a subquery, LEFT JOIN its result, and keep ORDER BY and LIMIT outside."
#define DOCTOR_FEW_ROWS \
	"the table has few rows"
#define DOCTOR_LIMIT_LARGE \
	"LIMIT requests %.0f of %.0f rows"
#define DOCTOR_JOIN_COSTS \
	"the rows are joined, which may require many of the nearest rows"
#define DOCTOR_ANALYZE \
	"Run ANALYZE %s if its statistics are out of date."
#define DOCTOR_NO_PATH \
	"not used: the planner does not consider a plan with the order of this index"
#define DOCTOR_COSTS \
	"not used: the planner estimates a cost of %.0f with this index and %.0f with %s, %.1f times as much"
#define DOCTOR_SAME_COSTS \
	"not used: the planner estimates a cost of %.0f with this index, about the same cost as with %s (%.0f)"

/* Why an index does not provide the order */
#define DOCTOR_VOLATILE_QUERY \
	"the query vector is volatile, so it may differ for each row"
#define DOCTOR_USE_SUBQUERY \
	"If it is the same for all rows, write ORDER BY column <-> (SELECT ...)."
#define DOCTOR_TWO_COLUMNS \
	"the distance is between two columns of a row, not to a query vector"
#define DOCTOR_JOINED_QUERY \
	"the query vector is a column of another table, so each of its rows requires another order"
#define DOCTOR_USE_LATERAL \
	"Move the table with its conditions into LATERAL (SELECT ... ORDER BY ... LIMIT n), and keep the same ORDER BY and LIMIT outside."
#define DOCTOR_COLUMN_CAST \
	"column %s is cast to %s or is part of an expression, which is not indexed"
#define DOCTOR_INDEX_EXPRESSION \
	"Create an index on that expression."
#define DOCTOR_OTHER_OPERATOR \
	"the query orders by %s (%s, %s), but class %s of the index supports %s"
#define DOCTOR_NO_OPERATOR \
	"no distance"
#define DOCTOR_OTHER_CLASS \
	"Create an index with operator class %s."
#define DOCTOR_AROUND_DISTANCE \
	"the query orders by an expression of the distance"
#define DOCTOR_ORDER_BY_DISTANCE \
	"Order by the distance itself, %s %s query, ascending, and compute the expression in the select list%s."
#define DOCTOR_ROWS_WITHOUT_DISTANCE \
	", unless you need the rows without a distance (without a vector or, for cosine, with a zero vector), which now come first"
#define DOCTOR_NULL_QUERY \
	"the query vector is NULL, so all rows are equally near"
#define DOCTOR_NO_NULL_QUERY \
	"Do not search for NULL."
#define DOCTOR_OTHER_KEY \
	"ORDER BY does not begin with a distance of %s"
#define DOCTOR_FUNCTION \
	"ORDER BY calls the function of the distance operator"
#define DOCTOR_USE_OPERATOR \
	"Use the operator: ORDER BY %s %s query."
#define DOCTOR_NO_DISTANCE \
	"the query orders by an expression of %s that is not a distance"
#define DOCTOR_AGGREGATE_OF_ALL \
	"GROUP BY or an aggregate reads all rows in any order"
#define DOCTOR_DISTANCE_CONDITION \
	"without ORDER BY, a condition on the distance is evaluated exactly, without an index"
#define DOCTOR_USE_RADIUS_RECALL \
	"If nearly all of these rows suffice, set gpuvec.radius_recall to their share, for example 0.99."
#define DOCTOR_OUTER_ORDER \
	"ORDER BY is outside of the subquery or WITH query that reads the table"
#define DOCTOR_NOT_MATERIALIZED \
	"Write AS NOT MATERIALIZED after the name of the WITH query."
#define DOCTOR_NO_ORDER \
	"the query does not order the rows of the table by a distance"
#define DOCTOR_SET_OPERATION \
	"UNION, INTERSECT or EXCEPT is between ORDER BY and the table"
#define DOCTOR_GROUPED \
	"GROUP BY or an aggregate is between ORDER BY and the table"
#define DOCTOR_SET_RETURNING \
	"the select list contains a set-returning function"
#define DOCTOR_WINDOW \
	"a window function requires all rows because of PARTITION BY, its order or frame, or because it counts rows, as count(*) OVER () does"
#define DOCTOR_INNER_SIDE \
	"the table is on the inner side of an outer join, IN or EXISTS, so its rows come in the order of another table"
#define DOCTOR_NO_LIMIT \
	"the query has no LIMIT, so all rows are sorted"
#define DOCTOR_USE_LIMIT \
	"If the first rows suffice, add LIMIT or use a cursor (DECLARE).  FOR loops of PL/pgSQL and fetch sizes of drivers do not act as LIMIT."
#define DOCTOR_NESTLOOP_OFF \
	"only nested loops keep the order in a join, and enable_nestloop is off"
#define DOCTOR_ENABLE_NESTLOOP \
	"Set enable_nestloop = on."
#define DOCTOR_DESCENDING \
	"ORDER BY is DESC, but an index finds the nearest rows, not the farthest"
#define DOCTOR_NULLS_FIRST \
	"ORDER BY has NULLS FIRST, but the index has no rows without a vector"
#define DOCTOR_NO_NULLS_FIRST \
	"Remove NULLS FIRST.  Every row has a vector."
#define DOCTOR_RELAXED_KEYS \
	"ORDER BY has further keys, and gpuvec.scan_order is relaxed"
#define DOCTOR_RELAXED_USE \
	"DISTINCT, GROUP BY, a window function, WITH TIES, UNION or a join relies on the order, and gpuvec.scan_order is relaxed"
#define DOCTOR_USE_STRICT \
	"Set gpuvec.scan_order = strict."
#define DOCTOR_PARTIAL \
	"the index has only rows with %s, and the conditions of the query do not imply this"
#define DOCTOR_ADD_PREDICATE \
	"If the query needs no other rows, add that condition to WHERE, with constants as in the index."
#define DOCTOR_TABLESAMPLE \
	"TABLESAMPLE reads the table"
#define DOCTOR_LEAK \
	"a policy hides rows from you, and the expression of the index calls functions that are not written in C"
#define DOCTOR_INDEX_SAFE_EXPRESSION \
	"Create an index on the column itself, or on an expression of C functions."
#define DOCTOR_USE_INDEX_NEVER \
	"gpuvec.use_index is never"
#define DOCTOR_USE_INDEX_AUTO \
	"Set gpuvec.use_index = auto."
#define DOCTOR_INCREMENTAL_SORT_OFF \
	"ORDER BY has further keys, and enable_incremental_sort is off"
#define DOCTOR_ENABLE_INCREMENTAL_SORT \
	"Set enable_incremental_sort = on."
#define DOCTOR_DISTINCT \
	"DISTINCT is between ORDER BY and the table"
#define DOCTOR_INDEXSCAN_OFF \
	"not used: enable_indexscan is off"

/* Why a condition or a join is a filter */
#define DOCTOR_SECURITY \
	"a policy or a security barrier must be checked before it"
#define DOCTOR_IS_OR \
	"it is an OR"
#define DOCTOR_NO_COMPARISON \
	"it is not a comparison that keys support"
#define DOCTOR_KEY_CAST \
	"the key is cast to %s or is part of an expression"
#define DOCTOR_KEY_TO_COLUMN \
	"it compares the key with another column"
#define DOCTOR_VOLATILE_VALUE \
	"it compares the key with a volatile expression"
#define DOCTOR_ANY_OF_ARRAY \
	"array keys support @> and &&, but not ANY"
#define DOCTOR_OTHER_COLLATION \
	"its collation differs from that of the key"
#define DOCTOR_OPERATOR_MISSING \
	"the operator class of the key does not have operator %s (%s, %s)"
#define DOCTOR_PLANNER \
	"the planner did not use it with the index"
#define DOCTOR_FILTER \
	"%s is a filter, not an index condition: %s"
#define DOCTOR_ADD_CONDITION \
	"Add the condition %s."
#define DOCTOR_REPLACE_CONDITION \
	"Write %s instead."
#define DOCTOR_JOIN \
	"%s IN (SELECT ...), or EXISTS, is a join, not an index condition"
#define DOCTOR_REPLACE_JOIN \
	"Write %s = ANY (ARRAY(SELECT ...)) instead, with the same SELECT."

/* Advice on an index, which gpuvec_index_info returns, too */
#define DOCTOR_TRAIN_TEMPORARY \
	"The index is not trained and has %lld rows.  Call gpuvec_train(%s), because VACUUM does not train temporary indexes."
#define DOCTOR_ROWS_EQUAL \
	"The index is not trained because nearly all of its rows are equal.  Create a partial index without them, or wait until VACUUM finds rows that differ."
#define DOCTOR_TRAIN \
	"The index is not trained and has %lld rows.  Run VACUUM on the table, or call gpuvec_train(%s)."
#define DOCTOR_WAIT_FOR_TRAINING \
	"The index is not trained and has %lld rows.  Wait: a background worker is training it, or does so next."
#define DOCTOR_OUTGROWN \
	"The index was trained on %lld rows and now has %lld, so searches take longer than necessary.  %s gpuvec_train(%s, true)%s%s."
#define DOCTOR_THEN_CALIBRATE \
	", then call "
#define DOCTOR_NOT_CALIBRATED \
	"The index is not calibrated, so recall is only estimated.  Call %s."
#define DOCTOR_FOR_ROWS \
	"Recall targets hold for rows of the table, not for your queries.  Call %s."
#define DOCTOR_RECALL_LOW \
	"The last queries had a recall of %.3f for target %g.  Call gpuvec_calibrate(%s, queries => ARRAY(SELECT query FROM gpuvec_live_queries(%s)))."
#define DOCTOR_RECALL_UNREACHED \
	"The last queries have a recall of %.3f for target %g, though the index is calibrated for queries.  Run REINDEX INDEX CONCURRENTLY %s."
#define DOCTOR_SHRUNK \
	"The index was calibrated with %lld rows and now has %lld, so searches do more work than necessary.  Call %s."
#define DOCTOR_SHRUNK_MUCH \
	"The index was calibrated with %lld rows and now has %lld, too few to calibrate it.  Run REINDEX INDEX CONCURRENTLY %s."
#define DOCTOR_OPTION_WAITS \
	"A changed option has no effect yet: %s.  Run REINDEX INDEX CONCURRENTLY %s."
#define DOCTOR_PENDING \
	"%lld rows are pending.  %s gpuvec_train(%s)."
#define DOCTOR_WAIT_FOR_LISTS \
	"%lld rows are pending.  Wait: a background worker is moving them into lists, or does so next."
#define DOCTOR_PENDING_VACUUM \
	"Run VACUUM on the table, or call"
#define DOCTOR_LONG_LIST \
	"List %d has %lld rows, %.0f times the mean.  Unless many rows are equal, run REINDEX INDEX CONCURRENTLY %s."
#define DOCTOR_FULL_SIGNATURES \
	"Key %s hardly distinguishes rows: its %s have so many %s that %.0f of the 64 bits of their signatures are set.  %s"
#define DOCTOR_USE_EXPRESSION_KEY \
	"Create the index with the value that conditions test as the key, for example (document ->> 'name')."
#define DOCTOR_USE_OTHER_KEY \
	"Create the index without this key, or with the value that conditions test as a separate key."
#define DOCTOR_MISMATCHED \
	"%lld rows, of which the first is (%u,%u) with %d dimensions, do not have %d dimensions and are skipped.  Delete or update them."

#endif							/* IVFPQ_DOCTORTEXTS_H */
