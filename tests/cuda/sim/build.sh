#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# build.sh OUT main.cc [more.cc|a.cu|x.c|y.o|lib.a|-flag]...: a test program with the simulator.
# ASan and UBSan; with SIM_FAST=1 neither; with SIM_RACE=1 the search for races of shared memory
# instead (sim_race.cc). CXX (g++ or clang++) and CC (for .c sources, gcc) from the
# environment. The simulator itself is compiled once per CXX into SIM_CACHE.
set -euo pipefail
[ $# -ge 2 ] || { sed -n '3,7p' "$0" >&2; exit 2; }
root=$(cd "$(dirname "$0")/../../.." && pwd)
out=$1
shift
cxx=${CXX:-g++}
cc=${CC:-gcc}
cache=${SIM_CACHE:-${TMPDIR:-/tmp}/sluice_sim.$(id -u)}/$cxx
inc=(-I"$root/tests/cuda/sim" -I"$root/src" -I"$root/include" -I"$root/tests")
warn=(-Wall -Wextra -Wno-unknown-pragmas)
common=(-g1 -fno-omit-frame-pointer -ffp-contract=off -pthread -D_GNU_SOURCE)
san=(-O1 -DSL_DEBUG -fsanitize=address,undefined -fno-sanitize-recover=all
    -fno-sanitize=null,object-size,pointer-overflow,vptr)
[ "${SIM_FAST:-}" ] && san=(-O2)
[ "${SIM_RACE:-}" ] && san=(-O1 -DSL_DEBUG -DSL_SIM_RACE)
race=()
[ "${SIM_RACE:-}" ] && race=(-fsanitize=thread)
mkdir -p "$cache" "$out.d"

# Compiles only what is older than something it was made of.
compile() { # object, source, command...
    local o=$1 f=$2 d=${1%.o}.d dep
    shift 2
    if [ -e "$o" ] && [ -e "$d" ] && [ "$(cat "$o.cmd" 2>/dev/null)" = "$*" ]; then
        for dep in $(sed 's/^[^:]*://; s/\\$//' "$d"); do
            [ "$dep" -nt "$o" ] && dep= && break
        done
        [ -n "$dep" ] && return
    fi
    "$@" -MMD -MF "$d" -c -o "$o.$$" "$f"
    mv "$o.$$" "$o"
    echo "$*" >"$o.cmd"
}

link=()
for f in "$@"; do
    o=$out.d/$(echo "$f" | tr / _).o
    case $f in
    *.cu | *.cc)
        compile "$o" "$f" "$cxx" -std=c++17 "${san[@]}" "${race[@]}" "${common[@]}" "${warn[@]}" "${inc[@]}" -x c++
        link+=("$o")
        ;;
    *.c)
        compile "$o" "$f" "$cc" -std=c11 "${san[@]}" "${common[@]}" "${inc[@]}"
        link+=("$o")
        ;;
    *) link+=("$f") ;;
    esac
done
for f in "$root"/tests/cuda/sim/*.cc; do
    o=$cache/$(basename "$f" .cc).o
    compile "$o" "$f" "$cxx" -std=c++17 -O2 "${common[@]}" "${warn[@]}" "${inc[@]}"
    link+=("$o")
done
"$cxx" "${san[@]}" -pthread -rdynamic -o "$out" "${link[@]}" -ldl -lm
