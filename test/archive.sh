# Source packages of the Debian or Ubuntu archive that this machine's apt is
# configured for, also those of its later releases.  Sourced after lib.sh; bash.
#
# apt's own state is left alone: all of it is in a folder of ours.
# shellcheck shell=bash

# 'URI keyring' of every archive of the distribution ($1) that apt uses here,
# Debian's of security updates included
gv_archives() {
	{ cat /etc/apt/sources.list.d/*.sources 2>/dev/null || :; } |
		awk -v id="$1" '
		function out() {
			if (uri ~ ("/" id "(-security)?/?$")) print uri, key
			uri = key = ""
		}
		/^URIs:/ { uri = $2 }
		/^Signed-By: *\// { key = $2 }
		/^[ \t]*$/ { out() }
		END { out() }'
	{ cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list \
		2>/dev/null || :; } |
		awk -v id="$1" '
		$1 == "deb" {
			key = ""
			if (match($0, /signed-by=[^] ]*/))
				key = substr($0, RSTART + 10, RLENGTH - 10)
			sub(/\[[^]]*\]/, "")
			if ($2 ~ ("/" id "(-security)?/?$")) print $2, key
		}'
}

# Fetches source package $1 into the folder $2, which must not exist, from
# suite $4 of archive $5, whose keyring is $6; $3 = --tar-only, for what its
# authors released and no more, or nothing (then it is unpacked, patches applied).
# The log is in $2.log.  Status 2: the suite's index is not to be had.
gv_fetch_from() {
	local apt=$2.apt partial=$2.partial options components='main universe'
	rm -rf "$apt" "$partial"
	mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial" "$partial"
	[[ $5 == */ubuntu* ]] || components=main
	echo "deb-src ${6:+[signed-by=$6]} $5 $4 $components" >"$apt/sources.list"
	options=(-o "Dir::Etc::sourcelist=$apt/sources.list"
		-o Dir::Etc::sourceparts=- -o "Dir::State::lists=$apt/lists"
		-o "Dir::Cache=$apt/cache" -o APT::Sandbox::User=root
		-o Acquire::Languages=none -o Acquire::Retries=2)
	apt-get -qq "${options[@]}" update >>"$2.log" 2>&1 || return 2
	(cd "$partial" && apt-get -qq "${options[@]}" ${3:+"$3"} source "$1") \
		>>"$2.log" 2>&1 || return 1
	rm -rf "$apt"
	mv "$partial" "$2"
}

# Prints archive $1's names of the suites $2, then those beside them: where the
# file of one is not to be had, another may have another version.
# shellcheck disable=SC2086
gv_suites() {
	case $1 in
	*-security | *-security/) printf '%s-security\n' $2 ;;
	*/ubuntu*) printf '%s\n' $2 && printf '%s-updates\n' $2 &&
		printf '%s-security\n' $2 ;;
	*) printf '%s\n' $2 && printf '%s-updates\n' $2 &&
		printf '%s-proposed-updates\n' $2 ;;
	esac
}

# The same from the first of the distribution's suites that has it: $4 names
# Debian's, $5 Ubuntu's.  False if there is none; then $2.tried says where it
# was looked for and why it was not to be had, one place a line.
gv_fetch_source() {
	local id suites suite uri key status reached=
	mkdir -p "$(dirname "$2")"
	rm -rf "$2" "$2.log" "$2.tried"
	id=$(. /etc/os-release 2>/dev/null && echo "$ID") || :
	case $id in
	debian) suites=$4 ;;
	ubuntu) suites=$5 ;;
	*) suites= ;;
	esac
	while read -r uri key; do
		for suite in $(gv_suites "$uri" "$suites"); do
			# without a network nothing else is to be had either
			[ "$suite" = "${suite%-*}" ] || [ -n "$reached" ] || continue
			status=0
			gv_fetch_from "$1" "$2" "$3" "$suite" "$uri" "$key" </dev/null ||
				status=$?
			if [ $status = 0 ]; then
				rm -f "$2.tried"
				return
			fi
			[ $status = 2 ] || reached=1
			echo "$suite of $uri: $(grep '^E:' "$2.log" |
				grep -v 'Failed to fetch some' | tail -1)" >>"$2.tried"
		done
	done < <(gv_archives "$id" | sort -u)
	[ -e "$2.tried" ] || echo "neither Debian nor Ubuntu, or no archive of" \
		"it is known to apt" >"$2.tried"
	return 1
}

# Fetches binary packages, $3 and further, of Debian's suites $2, with the
# libraries that they depend on, and unpacks them into the folder $1.  False if
# they are not to be had; the log is in $1.log.
gv_fetch_packages() {
	local dir=$1 suites=$2 apt=$1.apt log=$1.log uri key suite options libraries deb
	shift 2
	mkdir -p "$(dirname "$dir")"
	: >"$log"
	while read -r uri key; do
		rm -rf "$dir" "$apt"
		mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial" "$apt/debs" "$dir"
		: >"$apt/status"
		for suite in $suites; do
			echo "deb ${key:+[signed-by=$key]} $uri $suite main"
		done >"$apt/sources.list"
		options=(-o "Dir::Etc::sourcelist=$apt/sources.list"
			-o Dir::Etc::sourceparts=- -o "Dir::State::lists=$apt/lists"
			-o "Dir::State::status=$apt/status" -o "Dir::Cache=$apt/cache"
			-o APT::Sandbox::User=root -o Acquire::Languages=none)
		apt-get -qq "${options[@]}" update >>"$log" 2>&1 || continue
		libraries=$(apt-cache "${options[@]}" depends --recurse --no-recommends \
			--no-suggests --no-conflicts --no-breaks --no-replaces --no-enhances \
			"$@" 2>>"$log" | grep -E '^lib[^:]*$' |
			grep -vE 'perl|llvm|clang|-dev$|-common$' | sort -u) || continue
		# shellcheck disable=SC2086
		(cd "$apt/debs" && apt-get -qq "${options[@]}" download "$@" $libraries) \
			>>"$log" 2>&1 || continue
		for deb in "$apt"/debs/*.deb; do
			dpkg-deb -x "$deb" "$dir" >>"$log" 2>&1 || return
		done
		rm -rf "$apt"
		return
	done < <(gv_archives debian | grep -v -- -security | sort -u)
	return 1
}
