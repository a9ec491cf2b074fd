# Counts and times of parts of test/run.sh, which sources it.
# shellcheck shell=bash disable=SC2034

passed() { PASSED=$((PASSED + $1)); }

# $1 = how many; the rest says what
failed() {
	FAILED=$((FAILED + $1))
	shift
	printf 'FAILED: %s\n' "$*"
}

skipped() {
	SKIPPED=$((SKIPPED + 1))
	printf 'skipped: %s\n' "$*"
}

# Is part $1 to be run?  By default all are, but for those of --long.
wanted() {
	if [ -z "${ONLY:-}" ]; then
		[ -n "$LONG" ] || [[ " $DEFAULT_PARTS " == *" $1 "* ]]
	else
		[[ " $ONLY " == *" $1 "* ]]
	fi
}

wanted_any() {
	local name
	for name in "$@"; do
		if wanted "$name"; then return; fi
	done
	return 1
}

# These parts of ONLY's names, which are not begun again, are over.
over() {
	local name
	for name in "$@"; do
		if wanted "$name"; then echo "$name" >>"$GV_TMP/over"; fi
	done
}

# Runs the command after $1, which then is over, if that is wanted.
once() {
	if wanted "$1"; then
		"${@:2}"
		over "$1"
	fi
}

seconds() { echo $((SECONDS - $1)) s; }

# Sets TENTHS to the processor time, in tenths of a second, of this shell, of
# what it has waited for and of the servers that it has stopped.
processor() {
	local file=$GV_TMP/times.$BASHPID
	times >"$file"
	TENTHS=$(awk -v ticks="$GV_TICKS" -v hertz="$(getconf CLK_TCK)" '{
			for (i = 1; i <= 2; i++) {
				split($i, t, /[ms]/)
				seconds += 60 * t[1] + t[2]
			}
		}
		END { printf "%d", 10 * (seconds + ticks / hertz) }' \
		"$file")
}

# $1 tenths as seconds
tenths() { echo "$(($1 / 10)).$(($1 % 10))"; }

# Runs a part, $2 and further arguments, beside those to come; join_parts
# shows its output.  $1 = its name.  Its counts and times are in GV_TMP/parts.
BESIDE=()
beside() {
	local name=$1 log=$GV_TMP/parts/${1// /_}
	shift
	(
		PASSED=0 FAILED=0 SKIPPED=0 BESIDE=() GV_TICKS=0
		began=$EPOCHREALTIME
		"$@"
		processor
		wall=$((${EPOCHREALTIME/./} - ${began/./}))
		echo "$began $((wall / 100000)) $TENTHS $PASSED $FAILED $SKIPPED" \
			"$name" >"$log.part"
	) >"$log.log" 2>&1 &
	BESIDE+=("$name" "$!")
}

join_parts() {
	local name log wall tenths p f
	while [ ${#BESIDE[@]} -gt 0 ]; do
		name=${BESIDE[0]} log=$GV_TMP/parts/${BESIDE[0]// /_}
		wait "${BESIDE[1]}" || :
		BESIDE=("${BESIDE[@]:2}")
		if [ ! -e "$log.part" ]; then
			echo "FAILED: $name: it ended too soon" >>"$log.log"
			echo "$EPOCHREALTIME 0 0 0 1 0 $name" >"$log.part"
		fi
		read -r _ wall tenths p f _ <"$log.part"
		if [ "$f" = 0 ] && [ "$p" != 0 ]; then
			echo "$name: $p passed, $(tenths "$wall") s," \
				"processor $(tenths "$tenths") s" >>"$log.log"
		fi
		cat "$log.log"
	done
}

# A part and nothing beside it.
part() {
	beside "$@"
	join_parts
}

# Several parts, one after the other, beside others: what they print comes at
# once.
LANES=()
lane() {
	(
		BESIDE=() LANES=()
		"$@"
	) &
	LANES+=("$!")
}

join_lanes() {
	local pid
	for pid in "${LANES[@]}"; do
		wait "$pid" || part "a lane" false
	done
	LANES=()
}

# Prints the times of every part, and all counts.
show_parts() {
	local wall tenths p f s name all=0
	printf '%-48s %9s %9s\n' part seconds processor
	while read -r _ wall tenths p f s name; do
		passed "$p"
		FAILED=$((FAILED + f)) SKIPPED=$((SKIPPED + s)) all=$((all + tenths))
		printf '%-48s %9s %9s\n' "$name" "$(tenths "$wall")" \
			"$(tenths "$tenths")"
	done < <(cat "$GV_TMP"/parts/*.part | LC_ALL=C sort -n)
	printf '%-48s %9s %9s\n' all "$SECONDS.0" "$(tenths "$all")"
}

# Runs a program whose last line is 'N passed, M failed', with its name before
# that or not, and counts it; what it printed is shown when something failed.
count_program() {
	local log status=0 line p=0 f=0
	log=$GV_TMP/program.$BASHPID.log
	"$@" >"$log" 2>&1 </dev/null || status=$?
	line=$(grep -E '^([^:]+: )?[0-9]+ passed, [0-9]+ failed' "$log" |
		tail -1) || :
	if [[ $line =~ ([0-9]+)\ passed,\ ([0-9]+)\ failed(.*skipped)? ]]; then
		p=${BASH_REMATCH[1]} f=${BASH_REMATCH[2]}
		[ -z "${BASH_REMATCH[3]:-}" ] || skipped "$line"
	elif [ $status = 0 ]; then
		status=none
	fi
	passed "$p"
	if [ "$f" = 0 ] && [ "$status" != 0 ]; then
		f=1
	fi
	if [ "$f" != 0 ]; then
		tail -60 "$log"
		failed "$f" "$* (status $status)"
	fi
}

# The levels of instructions that this processor has, but for the best, which
# all tests use that are not told otherwise.
other_levels() {
	echo portable
	if grep -qs avx512bw /proc/cpuinfo; then
		echo avx2
	fi
}

# Include rules; does every planted fault still apply?
part_layers() {
	count_program "$GV_ROOT/test/unit/check_layers.pl"
	count_program "$GV_ROOT/test/faults/apply.pl" --check
}

# Are C files laid out as pg_bsd_indent does?
part_format() {
	if [ -n "$(find /usr/bin /usr/local/bin /usr/lib/postgresql \
		-name pg_bsd_indent 2>/dev/null | head -1)" ]; then
		count_program "$GV_ROOT/test/unit/check_format.pl"
	else
		skipped "no pg_bsd_indent"
	fi
}
