# Every examples/*.c is one program, built against the shared library as a user would.

file(GLOB EXAMPLE_SOURCES CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/examples/*.c)
set(TARN_EXAMPLE_NAMES)
foreach(source IN LISTS EXAMPLE_SOURCES)
    get_filename_component(name ${source} NAME_WE)
    add_executable(example_${name} ${source})
    target_link_libraries(example_${name} PRIVATE tarn m)
    target_compile_options(example_${name} PRIVATE -Wall -Wextra -Wpedantic $<$<BOOL:${TARN_WERROR}>:-Werror>)
    set_target_properties(example_${name} PROPERTIES
        OUTPUT_NAME ${name} RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/examples)
    list(APPEND TARN_EXAMPLE_NAMES ${name})
endforeach()
