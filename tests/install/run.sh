#!/usr/bin/env bash
# Installs attend, moves the installed tree, and builds and runs outside projects against it: in C with pkg-config and
# with find_package, in C++ with find_package, with the ring where it was built; and the installed program.
# usage: run.sh static <build folder> | run.sh shared <source folder> <folder to build in> <options of cmake>...
set -euo pipefail
here=$(cd -- "$(dirname -- "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

if [[ $1 == shared ]]; then
  # ccache makes this quick: the objects are those of the static build.
  build=$3
  cmake -S "$2" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=ON \
    -DATTEND_TESTS=OFF -DATTEND_BENCH=OFF "${@:4}" >"$work/log" || { cat "$work/log"; exit 1; }
  ninja -C "$build" >"$work/log" || { cat "$work/log"; exit 1; }
else
  build=$2
fi
cmake --install "$build" --prefix "$work/installed" >/dev/null
mv "$work/installed" "$work/prefix"
prefix=$work/prefix
pc=$(dirname "$(find "$prefix" -name attend.pc)")
library=$(dirname "$(find "$prefix" -name 'libattend.*' | head -n 1)")
export PKG_CONFIG_PATH=$pc LD_LIBRARY_PATH=

echo "--- C, pkg-config ($1)"
linking=
if [[ $1 == static ]]; then linking=--static; fi
# shellcheck disable=SC2046,SC2086  # the flags are meant to be split
cc -std=c99 -Wall -Wextra -Wpedantic -Werror "$here/c/main.c" -o "$work/outside_pc" -Wl,-rpath,"$library" \
  $(pkg-config --cflags --libs $linking attend) -lm
"$work/outside_pc"

# Each C header stands alone, and the core does not bring the variants.
for header in attend.h attend_variants.h; do
  # shellcheck disable=SC2046
  echo "#include <attend/$header>" |
    cc -std=c99 -Wall -Wextra -Wpedantic -Werror -x c -E - $(pkg-config --cflags attend) >"$work/$header"
  cc -std=c99 -Wall -Wextra -Wpedantic -Werror -fsyntax-only -x cpp-output "$work/$header"
done
if grep -q attend_linformer "$work/attend.h"; then echo "attend.h includes attend_variants.h"; exit 1; fi

for language in c cpp; do
  echo "--- $language, find_package ($1)"
  cmake -S "$here/$language" -B "$work/$language" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_PREFIX_PATH="$prefix" \
    >"$work/log" || { cat "$work/log"; exit 1; }
  cmake --build "$work/$language" >"$work/log" || { cat "$work/log"; exit 1; }
  "$work/$language/outside_$language"
done

if [[ -n $(find "$prefix" -name attendRingTargets.cmake) ]]; then
  echo "--- the ring, find_package ($1)"
  cmake -S "$here/ring" -B "$work/ring" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_PREFIX_PATH="$prefix" \
    >"$work/log" || { cat "$work/log"; exit 1; }
  cmake --build "$work/ring" >"$work/log" || { cat "$work/log"; exit 1; }
  # Root in a container, and more ranks than processors: fine for a test.
  OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun --oversubscribe -n 2 "$work/ring/outside_ring"
fi

echo "--- the installed program ($1)"
# Without /proc, as in a bare chroot, the loader can't tell where the program lies, which its path to the library needs.
if [[ ! -e /proc/self/exe ]]; then export LD_LIBRARY_PATH=$library; fi
"$prefix/bin/attend" --version
find "$prefix" -name LICENSE | grep -q . || { echo "the licence is not installed"; exit 1; }
