# A crash after any one record of the WAL: recovery that ends there leaves indexes
# with keys sound, complete, and right under conditions; rows then come and go,
# and VACUUM takes away what the crash left behind.
#
# Records are those of inserts, updates, VACUUM, rewrites, slots that are used
# again, training in place and draining.  In `make test-long` recovery ends at each
# of a hundred of them, else at a few.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Gpuvec;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $wanted = long_test() ? 100 : 6;
srand($ENV{GPUVEC_TEST_SEED} // 1);

my @conditions = ('id < 90', 'k = 3', 'k IS NULL', q{name = 'n4'}, q{k > 1 AND name = ANY ('{n2,n7}')});
my @indexes = map { [ "${_}_e", $_, '<->', $_ eq 'wide' ? 1000 : 8, \@conditions ] }
  qw(once refined wide waiting);

# Rows of a table from number $1 to $2.
sub insert
{
	my ($table, $first, $last) = @_;
	my $dims = $table eq 'wide' ? 1000 : 8;

	return "INSERT INTO $table SELECT g, point(g, $dims), nullif(g % 6, 0), 'n' || g % 9
		FROM generate_series($first, $last) AS g;";
}

my $node = new_node(
	'main',
	allows_streaming => 1,
	conf => "wal_keep_size = '2GB'\ncheckpoint_timeout = '1h'\n");
$node->safe_psql(
	'postgres', join '',
	(map { "CREATE TABLE $_ (id int, e real[], k bigint, name text);" } qw(once refined wide waiting)),
	(map { insert($_, 1, $_ eq 'wide' ? 60 : 300) } qw(once refined wide)),
	'CREATE INDEX once_e ON once USING gpuivfpq (e, k, name, id) WITH (lists = 4, spill = 0);',
	'CREATE INDEX refined_e ON refined USING gpuivfpq (e, id, k, name) WITH (lists = 4, refine = sq8);',
	'CREATE INDEX wide_e ON wide USING gpuivfpq (e, id, name, k) WITH (lists = 2, pq_dim = 850);',
	'CREATE INDEX waiting_e ON waiting USING gpuivfpq (e, id, name, k) WITH (lists = 4, train_rows = 100000);');
$node->backup('backup');

# Statements that make records.
my $begin = $node->safe_psql('postgres', 'SELECT pg_current_wal_insert_lsn()');
$node->safe_psql(
	'postgres', $_) for
  (map { insert($_, 1001, 1060) } qw(once refined wide)),
  insert('waiting', 1, 400),
  'UPDATE once SET k = k + 1 WHERE id % 5 = 0; UPDATE refined SET k = NULL WHERE id % 7 = 1',
  (map { "DELETE FROM $_ WHERE id % 9 = 2; VACUUM (INDEX_CLEANUP on) $_" } qw(once refined wide)),
  (map { "DELETE FROM $_ WHERE id % 3 <> 0; VACUUM (INDEX_CLEANUP on) $_" } qw(once refined wide)),
  (map { insert($_, 2001, 2120) } qw(once refined wide)),
  q{SELECT gpuvec_train('waiting_e')},
  insert('waiting', 401, 430),
  'DELETE FROM waiting WHERE id % 3 = 1; VACUUM (INDEX_CLEANUP on) waiting';
my $end = $node->safe_psql('postgres', 'SELECT pg_switch_wal()');
like(
	$node->safe_psql('postgres', "SET enable_seqscan = off;
		EXPLAIN SELECT id FROM $_ WHERE $conditions[-1] ORDER BY e <-> point(3, 8)"),
	qr/Index Cond: (?=.*k > 1)(?=.*name = ANY)/, "conditions on $_ are the index's") for map { $_->[1] } @indexes;
$node->stop;

# The places of our records
my ($dump, $stderr) = run_command([ 'pg_waldump', '--path', $node->data_dir . '/pg_wal',
	'--rmgr', 'Generic', '--start', $begin, '--end', $end ]);
my @records = $dump =~ /lsn: ([0-9A-F]+\/[0-9A-F]+)/g;
cmp_ok(scalar @records, '>', 500, 'records are there') or diag($stderr);

# some in each part of the work
my @targets = map { $records[ int(($_ + rand) * @records / $wanted) ] } 0 .. $wanted - 1;
for my $n (0 .. $#targets)
{
	my $what = "record $n of $wanted, at $targets[$n]";
	my $crashed = PostgreSQL::Test::Cluster->new("crashed_$n");

	$crashed->init_from_backup($node, 'backup');
	$crashed->append_conf('postgresql.conf',
		"restore_command = 'cp \"" . $node->data_dir . "/pg_wal/%f\" \"%p\"'\n"
		  . "recovery_target_lsn = '$targets[$n]'\nrecovery_target_action = promote\n");
	$crashed->set_recovery_mode;
	$crashed->start;
	ok(wait_until($crashed, 'SELECT NOT pg_is_in_recovery()'), "$what: recovered");
	are_whole($crashed, $what, \@indexes, warnings => 1);

	$crashed->safe_psql('postgres', join '',
		(map { insert($_, 3001, 3050) . "DELETE FROM $_ WHERE id % 4 = 1;" } qw(once refined wide waiting)),
		"SELECT gpuvec_train('waiting_e');");
	$crashed->safe_psql('postgres', "VACUUM (INDEX_CLEANUP on) $_") for qw(once refined wide waiting);
	are_whole($crashed, "$what, and went on", \@indexes, warnings => 1);
	unlike(slurp_file($crashed->logfile), qr/PANIC|TRAP|damaged/, "$what: log");
	$crashed->stop;
	$crashed->clean_node;
}

done_testing();
