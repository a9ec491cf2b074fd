# Statements of a soak's clients: each statement, or group of them, is drawn at
# random; the same seed draws the same ones.  A line of output that begins with
# SOAK is a fault.

package SoakStatements;

use strict;
use warnings;
use Exporter 'import';
use SoakTables;

our @EXPORT = qw(random_settings random_statements);

my $prepared = 0;

sub one_of
{
	return $_[ rand @_ ];
}

sub some
{
	my ($from, $to) = @_;
	return $from + int rand($to - $from + 1);
}

sub vector_number
{
	return some(1, 1_000_000);
}

# The distance of a table's rows from some query.
sub distance
{
	my ($table) = @_;
	my $expression = $table->{expression} // 'e';

	return "$expression $table->{op} " . point($table, vector_number());
}

# A table or, of a partitioned one, maybe a partition.
sub relation
{
	my ($table) = @_;

	return $table->{name} if !$table->{parts} || rand() < 0.5;
	return "$table->{name}_" . some(1, scalar @{ $table->{parts} });
}

# The name of one index of a table, of one of its partitions if it has some.
sub index_of
{
	my ($table) = @_;
	my $name = one_of(@{ $table->{indexes} })->[0];

	return "'$name'::regclass" if !$table->{parts};
	my $part = "$table->{name}_" . some(1, scalar @{ $table->{parts} });
	return "(SELECT indexrelid::regclass FROM pg_index WHERE indrelid = '$part'::regclass LIMIT 1)";
}

# -- rows come, change and go

sub insert
{
	my ($table) = @_;
	my $g = vector_number();
	my $n = one_of(1, 1, 5, 20, 60);

	return "INSERT INTO $table->{name} (a, w, e) SELECT (g * 31) % 100, 'w' || g % 10, "
	  . vector($table, 'g')
	  . " FROM generate_series($g, $g + $n - 1) AS g;";
}

sub copy
{
	my ($table) = @_;
	my $dims = $table->{dims};
	my $lines = '';

	for (1 .. some(5, 60))
	{
		my $list = join ',', map { sprintf '%.3f', rand(20) - 10 } 1 .. $dims;
		$lines .= join("\t", int rand 100, 'w' . int rand 10, $table->{type} ? "[$list]" : "{$list}") . "\n";
	}
	return "COPY $table->{name} (a, w, e) FROM STDIN;\n$lines\\.\n";
}

sub update
{
	my ($table) = @_;
	my $set = one_of(
		'e = ' . vector($table, vector_number()),
		'e = ' . vector($table, '(id % 1000)::int'),
		"w = 'w" . int(rand 10) . "'",
		'a = ' . int rand 100);
	my $where = one_of(
		"id IN (SELECT id FROM $table->{name} ORDER BY " . distance($table) . " LIMIT " . some(1, 20) . ')',
		'a = ' . int(rand 100),
		'id % 211 = ' . int rand 211);

	return "UPDATE $table->{name} SET $set WHERE $where;";
}

# More go, the more there are.
sub delete
{
	my ($table) = @_;
	my $name = $table->{name};
	my $order = one_of(distance($table), 'id', 'a, id');

	return "DELETE FROM $name WHERE id IN (SELECT id FROM $name ORDER BY $order
		LIMIT (SELECT greatest(" . some(1, 10) . ", count(*) - $table->{rows}) FROM $name));";
}

sub write_some
{
	my ($table) = @_;

	return one_of(\&insert, \&insert, \&copy, \&update, \&delete)->($table);
}

sub transaction
{
	my ($table) = @_;
	my $sql = 'BEGIN; ';

	for (1 .. some(1, 4))
	{
		$sql .= rand() < 0.3
		  ? "SAVEPOINT s;\n" . write_some($table) . "\n" . one_of('ROLLBACK TO s', 'RELEASE s') . ";\n"
		  : write_some($table) . "\n";
	}
	return $sql . one_of('COMMIT', 'COMMIT', 'ROLLBACK') . ';';
}

sub truncate_table
{
	my ($table) = @_;

	return 'BEGIN; TRUNCATE ' . relation($table) . ";\n" . insert($table) . "\nROLLBACK;"
	  if !$table->{emptied} || rand() < 0.5;
	return "TRUNCATE $table->{name};";
}

# A partition goes and comes again.
sub detach
{
	my ($table) = @_;

	return insert($table) if !$table->{parts};
	my $n = some(1, scalar @{ $table->{parts} });
	my $part = "$table->{name}_$n";
	return "BEGIN; ALTER TABLE $table->{name} DETACH PARTITION $part;\n"
	  . "DELETE FROM $part WHERE id % 10 = 0;\n"
	  . "ALTER TABLE $table->{name} ATTACH PARTITION $part $table->{parts}[$n - 1];\n"
	  . one_of('COMMIT', 'ROLLBACK') . ';';
}

# -- searches

# Rows in their order, each once.  (Where scan_order is relaxed, or several
# partitions are merged, any order is right.)
sub search
{
	my ($table) = @_;
	my $from = relation($table);
	my $condition = rand() < 0.5 ? random_condition() : 'true';
	my $distance = distance($table);
	my $k = one_of(1, 10, 10, 50, 300);
	my $bound = rand() < 0.3 ? "AND $distance < " . some(-50, 50) / one_of(1, 10, 50) : '';

	return "SELECT 'SOAK $from: out of order or twice' FROM (SELECT count(*) AS n, count(DISTINCT id) AS ids,
			bool_or(d < before AND d <> 'NaN') AND current_setting('gpuvec.scan_order') = 'strict' AS disorder
		FROM (SELECT id, d, lag(d) OVER () AS before FROM (SELECT id, $distance AS d FROM $from
			WHERE $condition $bound ORDER BY $distance LIMIT $k OFFSET 0) AS x) AS y) AS z WHERE n <> ids OR disorder;";
}

# The index and a sort give the same.
sub compare
{
	my ($table) = @_;
	my $distance = distance($table);
	my $condition = rand() < 0.5 ? random_condition() : 'true';

	$condition .= " AND $distance < " . some(-50, 50) / one_of(1, 10, 50) if rand() < 0.3;
	# (the whole of a partitioned table may be planned as a sort of its parts)
	return 'SELECT differs(' . join(', ', map { "\$q\$$_\$q\$" } relation($table), $distance, $condition)
	  . ', ' . one_of(1, 10, 40) . ');';
}

sub cursor
{
	my ($table) = @_;
	my $distance = distance($table);
	my $condition = rand() < 0.5 ? random_condition() : 'true';
	my $sql = 'BEGIN; DECLARE c ' . one_of('', '', 'SCROLL ') . "CURSOR FOR SELECT id, $distance FROM "
	  . relation($table) . " WHERE $condition ORDER BY $distance;\n";

	for (1 .. some(1, 4))
	{
		$sql .= one_of('FETCH', 'MOVE') . ' ' . one_of(1, 5, 30, 200) . " FROM c \\g /dev/null\n";
		$sql .= write_some($table) . "\n" if rand() < 0.4;
		$sql .= "SAVEPOINT s; FETCH 3 FROM c \\g /dev/null\nROLLBACK TO s;\n" if rand() < 0.2;
	}
	return $sql . one_of('CLOSE c; COMMIT', 'COMMIT', 'ROLLBACK') . ';';
}

# Rows of a cursor by the index are changed.
sub change_current
{
	my ($table) = @_;

	return search($table) if $table->{parts};
	my $distance = distance($table);
	my $change = one_of('DELETE FROM', 'UPDATE');
	my $set = $change eq 'UPDATE' ? 'SET a = a + 1, e = ' . vector($table, vector_number()) : '';
	return "BEGIN; SET LOCAL enable_seqscan = off; SET LOCAL enable_sort = off;
		DECLARE c CURSOR FOR SELECT id FROM $table->{name} ORDER BY $distance FOR UPDATE;\n"
	  . "FETCH " . some(1, 20) . " FROM c \\g /dev/null\n$change $table->{name} $set WHERE CURRENT OF c;\n"
	  . one_of('COMMIT', 'ROLLBACK') . ';';
}

sub lateral
{
	my ($table) = @_;
	my $name = $table->{name};
	my $expression = $table->{expression} // 'e';

	return "SELECT count(*) FROM (SELECT e FROM $name WHERE e IS NOT NULL LIMIT 5) AS q,
		LATERAL (SELECT id FROM $name WHERE a <> 3 ORDER BY $expression $table->{op} q.e LIMIT 10) AS x \\g /dev/null\n";
}

sub radius
{
	my ($table) = @_;

	return "SET gpuvec.radius_recall = 0.9; SELECT count(*) FROM $table->{name} WHERE "
	  . distance($table) . ' < ' . some(1, 50) / one_of(1, 50)
	  . " \\g /dev/null\nRESET gpuvec.radius_recall;";
}

sub prepared_search
{
	my ($table) = @_;
	my $expression = $table->{expression} // 'e';
	my $type = $table->{type} // 'real[]';
	my $run = join "\n", map {
		'EXECUTE s(' . point($table, vector_number()) . ', ' . int(rand 100) . ') \g /dev/null'
	} 1 .. 7;

	return "PREPARE s ($type, int) AS SELECT id FROM $table->{name} WHERE a >= \$2
		ORDER BY $expression $table->{op} \$1 LIMIT 10;\n$run\nDEALLOCATE s;";
}

sub whole_table
{
	my ($table) = @_;
	my $part = $table->{parts} ? "$table->{name}_1" : $table->{name};

	my $exact = "SELECT count(*) FROM gpuvec_exact_search('$part', 'e', point(5, $table->{dims}), 10, 'l2') \\g /dev/null\n";

	# (an empty table has no clusters)
	return $exact if $table->{emptied} || $table->{kind};
	return one_of(
		$exact,
		"SELECT count(*) FROM gpuvec_kmeans('$part', 'e', 10, 2) \\g /dev/null\n",
		"SELECT count(*) FROM gpuvec_knn_join('$part', 'id', 'e', '$part', 'id', 'e', 2, 'l2') \\g /dev/null\n");
}

# -- what owners do

# An index that is there for a while.
sub create_index
{
	my ($table) = @_;
	my $name = 'more_' . relation($table);
	my $class = $table->{type} ? '' : one_of('real_l2_ops', 'real_ip_ops', 'real_cosine_ops');
	my $with = one_of('lists = 5', 'refine = sq8', 'spill = 0', 'spill = 1, refine = sq8, lists = 9', 'refine = half', 'pq_dim = 2');
	my $where = rand() < 0.3 ? ' WHERE a % 2 = 0' : '';

	my ($on) = $name =~ /^more_(.*)/;
	my $how = $on eq $table->{name} && $table->{parts} ? '' : one_of('CONCURRENTLY', 'CONCURRENTLY', '');
	return "DROP INDEX $how IF EXISTS $name;\n" if rand() < 0.4;
	return "CREATE INDEX $how IF NOT EXISTS $name ON $on USING gpuivfpq (e $class) WITH ($with)$where;";
}

sub look
{
	my ($table) = @_;
	my $index = index_of($table);

	return one_of(
		"SELECT gpuvec_index_info($index) \\g /dev/null\n",
		"SELECT count(*) FROM gpuvec_list_stats($index) \\g /dev/null\n",
		"SELECT * FROM gpuvec_recall($index, 5, 20) \\g /dev/null\n",
		"SELECT count(*) FROM gpuvec_mirrors \\g /dev/null\n",
		"SELECT * FROM gpuvec_stat \\g /dev/null\n",
		"SELECT gpuvec_prewarm($index) \\g /dev/null\n",
		"SELECT 'SOAK $table->{name}: ' || v FROM gpuvec_verify_index($index) AS v WHERE severity = 'error';");
}

sub alter
{
	my ($table) = @_;
	my $name = one_of(@{ $table->{indexes} })->[0];
	my $what = $table->{parts} ? '' : one_of(
		# (probes would have answers be inexact)
		"ALTER INDEX $name SET (candidates = " . some(10, 200) . ');',
		"ALTER INDEX $name RESET (candidates);",
		"ALTER TABLE $table->{name} SET (fillfactor = " . one_of(60, 100) . ');',
		"CLUSTER $table->{name};", "ANALYZE $table->{name};", "VACUUM FULL $table->{name};");

	return $what || "ANALYZE $table->{name};";
}

# Each with how often it comes.
my @ALL = (
	[ 20, \&insert ], [ 8, \&copy ], [ 12, \&update ], [ 12, \&delete ], [ 8, \&transaction ],
	[ 3, sub { "BEGIN;\n" . write_some(@_) . "\nPREPARE TRANSACTION 'soak_${$}_" . ++$prepared . "';\n" } ],
	[ 4, sub { q{SELECT format('} . one_of('COMMIT', 'COMMIT', 'ROLLBACK') . q{ PREPARED %L', gid) FROM pg_prepared_xacts LIMIT 2 \gexec} } ],
	[ 2, \&truncate_table ], [ 1, \&detach ],
	[ 25, \&search ], [ 12, \&compare ], [ 6, \&cursor ], [ 4, \&change_current ], [ 3, \&lateral ],
	[ 3, \&radius ], [ 3, \&prepared_search ], [ 1, \&whole_table ],
	[ 6, sub { 'VACUUM ' . one_of('', '', '(INDEX_CLEANUP on) ', '(FREEZE) ', '(ANALYZE) ', '(INDEX_CLEANUP off) ') . relation(@_) . ';' } ],
	[ 3, sub { 'REINDEX INDEX ' . one_of('CONCURRENTLY ', 'CONCURRENTLY ', '') . one_of(@{ $_[0]{indexes} })->[0] . ';' } ],
	[ 3, \&create_index ],
	[ 3, sub { 'SELECT gpuvec_train(' . index_of(@_) . ") \\g /dev/null\n" } ],
	[ 1, sub { 'SELECT count(*) FROM gpuvec_calibrate(' . index_of(@_) . ") \\g /dev/null\n" } ],
	[ 6, \&look ], [ 1, \&alter ]);

# Statements for a standby.
my @READS = (
	[ 8, \&search ], [ 5, \&compare ], [ 2, \&lateral ], [ 2, \&radius ], [ 2, \&prepared_search ],
	[ 1, \&whole_table ], [ 3, \&look ]);

# Statements for one of the tables, on the primary or on its standby.
sub random_statements
{
	my ($standby, @tables) = @_;
	my @choice = $standby ? @READS : @ALL;
	my $table = one_of(@tables);
	my $sum = 0;

	$sum += $_->[0] for @choice;
	my $at = rand $sum;
	for (@choice)
	{
		return $_->[1]->($table) if ($at -= $_->[0]) < 0;
	}
	die;
}

# Settings of a session.
sub random_settings
{
	# all by lists, or as recalls say
	my $all = rand() < 0.3;
	my %settings = (
		'gpuvec.probes' => $all ? 16777216 : 0,
		'gpuvec.candidates' => $all ? 1000000 : 0,
		'gpuvec.engine' => one_of('auto', 'cpu', 'gpu', 'gpu'),
		'gpuvec.recall' => one_of(0.8, 0.95, 0.95, 0.99, 1),
		'gpuvec.scan_order' => one_of('strict', 'strict', 'relaxed'),
		'gpuvec.enable_custom_scan' => one_of('on', 'on', 'on', 'off'),
		'gpuvec.request_timeout' => one_of(20, 1000, 5000),
		'gpuvec.simd' => one_of('auto', 'auto', 'portable'),
		'gpuvec.keep_queries' => one_of('on', 'off'),
		'work_mem' => one_of("'64kB'", "'4MB'"),
		'maintenance_work_mem' => one_of("'8MB'", "'64MB'"),
		'max_parallel_maintenance_workers' => some(0, 2),
		'min_parallel_table_scan_size' => one_of(0, "'8MB'"),
		'enable_seqscan' => one_of('on', 'off'),
		'plan_cache_mode' => one_of('auto', 'force_generic_plan'),
		'default_transaction_isolation' => one_of(("'read committed'") x 3, "'repeatable read'"),
		'statement_timeout' => one_of("'30s'", "'30s'", "'2s'", "'200ms'"),
		'lock_timeout' => "'10s'",
		'client_min_messages' => 'warning');

	return join ' ', "LOAD 'gpuvec';", map { "SET $_ = $settings{$_};" } sort keys %settings;
}

1;
