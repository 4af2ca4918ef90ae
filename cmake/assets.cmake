# attend_embed_assets(<target> <folder>): every page, script, style and picture under <folder> becomes part of <target>, as
# attend::server::assets(); a file that changes is embedded again at the next build.
function(attend_embed_assets target folder)
  file(GLOB_RECURSE files CONFIGURE_DEPENDS RELATIVE ${folder} ${folder}/*.html ${folder}/*.js ${folder}/*.css ${folder}/*.svg
    ${folder}/*.png ${folder}/*.json ${folder}/*.woff2 ${folder}/*.txt)
  list(SORT files)
  list(TRANSFORM files PREPEND ${folder}/ OUTPUT_VARIABLE inputs)
  set(output ${CMAKE_CURRENT_BINARY_DIR}/embedded_assets.cpp)
  list(JOIN files "|" names)
  add_custom_command(OUTPUT ${output}
    COMMAND ${CMAKE_COMMAND} "-DFOLDER=${folder}" "-DNAMES=${names}" "-DOUTPUT=${output}"
      -P ${PROJECT_SOURCE_DIR}/cmake/write_assets.cmake
    DEPENDS ${inputs} ${PROJECT_SOURCE_DIR}/cmake/write_assets.cmake
    COMMENT "Embedding the assets of ${folder}" VERBATIM)
  target_sources(${target} PRIVATE ${output})
  set_source_files_properties(${output} PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
endfunction()
