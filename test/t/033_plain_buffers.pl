# gpuvec without what leans on PostgreSQL's insides (src/page/README, "Ways Around PostgreSQL") is
# built from the same sources, and loaded by one of two servers that begin with
# the same files.  The same inserts leave the same pages in both: as they stand
# in buffers, and as redo makes them of the records after a crash.

use strict;
use warnings;
use Cwd qw(abs_path);
use FindBin;
use lib $FindBin::RealBin;
use Gpuvec;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $rows = long_test() ? 5000 : 300;
my @indexes = (
	[ 'narrow', '<->', 8, 'lists = 10' ],
	[ 'refined', '<->', 8, 'lists = 10, refine = sq8' ],
	[ 'wide', '<=>', 1400, 'lists = 4, refine = sq8' ],
	[ 'waiting', '<->', 8, 'lists = 10' ]);

# The sources with their objects, of which only those that know the switch are
# compiled anew.
sub build_plain
{
	my $source = abs_path("$FindBin::RealBin/../..");
	my $dir = PostgreSQL::Test::Utils::tempdir() . '/plain';
	# what the objects want to be linked with, too
	my $flags = $ENV{GPUVEC_TEST_COPT} // '';

	# of the kind that these are
	my $kind = -e "$source/src/kind" ? slurp_file("$source/src/kind") : '';

	system_or_bail('mkdir', '-p', "$dir/test");
	system_or_bail('cp', '-a', map({ "$source/$_" } qw(src sql Makefile gpuvec.control)),
		$dir);
	system_or_bail('cp', '-a', "$source/test/memory", "$dir/test");
	unlink map { "$dir/src/page/$_.o" } qw(bufcache delta);
	# a compiler cache may be somebody else's
	local $ENV{CCACHE_DISABLE} = 1;
	# an empty PG_CONFIG, as make exports one, is not left out
	system_or_bail('make', '-s', '-C', $dir, 'PG_CONFIG=' . ($ENV{PG_CONFIG} || 'pg_config'),
		'NVCC=', ($kind =~ /test/ ? 'TEST_BUILD=1' : 'TEST_BUILD='), "COPT=$flags -DIVFPQ_PLAIN_BUFFERS", 'gpuvec.so');
	return "$dir/gpuvec";
}

# The main forks of all indexes, less the LSN and checksum of each page.
sub pages
{
	my ($node) = @_;
	my %pages;

	$node->safe_psql('postgres', 'CHECKPOINT');
	for my $index (@indexes)
	{
		my $path = $node->safe_psql('postgres',
			"SELECT pg_relation_filepath('$index->[0]_e')");
		my $file = slurp_file($node->data_dir . "/$path");

		for (my $at = 0; $at < length($file); $at += 8192)
		{
			substr($file, $at, 10) = "\0" x 10;
		}
		$pages{ $index->[0] } = $file;
	}
	return \%pages;
}

sub insert_rows
{
	my ($node, $first) = @_;
	my $last = $first + $rows - 1;

	$node->safe_psql('postgres', join ';', map {
		"INSERT INTO $_->[0]
			SELECT g, point(g, $_->[2]) FROM generate_series($first, $last) AS g"
	} @indexes);
	return;
}

my $plain_module = build_plain();
like(slurp_file("$FindBin::RealBin/../../gpuvec.so"),
	qr/XLogRegisterBufData/, 'gpuvec makes records');
unlike(slurp_file("$plain_module.so"),
	qr/XLogRegisterBufData|ReadRecentBuffer/, 'without its own records and hints');

# No full pages, so that redo has to work; and no process that writes pages
# while rows come, so that a crash finds the same of the free space map.
my $origin = new_node(
	'origin',
	allows_streaming => 1,
	conf => "full_page_writes = off\nbgwriter_lru_maxpages = 0\n"
	  . "checkpoint_timeout = '1h'\n");
for my $index (@indexes)
{
	my ($name, $operator, $dims, $options) = @$index;
	my $class = $operator eq '<=>' ? 'real_cosine_ops' : 'real_l2_ops';
	my $first = $name eq 'waiting' ? 1001 : 1;

	$origin->safe_psql('postgres', "
		CREATE TABLE $name (id int, e real[]);
		INSERT INTO $name
			SELECT g, point(g, $dims) FROM generate_series($first, 1000) AS g;
		CREATE INDEX ${name}_e ON $name USING gpuivfpq (e $class) WITH ($options)");
}
$origin->backup('same');
$origin->stop;

my %servers;
for my $name ('own', 'plain')
{
	my $node = PostgreSQL::Test::Cluster->new($name);

	$node->init_from_backup($origin, 'same');
	$node->start;
	$servers{$name} = $node;
}
$servers{plain}->safe_psql('postgres',
	"UPDATE pg_proc SET probin = '$plain_module' WHERE probin = '\$libdir/gpuvec'");

my %pages;
for my $round ('crash', 'no crash')
{
	for my $name ('own', 'plain')
	{
		my $node = $servers{$name};

		insert_rows($node, $round eq 'crash' ? 2001 : 20001);
		if ($round eq 'crash')
		{
			$node->stop('immediate');
			$node->start;
		}
		$pages{$name} = pages($node);
	}
	for my $index (@indexes)
	{
		my $name = $index->[0];

		ok(length($pages{own}{$name}) > 0
			  && $pages{own}{$name} eq $pages{plain}{$name},
			"$round: the same pages of $name");
	}
}

for my $index (@indexes)
{
	my ($name, $operator, $dims) = @$index;

	is( answers($servers{plain}, $name, $operator, $dims, 20, 5),
		answers($servers{own}, $name, $operator, $dims, 20, 5),
		"$name: the same answers");
	is_sound($servers{plain}, "${name}_e", $name);
}

done_testing();
