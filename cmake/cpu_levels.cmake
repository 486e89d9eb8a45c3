# Instruction levels the CPU kernels are compiled for; the best one the machine has is selected at run time.
#   TARN_LEVELS                  names, in ascending order
#   TARN_LEVEL_OPTIONS_<level>   compiler flags
#   TARN_LEVEL_HEADERS_<level>   precompiled header of every kernel file of the level
#   TARN_LEVEL_F64_<level>       the level that provides f64 and i64: its own, or a lower one with the same arithmetic
#   TARN_LEVEL_DEFINITIONS       macros for code that refers to levels: TARN__LEVELS_X86, TARN__HAVE_AVX2, ...
#   TARN_ARM_LEVELS              of AArch64: only TARN_LEVEL_FILE_<level>, one matmul kernel, is compiled for each
#   TARN_AMX_FILES               of x86-64, for the level amx: matmul kernels that replace single rows of avx512's table,
#                                compiled with TARN_LEVEL_OPTIONS_amx; none where the compiler lacks AMX

include(CheckCSourceCompiles)

set(optimized $<$<CONFIG:Release,RelWithDebInfo>:-O3>) # loops become vectors
set(TARN_LEVELS base)
set(TARN_LEVEL_OPTIONS_base ${optimized})
set(TARN_LEVEL_F64_base base)
set(TARN_LEVEL_DEFINITIONS)
set(TARN_ARM_LEVELS)
set(TARN_AMX_FILES)

function(tarn_level name)
    string(TOUPPER ${name} upper)
    list(JOIN ARGN " " CMAKE_REQUIRED_FLAGS)
    check_c_source_compiles("int main(void) { return 0; }" TARN_COMPILER_HAS_${upper})
    if(TARN_COMPILER_HAS_${upper})
        set(TARN_LEVELS ${TARN_LEVELS} ${name} PARENT_SCOPE)
        set(TARN_LEVEL_OPTIONS_${name} ${optimized} ${ARGN} PARENT_SCOPE)
        set(TARN_LEVEL_HEADERS_${name} <immintrin.h> PARENT_SCOPE) # saves a quarter of a second per file
        set(TARN_LEVEL_F64_${name} ${name} PARENT_SCOPE)
        set(TARN_LEVEL_DEFINITIONS ${TARN_LEVEL_DEFINITIONS} TARN__HAVE_${upper}=1 PARENT_SCOPE)
    endif()
endfunction()

function(tarn_arm_level name file)
    string(TOUPPER ${name} upper)
    list(JOIN ARGN " " CMAKE_REQUIRED_FLAGS)
    check_c_source_compiles("#include <arm_neon.h>\nint main(void) { return 0; }" TARN_COMPILER_HAS_${upper})
    if(TARN_COMPILER_HAS_${upper})
        set(TARN_ARM_LEVELS ${TARN_ARM_LEVELS} ${name} PARENT_SCOPE)
        set(TARN_LEVEL_FILE_${name} ${file} PARENT_SCOPE)
        set(TARN_LEVEL_OPTIONS_${name} ${optimized} ${ARGN} PARENT_SCOPE)
        set(TARN_LEVEL_DEFINITIONS ${TARN_LEVEL_DEFINITIONS} TARN__HAVE_${upper}=1 PARENT_SCOPE)
    endif()
endfunction()

if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|amd64|AMD64)$" AND CMAKE_SIZEOF_VOID_P EQUAL 8)
    list(APPEND TARN_LEVEL_DEFINITIONS TARN__LEVELS_X86=1)
    # For processors from before 2013: as fast as -O2 on average, and a quarter less compile time.
    set(TARN_LEVEL_OPTIONS_base $<$<CONFIG:Release,RelWithDebInfo>:-O1>)
    tarn_level(avx2 -march=x86-64-v3)
    tarn_level(avx512 -march=x86-64-v4 -mprefer-vector-width=512)
    if("avx2" IN_LIST TARN_LEVELS AND "avx512" IN_LIST TARN_LEVELS)
        set(TARN_LEVEL_F64_avx512 avx2)
    endif()
    # Its kernels stand on avx512's: converters, and the row for the calls they do not take.
    if("avx512" IN_LIST TARN_LEVELS AND CMAKE_SYSTEM_NAME STREQUAL "Linux")
        set(amx_options -mavx512vnni -mamx-tile -mamx-int8 -mamx-bf16)
        list(JOIN amx_options " " CMAKE_REQUIRED_FLAGS)
        check_c_source_compiles("#include <immintrin.h>
            int main(void) { _tile_dpbf16ps(0, 1, 2); _tile_dpbssd(0, 1, 2); return 0; }" TARN_COMPILER_HAS_AMX)
        unset(CMAKE_REQUIRED_FLAGS)
        if(TARN_COMPILER_HAS_AMX)
            set(TARN_AMX_FILES matmul/matmul_bf16_amx.c matmul/fused.c quant/quant_matmul.c)
            set(TARN_LEVEL_OPTIONS_amx ${TARN_LEVEL_OPTIONS_avx512} ${amx_options})
            list(APPEND TARN_LEVEL_DEFINITIONS TARN__HAVE_AMX=1)
        endif()
    endif()
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
    list(APPEND TARN_LEVEL_DEFINITIONS TARN__LEVELS_ARM=1)
    if(CMAKE_SYSTEM_NAME STREQUAL "Linux") # getauxval() lists the processor's features
        tarn_arm_level(dotprod quant/quant_matmul_arm.c -march=armv8.2-a+dotprod)
        tarn_arm_level(i8mm quant/quant_matmul_arm.c -march=armv8.2-a+dotprod+i8mm)
        tarn_arm_level(bf16 matmul/matmul_bf16_arm.c -march=armv8.2-a+bf16)
    endif()
endif()
