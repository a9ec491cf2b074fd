# An index with refine records, with keys or with a rotation, and these damaged:
# what 010_damage.pl tests of lists.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Gpuvec;
use GpuvecDamage;
use PostgreSQL::Test::Utils;
use Test::More;

use constant {
	CONTENTS => 24,    # of a page, behind its header

	# offsets in the metapage's contents
	META_DIRECTORY => 64,
	META_REFINE_HEAD => 204,
	META_KEY_KINDS => 552,
	META_KEY_WIDTHS => 560,
	META_ROTATED => 568,
	META_ROTATION => 572,

	# offsets in a directory entry
	ENTRY_BYTES => 28,
	ENTRY_NITEMS => 4,
	ENTRY_NDEAD => 8,
	ENTRY_PAGE => 20,
	ENTRY_SLOT => 24,

	# offsets in a refine page, for 9 dimensions, and of addresses in a slot
	REFINE_NEXT => 0,
	REFINE_CHAINED => 4,
	REFINE_FIRST => 8,
	REFINE_BYTES => 28,
	REFINE_SLOTS => 291,
	REFINE_MIN => 0,
	REFINE_ERROR => 8,
	REFINE_TID => 12,
	REFINED_SLOT_BYTES => 640,
	SLOT_ADDRESSES => 32 + 320,

	# offsets in a slot with keys of 4 bytes, an ordered one and a hash
	KEYED_SLOT_BYTES => 768,
	SLOT_HEADS => 32 + 320,
	HEAD_BYTES => 24,
	HEAD_NULLS => 16,
	HEAD_UNUSED => 20,
	SLOT_IMAGES => 32 + 320 + 2 * 24,
};

my @tables = qw(refined keyed turned);
my $node = new_damage_node();
$node->start;
create_vec($node);
$node->safe_psql(
	'postgres', q{
	SET client_min_messages = warning;
	CREATE TABLE refined (id int, v real[]);
	INSERT INTO refined SELECT i, vec(i) FROM generate_series(1, 2000) i;
	CREATE INDEX refined_v ON refined USING gpuivfpq (v)
		WITH (lists = 4, pq_dim = 5, probes = 4, spill = 0, refine = sq8);
	CREATE TABLE keyed AS SELECT id, v, 'n' || id % 9 AS name FROM refined;
	CREATE INDEX keyed_v ON keyed USING gpuivfpq (v, id, name)
		WITH (lists = 4, pq_dim = 5, probes = 4, spill = 0);
	CREATE TABLE turned AS SELECT * FROM refined;
	CREATE INDEX turned_v ON turned USING gpuivfpq (v)
		WITH (lists = 4, pq_dim = 5, probes = 4, spill = 0, rotate);
});

begin_damages($node, @tables);

my $rows = qr/^500$/m;

# ---- rotation

my $rotation = get32(\$sound{turned}, CONTENTS + META_ROTATION);

sub damage_turned
{
	return damage_index('turned', @_);
}

damage_turned('rotation: nothing', $rows, qr/^\s*$/, sub { });
damage_turned(
	'rotation zeroed', damaged_at($rotation, 'turned'),
	found($rotation, 'it does not hold the rotation'),
	sub { substr(${ $_[0] }, $rotation * BLCKSZ, BLCKSZ) = "\0" x BLCKSZ });
damage_turned(
	'rotation changed', $rows,
	found($rotation, 'the rotation is not orthogonal'),
	sub { substr(${ $_[0] }, $rotation * BLCKSZ + CONTENTS + 40, 4) = pack('f', 0.75) });
damage_turned(
	'rotation not a number', qr//,
	found($rotation, 'a value of the rotation is not finite'),
	sub { put32($_[0], $rotation * BLCKSZ + CONTENTS + 40, 0x7FC00000) });
damage_turned(
	'rotation elsewhere', qr//,
	found(0, 'arrays and directory are not in their places'),
	sub { put32($_[0], CONTENTS + META_ROTATION, 4711) });
damage_turned(
	'rotated twice', damaged_at(0, 'turned'),
	found(0, 'its parameters are out of range'),
	sub { put32($_[0], CONTENTS + META_ROTATED, 2) });

# ---- refine records: pages 1 and on, the last of which has free slots

my $refine_head = get32(\$sound{refined}, CONTENTS + META_REFINE_HEAD);
my $record = BLCKSZ + CONTENTS + REFINE_FIRST;
my $refined_directory = get32(\$sound{refined}, CONTENTS + META_DIRECTORY);
my $refined_entry = $refined_directory * BLCKSZ + CONTENTS;
my $refined_page = get32(\$sound{refined}, $refined_entry + ENTRY_PAGE);
my $addresses = $refined_page * BLCKSZ + CONTENTS + SLOT_ADDRESSES +
  REFINED_SLOT_BYTES * get32(\$sound{refined}, $refined_entry + ENTRY_SLOT);
my $bad_refine = damaged_at('\d+', 'refined');
my $no_record =
  qr/^-\|error\|row \(\d+,\d+\) of table "refined" is in the index without its refine record/m;

sub damage_refined
{
	return damage_index('refined', @_);
}

damage_refined('refine: nothing', $rows, qr/^\s*$/, sub { });
damage_refined('refine: page zeroed', damaged_at(1, 'refined'), $no_record,
	sub { substr(${ $_[0] }, BLCKSZ, BLCKSZ) = "\0" x BLCKSZ });
damage_refined(
	'refine: free slot that is used', $rows,
	qr/(?=.*$no_record).*^1\|error\|290 refine records are in use, it counts 291/ms,
	sub { substr(${ $_[0] }, $record + REFINE_TID + 4, 2) = "\0\0" });
damage_refined(
	'refine: record of another row', $rows, $no_record,
	sub {
		substr(${ $_[0] }, $record + REFINE_TID, 6) =
		  substr(${ $_[0] }, $record + REFINE_BYTES + REFINE_TID, 6);
	});
damage_refined(
	'refine: TID beyond the table', qr//,
	found(1, 'refine record 1 is of \(65535,\d+\), which is not in the table'),
	sub { substr(${ $_[0] }, $record + REFINE_TID, 4) = pack('SS', 0, 65535) });
damage_refined(
	'refine: numbers of no row', qr//,
	found(1, 'refine record 1 does not bound row \(0,\d+\) of table "refined"'),
	sub { put32($_[0], $record + REFINE_MIN, unpack('L', pack('f', 3))) });
damage_refined(
	'refine: chain of the metapage', $rows,
	found(0, 'it is not the next of the refine pages with free slots'),
	sub { put32($_[0], CONTENTS + META_REFINE_HEAD, 0) },
	sub { like($_[0]{insert}, damaged_at(0, 'refined'), 'refine: chain of the metapage: insert') });
damage_refined(
	'refine: numbers not finite', $rows,
	found(1, 'numbers of refine record 1 are out of range'),
	sub { put32($_[0], $record, 0x7FC00000) });
damage_refined(
	'refine: error is no number', $rows,
	found(1, 'numbers of refine record 1 are out of range'),
	sub { put32($_[0], $record + REFINE_ERROR, 0x7FC00000) });
damage_refined(
	'refine: address of no slot', $bad_refine,
	found($refined_page, 'copy 0 of block \d+ points to refine record \(\d+,999\), which cannot be'),
	sub { substr(${ $_[0] }, $addresses + 4, 2) = pack('S', 999) });
damage_refined(
	'refine: address beyond the end', damaged_at(4711, 'refined'),
	found($refined_page, 'copy 0 of block \d+ points to refine record \(4711,\d+\), which cannot be'),
	sub { substr(${ $_[0] }, $addresses, 4) = pack('SS', 0, 4711) });
damage_refined(
	'refine: address of another page', $bad_refine, $no_record,
	sub { substr(${ $_[0] }, $addresses, 4) = pack('SS', 0, $refined_directory) });
damage_refined(
	'refine: chain beyond the end', $rows,
	found(4711, 'it is not the next of the refine pages with free slots'),
	sub { put32($_[0], CONTENTS + META_REFINE_HEAD, 4711) },
	sub { like($_[0]{insert}, damaged_at(4711, 'refined'), 'refine: chain beyond the end: insert') });
damage_refined(
	'refine: chain of full pages', $rows,
	found(1, 'it is not the next of the refine pages with free slots'),
	sub { put32($_[0], CONTENTS + META_REFINE_HEAD, 1) },
	sub { like($_[0]{insert}, damaged_at(1, 'refined'), 'refine: chain of full pages: insert') });
damage_refined(
	'refine: chain leads in a circle', $rows,
	found($refine_head, 'it is not the next of the refine pages with free slots'),
	sub {
		put32($_[0], $refine_head * BLCKSZ + CONTENTS + REFINE_NEXT, $refine_head);
	});

# ---- keys

my $keyed_entry = get32(\$sound{keyed}, CONTENTS + META_DIRECTORY) * BLCKSZ + CONTENTS;
my $keyed_page = get32(\$sound{keyed}, $keyed_entry + ENTRY_PAGE);
my $keyed = $keyed_page * BLCKSZ + CONTENTS
  + get32(\$sound{keyed}, $keyed_entry + ENTRY_SLOT) * KEYED_SLOT_BYTES;

sub damage_keyed
{
	return damage_index('keyed', @_);
}

my $other_keys = qr/^-\|error\|row \(\d+,\d+\) of table "keyed" is in the index with other keys/m;

damage_keyed('keys: nothing', $rows, qr/^\s*$/, sub { },
	sub { like($_[0]{conditions}, qr/^111$/m, 'keys: nothing: conditions') });
damage_keyed(
	'keys: nearly all are dead', qr//, qr/error/,
	sub {
		for my $list (0 .. 3)
		{
			my $at = $keyed_entry + $list * ENTRY_BYTES;
			put32($_[0], $at + ENTRY_NDEAD, get32($_[0], $at + ENTRY_NITEMS) - 5);
		}
	},
	sub { like($_[0]{conditions}, qr/^111$/m, 'keys: nearly all are dead: conditions') });
damage_keyed(
	'keys: of no kind', damaged_at(0, 'keyed'),
	found(0, 'its parameters are out of range'),
	sub { substr(${ $_[0] }, CONTENTS + META_KEY_KINDS, 1) = chr(9) });
damage_keyed(
	'keys: other than columns', qr//,
	found(0, 'its keys are not those of its columns'),
	sub { substr(${ $_[0] }, CONTENTS + META_KEY_KINDS, 2) = "\2\1" },
	sub {
		like($_[0]{$_}, damaged_at(0, 'keyed'), "keys: other than columns: $_") for qw(insert conditions);
	});
damage_keyed(
	'keys: none', qr//,
	found(0, 'its keys are not those of its columns'),
	sub { substr(${ $_[0] }, CONTENTS + META_KEY_KINDS, 16) = "\0" x 16 },
	sub { like($_[0]{conditions}, damaged_at(0, 'keyed'), 'keys: none: conditions') });
damage_keyed(
	'keys: more than columns', qr//,
	found(0, 'its keys are not those of its columns'),
	sub {
		substr(${ $_[0] }, CONTENTS + META_KEY_KINDS + 2, 1) = "\1";
		substr(${ $_[0] }, CONTENTS + META_KEY_WIDTHS + 2, 1) = "\1";
	},
	sub { like($_[0]{conditions}, damaged_at(0, 'keyed'), 'keys: more than columns: conditions') });
# the least bit of an id: the head may still tell of it
damage_keyed(
	'keys: image of another value', $rows, $other_keys,
	sub {
		my $at = $keyed + SLOT_IMAGES;
		put32($_[0], $at, get32($_[0], $at) ^ 1);
	});
damage_keyed(
	'keys: hash of another value', $rows, $other_keys,
	sub {
		# one of which the head has no bit
		my $bits = unpack('Q', substr(${ $_[0] }, $keyed + SLOT_HEADS + HEAD_BYTES, 8));
		my ($free) = grep { !($bits >> $_ & 1) } 0 .. 63;
		put32($_[0], $keyed + SLOT_IMAGES + 4 * 32, $free);
	},
	sub {
		like($_[0]{verify}, qr/error\|the head of key 2 of block \d+ does not tell of copy 0/,
			'keys: hash of another value: head');
	});
damage_keyed(
	'keys: head too narrow', $rows,
	found($keyed_page, 'the head of key 1 of block \d+ does not tell of copy \d+'),
	sub { put32($_[0], $keyed + SLOT_HEADS, get32($_[0], $keyed + SLOT_HEADS) + 1) });
damage_keyed(
	'keys: NULL with a value', $rows,
	found($keyed_page, 'key 1 of copy 0 of block \d+ is NULL and has a value'),
	sub { put32($_[0], $keyed + SLOT_HEADS + HEAD_NULLS, 1) },
	sub { like($_[0]{verify}, $other_keys, 'keys: NULL with a value: row') });
damage_keyed(
	'keys: head with what does not belong there', $rows,
	found($keyed_page, 'the head of key 2 of block \d+ is out of range'),
	sub { put32($_[0], $keyed + SLOT_HEADS + HEAD_BYTES + HEAD_UNUSED, 1) });

meet_waiting();

unlike(slurp_file($node->logfile), qr/PANIC|TRAP:|terminated by signal/, 'nothing crashed');

done_testing();
