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
use GpuvecRemote;

need_test_build();
my $node = new_node('main', allows_streaming => 1,
	conf => "shared_preload_libraries = 'gpuvec'\ngpuvec.server = 'off'\nmax_parallel_workers_per_gather = 0
gpuvec.auto_calibrate = on\ngpuvec.fault_load = 0\ndeadlock_timeout = 5min\n");
my $standby = new_standby($node, 'standby');
my $dims = 24;

# Rows lie in clusters, questions between these.  Both are drawn from a hash, as point().
$node->safe_psql('postgres', qq{
	SET client_min_messages = warning;
	CREATE ROLE holder;
	CREATE ROLE guest;
	GRANT ALL ON SCHEMA public TO holder;
	CREATE FUNCTION cluster_row(g int, spread real) RETURNS real[] IMMUTABLE LANGUAGE sql AS \$\$
		SELECT array_agg((c + spread * n + (g > 3000000)::int * 3)::real ORDER BY i) FROM unnest(point(g % 200, $dims), point(g, $dims))
			WITH ORDINALITY AS x (c, n, i) \$\$;
	CREATE FUNCTION question(g int) RETURNS real[] IMMUTABLE LANGUAGE sql AS \$\$
		SELECT array_agg(((a + b) / 2 + 0.3 * n + (g > 3000000)::int * 3)::real ORDER BY i)
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


# The targets of an index, and the recall of 300 questions that nobody else asks.
my $targets = q{SELECT string_agg(concat_ws('/', k, recall, probes, candidates, calibrated_for), ' ') FROM gpuvec_calibration('items_e')};
my $recall = q{SELECT round(recall::numeric, 3) FROM gpuvec_recall('items_e', 10, 1000,
	ARRAY(SELECT question(g) FROM generate_series(1000001, 1000300) AS g))};
my $workers = q{SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'gpuvec training'};
my $asked = 0;
my $from;

# So many new questions are asked by a client.
sub ask
{
	my ($n, @rest) = @_;
	my $first = $asked + 1;

	$from = -s $node->logfile;
	$asked += $n;
	return $node->safe_psql('postgres', "SET ROLE guest; SELECT ask(" . join(', ', $first, $asked, map { "'$_'" } @rest) . ')');
}

# Test: the worker calibrates an index.
sub calibrates
{
	my ($what, $index) = @_;

	$index //= 'public.items_e';
	return log_has($node, qr/LOG:  calibrated index "$index" with \d+ of its queries: recall was/, $from, $what);
}

# Test: no worker was started since $from.
sub rests
{
	my ($what) = @_;

	unlike(slurp_file($node->logfile, $from), qr/calibrated index|calibration of index/, "$what: nothing was calibrated");
	return gives($node, $workers, '0', "$what: no worker");
}

sub again
{
	my ($n) = @_;

	$node->safe_psql('postgres', q{SELECT gpuvec_forget_queries('items_e')});
	return ask($n // 300);
}

sub set
{
	my (%settings) = @_;

	$node->safe_psql('postgres', join ';', "LOAD 'gpuvec'",
		(map { "ALTER SYSTEM SET gpuvec.$_ = '$settings{$_}'" } sort keys %settings), 'SELECT pg_reload_conf()');
	ok(wait_until($node, "SELECT setting = '$settings{$_}' FROM pg_settings WHERE name = 'gpuvec.$_'"), "gpuvec.$_ is $settings{$_}")
	  for sort keys %settings;
	return;
}

# -- a measurement that would cost more than a day's budget takes fewer questions, or is not made
set(auto_calibrate_budget => 0.01);
ask(300);
log_has($node, qr/LOG:  recall of index "public.items_e" is not measured, because "gpuvec.auto_calibrate_budget" does not suffice/, $from, 'too small a budget');
set(auto_calibrate_budget => 0.03);
again();
calibrates('a small budget');
gives($node, q{SELECT recall_queries BETWEEN 100 AND 299 FROM gpuvec_index_info('items_e')}, 't', '... with fewer questions');
set(auto_calibrate_budget => 600);
$node->safe_psql('postgres', q{REINDEX INDEX items_e; SELECT gpuvec_forget_queries('items_e')});

# -- questions of another kind: nobody calls anything
my $before = $node->safe_psql('postgres', $recall);
cmp_ok($before, '<', 0.94, "questions of another kind miss the target, with a recall of $before");
is(ask(200), '2000', 'a client asks');
rests('too few questions');
is(ask(100), '1000', 'a client asks more');
calibrates('the worker');
my $after = $node->safe_psql('postgres', $recall);
cmp_ok($after, '>=', 0.94, "other questions of this kind then have a recall of $after");
my $shown = q{SELECT recall_measured BETWEEN 0.95 AND 1, recall_low <= recall_measured, recall_high >= recall_measured,
	recall_target, recall_k, recall_queries, recall_at BETWEEN now() - interval '1 hour' AND now(), advice FROM gpuvec_index_info('items_e')};
gives($node, $shown, 't|t|t|0.95|10|300|t|', 'the index shows it');
gives($node, q{SELECT DISTINCT calibrated_for FROM gpuvec_calibration('items_e')}, 'queries', 'targets are for queries');
ask(300);
rests('not twice within an hour');

# -- the owner alone sees the sample
gives($node, q{SET ROLE holder; SELECT count(*) FROM gpuvec_live_queries('items_e')}, '300', 'its owner sees the sample');
says($node, q{SET ROLE guest; SELECT * FROM gpuvec_live_queries('items_e')}, qr/permission denied for index "items_e"/, 'nobody else does');
gives($node, 'SET ROLE guest; SELECT ask(1, 1); SELECT ask(1, 1)', "10\n10", 'a question is asked repeatedly');
gives($node, q{SET ROLE holder; SELECT count(*), count(DISTINCT query) FROM gpuvec_live_queries('items_e')}, '300|300', '... and kept once');

# -- a standby has what the primary measured, and does not measure itself
my $state = 'SELECT recall_measured, recall_low, recall_high, recall_target, recall_queries, recall_at FROM gpuvec_index_info(\'items_e\')';
my $found = $node->safe_psql('postgres', $state);
my $points = $node->safe_psql('postgres', $targets);
$node->wait_for_catchup($standby);
gives($standby, $state, $found, 'a standby has the measured recall');
gives($standby, $targets, $points, '... and the targets');
gives($standby, 'SELECT ask(300001, 300400)', '4000', 'it is asked');
gives($standby, q{SELECT count(*) FROM gpuvec_live_queries('items_e')}, '0', '... and keeps nothing');
gives($standby, $workers, '0', '... and starts no worker');

# -- after a restart the targets are there, the sample is not
$node->restart;
gives($node, $state, $found, 'a restart keeps the measured recall');
gives($node, $targets, $points, '... and the targets');
gives($node, q{SELECT count(*) FROM gpuvec_live_queries('items_e')}, '0', '... but not the sample');

# -- REINDEX loses the targets, which the next question restores
ask(150);
for my $command ('REINDEX INDEX items_e', 'REINDEX INDEX CONCURRENTLY items_e')
{
	$node->safe_psql('postgres', $command);
	cmp_ok($node->safe_psql('postgres', $recall), '<', 0.94, "$command: calibrated for rows");
	ask(1);
	calibrates("$command: one question");
	cmp_ok($node->safe_psql('postgres', $recall), '>=', 0.94, "$command: recall is back");
	gives($node, q{SELECT advice FROM gpuvec_index_info('items_e')}, '', "$command: no advice");
}
gives($node, q{SET ROLE holder; SELECT count(*) FROM gpuvec_live_queries('items_e')}, '152', 'the sample is still there');

# -- other contents, which the old targets do not fit; then most rows are deleted
$node->safe_psql('postgres', "INSERT INTO items SELECT g, g % 10, cluster_row(g, 0.3) FROM generate_series(3000001, 3020000) AS g;
	SELECT gpuvec_forget_queries('items_e')");
my $elsewhere = $recall =~ s/1000/3000/gr;
cmp_ok($node->safe_psql('postgres', $elsewhere), '<', 0.9, 'questions about other contents miss the target');
$asked += 3_000_000;
ask(300);
calibrates('300 of them');
cmp_ok($node->safe_psql('postgres', $elsewhere), '>=', 0.94, '... and then reach it');
set(fault_interval => 1);
$node->safe_psql('postgres', 'DELETE FROM items WHERE id % 10 > 0; VACUUM items');
ask(120);
calibrates('measured with a tenth of the rows, after 100 questions');
gives($node, q{SELECT coalesce(advice LIKE '%calibrate%', false), recall_measured >= 0.95 FROM gpuvec_index_info('items_e')}, 'f|t', '... and without advice to calibrate');
cmp_ok($node->safe_psql('postgres', $elsewhere), '>=', 0.94, '... where it is reached, too');
$asked -= 3_000_000;
set(fault_interval => 3600000);
$node->safe_psql('postgres', 'DELETE FROM items WHERE id > 3000000; INSERT INTO items SELECT g, g % 10, cluster_row(g, 0.3)
	FROM generate_series(1, 20000) AS g WHERE g % 10 > 0; VACUUM items; REINDEX TABLE items');

# -- conditions go deeper; targets that nobody asks for do not count
$node->safe_psql('postgres', q{SELECT count(*) FROM gpuvec_calibrate('items_e'); SELECT gpuvec_forget_queries('items_e')});
gives($node, q{SELECT recall_measured FROM gpuvec_index_info('items_e')}, '', 'targets by hand were not measured');
ask(300, 'items', 'tenant = 3');
calibrates('queries with conditions');
gives($node, q{SELECT recall_target, recall_k, recall_measured >= 0.95 FROM gpuvec_index_info('items_e')}, '0.95|100|t', '... for 100 rows');

# -- it is left alone
$node->safe_psql('postgres', q{SELECT count(*) FROM gpuvec_calibrate('items_e'); SELECT gpuvec_forget_queries('items_e')});
$points = $node->safe_psql('postgres', $targets);
for my $off ('SET gpuvec.recall = 1', 'SET gpuvec.probes = 3', 'SET gpuvec.max_probes = 100')
{
	$from = -s $node->logfile;
	$node->safe_psql('postgres', "$off; SELECT ask(400001, 400300); SELECT ask(1, 1)");
	rests($off);
}
gives($node, q{SELECT count(*) FROM gpuvec_live_queries('items_e')}, '0', 'calibration did not decide about these');
$node->safe_psql('postgres', 'ALTER INDEX items_e SET (auto_calibrate = off)');
ask(310);
rests('the option is off');
$node->safe_psql('postgres', 'ALTER INDEX items_e RESET (auto_calibrate)');
for my $off ([ auto_calibrate => 'off', 'on' ], [ auto_calibrate_budget => 0, 600 ], [ fault_load => 2, 0 ], [ max_training_workers => 0, 2 ])
{
	my ($name, $value, $usual) = @$off;

	set($name => $value);
	ask(310);
	rests("$name = $value");
	set($name => $usual);
	$node->safe_psql('postgres', q{SELECT gpuvec_forget_queries('items_e')});
}
gives($node, $targets, $points, 'all targets are as they were');

# -- it stands in nobody's way, and old targets stay until there are new ones
set(fault => 'wait 1 calibrate: measured');
my $holder = hold($node);
ask(300);
is_held($node, 'the worker has measured');
like($node->safe_psql('postgres', q{SELECT advice FROM gpuvec_index_info('items_e')}),
	qr/^The last queries had a recall of 0\.\d+ for target 0\.95\.  Call gpuvec_calibrate\('public\.items_e', queries => ARRAY\(SELECT query FROM gpuvec_live_queries\('public\.items_e'\)\)\)\./,
	'meanwhile there is advice');
is(ask(3), '30', 'queries go on');
$node->safe_psql('postgres', 'INSERT INTO items VALUES (-1, 0, question(1)); DELETE FROM items WHERE id = -1');
$node->safe_psql('postgres', q{SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE backend_type = 'gpuvec training'});
log_has($node, qr/LOG:  calibration of index "public.items_e" was canceled\n.*DETAIL:  The next queries of the index will retry/, $from, 'canceled');
comes($node, "SELECT ($workers) = 0", 'the worker is gone');
gives($node, $targets, $points, '... and the targets are as they were');
release($holder);

$holder = hold($node);
again();
is_held($node, 'the worker has measured again');
$node->safe_psql('postgres', q{SET deadlock_timeout = '10ms'; BEGIN; LOCK TABLE items; COMMIT});
log_has($node, qr/LOG:  canceled calibration of index "public.items_e" because a session waits for its table/, $from, 'it gives way');
gives($node, $targets, $points, '... and the targets are as they were');
comes($node, "SELECT ($workers) = 0", 'the worker is gone');
release($holder);

for my $step ('answered', 'measured', 'stored')
{
	my $action = $step eq 'stored' ? 'flush' : 'kill';

	set(fault => "$action 1 calibrate: $step");
	again();
	log_has($node, qr/background worker "gpuvec training" \(PID \d+\) was terminated by signal 9/, $from, "killed when it has $step");
	restart_after_crash($node);
	gives($node, $targets, $points, '... the targets are as they were') if $step ne 'stored';
}
gives($node, q{SELECT DISTINCT calibrated_for, recall_measured FROM gpuvec_calibration('items_e'), gpuvec_index_info('items_e')},
	'queries|', '... the targets are new, and not measured');
gives($node, q{SELECT reloptions FROM pg_class WHERE relname = 'items_e'}, '', '... and the option is not set');

# -- rows that are deleted while it measures do not count
set(fault => 'wait 1 calibrate: answered');
$holder = hold($node);
again();
is_held($node, 'the worker has answers');
$node->safe_psql('postgres', 'DELETE FROM items WHERE id % 3 = 0');
release($holder);
comes($node, q{SELECT recall_measured >= 0.95 FROM gpuvec_index_info('items_e')}, 'recall among those that are left');
comes($node, q{SELECT reloptions = '{calibrated_for=queries}' FROM pg_class WHERE relname = 'items_e'}, '... and the option is set');
unlike(slurp_file($node->logfile, $from), qr/calibrated index/, '... and nothing else');
set(fault => '');
$node->safe_psql('postgres', 'INSERT INTO items SELECT g, g % 10, cluster_row(g, 0.3) FROM generate_series(3, 20000, 3) AS g');
is_whole($node, 'after all that', 'items', '<->', $dims);

# -- a table that somebody has locked: the worker waits
$node->safe_psql('postgres', q{SELECT count(*) FROM gpuvec_calibrate('items_e')});
my $other = $node->background_psql('postgres');
$other->query_safe('BEGIN; LOCK TABLE items IN SHARE UPDATE EXCLUSIVE MODE');
again();
comes($node, "SELECT ($workers) = 1", 'a worker waits for a locked table');
gives($node, $targets, $node->safe_psql('postgres', $targets), 'queries go on');
$other->query_safe('COMMIT');
$other->quit;
calibrates('... and then');

# -- growth: the worker trains it again, and the next question has it calibrated
$node->safe_psql('postgres', 'INSERT INTO items SELECT g, g % 10, cluster_row(g, 0.3) FROM generate_series(100001, 165000) AS g');
# targets that nobody would restore are not given up: there are too few queries, or no time
$node->safe_psql('postgres', q{SELECT gpuvec_forget_queries('items_e'); SET gpuvec.keep_queries = on;
	SELECT ask(1, 1) FROM generate_series(1, 150); VACUUM items});
gives($node, $workers, '0', 'one query repeated: not trained');
set(auto_calibrate_budget => 0);
again(150);
$node->safe_psql('postgres', 'VACUUM items');
gives($node, $workers, '0', 'without a budget: not trained');
set(auto_calibrate_budget => 600);
$from = -s $node->logfile;
$node->safe_psql('postgres', 'VACUUM items');
log_has($node, qr/LOG:  trained index "public.items_e"/, $from, 'it has outgrown its training');
comes($node, "SELECT ($workers) = 0", 'the worker is gone');
gives($node, q{SELECT DISTINCT calibrated_for FROM gpuvec_calibration('items_e')}, 'rows', '... its targets are for rows');
ask(1);
calibrates('... until one question is asked');
cmp_ok($node->safe_psql('postgres', $recall), '>=', 0.94, '... and the recall is back');

# -- functions that are not in C: the owner's worker
$node->safe_psql('postgres', q{
	SET ROLE holder;
	CREATE FUNCTION part(v real[]) RETURNS real[] IMMUTABLE LANGUAGE plpgsql AS 'BEGIN RETURN v; END';
	CREATE INDEX items_part ON items USING gpuivfpq ((part(e))) WITH (dims = 24);
	SET client_min_messages = warning;
	CREATE FUNCTION ask_part(first int, last int) RETURNS int LANGUAGE plpgsql SET enable_seqscan = off AS $$
	DECLARE
		n int = 0;
	BEGIN
		FOR q IN first .. last LOOP
			EXECUTE format('SELECT count(*) + %s FROM (SELECT id FROM items ORDER BY part(e) <-> %L LIMIT 10) AS x', n, question(q)) INTO n;
		END LOOP;
		RETURN n;
	END $$});
$from = -s $node->logfile;
gives($node, 'SELECT ask_part(500001, 500300)', '3000', 'an index on an expression');
calibrates('its owner\'s worker', 'public.items_part');

# ... which leaves others most of the budget even if its code never ends, and is charged
$node->safe_psql('postgres', q{
	CREATE OR REPLACE FUNCTION part(v real[]) RETURNS real[] IMMUTABLE LANGUAGE plpgsql AS
		'BEGIN WHILE current_query() IS NULL LOOP END LOOP; RETURN v; END'});
set(auto_calibrate_budget => 20, training_timeout => 60000);
$node->restart;
$from = -s $node->logfile;
my $forget_part = q{SELECT gpuvec_forget_queries('items_part')};
$node->safe_psql('postgres', "$forget_part; SELECT ask_part(500001, 500300)");
log_has($node, qr/FATAL:  terminating calibration of index "public.items_part" because its functions exceeded a tenth/, $from, 'terminated');
comes($node, "SELECT ($workers) = 0", 'the worker is gone');
$node->safe_psql('postgres', q{SELECT count(*) FROM gpuvec_calibrate('items_e')});
again();
calibrates('another index still has time');
comes($node, "SELECT ($workers) = 0", 'its worker is gone');
$from = -s $node->logfile;
$node->safe_psql('postgres', 'SELECT ask_part(600001, 600300)');
rests('it waits for another day');
set(auto_calibrate_budget => 1);
$from = -s $node->logfile;
$node->safe_psql('postgres', "$forget_part; SELECT ask_part(500001, 500300)");
rests('no time is left');

# -- gpuvecd finds the exact answers; its queue counts as load
$node->append_conf('postgresql.conf', "gpuvec.server = 'cpu'\ngpuvec.engine = 'gpu'\n");
$node->restart;
soon_up($node, 'restarted');
set(fault => 'wait 1 calibrate: begun', auto_calibrate_budget => 0.05, training_timeout => 60000);
$holder = hold($node);
again();
is_held($node, 'a small budget suffices with gpuvecd');
my $supervisor = supervisor_pid($node);
kill 'STOP', $supervisor;
kill 'KILL', gpuvecd_pid($node);
release($holder);
log_has($node, qr/gpuvecd could not compare queries with rows/, $from, '... but not without');
kill 'CONT', $supervisor;
ok(revive($node), 'gpuvecd is there again');
set(fault => '', auto_calibrate_budget => 600);
sub sets { return stat_of($node, 'jobs_by_server') }
my $own = q{ARRAY(SELECT question(g) FROM generate_series(1, 300) AS g)};
my $by_hand = "SELECT string_agg(c::text, ' ') FROM gpuvec_calibrate('items_e', queries => $own) AS c WHERE k <= 100 AND recall <= 0.98";
my $sets = sets();
my $points_of_hand = $node->safe_psql('postgres', $by_hand);
cmp_ok(sets(), '>', $sets, 'gpuvecd works for gpuvec_calibrate');
$sets = sets();
gives($node, "SET gpuvec.engine = cpu; $by_hand", $points_of_hand, 'without it the targets are the same');
is(sets(), $sets, '... and it does nothing');
$node->safe_psql('postgres', q{SELECT count(*) FROM gpuvec_calibrate('items_e')});
again();
calibrates('with gpuvecd');
cmp_ok(sets(), '>', $sets, '... which has worked');
my $job = $node->background_psql('postgres', on_error_stop => 0);
$job->query_until(qr/begins/, "\\echo begins
	DO \$\$ DECLARE q real[] = $own; BEGIN LOOP PERFORM count(*) FROM gpuvec_search('items_e', q, 10); END LOOP; END \$\$;\n");
comes($node, 'SELECT mean_batch > 2 FROM gpuvec_stat', 'a job of many queries keeps gpuvecd busy');
set(fault => 'wait 1 calibrate: busy');
$holder = hold($node);
again();
is_held($node, 'the worker sees it');
release($holder);
comes($node, "SELECT ($workers) = 0", '... and ends');
unlike(slurp_file($node->logfile, $from), qr/calibrated index/, '... without calibration');
$node->safe_psql('postgres', q{SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE '%gpuvec_search%' AND pid <> pg_backend_pid()});
eval { $job->quit };
set(fault => '');
$supervisor = supervisor_pid($node);
kill 'STOP', $supervisor;
kill 'KILL', gpuvecd_pid($node);
is($node->safe_psql('postgres', $by_hand), $points_of_hand, 'gpuvec_calibrate does without');
kill 'CONT', $supervisor;

# -- more indexes than there is room for: each keeps its queries for an hour
my @small = map { "small$_" } 1 .. 65;
my $kept = 'SELECT ' . join ', ', map { "(SELECT count(*) FROM gpuvec_live_queries('${_}_e'))" } @small[0, 64];
$node->safe_psql('postgres', "SET client_min_messages = warning; DROP INDEX items_e, items_part;"
	. join '', map { "CREATE TABLE $_ AS TABLE items LIMIT 5; CREATE INDEX ${_}_e ON $_ USING gpuivfpq (e) WITH (lists = 1);" } @small);
$node->safe_psql('postgres', "SELECT ask(1, 1, '$_')") for @small;
gives($node, $kept, '1|0', '64 indexes have queries, the next has none');
set(fault_interval => 1);
$node->safe_psql('postgres', q{SELECT ask(1, 1, 'small65')});
like($node->safe_psql('postgres', $kept), qr/^[01]\|1$/, '... until an hour is over');
set(fault_interval => 3600000);

# -- many indexes that nobody searches
$node->safe_psql('postgres', q{
	SET client_min_messages = warning;
	CREATE TABLE few (e real[]);
	INSERT INTO few VALUES (point(1, 4)), (point(2, 4));
	DO $$ BEGIN FOR i IN 1 .. 1000 LOOP
		EXECUTE format('CREATE INDEX ON few USING gpuivfpq (e) WITH (lists = 1, probes = %s)', i); END LOOP; END $$});
$from = -s $node->logfile;
sleep 2;
rests('1,000 indexes');
no_crash($node);
done_testing();
