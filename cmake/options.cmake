# Flags that every target shares, as an interface target.
add_library(attend_options INTERFACE)
target_compile_options(attend_options INTERFACE
  -Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow
  $<$<COMPILE_LANGUAGE:CXX>:-Wnon-virtual-dtor> $<$<COMPILE_LANGUAGE:CXX>:-Wold-style-cast>
  # Contraction would let the compiler round a row differently in a main loop and in a tail; fma is written out.
  -ffp-contract=off)
if(ATTEND_WERROR)
  target_compile_options(attend_options INTERFACE -Werror)
endif()
set(ATTEND_SANITIZE_FLAGS ${ATTEND_SANITIZE})
if(ATTEND_FUZZ)
  # Coverage for the fuzzer in every object; its main comes in with the fuzzers alone.
  list(APPEND ATTEND_SANITIZE_FLAGS fuzzer-no-link)
  list(JOIN ATTEND_SANITIZE_FLAGS "," ATTEND_SANITIZE_FLAGS)
endif()
if(ATTEND_SANITIZE_FLAGS)
  target_compile_options(attend_options INTERFACE
    -fsanitize=${ATTEND_SANITIZE_FLAGS} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_link_options(attend_options INTERFACE -fsanitize=${ATTEND_SANITIZE_FLAGS})
endif()

# attend_precompile(<target> [<header>...]): with ATTEND_PRECOMPILE the headers that nearly every file of it includes are
# parsed once. No header of this tree is among them: a change of one rebuilds what includes it and nothing else. Other
# builds go without, so that a file that lacks an include is found.
function(attend_precompile target)
  if(ATTEND_PRECOMPILE)
    target_precompile_headers(${target} PRIVATE <algorithm> <array> <bit> <cmath> <cstddef> <cstdint> <cstdio> <cstring>
      <functional> <limits> <memory> <optional> <span> <stdexcept> <string> <string_view> <type_traits> <utility> <variant>
      <vector> ${ARGN})
    # What ccache asks for.
    target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)
  endif()
endfunction()

# attend_precompile_as(<target> <other>): the headers that were parsed for the other, which has the same flags.
function(attend_precompile_as target other)
  if(ATTEND_PRECOMPILE)
    target_precompile_headers(${target} REUSE_FROM ${other})
    target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)
  endif()
endfunction()
