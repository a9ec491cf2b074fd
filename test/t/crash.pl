# Crashes.  A server comes back by WAL alone, wherever it ends: no index needs REINDEX,
# gpuvec_verify_index finds no error, every row is found once, and answers with all lists
# are those of exact search.  (Power cuts, under load: lost_writes.pl.)
#
# An unlogged table's index is empty after a crash and works, and one on a standby is as
# PostgreSQL wants it.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Gpuvec;

my $node = new_node('main', allows_streaming => 1,
	conf => "wal_keep_size = '2GB'\ncheckpoint_timeout = 1h\nmax_prepared_transactions = 2\n");

# -- A crash after any one record: recovery that ends there leaves indexes with keys
# sound, complete, and right under conditions; rows then come and go, indexes are
# trained, and VACUUM takes away what the crash left behind.  Records are those of
# inserts, updates, VACUUM, rewrites, slots that are used again, training in place,
# flushes of pending rows and pending lists that are written anew, and of training
# again.  In a long run
# recovery ends at each of a hundred of them, else at ten.

my $wanted = long_test() ? 50 : 5;    # of each half of the work
srand($ENV{SEED} // 1);

my @conditions = ('id < 90', 'k = 3', 'k IS NULL', q{name = 'n4'}, q{k > 1 AND name = ANY ('{n2,n7}')});
my @trained = qw(once refined wide);
my @late = qw(waiting drained);
my @tables = (@trained, @late, 'sparse');
# blocks of 1,000 dimensions have two parts
my %dims = map { $_ => /wide|drained/ ? 1000 : 8 } @tables;
my @keyed = map { [ "${_}_e", $_, '<->', $dims{$_}, \@conditions ] } @tables;

# Rows of a table from number $1 to $2.
sub insert
{
	my ($table, $first, $last) = @_;

	return "INSERT INTO $table SELECT g, point(g, $dims{$table}), nullif(g % 6, 0), 'n' || g % 9
		FROM generate_series($first, $last) AS g;";
}

$node->safe_psql(
	'postgres', join '',
	(map { "CREATE TABLE $_ (id int, e real[], k bigint, name text);" } @tables),
	(map { insert($_, 1, $_ eq 'wide' ? 60 : 300) } @trained),
	'CREATE INDEX once_e ON once USING gpuivfpq (e, k, name, id) WITH (lists = 4, spill = 0);',
	'CREATE INDEX refined_e ON refined USING gpuivfpq (e, id, k, name) WITH (lists = 4, refine = sq8);',
	'CREATE INDEX wide_e ON wide USING gpuivfpq (e, id, name, k) WITH (lists = 2, pq_dim = 850);',
	'CREATE INDEX waiting_e ON waiting USING gpuivfpq (e, id, name, k) WITH (lists = 4, refine = sq8, train_rows = 100000);',
	'CREATE INDEX drained_e ON drained USING gpuivfpq (e, id, name, k) WITH (lists = 2, pq_dim = 850, train_rows = 100000);',
	'CREATE INDEX sparse_e ON sparse USING gpuivfpq (e, id, name, k) WITH (train_rows = 100000);',
	insert('waiting', 1, 400), insert('drained', 1, 150), insert('sparse', 1, 4000));
$node->backup('backup');

# Statements that make records: of lists, and of pending lists.
my @work = (
	[
		(map { insert($_, 1001, 1060) } @trained),
		(map { "SELECT gpuvec_train('${_}_e', true)" } @trained),
		'UPDATE once SET k = k + 1 WHERE id % 5 = 0; UPDATE refined SET k = NULL WHERE id % 7 = 1',
		(map { "DELETE FROM $_ WHERE id % 9 = 2; VACUUM (INDEX_CLEANUP on) $_" } @trained),
		(map { "DELETE FROM $_ WHERE id % 3 <> 0; VACUUM (INDEX_CLEANUP on) $_" } @trained),
		(map { insert($_, 2001, 2120) } @trained) ],
	[
		# rows that nobody sees while it is trained stay pending, and are flushed later
		(map { (
				"DELETE FROM $_ WHERE id % 3 = 1",
				"BEGIN; @{[insert($_, 401, 420)]} PREPARE TRANSACTION '$_'",
				"SELECT gpuvec_train('${_}_e')",
				"COMMIT PREPARED '$_'",
				"SELECT gpuvec_train('${_}_e')",
				insert($_, 421, 440),
				"VACUUM (INDEX_CLEANUP on) $_") } @late),
		'DELETE FROM sparse WHERE id % 10 <> 1; VACUUM (INDEX_CLEANUP on) sparse',
		insert('sparse', 4001, 4050) ]);
my @lsn;
for my $statements (@work)
{
	push @lsn, $node->safe_psql('postgres', 'SELECT pg_current_wal_insert_lsn()');
	$node->safe_psql('postgres', $_) for @$statements;
}
push @lsn, $node->safe_psql('postgres', 'SELECT pg_switch_wal()');
like(
	$node->safe_psql('postgres', "SET enable_seqscan = off;
		EXPLAIN SELECT id FROM $_ WHERE $conditions[-1] ORDER BY e <-> point(3, 8)"),
	qr/Index Cond: (?=.*k > 1)(?=.*name = ANY)/, "conditions on $_ are the index's") for @trained, @late;

# The places of our records: some of each half, from all over
my @targets;
for my $half (0, 1)
{
	my ($dump, $stderr) = run_command([ 'pg_waldump', '--path', $node->data_dir . '/pg_wal',
		'--rmgr', 'Generic', '--start', $lsn[$half], '--end', $lsn[ $half + 1 ] ]);
	my @records = $dump =~ /lsn: ([0-9A-F]+\/[0-9A-F]+)/g;

	cmp_ok(scalar @records, '>', 100, 'records are there') or diag($stderr);
	push @targets, map { $records[ int(($_ + rand) * @records / $wanted) ] } 0 .. $wanted - 1;
}
for my $n (0 .. $#targets)
{
	my $what = "record $n, at $targets[$n]";
	my $crashed = PostgreSQL::Test::Cluster->new("crashed_$n");

	$crashed->init_from_backup($node, 'backup');
	$crashed->append_conf('postgresql.conf',
		"restore_command = 'cp \"" . $node->data_dir . "/pg_wal/%f\" \"%p\"'\n"
		  . "recovery_target_lsn = '$targets[$n]'\nrecovery_target_action = promote\n");
	$crashed->set_recovery_mode;
	$crashed->start;
	comes($crashed, 'SELECT NOT pg_is_in_recovery()', "$what: recovered");
	are_whole($crashed, $what, \@keyed, warnings => 1);

	$crashed->safe_psql('postgres', join '',
		(map { insert($_, 5001, 5050) . "DELETE FROM $_ WHERE id % 4 = 1;" } @tables),
		(map { "SELECT gpuvec_train('${_}_e');" } @late),
		(map { "SELECT gpuvec_train('${_}_e', true);" } @trained));
	$crashed->safe_psql('postgres', "VACUUM (INDEX_CLEANUP on) $_") for @tables;
	are_whole($crashed, "$what, and went on", \@keyed, warnings => 1);
	unlike(slurp_file($crashed->logfile), qr/PANIC|TRAP|damaged/, "$what: log");
	$crashed->stop;
	$crashed->clean_node;
}
$node->safe_psql('postgres', 'DROP TABLE ' . join ', ', @tables);

# -- unlogged tables
$node->safe_psql('postgres', q{
	SET client_min_messages = warning;
	CREATE UNLOGGED TABLE trained (id int, e real[]);
	INSERT INTO trained SELECT g, point(g, 8) FROM generate_series(1, 1200) AS g;
	CREATE INDEX trained_e ON trained USING gpuivfpq (e real_cosine_ops) WITH (lists = 10);
	CREATE UNLOGGED TABLE waiting (id int, e real[]);
	CREATE INDEX waiting_e ON waiting USING gpuivfpq (e, id) WITH (dims = 8);
	INSERT INTO waiting SELECT g, point(g, 8) FROM generate_series(1, 2000) AS g;
	CREATE TABLE turned (id int, e real[]);
	INSERT INTO turned SELECT * FROM trained;
	CREATE INDEX turned_e ON turned USING gpuivfpq (e, id) WITH (lists = 10);
	ALTER TABLE turned SET UNLOGGED;
});
is_whole($node, 'unlogged', 'trained', '<=>', 8);

# a clean restart keeps everything
my @unlogged = ([ 'trained', '<=>' ], [ 'waiting', '<->' ], [ 'turned', '<->' ]);
$node->restart;
is_complete($node, @$_, 8, 'restarted') for @unlogged;

# a crash empties it, down to its init fork
$node->safe_psql('postgres', 'CHECKPOINT');
$node->stop('immediate');
$node->start;
for (@unlogged)
{
	my ($name, $operator) = @$_;

	is($node->safe_psql('postgres', "SELECT count(*) FROM $name"), '0', "crashed: $name is empty");
	is_whole($node, 'crashed', $name, $operator, 8, exact => 0);
	gives($node, "SELECT lists, rows FROM gpuvec_index_info('${name}_e')", '0|0', "crashed: ${name}_e has no training");
	$node->safe_psql('postgres',
		"INSERT INTO $name SELECT g, point(g, 8) FROM generate_series(1, 1500) AS g");
	is_whole($node, 'filled again', $name, $operator, 8);
	$node->safe_psql('postgres', "DELETE FROM $name WHERE id % 2 = 0; VACUUM $name;
		REINDEX INDEX ${name}_e; INSERT INTO $name SELECT g, point(g, 8) FROM generate_series(3001, 3010) AS g");
	is_whole($node, 'reindexed', $name, $operator, 8, exact => 0);
}
# its declaration is not forgotten
says($node, q{INSERT INTO waiting VALUES (1, '{1,2}')}, qr/expected 8 dimensions, not 2/, 'the index knows its dimension');

# crashed again, at once after it was made logged
$node->safe_psql('postgres', 'ALTER TABLE turned SET LOGGED');
$node->stop('immediate');
$node->start;
is_whole($node, 'logged again', 'turned', '<->', 8, exact => 0);
isnt($node->safe_psql('postgres', 'SELECT count(*) FROM turned'), '0', 'logged again: rows are there');

# on a standby: not to be read, there and empty after promotion
my $standby = new_standby($node, 'standby');
$node->wait_for_catchup($standby);
says($standby, q{SELECT FROM gpuvec_search('waiting_e', point(1, 8), 1)},
	qr/ERROR:  cannot access unlogged index "waiting_e" during recovery/, 'standby: gpuvec_search is refused');
for my $asked ('id FROM waiting ORDER BY e <-> point(1, 8) LIMIT 1', q{* FROM gpuvec_exact_search('waiting', 'e', point(1, 8), 1)},
	q{* FROM gpuvec_kmeans('waiting', 'e', 1)})
{
	says($standby, "SET enable_seqscan = off; SELECT $asked", qr/cannot access temporary or unlogged relations during recovery/,
		"standby: $asked is refused");
}
$standby->promote;
is_whole($standby, 'promoted', 'waiting', '<->', 8, exact => 0);
$standby->safe_psql('postgres', 'INSERT INTO trained SELECT g, point(g, 8) FROM generate_series(1, 100) AS g');
is_exact($standby, 'trained', '<=>', 8, 'promoted');
$standby->stop;
$node->stop;
done_testing();
