# gpuvec_verify_index(index, mirror => true) finds what of gpuvecd's mirror is
# not as the pages are, whatever part of a copy it is, and says nothing of
# mirrors that are only behind.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Gpuvec;
use GpuvecRemote;
use IO::Socket::UNIX;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Socket qw(SOCK_STREAM);
use Test::More;

# gv_protocol.h
my %TYPE = (HELLO => 1, STATUS => 3, LISTS => 7, STATES => 10, BLOCKS => 11,
	REFINE => 12, RECORDS => 15);
my $OK = 64;
my $MAGIC = 0x43507667;
my ($VERSION) = slurp_file("$FindBin::RealBin/../../src/protocol/gv_protocol.h") =~
  /^#define GV_PROTOCOL_VERSION\s+(\d+)/m;
my $LOADER = 2;
my $STATUS_BYTES = 312;
my $MIRROR_BYTES = 104;
my $KEY_BYTES = 24;
my $PIECE_BYTES = 28;
my $LIVE_ONLY = 1;

my $node = new_remote_node('main');
my $socket;

# Send a request, return its answer.
sub ask
{
	my ($type, $body) = @_;

	syswrite($socket, pack('LSS', length $body, $TYPE{$type}, 0) . $body)
	  == 8 + length $body or die "$type: $!";
	my $answer = receive(8);
	my ($length, $answered, $request) = unpack('LSS', $answer);
	$answer = receive($length);
	die "$type: " . substr($answer, 4) if $answered != $OK;
	die "$type: an answer to $request" if $request != $TYPE{$type};
	return $answer;
}

sub receive
{
	my ($length) = @_;
	my $bytes = '';

	while (length $bytes < $length)
	{
		sysread($socket, $bytes, $length - length $bytes, length $bytes)
		  or die "gpuvecd hung up: $!";
	}
	return $bytes;
}

# The key of an index's mirror.
sub key_of
{
	my ($index) = @_;
	my $oid = $node->safe_psql('postgres', "SELECT '$index'::regclass::oid");
	my $status = ask('STATUS', '');

	for (my $at = $STATUS_BYTES; $at < length $status; $at += $MIRROR_BYTES)
	{
		my $key = substr($status, $at, $KEY_BYTES);
		return $key if (unpack('L4', $key))[3] == $oid;
	}
	die "no mirror of $index";
}

# Test: what verify finds in the mirror.
sub is_verified
{
	my ($index, $expected, $what) = @_;

	is( $node->safe_psql('postgres',
			"SELECT severity, block, list, problem FROM gpuvec_verify_index('$index', mirror => true)"),
		$expected, "$what: $index");
	return;
}

# Its message on a list in which $n postings are wrong.
sub wrong
{
	my ($list, $n) = @_;

	return "error||$list|$n copies of the list are not in gpuvecd's mirror as they are on pages";
}

$node->safe_psql(
	'postgres', q{
	CREATE TABLE plain (id int, e real[]);
	INSERT INTO plain SELECT g, point(g, 8) FROM generate_series(1, 3000) AS g;
	CREATE INDEX plain_e ON plain USING gpuivfpq (e) WITH (lists = 10);
	CREATE TABLE refined (id int, e real[]);
	INSERT INTO refined SELECT * FROM plain;
	CREATE INDEX refined_e ON refined USING gpuivfpq (e) WITH (lists = 10, pq_dim = 7, refine = sq8);
	CREATE TABLE untrained (id int, e real[]);
	CREATE INDEX untrained_e ON untrained USING gpuivfpq (e);
	INSERT INTO untrained SELECT * FROM plain LIMIT 10;
});
is_verified('untrained_e', '', 'untrained');
like(
	$node->safe_psql('postgres', "SELECT * FROM gpuvec_verify_index('plain_e', true)"),
	qr/^warning\|\|\|gpuvecd's mirror is not compared: .*$/,
	'without a mirror');
is_mirrored($node, "${_}_e", "SELECT FROM $_ ORDER BY e <-> point(1, 8) LIMIT 10", 'new')
  for 'plain', 'refined';
is_verified($_, '', 'as it was loaded') for 'plain_e', 'refined_e';

# another loader, which brings nonsense
chdir $node->data_dir or die $!;
$socket = IO::Socket::UNIX->new(Type => SOCK_STREAM, Peer => 'pgsql_tmp.gpuvec.sock')
  or die $!;
my ($life) = slurp_file('pgsql_tmp.gpuvec.lock') =~ /^\d+\n([0-9a-f]+)$/m;
ask('HELLO', pack('L4', $MAGIC, $VERSION, $LOADER, $$) . reverse(pack('H16', $life)));

# Put a list as it is into the mirror, but for a bit changed at a byte of its
# piece, which $where gives for the number of its blocks.
sub spoil
{
	my ($index, $list, $where) = @_;
	my $key = key_of($index);
	my $piece = ask('BLOCKS', $key . pack('l4', $list, 1, 0, 0));
	my $nblocks = (unpack('l4', $piece))[2];
	my $at = $PIECE_BYTES + $where->($nblocks);

	substr($piece, $at, 1) = chr(ord(substr($piece, $at, 1)) ^ 1);
	ask('LISTS', $key . pack('ll', 1, 0) . $piece);
	return;
}

for my $index ('plain_e', 'refined_e')
{
	my @found;
	my %parts = (
		2 => sub { 4 },	# `live` of block 1
		3 => sub { $_[0] * 4 + 33 * 4 },	# T of copy 1 there
		4 => sub { $_[0] * (4 + 32 * 4) + 2 * 6 + 3 },	# row id of copy 2
		5 => sub { $_[0] * (4 + 32 * (4 + 6)) + 3 });	# code of copy 3

	for my $list (sort keys %parts)
	{
		spoil($index, $list, $parts{$list});
		push @found, wrong($list, 1);
		is_verified($index, join("\n", @found), 'spoilt');
	}

	# a copy that the mirror takes for dead, by its own word
	my $key = key_of($index);
	my ($gen, $nitems, $del_seq) = unpack('L3', ask('STATES', $key . pack('l4', 7, 1, 0, 0)));
	my $nblocks = int(($nitems + 31) / 32);
	my @live = (0xFFFFFFFF) x $nblocks;
	$live[-1] = 0xFFFFFFFF >> (32 * $nblocks - $nitems);
	$live[0] = 0xFFFFFFF0;
	ask('LISTS', $key . pack('ll', 1, 0)
		. pack('l3L4', 7, 0, $nblocks, $LIVE_ONLY, $gen, $nitems, $del_seq)
		. pack('L*', @live));
	is_verified($index, join("\n", @found, wrong(7, 4)), 'dead for the mirror');
}
is_verified('untrained_e', '', 'untrained');

# a refine record, of a live copy that is the oldest of list 0
my $refined = key_of('refined_e');
my $piece = ask('BLOCKS', $refined . pack('l4', 0, 1, 0, 0));
my $address = substr($piece, $PIECE_BYTES + (unpack('l4', $piece))[2] * (4 + 32 * 4), 6);
my $item = ask('RECORDS', $refined . pack('ll', 1, 0) . $address);
is(substr($item, 0, 6), $address, 'the record that was asked for');
substr($item, 24, 1) = chr(ord(substr($item, 24, 1)) ^ 1);
ask('REFINE', $refined . pack('ll', 1, 0) . $item);
is_verified('refined_e',
	join("\n", map({ wrong($_, 1) } 2 .. 5), wrong(7, 4),
		"error|||1 refine records are not in gpuvecd's mirror as they are on pages"),
	'a spoilt record');

# a list that is longer than a message: a copy near its end; with little memory
# the sample is small, and training short
$node->safe_psql(
	'postgres', q{
	SET maintenance_work_mem = '4MB';
	CREATE TABLE long (id int, e real[]);
	INSERT INTO long SELECT g, array_fill((g % 50)::real, ARRAY[983]) || g::real
	FROM generate_series(1, 36000) AS g;
	CREATE INDEX long_e ON long USING gpuivfpq (e) WITH (lists = 1, pq_dim = 984)});
is_mirrored($node, 'long_e', 'SELECT FROM long ORDER BY e <-> array_fill(1::real, ARRAY[984]) LIMIT 10', 'long');
is_verified('long_e', '', 'as it was loaded');
my $long = key_of('long_e');
my ($gen, $nitems, $del_seq) = unpack('L3', ask('STATES', $long . pack('l4', 0, 1, 0, 0)));
my $last = int(($nitems - 1) / 32);
my $end = ask('BLOCKS', $long . pack('l4', 0, 1, $last, 0));
is(length $end, $PIECE_BYTES + 4 + 32 * (10 + 492), 'the last block alone');
substr($end, -32 * 492, 1) = chr(ord(substr($end, -32 * 492, 1)) ^ 1);
ask('LISTS', $long . pack('ll', 1, 0) . $end);
is_verified('long_e', wrong(0, 1), 'spoilt at its end');

# behind is not wrong, and only what is not behind can be compared
$node->safe_psql('postgres', q{
	INSERT INTO plain SELECT g, point(g, 8) FROM generate_series(3001, 3100) AS g});
is_verified('plain_e', join("\n", map({ wrong($_, 1) } 2 .. 5), wrong(7, 4)), 'rows came');
$node->safe_psql('postgres', 'DELETE FROM plain WHERE id % 7 = 1; VACUUM plain');
is_verified('plain_e', '', 'dead flags');
is_sound($node, 'plain_e', 'the index itself');

done_testing();
