#!/usr/bin/env bash
# The steps of fresh.sh, run inside the bare root: what README.md and the examples tell a person to type.
# usage: fresh_steps.sh <step>
set -euo pipefail
cd ~
prefix=$HOME/installed
library=$(find "$prefix" -maxdepth 4 -name 'libattend.*' -printf '%h\n' -quit 2>/dev/null || true)
export PKG_CONFIG_PATH=$library/pkgconfig

# expect <text> <file>: the file holds the text
expect() {
  grep -qF -- "$1" "$2" || {
    cat "$2"
    echo "error: expected to read: $1"
    return 1
  }
}
# The first code block of a language in the README.
readme_block() {
  awk -v start='```'"$1" '$0 == start {inside = 1; next} inside && /^```/ {exit} inside' attend/README.md
}

step_clone() {
  git clone -q /srv/attend.bundle attend
  git -C attend log --oneline -1
}
step_told_without_sudo() {
  if (cd attend && ./dev demo) >told 2>&1; then
    echo "error: it can't have worked without a compiler"
    return 1
  fi
  expect "apt-get install" told
  expect "these tools are missing" told
}
step_demo() {
  (cd attend && ./dev demo) | tee said
  expect "The same attention inside a language model" said
  if grep -qF "No language model" said; then return 1; fi
}
step_test() { (cd attend && ./dev test); }
step_install() { (cd attend && ./dev build && cmake --install build --prefix "$prefix") && "$prefix/bin/attend" --version; }
step_c_pkg_config() {
  # shellcheck disable=SC2046  # the flags are meant to be split
  cc attend/examples/c/main.c -o c_example $(pkg-config --cflags --libs attend-c)
  ./c_example
}
step_cpp_pkg_config() {
  # shellcheck disable=SC2046
  c++ attend/examples/cpp/main.cpp -o cpp_example $(pkg-config --cflags --libs attend)
  ./cpp_example
}
cmake_example() {
  cmake -S "attend/examples/$1" -B "build-$1" -G Ninja -DCMAKE_PREFIX_PATH="$prefix"
  cmake --build "build-$1"
}
step_find_package() {
  cmake_example c
  build-c/attend_from_c
  cmake_example cpp
  build-cpp/attend_from_cpp
}
step_ring() {
  cmake_example ring
  OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun --oversubscribe -n 2 build-ring/attend_over_mpi
}
step_fetch_content() {
  cmake_example fetch_content
  build-fetch_content/attend_fetched
}
step_readme_cpp() {
  mkdir -p readme
  readme_block cpp >readme/main.cpp
  {
    echo 'cmake_minimum_required(VERSION 3.25)'
    echo 'project(readme CXX)'
    echo 'add_executable(my_program main.cpp)'
    readme_block cmake
  } >readme/CMakeLists.txt
  cmake -S readme -B readme/build -G Ninja -DCMAKE_PREFIX_PATH="$prefix"
  cmake --build readme/build
  readme/build/my_program
}
step_python() {
  (cd attend && ./dev setup)
  python3 -m venv venv
  venv/bin/pip install ./attend
  (cd / && "$HOME/venv/bin/python" "$HOME/attend/examples/python/attention.py")
}
step_readme_python() {
  readme_block python >readme.py
  echo 'print(out.shape)' >>readme.py
  venv/bin/python readme.py
}
"step_$1"
