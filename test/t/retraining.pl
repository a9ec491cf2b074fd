# Training a trained index anew, by hand, while it is in use: its lists become those of a
# fresh index; whatever is killed or canceled meanwhile leaves it whole, and so do rows
# that come and go; scans under way, also on a standby, read the old pages to their end.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Gpuvec;

need_test_build();
my $node = new_node('main', allows_streaming => 1,
	# no worker: here training comes when it is told
	conf => "max_prepared_transactions = 4\ncheckpoint_timeout = 1h\nwal_keep_size = '1GB'
		max_worker_processes = 0\nmax_logical_replication_workers = 0
		max_standby_streaming_delay = 1s\n");
my @conditions = ('id < 90', 'k = 3', 'k IS NULL', 'id BETWEEN 3000 AND 3100');
my %options = (
	plain => 'WITH (spill = 0)',
	spilled => 'WITH (lists = 24)',
	refined => 'WITH (refine = sq8, spill = 0)',
	halved => 'WITH (refine = half)',
	wide => 'WITH (lists = 6, pq_dim = 850)');
my %dims = map { $_ => $_ eq 'wide' ? 1000 : 8 } keys %options;
my @tables = sort keys %options;
my @keyed = map { [ "${_}_e", $_, '<->', $dims{$_}, \@conditions ] } @tables;

# Rows of a table from number $first to $last.
sub insert
{
	my ($table, $first, $last) = @_;

	return "INSERT INTO $table SELECT g, point(g, $dims{$table}), nullif(g % 6, 0)
		FROM generate_series($first, $last) AS g;";
}

# Make a table with few rows and its index, and insert rows up to number $last.
sub make
{
	my ($table, $last) = @_;
	my $few = $table eq 'wide' ? 600 : 1200;

	$node->safe_psql('postgres', "SET client_min_messages = warning;
		DROP TABLE IF EXISTS $table; CREATE TABLE $table (id int, e real[], k bigint)
		WITH (fillfactor = 70);" . insert($table, 1, $few)
		. "CREATE INDEX ${table}_e ON $table USING gpuivfpq (e, id, k) $options{$table};"
		. insert($table, $few + 1, $last));
	return;
}

# -- an index that has grown gets the lists of a fresh one, and the pages of the old ones
# are used again
make($_, $_ eq 'wide' ? 700 : 4000) for @tables;
are_whole($node, 'grown', \@keyed);
for my $table (@tables)
{
	my $rows = $table eq 'wide' ? 700 : 4000;

	gives($node, "SELECT gpuvec_train('${table}_e', true) = $rows", 't', "$table: trained anew");
	gives($node, "SELECT rows, pending, rows_at_training FROM gpuvec_index_info('${table}_e')",
		"$rows|0|$rows", "$table: ... with all rows");
	my $lists = $node->safe_psql('postgres', "SELECT lists FROM gpuvec_index_info('${table}_e')");
	$node->safe_psql('postgres', "REINDEX INDEX ${table}_e");
	gives($node, "SELECT lists FROM gpuvec_index_info('${table}_e')", $lists, "$table: as REINDEX makes them");
}
are_whole($node, 'built anew', \@keyed);

make($_, $_ eq 'wide' ? 700 : 3000) for @tables;
$node->safe_psql('postgres', "SELECT gpuvec_train('${_}_e', true); DELETE FROM $_ WHERE id % 5 = 0") for @tables;
are_whole($node, 'trained anew', \@keyed);
my %pages = map { $_ => $node->safe_psql('postgres', "SELECT pg_relation_size('${_}_e')") } @tables;
$node->safe_psql('postgres', "VACUUM $_") for @tables;
are_whole($node, 'trained anew, and VACUUM', \@keyed);
$node->safe_psql('postgres', insert($_, 5001, 5200)) for @tables;
is($node->safe_psql('postgres', "SELECT pg_relation_size('${_}_e')"), $pages{$_}, "$_: old pages are used again")
	for @tables;
are_whole($node, 'trained anew, and more rows', \@keyed);
for my $table (@tables)
{
	my @size;

	for (1 .. 5)
	{
		$node->safe_psql('postgres', "SELECT gpuvec_train('${table}_e', true)");
		$node->safe_psql('postgres', "SELECT txid_current(); VACUUM $table");
		push @size, $node->safe_psql('postgres', "SELECT pg_relation_size('${table}_e')");
	}
	cmp_ok($size[4], '<=', 1.2 * $size[1], "$table: trained five times, its file does not grow: @size");
}
are_whole($node, 'trained five times', \@keyed);

# -- a transaction with many rows: they would be pending, and make each scan slow
make('plain', 2000);
$node->safe_psql('postgres', "BEGIN; @{[insert('plain', 2001, 13000)]} PREPARE TRANSACTION 'many'");
my @plain = grep { $_->[1] eq 'plain' } @keyed;
says($node, "SELECT gpuvec_train('plain_e', true)", qr/ERROR:  cannot train index "plain_e" again now\nDETAIL:  11000 of/,
	'many rows are not committed');
are_whole($node, 'not trained', \@plain, warnings => 1);
$node->safe_psql('postgres', "COMMIT PREPARED 'many'");
gives($node, "SELECT gpuvec_train('plain_e', true)", '13000', '... now they are');
are_whole($node, 'trained', \@plain);


# -- killed, or failed, at any step: it is as before or trained anew, and whole
my @steps = ('train: page', 'train: written', 'train: caught up', 'train: lists frozen', 'train: pending frozen', 'train: kept',
	'train: published', 'pending: freed');
for my $action ('flush', 'error')
{
	for my $step (@steps)
	{
		my $what = "$action at $step";

		for (qw(refined spilled))
		{
			# free pages, which are taken first
			make($_, 1600);
			$node->safe_psql('postgres', "SELECT gpuvec_train('${_}_e', true)");
			$node->safe_psql('postgres', "SELECT txid_current(); VACUUM $_");
		}
		# rows that nobody sees while it is trained are kept
		$node->safe_psql('postgres', "DELETE FROM $_ WHERE id % 100 = 0;
			BEGIN; @{[insert($_, 1601, 1650)]} PREPARE TRANSACTION '$_'") for qw(refined spilled);
		for my $table (qw(refined spilled))
		{
			my ($rc, undef, $err) = $node->psql('postgres',
				"SET gpuvec.fault = '$action 1 $step'; SELECT gpuvec_train('${table}_e', true)");

			isnt($rc, 0, "$what: $table");
			restart_after_crash($node) if $action eq 'flush';
		}
		my @both = grep { $_->[1] =~ /refined|spilled/ } @keyed;
		are_whole($node, $what, \@both, warnings => 1);
		$node->safe_psql('postgres', insert($_, 2001, 2100) . "COMMIT PREPARED '$_'; DELETE FROM $_ WHERE id % 7 = 1")
			for qw(refined spilled);
		are_whole($node, "$what, and went on", \@both, warnings => 1);
		$node->safe_psql('postgres', "VACUUM $_; SELECT gpuvec_train('${_}_e', true)") for qw(refined spilled);
		gives($node, "SELECT count(*) - i.rows, i.pending FROM $_ JOIN gpuvec_index_info('${_}_e') AS i ON true
			GROUP BY i.rows, i.pending", '0|0', "$what: then $_ is trained with all rows") for qw(refined spilled);
		are_whole($node, "$what, and trained", \@both);
	}
}

# -- rows come, go, and change while it is trained, at each of its steps
for my $step ('train: written', 'train: caught up', 'train: lists frozen', 'train: pending frozen', 'train: published')
{
	make($_, 2000) for @tables[ 0 .. 3 ];
	for my $table (@tables[ 0 .. 3 ])
	{
		my @table = grep { $_->[1] eq $table } @keyed;
		my $holder = hold($node);
		my $training = background($node, "SET gpuvec.fault = 'wait 1 $step'; SELECT gpuvec_train('${table}_e', true);");

		is_held($node, "$table waits at $step");
		my $open = $node->background_psql('postgres', on_error_stop => 0);
		$open->query_safe("BEGIN; SET enable_seqscan = off; SET gpuvec.scan_order = relaxed;
			DECLARE c CURSOR FOR SELECT id FROM $table ORDER BY e <-> point(3, $dims{$table}); FETCH 30 FROM c");
		$node->safe_psql('postgres', insert($table, 2001, 2300) . "
			DELETE FROM $table WHERE id % 10 = 3; UPDATE $table SET e = point(id + 1, $dims{$table}) WHERE id % 10 = 4;
			UPDATE $table SET k = k WHERE id % 10 = 5;
			BEGIN; @{[insert($table, 3001, 3020)]} ROLLBACK;
			BEGIN; @{[insert($table, 4001, 4020)]} PREPARE TRANSACTION 'in_doubt'");
		are_whole($node, "$table, rows at $step", \@table, warnings => 1);
		release($holder);
		is(end_of($training), 0, "$table: trained");
		are_whole($node, "$table, after rows at $step", \@table, warnings => 1);
		$node->safe_psql('postgres', "COMMIT PREPARED 'in_doubt'; VACUUM $table");
		are_whole($node, "$table, later", \@table, warnings => 1);
		my $left = $open->query_safe('FETCH ALL FROM c');
		is(scalar(() = $left =~ /\d+/g), 1970, "$table: a cursor reads the old pages to their end");
		$open->query_safe('COMMIT');
		$open->quit;
		$node->safe_psql('postgres', "DELETE FROM $table WHERE id % 10 = 6; VACUUM $table; SELECT gpuvec_train('${table}_e')");
		are_whole($node, "$table, in the end", \@table);
	}
}

# -- an insert has chosen lists that a training then replaces; so has a scan that is
# about to read the pending list
for my $table (qw(plain refined))
{
	my @table = grep { $_->[1] eq $table } @keyed;

	make($table, 2000);
	my $holder = hold($node);
	my $insert = background($node, "SET gpuvec.fault = 'wait 1 insert: posting'; @{[insert($table, 2001, 2010)]}");
	my $scan = background($node, "SET gpuvec.fault = 'wait 1 scan: pending'; SET enable_seqscan = off;
		SELECT count(*) FROM (SELECT id FROM $table ORDER BY e <-> point(5, 8) OFFSET 0) AS x;");
	is_held($node, 'an insert and a scan wait', 2);
	$node->safe_psql('postgres', "BEGIN; @{[insert($table, 2501, 2600)]} COMMIT;
		SELECT gpuvec_train('${table}_e', true); SELECT gpuvec_train('${table}_e'); VACUUM $table");
	release($holder);
	is(end_of($insert), 0, "$table: the insert goes on");
	is(end_of($scan), 0, "$table: the scan goes on");
	is(slurp_file($scan->{output}), "2000\n", '... and finds the rows of its snapshot');
	are_whole($node, "$table, after an insert into old lists", \@table, warnings => 1);
	$node->safe_psql('postgres', "SELECT gpuvec_train('${table}_e'); VACUUM $table");
	are_whole($node, "$table, flushed", \@table);
}

# -- a standby follows: a scan under way reads the old pages, or is canceled when they
# are used again
my $standby = new_standby($node, 'standby');
make('refined', 2000);
$node->safe_psql('postgres', 'VACUUM (FREEZE) refined');
$node->wait_for_catchup($standby);
my $reader = $standby->background_psql('postgres', on_error_stop => 0);
$reader->query_safe("BEGIN; SET enable_seqscan = off; SET gpuvec.scan_order = relaxed;
	DECLARE c CURSOR FOR SELECT id FROM refined ORDER BY e <-> point(3, 8); FETCH 30 FROM c");
$node->safe_psql('postgres', "SELECT gpuvec_train('refined_e', true)");
$node->wait_for_catchup($standby);
my @refined = grep { $_->[1] eq 'refined' } @keyed;
are_whole($standby, 'the standby, trained anew', \@refined);
is(scalar(() = $reader->query_safe('FETCH 970 FROM c') =~ /\d+/g), 970, 'a cursor on the standby goes on');
my $from = -s $standby->logfile;
$node->safe_psql('postgres', 'SELECT txid_current(); VACUUM refined');
$node->safe_psql('postgres', insert('refined', 2001, 2300));
$node->wait_for_catchup($standby);
eval { $reader->query('FETCH ALL FROM c'); $reader->quit };
log_has($standby, qr/conflict with recovery.*might have needed to see row versions/s, $from,
	'... until old pages are freed');
are_whole($standby, 'the standby, in the end', \@refined);
are_whole($node, 'the primary, in the end', \@refined);
no_crash($_) for $node, $standby;

done_testing();
