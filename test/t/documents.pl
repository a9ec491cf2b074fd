# README.md and the documents in sql/: links lead to files and headings that are
# there, pages are short, and each block marked sql runs as it is printed, in the
# order of its page; so does each example of the reference.  Blocks for several
# servers are run by hosts.pl, standby.pl and test/citus, and those of
# clients, with their answers, by test/clients.  reference.pl compares the
# reference with the catalogs.

use strict;
use warnings;
use Encode;
use File::Basename;
use FindBin;
use lib $FindBin::RealBin;
use Gpuvec;

my $root = dirname(dirname($FindBin::RealBin));
my @pages = ('README.md', 'sql/README.md', 'sql/CHANGELOG.md', map { "sql/docs/$_.md" } qw(guide operations scaling recipes));
my %text = map { $_ => decode('UTF-8', slurp_file("$root/$_")) } @pages;

# -- size
my @long = map {
	my $page = $_;
	map { "$page: $_" } grep { length > 120 } split /\n/, $text{$page};
} @pages;
is(join("\n", @long), '', 'no line is longer than 120 characters');
my $lines = 0;
$lines += () = $text{$_} =~ /\n/g for @pages;
cmp_ok($lines, '<=', 2100, 'README.md and the documents have at most 2,100 lines');
cmp_ok(scalar(() = $text{'README.md'} =~ /\n/g), '<=', 300, 'README.md has at most 300 of them');
cmp_ok(length $text{'README.md'}, '<=', 35_000, '... and 35,000 characters');

# -- links and pictures
my %anchor;
for my $page (@pages)
{
	(my $prose = $text{$page}) =~ s/^```.*?^```$//msg;
	for my $heading ($prose =~ /^#+ (.*)$/mg)
	{
		(my $anchor = lc $heading) =~ s/[^\w -]//g;
		$anchor =~ s/ /-/g;
		$anchor{"$page#$anchor"} = 1;
	}
}
my @dead;
for my $page (@pages)
{
	for my $link ($text{$page} =~ /\]\(([^)\s]+)\)/g)
	{
		next if $link =~ /^https?:/;
		my ($file, $heading) = $link =~ /^([^#]*)(?:#(.*))?$/;
		my $target = $file eq '' ? $page : dirname($page) . "/$file";

		$target =~ s{^\./}{};
		1 while $target =~ s{(?:^|(?<=/))(?!\.\./)[^/]+/\.\./}{};
		push @dead, "$page: $link"
		  if !-e "$root/$target" || (defined $heading && $text{$target} && !$anchor{"$target#$heading"});
	}
}
is(join("\n", @dead), '', 'all links lead to a file, and to a heading that it has');

# -- blocks
# What a page's examples need that its reader has, by the heading above them.
my %before = (
	'LlamaIndex' => 'CREATE TABLE data_notes (embedding vector(384), metadata_ json)',
	'Haystack' => 'CREATE TABLE pages (embedding vector(384), meta jsonb)',
	'mem0' => 'CREATE TABLE memories (vector vector(384), payload jsonb)',
	'Removal' => q{DO $$ DECLARE i regclass; BEGIN
		FOR i IN SELECT c.oid FROM pg_class AS c JOIN pg_am AS a ON a.oid = relam
			WHERE amname = 'gpuivfpq' AND relname <> 'docs_embedding_idx' LOOP
			EXECUTE 'DROP INDEX ' || i;
		END LOOP; END $$});
# Types of $1 and so on, and values for them.
my $v384 = q{array_fill(1::real, '{384}')::vector};
my %parameters = (
	'Order' => [ 'real[], float8, int', q{array_fill(1::real, '{50}'), 0.2, 5796} ],
	'Words and meaning: hybrid search' => [ 'vector, text', "$v384, 'cheese'" ],
	'Misspelled words' => [ 'vector, text', "$v384, 'cheeze'" ],
	'Documents of many chunks' => [ 'vector', $v384 ],
	'Token vectors: MaxSim' => [ 'vector[]', q{ARRAY[array_fill(1::real, '{128}')::vector]} ]);

# The headings, blocks and examples of a page, as [ heading, SQL ].
sub blocks
{
	my ($page) = @_;
	my ($heading, @blocks);

	while ($text{$page} =~ /^#+ ([^\n]*)$|^```(\w*)\n(.*?)^```$|\*Example:\*\s+`([^`]+)`/msg)
	{
		if (defined $1) { $heading = $1 }
		elsif (defined $4) { push @blocks, [ $heading, ($4 =~ s/\s+/ /gr) . "\n" ] }
		elsif ($2 eq 'sql') { push @blocks, [ $heading, $3 ] }
	}
	return @blocks;
}

my $node = new_node('main', conf => "shared_preload_libraries = 'gpuvec'\ngpuvec.server = 'off'\n");
my %there = map { $_ => 1 }
  split /\n/, $node->safe_psql('postgres', 'SELECT name FROM pg_available_extensions');

# Test: a page's blocks run in a database, by one session.
sub run_page
{
	my ($database, $page) = @_;
	my ($script, $n, %begun, %missing) = ("\\cd $root\nSET client_min_messages = warning;\n", 0);

	for my $block (blocks($page))
	{
		my ($heading, $sql) = @$block;

		$missing{$heading} ||= grep { !$there{$_} } $sql =~ /CREATE EXTENSION (?:IF NOT EXISTS )?(\w+)/g;
		next if $missing{$heading};
		$script .= "\\echo at: $heading\n";
		$script .= "$before{$heading};\n" if $before{$heading} && !$begun{$heading}++;
		if ($sql =~ s/'[^']*'//gr =~ /\$1/)
		{
			my ($types, $values) = @{ $parameters{$heading} // [ 'unknown', 'NULL' ] };
			$sql =~ s/;\s*\z//;
			$script .= "PREPARE example ($types) AS $sql;\nEXECUTE example ($values);\nDEALLOCATE example;\n";
		}
		else
		{
			$script .= $sql;
		}
		$n++;
	}
	my ($status, $out, $err) = $node->psql($database, $script);
	my $at = (($out // '') =~ /.*^at: (.*?)$/ms)[0] // 'the beginning';

	is($status, 0, "$page: $n blocks run as printed") or diag("at: $at\n$err");
	cmp_ok($n, '>', 0, "$page: it has some");
	return $out;
}

if (!$there{vector})
{
	$node->stop;
	done_testing();
	exit;
}
$node->safe_psql('postgres', 'CREATE DATABASE shop');
run_page('shop', 'README.md');

# Test: README prints what the doctor says.
my ($statement, $state, $advice) =
  $text{'README.md'} =~ /^=> (SELECT state, advice .*?;)\nstate  \| (.*)\nadvice \| (.*)$/m;
is($node->safe_psql('shop', $statement), "$state|$advice", "README.md: the doctor's words");

run_page('shop', 'sql/docs/guide.md');
$node->safe_psql('postgres', 'CREATE DATABASE reference TEMPLATE shop');
run_page('reference', 'sql/README.md');
run_page('shop', 'sql/docs/operations.md');
is($node->safe_psql('shop', q{SELECT count(*) FROM pg_extension WHERE extname LIKE 'gpuvec%'}), '0',
	'what operations.md removes is gone');
$node->safe_psql('postgres', 'CREATE DATABASE recipes');
run_page('recipes', 'sql/docs/recipes.md');

$node->stop;
done_testing();
