# Which commit the sources are of: read when the program is built, and by cpack. As a script (cmake -P, with SOURCE and
# OUTPUT) it writes the one small object that knows it, so that a commit compiles nothing else.

# attend_git(<result> <source folder> <arguments of git>...): what git says; empty where there is no git or no repository. A
# tarball unpacked inside another project's repository has no commit of its own.
function(attend_git result source)
  set(${result} "" PARENT_SCOPE)
  find_program(ATTEND_GIT git)
  if(ATTEND_GIT AND EXISTS ${source}/.git)
    execute_process(COMMAND ${ATTEND_GIT} -C ${source} ${ARGN} RESULT_VARIABLE code OUTPUT_VARIABLE said ERROR_QUIET
      OUTPUT_STRIP_TRAILING_WHITESPACE)
    if(code EQUAL 0)
      set(${result} "${said}" PARENT_SCOPE)
    endif()
  endif()
endfunction()

# attend_add_commit(<target>): gives the target commit() of apps/cli/commit.hpp, made anew when HEAD moves.
function(attend_add_commit target)
  attend_git(moves ${PROJECT_SOURCE_DIR} rev-parse --path-format=absolute --git-path logs/HEAD)
  if(NOT EXISTS "${moves}")
    set(moves "")
  endif()
  set(output ${CMAKE_CURRENT_BINARY_DIR}/commit.cpp)
  add_custom_command(OUTPUT ${output}
    COMMAND ${CMAKE_COMMAND} -DSOURCE=${PROJECT_SOURCE_DIR} -DOUTPUT=${output} -P ${CMAKE_CURRENT_FUNCTION_LIST_FILE}
    DEPENDS ${CMAKE_CURRENT_FUNCTION_LIST_FILE} ${moves} COMMENT "" VERBATIM)
  target_sources(${target} PRIVATE ${output})
endfunction()

if(CMAKE_SCRIPT_MODE_FILE STREQUAL CMAKE_CURRENT_LIST_FILE)
  attend_git(commit ${SOURCE} rev-parse --short=12 HEAD)
  file(WRITE ${OUTPUT} "namespace attend::cli {\nconst char* commit();\nconst char* commit() { return \"${commit}\"; }\n}\n")
endif()
