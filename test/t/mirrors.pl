# Mirrors follow their indexes: they hold what the pages hold, after every command that
# changes an index or gives it new pages, in every database; searches under conditions
# on keys by gpuvecd find the session's rows; and what there is no room for is refused
# cleanly.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Gpuvec;
use GpuvecRemote qw(:DEFAULT is_verified is_loaded is_same);
use Time::HiRes qw(time);

my $rows = long_test() ? 50_000 : 2000;

# little memory, so that one list takes several messages
my $node = new_remote_node('main', conf => "gpuvec.engine = 'gpu'\nmaintenance_work_mem = '1MB'\nmax_worker_processes = 16\n");

# Test: the index is loaded, and gpuvecd finds the rows that the session finds.
sub follows
{
	my ($table, $dims, $what, %options) = @_;

	is_loaded($node, "${table}_e", $what, $options{database});
	return is_same($node, $table, $dims, $what, %options);
}

soon_up($node, 'new');

# -- loaded (while rows come and go: coherence.pl)
$node->safe_psql('postgres', qq{
	CREATE TABLE t (id int, e real[]);
	INSERT INTO t SELECT g, point(g, 8) FROM generate_series(1, $rows) AS g;
	CREATE INDEX t_e ON t USING gpuivfpq (e) WITH (lists = 20);
	CREATE TABLE refined (id int, e real[]);
	INSERT INTO refined SELECT * FROM t;
	CREATE INDEX refined_e ON refined USING gpuivfpq (e) WITH (lists = 10, refine = sq8)});
follows('t', 8, 'fresh');
follows('refined', 8, 'fresh');

# -- a list of several messages: whole, with a tail, with dead postings
$node->safe_psql('postgres', q{
	SET maintenance_work_mem = '64MB';
	CREATE TABLE long (id int, e real[]);
	INSERT INTO long SELECT g, point(g, 8) || array_fill((g % 13)::real, ARRAY[392])
	FROM generate_series(1, 12000) AS g;
	CREATE INDEX long_e ON long USING gpuivfpq (e) WITH (lists = 1, pq_dim = 400)});
follows('long', 400, 'long list');
for my $change (
	'INSERT INTO long SELECT id, e FROM long WHERE id < 100',
	'DELETE FROM long WHERE id % 100 = 7; VACUUM long',
	'DELETE FROM long WHERE id % 100 = 9; VACUUM long; INSERT INTO long SELECT id, e FROM long WHERE id < 50',
	'DELETE FROM long WHERE id % 2 = 0; VACUUM long')
{
	$node->safe_psql('postgres', $change);
	follows('long', 400, $change);
}

# -- gpuvecd stops in the midst of a load: the index is not locked meanwhile

for my $signal ('STOP', 'KILL')
{
	my ($pid, $at_work, $status);

	# When the supervisor sees first that gpuvecd does not answer, it starts no loader;
	# on a busy machine gpuvecd may stand still for longer than a loader waits, which
	# prewarm tells: then once more.
	for (1 .. 20)
	{
		$node->safe_psql('postgres', 'REINDEX INDEX long_e');
		$pid = gpuvecd_pid($node);
		kill 'STOP', $pid;
		my $load = background($node, "SELECT gpuvec_prewarm('long_e')");
		$at_work = wait_until($node, q{SELECT state = 'active' AND query = 'gpuvec: loading a mirror'
			FROM pg_stat_activity WHERE backend_type = 'gpuvec loader'}, 5);
		gives($node, q{SET lock_timeout = 500; BEGIN; LOCK long IN ACCESS EXCLUSIVE MODE; SELECT 'locked'},
			'locked', "$signal: the loader holds no lock")
		  if $at_work;
		kill $at_work && $signal eq 'KILL' ? 'KILL' : 'CONT', $pid;
		$status = end_of($load) >> 8;
		last if $at_work && ($signal eq 'KILL' || errors_of($load) !~ /gpuvecd: (no response in time|could not send a message)/);
	}
	is("$at_work, $status", $signal eq 'STOP' ? '1, 0' : '1, 3', "$signal: a loader was at work, and how prewarm ended");
	# a process that has a GPU takes its time to die
	my $which = $signal eq 'STOP' ? '=' : '<>';
	soon($node, "state = 'up' AND pid $which $pid", "$signal: gpuvecd is up");
	follows('long', 400, $signal);
}

# -- new pages, and none
$node->safe_psql('postgres', 'REINDEX INDEX t_e');
follows('t', 8, 'REINDEX');
soon_ready($node, 3, 'REINDEX: the old mirror is dropped', "database = 'postgres'");
for my $table (qw(t refined))
{
	$node->safe_psql('postgres', "SELECT gpuvec_train('${table}_e', true)");
	follows($table, 8, "$table is trained again");
	$node->safe_psql('postgres', "INSERT INTO $table SELECT id + 1000000, e FROM $table WHERE id < 100; VACUUM $table");
	follows($table, 8, "$table has more rows");
}
soon_ready($node, 3, 'trained again: old mirrors are dropped', "database = 'postgres'");
$node->safe_psql('postgres', 'BEGIN; TRUNCATE t; INSERT INTO t VALUES (1, point(1, 8)); ROLLBACK');
is_same($node, 't', 8, 'TRUNCATE, rolled back');
$node->safe_psql('postgres', "BEGIN; REINDEX INDEX t_e; SELECT answers('t', '<->', 8, 10, 5); ROLLBACK");
is_same($node, 't', 8, 'REINDEX, rolled back');
$node->safe_psql('postgres', 'TRUNCATE t; INSERT INTO t SELECT g, point(g, 8) FROM generate_series(1, 50) AS g');
is_same($node, 't', 8, 'TRUNCATE', none => 1);
says($node, "SELECT gpuvec_prewarm('t_e')", qr/ERROR:  index "t_e" is not trained/, 'TRUNCATE: nothing to mirror');
$node->safe_psql('postgres', 'DROP TABLE long');
$node->safe_psql('postgres', "SELECT gpuvec_prewarm('refined_e')");
soon_ready($node, 1, 'DROP: the mirror is dropped', "database = 'postgres'");

# -- a lock on the table is no hindrance, an exclusive one on the index is: then prewarm
# waits, for its own session, too, and can be canceled
gives($node, "BEGIN; LOCK refined IN ACCESS EXCLUSIVE MODE; SELECT gpuvec_prewarm('refined_e') > 0", 't', 'the table is locked');
says($node, "BEGIN; ALTER INDEX refined_e SET TABLESPACE pg_default;
	SET statement_timeout = 500; SELECT gpuvec_prewarm('refined_e')",
	qr/ERROR:  canceling statement due to statement timeout/, 'the index is locked');

$node->safe_psql('postgres', 'CREATE ROLE guest');
gives($node, 'SET ROLE guest; SELECT (SELECT count(*) FROM gpuvec_mirrors), (SELECT state FROM gpuvec_stat)',
	'0|up', 'views: states are for everyone, mirrors are not');

# nor do indexes that a transaction keeps locked, once it has asked for their
# mirrors, keep others waiting; locked before, or a loader might begin in between,
# which then waits
$node->safe_psql('postgres', qq{
	CREATE TABLE kept_$_ AS SELECT e FROM refined LIMIT 1200;
	CREATE INDEX kept_${_}_e ON kept_$_ USING gpuivfpq (e) WITH (lists = 4)}) for 1 .. 3;
my $keeper = background($node, q{
	SET enable_seqscan = off;
	DO $$ BEGIN
		FOR i IN 1..3 LOOP
			EXECUTE format('ALTER INDEX kept_%s_e SET TABLESPACE pg_default', i);
			EXECUTE format('SELECT FROM kept_%s ORDER BY e <-> (SELECT e FROM kept_1 LIMIT 1) LIMIT 1', i);
			EXECUTE format('DROP INDEX kept_%s_e', i);
		END LOOP;
		PERFORM pg_sleep(120);
	END $$});
ok(wait_until($node,
		q{SELECT count(*) = 1 FROM pg_locks WHERE relation = 'kept_3_e'::regclass AND mode = 'AccessExclusiveLock'}, 60),
	'indexes are locked');
$node->safe_psql('postgres', q{REINDEX INDEX refined_e; SELECT gpuvec_prewarm('refined_e')});
gives($node, "SELECT count(*) FROM gpuvec_mirrors WHERE error = 'the index is locked'",
	'0', '... and keep no other mirror waiting until they are given up');
$node->safe_psql('postgres', q{SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(120)%' AND pid <> pg_backend_pid()});
end_of($keeper);
$node->safe_psql('postgres', 'DROP TABLE kept_1, kept_2, kept_3');

# -- other databases: copied and dropped while a loader may be there
my $took = 0;
sub run_timed
{
	my ($database, $sql) = @_;
	my $begun = time;

	$node->safe_psql($database, $sql);
	$took += time - $begun;
}
$node->safe_psql('postgres', "SELECT gpuvec_prewarm('refined_e')");
run_timed('template1', 'CREATE DATABASE other TEMPLATE postgres');
# a loader may be done before these searches are: so none is asked for
is_same($node, 'refined', 8, 'copied', database => 'other', none => 1, set => 'gpuvec.auto_mirror = off');
is_same($node, 'refined', 8, 'copied, while it is mirrored', database => 'other', any => 1);
follows('refined', 8, 'copied', database => 'other');
soon_ready($node, 1, 'copied: a mirror of its own', "database = 'other'");
$node->safe_psql('other', 'INSERT INTO refined SELECT g, point(g, 8) FROM generate_series(1, 500) AS g');
is_same($node, 'refined', 8, 'copied, and written', database => 'other', any => 1);
is_same($node, 'refined', 8, 'as it was');
$node->safe_psql('other', "SELECT gpuvec_prewarm('refined_e')");
run_timed('postgres', 'DROP DATABASE other');
soon_ready($node, 0, 'dropped: so are its mirrors', 'database IS NULL');
soon_ready($node, 0, 'dropped: so are its mirrors', "database = 'other'");
cmp_ok($took, '<', 20, 'databases are copied and dropped without waiting');

# -- a database that takes no new sessions: those that are there go on
$node->safe_psql('template1', 'CREATE DATABASE closed TEMPLATE postgres');
my $open = $node->background_psql('closed');
$node->safe_psql('postgres', 'ALTER DATABASE closed ALLOW_CONNECTIONS false');
is($open->query_safe(q{SELECT gpuvec_prewarm('refined_e') > 0}), 't', 'no new sessions: mirrored');
$open->quit;
$node->safe_psql('postgres', 'DROP DATABASE closed');

# -- more databases than loaders: each has its turn, however busy others are
$node->safe_psql('template1', "CREATE DATABASE $_ TEMPLATE postgres") for 'busy1', 'busy2', 'third';
my @busy = map {
	background($node, q{
		SET enable_seqscan = off;
		DO $$ BEGIN
			LOOP
				INSERT INTO refined SELECT id, e FROM refined LIMIT 1;
				PERFORM id FROM refined ORDER BY e <-> (SELECT e FROM refined LIMIT 1) LIMIT 1;
				COMMIT;
			END LOOP;
		END $$}, $_)
} 'busy1', 'busy2';
comes($node, q{SELECT count(*) = 2 FROM pg_stat_activity WHERE backend_type = 'gpuvec loader' AND datname LIKE 'busy%'}, 'two databases have loaders');
is($node->safe_psql('third', q{SET statement_timeout = '150s'; SELECT gpuvec_prewarm('refined_e') > 0}), 't', '... and a third one, too');
$node->safe_psql('postgres', q{SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname LIKE 'busy%'});
end_of($_) for @busy;
$node->safe_psql('postgres', "DROP DATABASE $_ WITH (FORCE)") for 'busy1', 'busy2', 'third';

# -- an index has a new OID and the same pages
$node->safe_psql('postgres', q{
	CREATE TABLE typed AS SELECT id, e, ('n' || id % 9)::varchar(20) AS name FROM refined;
	CREATE INDEX typed_e ON typed USING gpuivfpq (e, name) WITH (lists = 10)});
is_loaded($node, 'typed_e', 'typed');
my $numbers = q{SELECT pg_relation_filenode('typed_e'), 'typed_e'::regclass::oid};
my @typed = split /\|/, $node->safe_psql('postgres', $numbers);
my @retyped = split /\|/, $node->safe_psql('postgres', "ALTER TABLE typed ALTER name TYPE varchar(40); $numbers");
is($retyped[0], $typed[0], 'another type: the same pages');
isnt($retyped[1], $typed[1], '... another OID');
is_loaded($node, 'typed_e', 'another type');
$node->safe_psql('postgres', 'DROP TABLE typed');

# -- conditions on keys, from mirrors that are up to date, that lack postings, and
# that are stale

# Conditions of all selectivities, with abbreviated keys that decide and others.
my @conditions = (
	'tenant = 3', 'tenant IN (1, 5, 77)', 'tenant < 2 AND day >= 50',
	'tenant IS NULL', 'day BETWEEN 10 AND 90 AND tenant IS NOT NULL',
	q{kind = 'k1'}, q{kind = ANY ('{k2,k3,none}') AND tenant = 6},
	'tenant >= 0', 'tenant = 3 AND day = 17');
my @keyed = ('keyed', 'keyed_refined');

# Test: under each condition gpuvecd finds the rows that the session finds.  Where
# mirrors are far behind (any) the session may answer, too.
sub is_same_keyed
{
	my ($what, $any) = @_;

	for my $table (@keyed)
	{
		my $all = join ';', 'SET enable_seqscan = off', map { "SELECT \$\$$_\$\$, array_agg(id) FROM
			(SELECT id FROM $table WHERE $_ ORDER BY e <-> point(@{[40 + length]}, 8) LIMIT 10) AS x" } @conditions;
		my $before = served($node);

		gives($node, $all, $node->safe_psql('postgres', "SET gpuvec.engine = cpu; $all"), "$what: $table, the same rows");
		cmp_ok(served($node) - $before, '>=', @conditions, "$what: $table, by gpuvecd") unless $any;
	}
	return;
}

$node->safe_psql('postgres', q{
	SET maintenance_work_mem = '64MB';
	CREATE TABLE keyed (id int, e real[], tenant int, day int8, kind text);
	INSERT INTO keyed SELECT g, point(g, 8), nullif(g * 7 % 12, 11), g % 100, 'k' || g % 9
		FROM generate_series(1, 6000) AS g;
	CREATE TABLE keyed_refined AS SELECT * FROM keyed;
	CREATE INDEX keyed_e ON keyed USING gpuivfpq (e, tenant, day, kind) WITH (lists = 30);
	CREATE INDEX keyed_refined_e ON keyed_refined USING gpuivfpq (e, tenant, day, kind)
		WITH (lists = 30, pq_dim = 7, refine = sq8);
	ANALYZE keyed, keyed_refined});
is_loaded($node, "${_}_e", 'keys') for @keyed;
is_same_keyed('keys, as they were loaded');
pause_loaders($node);
$node->safe_psql('postgres', "INSERT INTO $_
	SELECT g, point(g, 8), g % 5, g % 100, 'k' || g % 4 FROM generate_series(6001, 6300) AS g")
  for @keyed;
is_same_keyed('keys, with postings that are missing');
is_verified($node, "${_}_e", 'keys, with postings that are missing') for @keyed;
$node->safe_psql('postgres', "DELETE FROM $_ WHERE id % 7 = 0; VACUUM $_") for @keyed;
is_same_keyed('keys, with lists that are stale', 1);
is_verified($node, "${_}_e", 'keys, with lists that are stale') for @keyed;
resume_loaders($node);
is_loaded($node, "${_}_e", 'keys, up to date again') for @keyed;
is_same_keyed('keys, up to date again');

# gpuvecd is asked once to learn the selectivity, and once for what that takes; and
# the session does not search by itself
$node->safe_psql('postgres', q{
	SET maintenance_work_mem = '64MB';
	CREATE TABLE tenants AS SELECT g AS id, point(g, 8) AS e, abs(hashint4(g)) % 20 AS tenant
		FROM generate_series(1, 20000) AS g;
	CREATE INDEX tenants_e ON tenants USING gpuivfpq (e, tenant) WITH (lists = 200);
	ANALYZE tenants;
	CREATE FUNCTION engine_of(tenant int, at int) RETURNS text LANGUAGE plpgsql AS $$
	BEGIN
		PERFORM id FROM tenants WHERE tenants.tenant = engine_of.tenant ORDER BY e <-> point(at, 8) LIMIT 10;
		RETURN (SELECT engine FROM gpuvec_last_scan());
	END $$});
is_loaded($node, 'tenants_e', 'selectivities');
my $before = served($node);
gives($node, q{SET enable_seqscan = off; SET enable_sort = off;
	SELECT count(*) FROM generate_series(1, 60) AS g WHERE engine_of(g % 20, 40 + 331 * g) IN ('session', 'mixed')},
	'0', 'no session searches by itself');
cmp_ok(served($node) - $before, '<=', 135, 'gpuvecd is asked twice');
$node->safe_psql('postgres', 'DROP TABLE keyed, keyed_refined, tenants');

# -- no room for a large index, and room for a small one; a GPU takes memory in
# pieces of some MB
my ($memory_mb, $nlarge) = $SERVER eq 'cuda' ? (16, 45_000) : (2, 6000);
$node->safe_psql('postgres', qq{
	CREATE TABLE large (id int, e real[]);
	INSERT INTO large SELECT g, point(g, 8) || array_fill((g % 13)::real, ARRAY[392])
	FROM generate_series(1, $nlarge) AS g;
	CREATE INDEX large_e ON large USING gpuivfpq (e) WITH (lists = 10, pq_dim = 400)});
$node->append_conf('postgresql.conf', "gpuvec.gpu_memory = '${memory_mb}MB'\n");
$node->restart;
soon($node, "state = 'up' AND memory = $memory_mb * 1048576", 'little memory');
says($node, "SELECT gpuvec_prewarm('large_e')", qr/ERROR:  could not load the index into gpuvecd: gpuvecd does not have enough memory/,
	'little memory: no room');
gives($node, q{SELECT state, error FROM gpuvec_mirrors WHERE index = 'large_e'::regclass},
	'failed|gpuvecd does not have enough memory', 'little memory: gpuvec_mirrors says so');
is_same($node, 'large', 400, 'little memory', none => 1) for 1 .. 3;
is(() = slurp_file($node->logfile) =~ /could not load index \d+ into gpuvecd: gpuvecd does not have enough memory/g, 1,
	'little memory: the log says it once');
follows('refined', 8, 'little memory');
$node->stop;

done_testing();
