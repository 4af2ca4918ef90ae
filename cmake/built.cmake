# With ATTEND_BUILT the libraries are those of a build folder of this tree, as they lie there: nothing but the Python
# extension is compiled. For ./dev, which has them from the tests; a wheel is built from the sources alone.
find_package(Threads REQUIRED)
find_package(ZLIB REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(UTF8PROC REQUIRED IMPORTED_TARGET libutf8proc)

add_library(attend STATIC IMPORTED GLOBAL)
set_target_properties(attend PROPERTIES IMPORTED_LOCATION ${ATTEND_BUILT}/libattend.a)
target_include_directories(attend INTERFACE ${PROJECT_SOURCE_DIR}/include)
target_compile_features(attend INTERFACE cxx_std_20)
target_link_libraries(attend INTERFACE Threads::Threads ${CMAKE_DL_LIBS})

add_library(attend_llm STATIC IMPORTED GLOBAL)
set_target_properties(attend_llm PROPERTIES IMPORTED_LOCATION ${ATTEND_BUILT}/llm/libattend_llm.a)
target_link_libraries(attend_llm INTERFACE attend ZLIB::ZLIB PkgConfig::UTF8PROC)
