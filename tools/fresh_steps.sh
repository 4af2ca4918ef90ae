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
step_llm() {
  cmake_example llm
  build-llm/attend_answers smollm2 "What does a compiler do?" | tee answer
  # shellcheck disable=SC2046
  c++ attend/examples/llm/main.cpp -o llm_example $(pkg-config --cflags --libs attend-llm)
  ./llm_example smollm2 "What does a compiler do?" | cmp - answer
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
  # What the program in C++ said, in step_llm.
  (cd / && "$HOME/venv/bin/python" "$HOME/attend/examples/python/language_model.py" smollm2 "What does a compiler do?") |
    cmp - answer
}
step_readme_python() {
  readme_block python >readme.py
  echo 'print(out.shape)' >>readme.py
  venv/bin/python readme.py
}

# The packages: made here...
step_wheel() { (cd attend && ./dev wheel); }
step_deb() {
  (cd attend && ./dev deb)
  if dpkg-deb --fsys-tarfile attend/dist/*.deb | grep -qF "$HOME/attend"; then
    echo "error: the package names the folder it was built in"
    return 1
  fi
}
step_lintian() {
  apt_install lintian
  lintian --fail-on error,warning attend/dist/*.deb
}
# ...and used in a root that has no compiler, where they lie in /srv.
apt_install() { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@"; }
step_no_compiler() {
  local tool
  for tool in cc c++ gcc g++ clang cmake ninja make; do
    if command -v "$tool"; then
      echo "error: there is $tool, and what runs now proves nothing"
      return 1
    fi
  done
}
step_use_wheel() {
  apt_install python3-venv
  python3 -m venv venv
  venv/bin/pip install -c attend/tools/requirements.txt /srv/attend_engine-*.whl pytest ml_dtypes
  venv/bin/python attend/examples/python/attention.py
  python3 attend/tests/install/golden_model.py model
  venv/bin/python attend/examples/python/language_model.py "$PWD/model" "once upon" | tee said
  grep -q . said
  # One test asks a C compiler for the sizes of structs.
  (cd attend && ../venv/bin/python -m pytest -q -p no:cacheprovider tests/python --ignore=tests/python/peers \
    -k 'not test_structs_are_those_of_the_headers')
  venv/bin/pip uninstall -y attend-engine
  cd /  # the clone is called attend too
  if "$HOME/venv/bin/python" -c 'import attend'; then return 1; fi
}
step_install_deb() {
  apt_install /srv/attend_*.deb
  attend --version | tee said
  expect "($(git -C attend rev-parse --short=12 HEAD))" said
}
step_use_deb() {
  attend cpu
  attend demo --length 512 --no-model --no-png
  # Every word of the help in the manual page and in the completions of three shells.
  apt_install python3 man-db bash-completion zsh fish
  python3 attend/tests/cli/shell_test.py /usr/bin/attend
  man attend >page
  expect "attend generate" page
  bash -ic 'source /usr/share/bash-completion/bash_completion; _completion_loader attend; complete -p attend'
  zsh -ic 'autoload -Uz compinit; compinit -u; print $_comps[attend]' >said
  expect _attend said
  fish -c 'complete -C "attend ge"' >said
  expect generate said
  expect Apache-2.0 /usr/share/doc/attend/copyright
}
step_develop_with_deb() {
  apt_install g++ cmake ninja-build pkg-config
  unset PKG_CONFIG_PATH
  step_c_pkg_config
  step_cpp_pkg_config
  step_find_package
}
step_remove_deb() {
  dpkg -L attend | while read -r path; do [[ -d $path && ! -L $path ]] || echo "$path"; done >files
  expect /usr/bin/attend files
  apt-get purge -y -qq attend
  while read -r path; do
    if [[ -e $path || -L $path ]]; then
      echo "error: $path was left"
      return 1
    fi
  done <files
  if [[ -e /usr/include/attend || -e /usr/share/doc/attend ]] || ldconfig -p | grep libattend; then return 1; fi
}
"step_$1"
