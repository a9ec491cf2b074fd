# Code that tests of damaged index files share: a server that reads them, their
# bytes, and the statements that meet them.

package GpuvecDamage;

use strict;
use warnings;
use Exporter 'import';
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

our @EXPORT = qw(BLCKSZ new_damage_node slurp_bytes write_bytes restore_table
  get32 put32 %sound begin_damages damage_index meet_waiting damaged_at found);

use constant BLCKSZ => 8192;

# A server, not started yet, for indexes that will be damaged.
sub new_damage_node
{
	my $node = PostgreSQL::Test::Cluster->new('main');
	# from 18 on checksums, which see damage before we do, are the default
	$node->init($node->pg_version >= 18 ? (extra => ['--no-data-checksums']) : ());
	# A statement that damage sends round in circles must fail here, and not fill
	# the disk with what it spills.
	$node->append_conf(
		'postgresql.conf', qq{
autovacuum = off
jit = off
statement_timeout = ${PostgreSQL::Test::Utils::timeout_default}s
temp_file_limit = 100MB
});
	return $node;
}

# The messages of a query and of verify on a table's damaged index.
sub damaged_at
{
	my ($block, $table) = @_;
	$table //= 'lists';
	return qr/ERROR:  XX002: index "${table}_v" is damaged at block $block:/;
}

sub found
{
	my ($block, $problem) = @_;
	return qr/^$block\|error\|$problem/m;
}

# ---- files of a server that is stopped

sub slurp_bytes
{
	my ($path) = @_;
	open my $handle, '<:raw', $path or die "$path: $!";
	local $/;
	my $bytes = <$handle>;
	close $handle;
	return $bytes;
}

sub write_bytes
{
	my ($path, $bytes) = @_;
	open my $handle, '>:raw', $path or die "$path: $!";
	print $handle $bytes;
	close $handle or die "$path: $!";
	return;
}

# Put a table's rows back; its maps, which VACUUM wrote since, are made anew.
sub restore_table
{
	my ($path, $bytes) = @_;
	write_bytes($path, $bytes);
	unlink "${path}_vm", "${path}_fsm";
	return;
}

# Read and write 32-bit numbers of a file's bytes.
sub get32
{
	my ($bytes, $at) = @_;
	return unpack('L', substr($$bytes, $at, 4));
}

sub put32
{
	my ($bytes, $at, $value) = @_;
	substr($$bytes, $at, 4) = pack('L', $value);
	return;
}

# ---- damages

# Several damages are met between a start of the server and its end, each in a
# database of its own, which is a copy: so all have the same files.
my @databases = map { "damaged_$_" } 1 .. 10;
my $node;

# The files of indexes, TABLE_v, and tables as they should be, and where they are.
our %sound;
my (%file, %table_file, %table_bytes);

# Damages that wait for the server's next start.
my @waiting;

# Copy the server's database postgres, which has these tables and indexes, and stop
# the server.
sub begin_damages
{
	($node, my @tables) = @_;

	$node->safe_psql('template1', "CREATE DATABASE $_ TEMPLATE postgres") for @databases;
	for my $database (@databases)
	{
		for my $table (@tables)
		{
			($file{$database}{$table}, $table_file{$database}{$table}) =
			  map { $node->data_dir . "/$_" } split /\|/, $node->safe_psql($database,
				"SELECT pg_relation_filepath('${table}_v'), pg_relation_filepath('$table')");
		}
	}
	$node->stop;
	for my $table (@tables)
	{
		$sound{$table} = slurp_bytes($file{ $databases[0] }{$table});
		$table_bytes{$table} = slurp_bytes($table_file{ $databases[0] }{$table});
	}
	return;
}

# Let the server meet a damaged index of a database; the answers of each kind of
# statement, in a session of its own.
sub meet
{
	my ($database, $table) = @_;
	my %answer;
	my $verify = "SELECT coalesce(block::text, '-'), severity, problem"
	  . " FROM gpuvec_verify_index('${table}_v')";
	# In strict order a scan gives out so many of so few rows from the pass over
	# all of them, which needs no refine records.
	my @statements = (
		[ 'query',
			"SET gpuvec.scan_order = relaxed;\nSELECT count(*) FROM (SELECT id FROM $table"
			  . " ORDER BY v <-> vec(17) LIMIT 500) q" ],
		[ 'verify', $verify ],
		[ 'info', "SELECT advice FROM gpuvec_index_info('${table}_v')" ],
		$table eq 'keyed' ? [ 'conditions',
			"SET gpuvec.probes = 4;\nSET gpuvec.max_probes = 4;\nSET gpuvec.candidates = 5000;\n"
			  . "SELECT count(*) FROM (SELECT id FROM $table WHERE id > 1000 AND name = 'n3'"
			  . " ORDER BY v <-> vec(17)) q" ] : (),
		[ 'insert', "BEGIN; INSERT INTO $table VALUES (0, vec(3)); ROLLBACK" ],
		[ 'vacuum',
			"DELETE FROM $table WHERE id % 50 = 7; VACUUM $table" ],
		[ 'again', $verify ],
		[ 'alive', 'SELECT 1' ]);
	my ($rc, @said) = $node->psql(
		$database,
		join('', "\\set VERBOSITY verbose\n",
			map { "\\c\n\\echo \@$_->[0]\n\\warn \@$_->[0]\nSET enable_seqscan = off;\n$_->[1];\n" } @statements),
		on_error_stop => 0);

	for my $said (@said)
	{
		my (undef, %part) = split /^\@(\w+)$/m, $said;
		$answer{$_} .= $part{$_} for keys %part;
	}
	$answer{endless} = join ' ',
	  grep { $answer{$_} =~ /ERROR:  (57014|53400|53100)/ } sort keys %answer;
	$answer{alive} = $rc == 0 && $answer{alive} =~ /^1$/m ? 1 : 0;
	return \%answer;
}

# One damage to an index: what a query says, what verify says, and a function
# that tests more of the answers.
sub damage_index
{
	my ($table, $name, $query, $verify, $change, $more) = @_;
	my $bytes = $sound{$table};
	my $test = sub {
		my ($answer) = @_;

		like($answer->{query}, $query, "$name: query");
		like($answer->{verify}, $verify, "$name: verify");
		is($answer->{endless}, '', "$name: every statement ends");
		is($answer->{alive}, 1, "$name: the server lives");
		$more->($answer) if $more;
	};

	$change->(\$bytes);
	push @waiting, { table => $table, bytes => $bytes, test => $test };
	meet_waiting() if @waiting == @databases;
	return;
}

# Start the server, if any damages wait for it, and stop it again.
sub meet_waiting
{
	my @met;

	return unless @waiting;
	for my $i (0 .. $#waiting)
	{
		my $table = $waiting[$i]{table};

		restore_table($table_file{ $databases[$i] }{$table}, $table_bytes{$table});
		write_bytes($file{ $databases[$i] }{$table}, $waiting[$i]{bytes});
	}
	$node->start;
	push @met, meet($databases[$_], $waiting[$_]{table}) for 0 .. $#waiting;
	$node->stop;
	$waiting[$_]{test}->($met[$_]) for 0 .. $#waiting;
	@waiting = ();
	return;
}

1;
