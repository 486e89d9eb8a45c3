# How tarn's own C is compiled: tarn_flags for everything, then tarn_kernel_flags on top for the CPU kernels.

set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS OFF)
set(CMAKE_C_VISIBILITY_PRESET hidden)
# Tests see what users do not: they link the static library (TARN_TESTED). Under a sanitizer each of hundreds would be
# 50 MB large and take a second to link; there, and with TARN_SHARED_TESTS, all functions are exported, and the tests
# link tarn_tested, a shared library of their own (cmake/tests.cmake).
set(TARN_TESTED tarn_static)
if(TARN_SHARED_TESTS OR (TARN_SANITIZE AND NOT TARN_FUZZ))
    set(CMAKE_C_VISIBILITY_PRESET default)
    set(TARN_TESTED tarn_tested)
endif()
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_BUILD_RPATH_USE_ORIGIN ON)

add_library(tarn_flags INTERFACE)
target_include_directories(tarn_flags INTERFACE
    ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src ${PROJECT_BINARY_DIR}/generated)
target_compile_definitions(tarn_flags INTERFACE _POSIX_C_SOURCE=200809L _DEFAULT_SOURCE)
# No contraction outside the kernels: gcc and clang then round alike. Texts are cut at their buffer's end on purpose.
target_compile_options(tarn_flags INTERFACE
    -Wall -Wextra -Wpedantic -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wold-style-definition -Wvla -Wundef
    -Wpointer-arith -Wwrite-strings -ffp-contract=off
    $<$<C_COMPILER_ID:GNU>:-Wno-format-truncation> $<$<BOOL:${TARN_WERROR}>:-Werror>)

add_library(tarn_link_flags INTERFACE)
target_link_options(tarn_link_flags INTERFACE -Wl,--as-needed)

# Kernels: let the compiler vectorise (nothing here reads errno or the floating-point flags) and use fused multiply-add
# where the level has it. Expressions shared by all dtypes compare unsigned values with zero, hence -Wno-type-limits.
# Linked after tarn_flags: of two -ffp-contract the last one counts.
add_library(tarn_kernel_flags INTERFACE)
target_compile_options(tarn_kernel_flags INTERFACE -fno-math-errno -fno-trapping-math -fwrapv -ffp-contract=fast -Wno-type-limits)

if(TARN_TESTED STREQUAL "tarn_tested")
    # Calls stay within a library, and a variable has one address in library and test.
    target_compile_options(tarn_flags INTERFACE -fno-semantic-interposition -fPIC)
    add_link_options(-Wl,-Bsymbolic-functions)
endif()
if(TARN_FUZZ)
    target_compile_options(tarn_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()
if(TARN_SANITIZE)
    target_compile_options(tarn_flags INTERFACE -fsanitize=${TARN_SANITIZE} -fno-omit-frame-pointer)
    if(TARN_SANITIZE MATCHES "undefined")
        target_compile_options(tarn_flags INTERFACE -fno-sanitize-recover=undefined)
    endif()
    add_link_options(-fsanitize=${TARN_SANITIZE})
    # GCC fuses with -fexpensive-optimizations only, which -O1 lacks: expressions would round otherwise than the
    # intrinsics beside them, and rows of a batch not all alike.
    target_compile_options(tarn_kernel_flags INTERFACE $<$<C_COMPILER_ID:GNU>:-fexpensive-optimizations>)
else()
    # A symbol that nobody defines is found at link time, not at run time. (Sanitizer runtimes leave theirs open.)
    target_link_options(tarn_link_flags INTERFACE -Wl,-z,defs)
endif()
