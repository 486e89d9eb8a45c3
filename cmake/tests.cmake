# Tests:
#   tests/<folder>/test_<name>.c     one cmocka program each, linked with TARN_TESTED; CTest name <folder>.<name>
#   tests/support/*.c                helpers linked into all of them
#   tests/fuzz/targets*.c            what parsers are held to, for tests/fuzz/test_targets.c, and with TARN_FUZZ for libFuzzer
#   tests/parity/jinja_lines.c      runs templates for tests/parity/jinja.py
#   tests/mirror/*.c                 the mirror backend, loaded through TARN_BACKEND_PATH
#   tests/project/*.sh, *.py         checks of the project itself; exit status 77 means skipped
#   tests/serve/*_client.py          clients of another hand and a browser, where their packages are installed; else skipped
#   tests/serve/load.py             the server under load and abuse
#   tests/hub/pull.py               `tarn pull` from a small hub, well-behaved and not
#   examples/*.c                     run, and must succeed
# CTest labels are the folder names: `ctest -L ops`. Time limits are given by scripts/test.
# The target tarn_tests builds all that the tests run, but for the backends of devices: those of the target
# tarn_present_backends are found by the tests too.

set(TEST_ENVIRONMENT
    "TARN_BACKEND_PATH=${PROJECT_BINARY_DIR}/tests"
    "TARN_BACKENDS=cpu,mirror" # next to libtarn, the command and the examples would find those of GPUs, and `auto` take one
    "TARN_LIBRARY=$<TARGET_FILE:tarn>"
    "TARN_SOURCE_DIR=${PROJECT_SOURCE_DIR}"
    "TARN_BUILD_DIR=${PROJECT_BINARY_DIR}"
    "TARN_CC=${CMAKE_C_COMPILER}")
if(TARGET tarn_command)
    list(APPEND TEST_ENVIRONMENT "TARN_COMMAND=$<TARGET_FILE:tarn_command>")
endif()
if(TARN_SANITIZE)
    list(APPEND TEST_ENVIRONMENT
        # Not detect_stack_use_after_return: its frames are not aligned for 64-byte vectors with every compiler.
        "ASAN_OPTIONS=detect_leaks=1:detect_stack_use_after_return=0:allocator_may_return_null=1"
        "UBSAN_OPTIONS=print_stacktrace=1"
        "TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1:allocator_may_return_null=1")
endif()

set(TEST_TARGETS tarn tarn_static)
foreach(extra tarn_command tarn_mpi)
    if(TARGET ${extra})
        list(APPEND TEST_TARGETS ${extra})
    endif()
endforeach()

# Programs that take long begin first, so that none of them runs alone at the end: seconds on one core.
set(TEST_COST_ops.cases 95)
set(TEST_COST_cli.finetune_answers 35)
set(TEST_COST_core.large 16)
set(TEST_COST_train.quantized 14)
set(TEST_COST_cli.cli 14)
set(TEST_COST_train.lm_runs 13)
set(TEST_COST_generate.engine_swap 12)
set(TEST_COST_cli.train_lm 11)
set(TEST_COST_train.ranks 10)
set(TEST_COST_train.step_graph 8)
set(TEST_COST_train.ema 8)
set(TEST_COST_ops.matmul 7)
set(TEST_COST_cli.train 6)
set(TEST_COST_train.train 5)

# The exit status of a cmocka program is its number of failures, so only the others may say "skipped" with one.
function(tarn_test name label)
    set_tests_properties(${name} PROPERTIES LABELS ${label} ENVIRONMENT "${TEST_ENVIRONMENT}")
    if(DEFINED TEST_COST_${name})
        set_tests_properties(${name} PROPERTIES COST ${TEST_COST_${name}})
    endif()
    if(label MATCHES "^(project|examples)$")
        set_tests_properties(${name} PROPERTIES SKIP_RETURN_CODE 77)
    endif()
    # On AArch64 looking for leaks takes 4 s at the end of each process, which tests/support/leaks.c spares its own. Not
    # for those that start dozens, which run what the tests of the library run, nor for those that are skipped for want
    # of a backend.
    if(TARN_SANITIZE AND CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64" AND (label STREQUAL "cli" OR (label MATCHES "^(cuda|opencl)$" AND NOT TARGET tarn_${label})))
        set_property(TEST ${name} APPEND PROPERTY ENVIRONMENT "ASAN_OPTIONS=detect_leaks=0:detect_stack_use_after_return=0:allocator_may_return_null=1")
    endif()
endfunction()

# Programs start through this, which puts $TARN_TEST_LAUNCHER (valgrind, gdb --args ...) in front.
set(LAUNCH sh ${PROJECT_SOURCE_DIR}/tests/launch.sh)

# cmocka programs.

find_package(PkgConfig QUIET)
if(PKG_CONFIG_FOUND)
    pkg_check_modules(PC_CMOCKA QUIET cmocka)
endif()
find_library(CMOCKA_LIBRARY cmocka HINTS ${PC_CMOCKA_LIBRARY_DIRS})
find_path(CMOCKA_INCLUDE_DIR cmocka.h HINTS ${PC_CMOCKA_INCLUDE_DIRS})
mark_as_advanced(CMOCKA_LIBRARY CMOCKA_INCLUDE_DIR)

if(CMOCKA_LIBRARY AND CMOCKA_INCLUDE_DIR)
    file(GLOB TEST_SOURCES CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/*/test_*.c)
    file(GLOB TEST_SUPPORT CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/support/*.c)
    file(GLOB MIRROR_SOURCES CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/mirror/*.c)
else()
    message(STATUS "cmocka was not found; the C tests are left out (libcmocka-dev brings it)")
    set(TEST_SOURCES)
    set(TEST_SUPPORT)
    set(MIRROR_SOURCES)
endif()

if(MIRROR_SOURCES)
    add_library(tarn_mirror MODULE ${MIRROR_SOURCES})
    target_link_libraries(tarn_mirror PRIVATE tarn_flags tarn_link_flags Threads::Threads m)
    if(BASE_SOURCES)
        # base/ has no state, so a backend may carry its own copy of what it uses.
        add_library(tarn_base_archive STATIC EXCLUDE_FROM_ALL $<TARGET_OBJECTS:tarn_base>)
        set_target_properties(tarn_base_archive PROPERTIES LINKER_LANGUAGE C)
        target_link_libraries(tarn_mirror PRIVATE tarn_base_archive)
        target_link_options(tarn_mirror PRIVATE -Wl,--exclude-libs,ALL)
    endif()
    set_target_properties(tarn_mirror PROPERTIES
        OUTPUT_NAME tarn-mirror LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
endif()

if(TEST_SUPPORT)
    add_library(tarn_test_support OBJECT ${TEST_SUPPORT})
    target_link_libraries(tarn_test_support PRIVATE tarn_flags)
    target_include_directories(tarn_test_support PRIVATE ${PROJECT_SOURCE_DIR}/tests)
    target_include_directories(tarn_test_support SYSTEM PRIVATE ${CMOCKA_INCLUDE_DIR})
endif()

if(TEST_SUPPORT)
    file(GLOB FUZZ_TARGETS CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/fuzz/targets*.c)
    add_library(tarn_fuzz_targets OBJECT ${FUZZ_TARGETS})
    target_link_libraries(tarn_fuzz_targets PRIVATE tarn_flags tarn_jansson)
    target_include_directories(tarn_fuzz_targets PRIVATE ${PROJECT_SOURCE_DIR}/tests)
    target_include_directories(tarn_fuzz_targets SYSTEM PRIVATE ${CMOCKA_INCLUDE_DIR})
endif()
if(TEST_SUPPORT AND TARN_FUZZ)
    add_executable(tarn_fuzz ${PROJECT_SOURCE_DIR}/tests/fuzz/libfuzzer.c $<TARGET_OBJECTS:tarn_fuzz_targets> $<TARGET_OBJECTS:tarn_serve> $<TARGET_OBJECTS:tarn_test_support>)
    target_link_libraries(tarn_fuzz PRIVATE tarn_event ${TARN_JANSSON_LINK} tarn_static tarn_flags tarn_link_flags tarn_openblas ${CMOCKA_LIBRARY} Threads::Threads m)
    target_include_directories(tarn_fuzz PRIVATE ${PROJECT_SOURCE_DIR}/tests)
    target_link_options(tarn_fuzz PRIVATE -fsanitize=fuzzer)
endif()

# Not libtarn.so itself: backends and libtarn-mpi.so are looked for next to the library.
if(TARN_TESTED STREQUAL "tarn_tested")
    add_library(tarn_tested SHARED ${TARN_OBJECTS})
    target_include_directories(tarn_tested PUBLIC ${PROJECT_SOURCE_DIR}/include)
    target_link_libraries(tarn_tested PRIVATE tarn_link_flags ${TARN_LIBRARY_LINKS})
    set_target_properties(tarn_tested PROPERTIES
        LINKER_LANGUAGE C LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests/library)
endif()

foreach(source IN LISTS TEST_SOURCES)
    get_filename_component(path ${source} DIRECTORY)
    get_filename_component(folder ${path} NAME)
    get_filename_component(file ${source} NAME_WE)
    string(REGEX REPLACE "^test_" "" short ${file})
    set(target test_${folder}_${short})
    add_executable(${target} ${source})
    target_link_libraries(${target} PRIVATE
        ${TARN_TESTED} tarn_flags tarn_link_flags tarn_openblas ${CMOCKA_LIBRARY} Threads::Threads m)
    target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
    target_include_directories(${target} SYSTEM PRIVATE ${CMOCKA_INCLUDE_DIR})
    # Tests are compiled once and run once: -O1 takes two thirds of the time. gcc 12 for aarch64 breaks (internal error)
    # where it vectorises the largest of many numbers.
    target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>
        $<$<AND:$<C_COMPILER_ID:GNU>,$<VERSION_LESS:$<C_COMPILER_VERSION>,13>>:-fno-tree-vectorize>)
    target_compile_definitions(${target} PRIVATE ${TARN_LEVEL_DEFINITIONS})
    foreach(extra tarn_cases tarn_test_support)
        if(TARGET ${extra})
            target_sources(${target} PRIVATE $<TARGET_OBJECTS:${extra}>)
        endif()
    endforeach()
    if(folder STREQUAL "fuzz")
        target_sources(${target} PRIVATE $<TARGET_OBJECTS:tarn_fuzz_targets>)
    endif()
    if(folder MATCHES "^(serve|fuzz)$")
        target_sources(${target} PRIVATE $<TARGET_OBJECTS:tarn_serve>)
        target_link_libraries(${target} PRIVATE tarn_event tarn_jansson ${TARN_JANSSON_LINK})
    endif()
    if(folder STREQUAL "hub")
        target_sources(${target} PRIVATE $<TARGET_OBJECTS:tarn_hub>)
        target_link_libraries(${target} PRIVATE ${TARN_JANSSON_LINK} ${CMAKE_DL_LIBS})
    endif()
    list(APPEND TEST_TARGETS ${target})
    if(TARGET tarn_mirror)
        add_dependencies(${target} tarn_mirror)
    endif()
    set_target_properties(${target} PROPERTIES
        OUTPUT_NAME ${file} RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests/${folder})
    add_test(NAME ${folder}.${short} COMMAND ${LAUNCH} $<TARGET_FILE:${target}>)
    tarn_test(${folder}.${short} ${folder})
    if(folder STREQUAL "opencl") # the others find the mirror alone
        set_property(TEST ${folder}.${short} APPEND PROPERTY ENVIRONMENT
            "TARN_BACKEND_PATH=${PROJECT_BINARY_DIR}/tests:${PROJECT_BINARY_DIR}" "TARN_BACKENDS=cpu,mirror,opencl")
        if(file MATCHES "^test_(lost|drivers)$") # their functions stand before the loader's
            set_target_properties(${target} PROPERTIES ENABLE_EXPORTS ON)
            target_link_libraries(${target} PRIVATE ${CMAKE_DL_LIBS})
        endif()
    endif()
endforeach()

# What tests/parity/jinja.py talks to.
if(TEST_SOURCES)
    add_executable(jinja_lines ${PROJECT_SOURCE_DIR}/tests/parity/jinja_lines.c)
    target_link_libraries(jinja_lines PRIVATE ${TARN_TESTED} tarn_flags tarn_link_flags tarn_openblas Threads::Threads m)
    set_target_properties(jinja_lines PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests/parity)
    list(APPEND TEST_TARGETS jinja_lines)
endif()

# Examples.

set(EXAMPLE_ARGUMENTS_gpu_tour auto 128) # at its own size the plain loop alone takes minutes under a sanitizer
foreach(name IN LISTS TARN_EXAMPLE_NAMES)
    list(APPEND TEST_TARGETS example_${name})
    add_test(NAME examples.${name} COMMAND ${LAUNCH} $<TARGET_FILE:example_${name}> ${EXAMPLE_ARGUMENTS_${name}})
    tarn_test(examples.${name} examples)
endforeach()

add_custom_target(tarn_tests)
add_dependencies(tarn_tests ${TEST_TARGETS})

# The project itself. A sanitizer build is not what gets installed, so it leaves these out.

if(NOT TARN_SANITIZE)
    find_program(TARN_PYTHON3 python3)
    mark_as_advanced(TARN_PYTHON3)
    file(GLOB PROJECT_CHECKS CONFIGURE_DEPENDS
        ${PROJECT_SOURCE_DIR}/tests/project/*.sh ${PROJECT_SOURCE_DIR}/tests/project/*.py)
    foreach(script IN LISTS PROJECT_CHECKS)
        get_filename_component(name ${script} NAME_WE)
        if(TARN_SHARED_TESTS AND name STREQUAL "exports")
            continue() # all functions are exported then
        endif()
        if(script MATCHES "\\.sh$")
            add_test(NAME project.${name} COMMAND bash ${script})
        elseif(TARN_PYTHON3)
            add_test(NAME project.${name} COMMAND ${TARN_PYTHON3} ${script})
        else()
            continue()
        endif()
        tarn_test(project.${name} project)
    endforeach()
    if(TARN_PYTHON3 AND TARGET tarn_command)
        add_test(NAME hub.pull COMMAND ${TARN_PYTHON3} ${PROJECT_SOURCE_DIR}/tests/hub/pull.py)
        tarn_test(hub.pull hub)
        set_tests_properties(hub.pull PROPERTIES SKIP_RETURN_CODE 77)
        foreach(client openai_client ollama_client langchain_client openapi_client page_client load)
            add_test(NAME serve.${client} COMMAND ${TARN_PYTHON3} ${PROJECT_SOURCE_DIR}/tests/serve/${client}.py)
            tarn_test(serve.${client} serve)
            set_tests_properties(serve.${client} PROPERTIES SKIP_RETURN_CODE 77)
        endforeach()
    endif()
endif()
