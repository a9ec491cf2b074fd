# shellcheck shell=bash
# How the unit programs are compiled; test/run.sh sources it, behind
# test/lib.sh.  LONG (may be empty): gpuvecd with the CUDA engine as well.

COMMON_FLAGS=(-std=gnu99 -g -Wall -Wextra -Wno-unused-parameter)
KERNEL_FLAGS=(-O3 -ffp-contract=off)

# The CUDA engine on emulated threads, and what checks it.
# $1 = folder, the rest: flags
build_card() {
	local dir=$1 unit=$GV_ROOT/test/unit file
	shift
	# shellcheck disable=SC2016
	for file in $(gv_room gpu .cu) "$unit"/gpu/emulate/*.cpp; do
		echo "$file"
	done | xargs -P "$(nproc)" -I FILE sh -c \
		'g++ -std=c++17 -g -O2 -Wall -Wextra -Wno-unused-parameter \
			-Wno-unknown-pragmas -ffp-contract=off "$@" \
			-I"$0/test/unit/gpu/emulate" -I"$0" -I"$0/src" -x c++ -c FILE \
			-o "'"$dir"'/$(basename FILE).o"' "$GV_ROOT" "$@" || return 1
	for file in $(gv_room src/engine .c) $(gv_room src/cpu .c); do
		gcc "${COMMON_FLAGS[@]}" "${KERNEL_FLAGS[@]}" -I"$GV_ROOT/src" \
			-c "$file" -o "$dir/$(basename "$file").o" || return 1
	done
	for file in "$unit"/engine/{check_{mirror*,builder*},selections}.c \
		"$unit"/gpu/{check_*,searches}.c; do
		gcc "${COMMON_FLAGS[@]}" -I"$GV_ROOT" -I"$GV_ROOT/src" \
			-DUNIT_MIRRORS=gv_cuda_mirrors -DUNIT_BUILDERS=gv_cuda_builders \
			-c "$file" \
			-o "$dir/$(basename "$file").o" || return 1
	done
	g++ "$@" "$dir"/*.o -lm -o "$dir/check_card" || return 1
	[ -z "$LONG" ] || build_card_server "$dir" "$@"
}

# gpuvecd with the CUDA engine that build_card has compiled, and what tests it.
# $1 = folder, the rest: flags
build_card_server() {
	local dir=$1 unit=$GV_ROOT/test/unit file engines plain
	shift
	mkdir "$dir/server"
	for file in $(gv_room src/server .c) $(gv_room src/protocol .c); do
		gcc -O1 "${COMMON_FLAGS[@]}" "$@" -I"$GV_ROOT/src" -DGV_HAVE_CUDA \
			"$(release_flag)" -c "$file" \
			-o "$dir/server/$(basename "$file").o" || return 1
	done
	mapfile -t engines < <(find "$dir" -maxdepth 1 -name '*.o' \
		! -name 'check_*' ! -name 'selections.c.o' ! -name 'searches.c.o')
	mapfile -t plain < <(find "$dir" -maxdepth 1 -name '*.c.o' \
		! -name 'check_*' ! -name 'selections.c.o' ! -name 'searches.c.o')
	g++ "$@" "${engines[@]}" "$dir"/server/*.o -lpthread -lm \
		-o "$dir/gpuvecd" || return 1
	gcc -O1 "${COMMON_FLAGS[@]}" "$@" -D_GNU_SOURCE -I"$GV_ROOT/src" \
		-I"$unit" -I"$unit/engine" "$unit"/server/*.c "${plain[@]}" -lm \
		-o "$dir/check_server"
}

# gpuvecd has to know its release.
release_flag() {
	sed -n "s/^default_version *= *'\(.*\)'/-DGPUVEC_RELEASE=\"\1\"/p" \
		"$GV_ROOT/gpuvec.control"
}

# Engine, page and gpuvecd with their tests.
# $1 = folder, the rest: flags
build_unit() {
	local dir=$1 file headers
	shift
	headers=$("$(gv_find_pg_config)" --includedir-server)
	set -- "${COMMON_FLAGS[@]}" "$@" -I"$GV_ROOT/src"
	for file in $(gv_room src/engine .c) $(gv_room src/cpu .c); do
		gcc "${KERNEL_FLAGS[@]}" "$@" -c "$file" \
			-o "$dir/$(basename "$file" .c).o" || return 1
	done
	for file in $(gv_room src/server .c) $(gv_room src/protocol .c); do
		gcc -O1 "$@" "$(release_flag)" -c "$file" \
			-o "$dir/server/$(basename "$file" .c).o" || return 1
	done
	gcc "$@" "$dir"/*.o "$dir"/server/*.o -lpthread -lm \
		-o "$dir/gpuvecd" || return 1
	set -- -O1 "$@" -D_GNU_SOURCE -I"$GV_ROOT/test/unit" \
		-I"$GV_ROOT/test/unit/engine"
	gcc "$@" "$GV_ROOT"/test/unit/engine/*.c "$dir"/*.o -lm \
		-o "$dir/check_engine" || return 1
	gcc "$@" -isystem "$headers" "$GV_ROOT"/test/unit/page/*.c \
		"$GV_ROOT/src/page/layout.c" -o "$dir/check_page" || return 1
	gcc "$@" "$GV_ROOT"/test/unit/server/*.c "$dir"/*.o -lm \
		-o "$dir/check_server" || return 1
}
