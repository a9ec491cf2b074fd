# Recall that keeps itself: the queries of an index are sampled, the worker measures their
# recall and calibrates with them where a target is missed, and nobody calls anything.
#
# It stands in nobody's way: it gives way to a session that waits for its table, and keeps
# the old targets if it is killed or canceled.  The owner alone sees the sample.  What was
# measured is there after a restart and on a standby.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Gpuvec;

need_test_build();
my $node = new_node('main', allows_streaming => 1,
	conf => "shared_preload_libraries = 'gpuvec'\ngpuvec.server = 'off'\nmax_parallel_workers_per_gather = 0
gpuvec.fault_load = 0\ndeadlock_timeout = 5min\n");
my $standby = new_standby($node, 'standby');
my $dims = 24;

# Rows lie in clusters, questions between these.  Both are drawn from a hash, as point().
$node->safe_psql('postgres', qq{
	SET client_min_messages = warning;
	CREATE ROLE holder;
	CREATE ROLE guest;
	GRANT ALL ON SCHEMA public TO holder;
	CREATE FUNCTION cluster_row(g int, spread real) RETURNS real[] IMMUTABLE LANGUAGE sql AS \$\$
		SELECT array_agg((c + spread * n)::real ORDER BY i) FROM unnest(point(g % 200, $dims), point(g, $dims))
			WITH ORDINALITY AS x (c, n, i) \$\$;
	CREATE FUNCTION question(g int) RETURNS real[] IMMUTABLE LANGUAGE sql AS \$\$
		SELECT array_agg(((a + b) / 2 + 0.3 * n)::real ORDER BY i)
		FROM unnest(point(g % 200, $dims), point(g * 7 % 199, $dims), point(g + 5000000, $dims))
			WITH ORDINALITY AS x (a, b, n, i) \$\$;
	CREATE TABLE items (id int, tenant int, e real[]);
	INSERT INTO items SELECT g, g % 10, cluster_row(g, 0.3) FROM generate_series(1, 20000) AS g;
	CREATE INDEX items_e ON items USING gpuivfpq (e);
	ALTER TABLE items OWNER TO holder;
	GRANT SELECT ON items TO guest;
	-- questions first .. last, each by a scan of the index, under a condition
	CREATE FUNCTION ask(first int, last int, tab text DEFAULT 'items', condition text DEFAULT 'true') RETURNS int
	LANGUAGE plpgsql SET enable_seqscan = off AS \$\$
	DECLARE
		n int = 0;
	BEGIN
		FOR q IN first .. last LOOP
			EXECUTE format('SELECT count(*) + %s FROM (SELECT id FROM %I WHERE %s ORDER BY e <-> %L LIMIT 10) AS x',
				n, tab, condition, question(q)) INTO n;
		END LOOP;
		RETURN n;
	END \$\$;
	ANALYZE items});

my $recall = q{SELECT round(recall::numeric, 3) FROM gpuvec_recall('items_e', 10, 1000,
	ARRAY(SELECT question(g) FROM generate_series(10001, 10300) AS g))};
my $before = $node->safe_psql('postgres', $recall);
note("recall $before of questions before, targets: " . $node->safe_psql('postgres',
	q{SELECT string_agg(concat_ws('/', recall, probes, candidates), ' ') FROM gpuvec_calibration('items_e') WHERE k = 10}));
cmp_ok($before, '<', 0.94, 'questions of another kind miss the target');
my $from = -s $node->logfile;
gives($node, 'SET ROLE guest; SELECT ask(1, 300)', '3000', 'asked by a client');
log_has($node, qr/LOG:  calibrated index "public.items_e" with 300 of its queries/, $from, 'the worker has calibrated');
note(slurp_file($node->logfile, $from) =~ /(calibrated index.*)/);
my $after = $node->safe_psql('postgres', $recall);
cmp_ok($after, '>=', 0.94, "recall $after of others");
no_crash($node);
done_testing();
