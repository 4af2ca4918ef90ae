#!/usr/bin/env bash
# Installs attend, moves the installed tree, and builds and runs the examples against it: in C and C++ with pkg-config and
# with find_package, language models, with the ring where it was built; and the installed program.
# usage: run.sh static <build folder>
#        run.sh shared <source folder> <folder to build in> <program> <options of cmake>...: the libraries alone
#        run.sh fetched <source folder> <folder to build in> <options of cmake>...: the example that has CMake fetch and build
#        attend
set -euo pipefail
here=$(cd -- "$(dirname -- "$0")" && pwd)
examples=$(cd -- "$here/../../examples" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# How it is built and linked is what is tested, and compiling takes a third of the time so.
quick=("-DCMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG" -DATTEND_KERNELS=native)

quietly() { "$@" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }; }
# example <folder> <options of cmake>...: builds an example
example() {
  quietly cmake -S "$examples/$1" -B "$work/$1" -G Ninja -DCMAKE_BUILD_TYPE=Release "${@:2}"
  quietly cmake --build "$work/$1"
}

if [[ $1 == fetched ]]; then
  echo "--- FetchContent"
  quietly cmake -S "$examples/fetch_content" -B "$3" -G Ninja -DCMAKE_BUILD_TYPE=Release "${quick[@]}" \
    -DFETCHCONTENT_SOURCE_DIR_ATTEND="$2" "${@:4}"
  quietly cmake --build "$3"
  "$3/attend_fetched"
  # Nothing of attend but the library becomes a part of the other project.
  if grep -qE 'gtest|rapidcheck|attend_cli|attend_bench|attend_ring' "$3/build.ninja"; then
    echo "more than the library was added to the project"
    exit 1
  fi
  exit
fi

if [[ $1 == shared ]]; then
  build=$3
  quietly cmake -S "$2" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=ON -DATTEND_CUDA=OFF "${quick[@]}" \
    -DATTEND_TESTS=OFF -DATTEND_BENCH=OFF -DATTEND_CLI=OFF -DATTEND_LLM=ON "${@:5}"
  quietly ninja -C "$build"
else
  build=$2
fi
quietly cmake --install "$build" --prefix "$work/installed"
mv "$work/installed" "$work/prefix"
prefix=$work/prefix
library=$(dirname "$(find "$prefix" -name 'libattend.*' | head -n 1)")
export PKG_CONFIG_PATH=$library/pkgconfig LD_LIBRARY_PATH=

if [[ $1 == shared ]]; then
  echo "--- what the libraries export"
  mapfile -t libraries < <(find "$library" -name 'libattend*.so')
  python3 "$2/tools/check_exports.py" "$2" "${libraries[@]}"
fi

echo "--- C and C++, pkg-config ($1)"
# shellcheck disable=SC2046  # the flags are meant to be split
cc -std=c99 -Wall -Wextra -Wpedantic -Werror "$examples/c/main.c" -o "$work/c_pc" -Wl,-rpath,"$library" \
  $(pkg-config --cflags --libs attend-c)
"$work/c_pc"
# shellcheck disable=SC2046
c++ -std=c++20 -Wall -Wextra -Wpedantic -Werror "$examples/cpp/main.cpp" -o "$work/cpp_pc" -Wl,-rpath,"$library" \
  $(pkg-config --cflags --libs attend)
"$work/cpp_pc"
# The flags leave the user's standard as it is, and an older one is an error that says what is needed.
for package in attend attend-llm; do
  # shellcheck disable=SC2046
  printf '#include <attend/attend.hpp>\nstatic_assert(__cplusplus > 202002L);\n' |
    c++ -std=c++23 -Werror $(pkg-config --cflags $package) -fsyntax-only -x c++ -
done
# shellcheck disable=SC2046
if echo '#include <attend/attend.hpp>' | c++ -std=c++17 $(pkg-config --cflags attend) -fsyntax-only -x c++ - 2>"$work/log"; then
  echo "C++17 is accepted"
  exit 1
fi
grep -q 'need C++20 or later: compile with -std=c++20' "$work/log" || { head -n 5 "$work/log"; exit 1; }

# Each C header stands alone, and the core does not bring the variants.
for header in attend.h attend_cuda.h attend_variants.h; do
  # shellcheck disable=SC2046
  echo "#include <attend/$header>" |
    cc -std=c99 -Wall -Wextra -Wpedantic -Werror -x c -E - $(pkg-config --cflags attend-c) >"$work/$header"
  cc -std=c99 -Wall -Wextra -Wpedantic -Werror -fsyntax-only -x cpp-output "$work/$header"
done
if grep -q attend_linformer "$work/attend.h"; then echo "attend.h includes attend_variants.h"; exit 1; fi

for language in c cpp; do
  echo "--- $language, find_package ($1)"
  example $language -DCMAKE_PREFIX_PATH="$prefix"
  "$work/$language/attend_from_$language"
done

echo "--- a C project with targets called m and dl; components that are not there ($1)"
quietly cmake -S "$here/names" -B "$work/names" -G Ninja -DCMAKE_PREFIX_PATH="$prefix" -DEXAMPLES="$examples"
quietly cmake --build "$work/names"
"$work/names/from_c"
# component <name> <text>: asking for it fails with the text; an optional one is not found
component() {
  local flags=(-S "$here/component" -G Ninja -DCMAKE_PREFIX_PATH="$prefix" "-DCOMPONENT=$1")
  if cmake "${flags[@]}" -B "$work/$1" -DKIND=COMPONENTS >"$work/log" 2>&1; then
    echo "component $1 is there"
    exit 1
  fi
  tr -s ' \n' ' ' <"$work/log" | grep -qF "$2" || { cat "$work/log"; exit 1; }
  quietly cmake "${flags[@]}" -B "$work/optional_$1" -DKIND=OPTIONAL_COMPONENTS
}
component tensors 'attend has no component "tensors", expected cuda, llm or ring'
config=$library/cmake/attend/attendConfig.cmake
if grep -q 'ATTEND_HAS_cuda "OFF"' "$config"; then
  component cuda 'was built without kernels for NVIDIA GPUs: install nvcc'
fi

echo "--- language models, pkg-config and find_package ($1)"
tests=$(dirname "$examples")/tests
python3 "$tests/install/golden_model.py" "$work/model"
# shellcheck disable=SC2046
c++ -std=c++20 -Wall -Wextra -Wpedantic -Werror "$examples/llm/main.cpp" -o "$work/llm_pc" -Wl,-rpath,"$library" \
  $(pkg-config --cflags --libs attend-llm)
example llm -DCMAKE_PREFIX_PATH="$prefix"
# Without /proc, as in a bare chroot, the loader can't tell where a program lies, which its path to the library needs.
if [[ ! -e /proc/self/exe ]]; then export LD_LIBRARY_PATH=$library; fi
attend=$prefix/bin/attend
if [[ $1 == shared ]]; then attend=$4; fi
expected=$("$attend" generate "$work/model" "once upon" -n 64 -q)
for program in "$work/llm_pc" "$work/llm/attend_answers"; do
  got=$("$program" "$work/model" "once upon")
  [[ -n $got && $got == "$expected" ]] || { echo "$program said '$got', expected what attend generate says: '$expected'"; exit 1; }
done
echo "$got"

if [[ -n $(find "$prefix" -name attendRingTargets.cmake) ]]; then
  echo "--- the ring, find_package ($1)"
  example ring -DCMAKE_PREFIX_PATH="$prefix"
  # Root in a container, and more ranks than processors: fine for a test.
  OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun --oversubscribe -n 2 "$work/ring/attend_over_mpi"
fi

for notice in LICENSE THIRD_PARTY_NOTICES; do
  find "$prefix" -path "*/doc/*" -name $notice | grep -q . || { echo "$notice is not installed"; exit 1; }
done
[[ $1 == static ]] || exit 0

echo "--- the installed program"
"$prefix/bin/attend" --version
for made in bash-completion/completions/attend zsh/site-functions/_attend fish/vendor_completions.d/attend.fish man/man1/attend.1; do
  grep -q generate "$prefix/share/$made" || { echo "share/$made is not installed, or not made by the program"; exit 1; }
done
