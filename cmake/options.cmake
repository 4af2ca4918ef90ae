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
