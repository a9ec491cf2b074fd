# Histories of clients that write and search at once: does every answer have the
# rows that were committed, and no others?  A pure function of what clients saw.
#
# A history is what sessions print, each statement between two marks, in lines of
# fields divided by "|":
#
#	connect							a session begins; what was open before is lost
#	at|TIME|LSN|t or f				a mark: microseconds, the LSN written or, on a
#									standby (t), replayed
#	begin|rc or rr, savepoint, undo, commit, rollback
#	write|ID|VERSION|A|W|E			a row is to become this version; VERSION 0: to go
#	copy							all rows of this statement are written
#	wrote|ID|VERSION|XID			this one was
#	read|K|FILTER|Q					the K rows nearest to Q are asked for
#	got|SNAPSHOT|{ID:VERSION:DISTANCE,...}
#	cursor|FILTER|Q					a cursor is declared
#	fetch|N							N rows are asked of it
#	row|ID|VERSION|DISTANCE|SNAPSHOT
#	ask, xid|XID					another statement; what it may tell
#	done|SQLSTATE					the statement has ended; if this never comes the
#									connection was lost in it
#	marked|SQLSTATE					so did the mark behind it
#
# A row of an ID is written by one session (after the one that made it), and each
# version of it has another number, which no index knows.  So for every row and
# every query the versions are known that the query may have seen: transactions
# that had ended before it began are visible, those that were begun to be
# committed after it had ended are not, and a snapshot, where one was printed,
# decides what lies between.  A version that has to be there, and is nearer than
# the last row of the answer, has to be in it; one in the answer has to be one of
# those that may be there.

package GpuvecHistory;

use strict;
use warnings;
use Exporter 'import';

our @EXPORT = qw(violations);

# What clients bring about themselves: conflicts with replay, canceled and ended
# sessions, servers that go or are gone, a transaction that has failed, an index
# that was rebuilt.
my $EXPECTED = qr/^(00000|40001|57014|57P0[123]|08...|25P0[12]|34000|3B001|55000|42704)$/;
my ($NO, $MAYBE, $YES) = (0, 1, 2);
my $NEVER = 9**99;

sub lsn
{
	my ($high, $low) = split '/', $_[0];

	return hex($high) * 2**32 + hex $low;
}

# The square of the distance of two vectors of integers.
sub square
{
	my ($p, $q) = @_;
	my ($sum, $i) = (0, 0);

	for (@$q)
	{
		my $x = $_ - $p->[ $i++ ];
		$sum += $x * $x;
	}
	return $sum;
}

# -- from lines to transactions, writes and reads

# The statement, or all that was open, ends: $state is its SQLSTATE, undefined if the
# connection was lost.
sub end_statement
{
	my ($self, $state) = @_;
	my $said = delete $self->{said} or return;
	my $txn = $self->{txn};
	my $good = ($state // '') eq '00000';
	my $kind = $said->{kind};

	$self->{seq}++;
	$txn->{failed} = 1 if $txn && !$good;
	if ($kind eq 'begin')
	{
		delete $self->{txn} unless $good;
	}
	elsif ($kind eq 'write')
	{
		my $alone = !$txn;
		my @writes = @{ $said->{writes} };

		if ($good && !$said->{copy})
		{
			@writes = grep { $said->{wrote}{"$_->{id} $_->{v}"} } @writes;
		}
		$txn //= { name => $self->{name}, commit_from => $said->{from}{t}, writes => [] };
		$txn->{xid} //= $said->{xid};
		$txn->{changes}++;
		push @{ $txn->{writes} }, map { $_->{seq} = $self->{seq}; $_->{txn} = $txn; $_ } @writes
		  if $good || $alone;
		end_transaction($self, $txn, $state) if $alone;
	}
	elsif ($kind eq 'savepoint')
	{
		$txn->{save} = @{ $txn->{writes} };
	}
	elsif ($kind eq 'undo' && $good)
	{
		$_->{undone} //= $self->{seq} for splice @{ $txn->{writes} }, $txn->{save};
		$txn->{failed} = 0;
		$txn->{changes}++;
	}
	elsif ($kind eq 'commit' || $kind eq 'rollback')
	{
		end_transaction($self, $txn, $kind eq 'rollback' || $txn->{failed} && $good ? 'gone' : $state);
		delete $self->{txn};
	}
	elsif (my $read = $said->{read})
	{
		if ($good && ($read->{rows} || $kind ne 'read'))
		{
			push @{ $self->{reads} }, $read if $kind ne 'fetch';
			$self->{cursor} = $read if $kind eq 'cursor';
			$read->{exhausted} = 1 if $kind eq 'fetch' && $said->{rows} < $said->{n};
		}
	}
	return;
}

# $state: as above; 'gone' is a transaction that was rolled back.
sub end_transaction
{
	my ($self, $txn, $state) = @_;

	$txn->{status} = !defined $state ? 'unknown' : $state eq '00000' ? 'committed' : 'aborted';
	push @{ $self->{ends} }, $txn if $txn->{status} eq 'committed';
	return;
}

# What was open when a session ended.
sub lose
{
	my ($self) = @_;

	end_statement($self, undef);
	$self->{txn}{status} //= 'aborted' if $self->{txn};
	delete @$self{qw(txn cursor)};
	return;
}

# A read begins, by what its transaction sees.
sub new_read
{
	my ($self, $said, %read) = @_;
	my $txn = $self->{txn};

	my $sees = $txn ? $txn->{sees} : undef;
	$sees //= $said->{sees};
	$read{q} = [ split /,/, $read{q} ];
	return $said->{read} = { %read, name => $self->{name}, txn => $txn, sees => $sees, seq => $self->{seq}, known => {},
		changes => $txn ? $txn->{changes} // 0 : undef };
}

# A line that begins a statement.
sub begin_statement
{
	my ($self, $kind, @fields) = @_;
	my $said = $self->{said};

	if (!$said)
	{
		my $sees = { from => $self->{at}, to => undef };

		$said = $self->{said} = { kind => $kind, from => $self->{at}, sees => $sees, writes => [] };
		push @{ $self->{awaited} }, $sees;
		if ($kind eq 'begin')
		{
			$self->{txn} = { name => $self->{name}, writes => [] };
			$self->{txn}{sees} = $sees if $fields[0] eq 'rr';
		}
		$self->{txn}{commit_from} = $self->{at}{t} if $kind eq 'commit';
	}
	if ($kind eq 'write')
	{
		my %write = (from => $self->{at}{t});

		@write{qw(id v a w e)} = @fields;
		$write{e} = [ split /,/, $write{e} // '' ];
		push @{ $said->{writes} }, \%write;
	}
	elsif ($kind eq 'read')
	{
		new_read($self, $said, k => $fields[0], filter => $fields[1], q => $fields[2]);
	}
	elsif ($kind eq 'cursor')
	{
		new_read($self, $said, filter => $fields[0], q => $fields[1], rows => []);
	}
	elsif ($kind eq 'fetch')
	{
		@$said{qw(read n rows)} = ($self->{cursor}, $fields[0], 0);
	}
	return;
}

# One session's lines, added to the history; returns how many statements.
sub take_session
{
	my ($history, $name, $text) = @_;
	my $self = { name => $name, seq => 0, awaited => [], ends => [], reads => $history->{reads} };
	my $statements = 0;

	for (split /\n/, $text)
	{
		my ($kind, @fields) = split /\|/ or next;
		my $said = $self->{said};

		if ($kind eq 'connect')
		{
			lose($self);
		}
		elsif ($kind eq 'at')
		{
			$self->{at} = { t => $fields[0], lsn => lsn($fields[1]), standby => $fields[2] eq 't' };
			$_->{to} = $fields[0] for splice @{ $self->{awaited} };
			@$_{qw(commit_to lsn)} = ($fields[0], $self->{at}{lsn}) for splice @{ $self->{ends} };
		}
		elsif ($kind =~ /^(begin|savepoint|undo|commit|rollback|write|read|cursor|fetch|ask)$/)
		{
			begin_statement($self, $kind, @fields);
			push @{ $history->{writes} }, $self->{said}{writes}[-1] if $kind eq 'write';
		}
		elsif ($kind eq 'copy')
		{
			$said->{copy} = 1;
		}
		elsif ($kind eq 'wrote')
		{
			$said->{wrote}{"$fields[0] $fields[1]"} = 1;
			$said->{xid} = $fields[2] if $fields[2];
		}
		elsif ($kind eq 'xid')
		{
			$self->{txn}{xid} = $fields[0];
		}
		elsif ($kind eq 'got')
		{
			$said->{read}{snapshot} = $fields[0];
			$said->{read}{rows} = [ map { [ split /:/ ] } $fields[1] =~ /([^{},]+)/g ];
		}
		elsif ($kind eq 'row' && $said->{read})
		{
			$said->{rows}++;
			push @{ $said->{read}{rows} }, [ @fields[ 0 .. 2 ] ];
			$said->{read}{snapshot} = $fields[3];
		}
		elsif ($kind eq 'marked')
		{
			$self->{txn}{failed} = 1 if $self->{txn} && $fields[0] ne '00000';
		}
		elsif ($kind eq 'done')
		{
			push @{ $history->{problems} }, "$name: error $fields[0] of $said->{kind}" if $said && $fields[0] !~ $EXPECTED;
			$statements++;
			end_statement($self, $fields[0]);
		}
	}
	lose($self);
	return $statements;
}

# -- what a query may see

# Does a snapshot, XMIN:XMAX:XIP,..., take the transaction for one that has ended?
sub has_ended
{
	my ($snapshot, $xid) = @_;
	my ($xmin, $xmax, $running) = split /:/, $snapshot, -1;

	return $xid < $xmin || $xid < $xmax && ",$running," !~ /,$xid,/;
}

# Does the query see what the transaction, another one than its own, has written?
sub sees
{
	my ($read, $txn, $sync) = @_;
	my ($from, $to) = @{ $read->{sees} }{qw(from to)};
	my $committed = $txn->{commit_to};

	return $NO if $txn->{status} eq 'aborted' || defined $to && $txn->{commit_from} >= $to;
	if ($from->{standby})
	{
		# acknowledged when the standby had applied it, or replayed when the query began
		return $txn->{lsn} && ($sync && $committed <= $from->{t} || $txn->{lsn} <= $from->{lsn}) ? $YES : $MAYBE;
	}
	return $YES if defined $committed && $committed <= $from->{t};
	if ($txn->{xid} && ($read->{snapshot} // '-') ne '-')
	{
		return $NO if !has_ended($read->{snapshot}, $txn->{xid});
		return $YES if $txn->{status} eq 'committed';
	}
	return $MAYBE;
}

# The versions of a row that the query may see; undef among them: none.  A read of
# the transaction's own sees what it had written by then.
sub possible
{
	my ($read, $writes, $sync) = @_;
	my ($own, $sees, $seq, $known) = @$read{qw(txn sees seq known)};
	my $to = $sees->{to} // $NEVER;
	my ($sure, $from) = $sees->{from}{standby} ? ('lsn', $sees->{from}{lsn}) : ('sure', $sees->{from}{t});
	my @versions;

	# the last one that is visible hides those before
	for my $write (reverse @$writes)
	{
		my $txn = $write->{txn};
		my $seen = $NO;

		if (defined $own && $txn == $own)
		{
			$seen = $YES if $write->{seq} <= $seq && ($write->{undone} // $NEVER) > $seq;
		}
		elsif ($write->{begun} < $to)
		{
			# most were there long before
			$seen = $write->{$sure} <= $from ? $YES : ($known->{$txn} //= sees($read, $txn, $sync));
		}
		next if $seen == $NO;
		push @versions, $write->{v} ? $write : undef;
		return @versions if $seen == $YES;
	}
	return (@versions, undef);
}

# Does the version of a row satisfy the condition?
sub satisfies
{
	my ($write, $filter) = @_;
	return !$filter || $write->{v} && $write->{ substr $filter, 0, 1 } == substr $filter, 2;
}

# What is wrong with an answer.
sub check_read
{
	my ($history, $read, $sync) = @_;
	my @rows = @{ $read->{rows} };
	my $full = defined $read->{k} ? @rows >= $read->{k} : !$read->{exhausted};
	my $last = $full ? @rows ? $rows[-1][2]**2 : -1 : $NEVER;
	my $radius = sqrt($last > 0 ? $last : 0) + 1;
	my $at = $read->{q}[0];
	my $from = $read->{sees}{from};
	my (%found, @wrong);
	my $before = -1;

	return "$read->{k} rows asked for, " . @rows . ' come' if defined $read->{k} && @rows > $read->{k};
	for (@rows)
	{
		my ($id, $v, $d) = @$_;
		my $version = $history->{versions}{"$id $v"};

		push @wrong, "row $id comes twice" if defined $found{$id};
		push @wrong, "row $id at $d comes after one at $before" if $d < $before;
		($before, $found{$id}) = ($d, $v);
		if (!$version || !grep { defined && $_ == $version } possible($read, $history->{rows}{$id}, $sync))
		{
			push @wrong, "row $id has version $v, which was not to be seen";
			next;
		}
		push @wrong, "row $id does not satisfy $read->{filter}" if !satisfies($version, $read->{filter});
		push @wrong, "row $id is not at $d" if abs(square($version->{e}, $read->{q}) - $d**2) > 1e-3;
	}
	for my $id (@{ $history->{ids} })
	{
		my ($low, $high, $gone, $gone_lsn) = @{ $history->{bounds}{$id} };

		next if defined $found{$id} || $low > $at + $radius || $high < $at - $radius
		  || ($from->{standby} ? $gone_lsn <= $from->{lsn} : $gone <= $from->{t});
		my @versions = possible($read, $history->{rows}{$id}, $sync);
		next if grep { !defined || !satisfies($_, $read->{filter}) || square($_->{e}, $read->{q}) > $last - 1e-3 } @versions;
		push @wrong, "row $id is missing, of version " . join ' or ', map { $_->{v} } reverse @versions;
	}
	return @wrong;
}

# A transaction whose end nobody heard has committed when others have seen its rows.
sub settle_unknown
{
	my ($history) = @_;

	for my $read (grep { !$_->{sees}{from}{standby} } @{ $history->{reads} })
	{
		for (@{ $read->{rows} })
		{
			my ($id, $v) = @$_;
			my $version = $history->{versions}{"$id $v"} // next;
			my ($txn, $to) = ($version->{txn}, $read->{sees}{to});

			next if $txn->{status} !~ /unknown|seen/ || !defined $to || $read->{txn} && $txn == $read->{txn};
			$txn->{status} = 'seen';
			$txn->{commit_to} = $to if !defined $txn->{commit_to} || $to < $txn->{commit_to};
		}
	}
	for my $txn (map { $_->{txn} } @{ $history->{writes} })
	{
		$txn->{status} = 'committed' if $txn->{status} eq 'seen';
	}
	return;
}

# Returns what is wrong with a history, and counts.  Sessions are [ name, text ]; $sync:
# a commit was acknowledged when the standby had applied it.
sub violations
{
	my ($sync, @sessions) = @_;
	my $history = { reads => [], writes => [], problems => [] };
	my %counts = (statements => 0);
	my %answers;

	$counts{statements} += take_session($history, @$_) for @sessions;
	# those that came to nothing belong to no transaction
	$history->{writes} = [ grep { $_->{txn} } @{ $history->{writes} } ];
	for (sort { $a->{from} <=> $b->{from} || $a->{seq} <=> $b->{seq} } @{ $history->{writes} })
	{
		push @{ $history->{rows}{ $_->{id} } }, $_;
		$history->{versions}{"$_->{id} $_->{v}"} = $_;
	}
	settle_unknown($history);
	while (my ($id, $writes) = each %{ $history->{rows} })
	{
		my @at = sort { $a <=> $b } map { $_->{e}[0] // () } @$writes;
		my ($last) = grep { !defined $_->{undone} } reverse @$writes;
		for my $write (@$writes)
		{
			my $txn = $write->{txn};
			my $never = defined $write->{undone} || $txn->{status} eq 'aborted';

			$write->{begun} = $never ? $NEVER : $txn->{commit_from};
			@$write{qw(sure lsn)} = map { !$never && $txn->{status} eq 'committed' ? $_ // $NEVER : $NEVER } @$txn{qw(commit_to lsn)};
		}
		my $gone = $last && !$last->{v} && $last->{txn}{status} eq 'committed' ? $last->{txn} : {};

		$history->{bounds}{$id} = [ $at[0] // 0, $at[-1] // 0, map { $_ // $NEVER } @$gone{qw(commit_to lsn)} ];
	}
	$history->{ids} = [ sort { $a <=> $b } keys %{ $history->{rows} } ];
	for my $read (@{ $history->{reads} })
	{
		my $what = "$read->{name}, at $read->{sees}{from}{t} to " . ($read->{sees}{to} // 'its loss')
		  . ', ' . ($read->{k} // 'cursor') . ' nearest to ' . join(',', @{ $read->{q} })
		  . ($read->{filter} ? " where $read->{filter}" : '');
		my $told = join ' ', map { "$_->[0]:$_->[1]" } @{ $read->{rows} };

		push @{ $history->{problems} }, map { "$what: $_" } check_read($history, $read, $sync);
		next if !$read->{txn} || !$read->{txn}{sees} || !defined $read->{k};
		my $key = join ' ', $read->{txn}, $read->{changes}, $read->{k}, $read->{filter}, @{ $read->{q} };
		push @{ $history->{problems} }, "$what: rows are not those of the query before: $told, $answers{$key}"
		  if defined $answers{$key} && $answers{$key} ne $told;
		$answers{$key} = $told;
	}
	$counts{queries} = @{ $history->{reads} };
	$counts{rows} = @{ $history->{ids} };
	$counts{writes} = @{ $history->{writes} };
	$counts{"$_->{status}"}++ for values %{ { map { $_->{txn} => $_->{txn} } @{ $history->{writes} } } };
	return ($history->{problems}, \%counts);
}

1;
