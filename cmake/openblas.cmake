# OpenBLAS, by TARN_BLAS. A shared library is loaded at the first matrix product (src/backends/cpu/matmul/blas_library.c says why), an archive is
# linked. Defines
#   tarn_openblas         include folders for its callers (empty when it is absent)
#   TARN_OPENBLAS_FILE    the shared library's name at run time: its soname, after its folder where the loader would not look
#   TARN_OPENBLAS_LINK    what the libraries link where it is an archive, in the build tree and from the installed package
#   TARN__OPENBLAS_IS_LINKED   1 or 0, for tarn_features.h
#   TARN__HAVE_OPENBLAS   1 or 0, for tarn_features.h

add_library(tarn_openblas INTERFACE)
set(TARN_OPENBLAS_LINK)
set(TARN_OPENBLAS_PC)
set(TARN_OPENBLAS_TEXT "no")
set(TARN__HAVE_OPENBLAS 0)
set(TARN__OPENBLAS_IS_LINKED 0)
set(TARN_OPENBLAS_FILE)

# The name that the loader knows a shared library by; its own file's name when there is no tool to read it.
function(tarn_soname library result)
    get_filename_component(name ${library} NAME)
    if(CMAKE_OBJDUMP)
        execute_process(COMMAND ${CMAKE_OBJDUMP} -p ${library} OUTPUT_VARIABLE text ERROR_QUIET)
        if(text MATCHES "SONAME +([^ \n]+)")
            set(name ${CMAKE_MATCH_1})
        endif()
    endif()
    set(${result} ${name} PARENT_SCOPE)
endfunction()

if(NOT TARN_BLAS MATCHES "^(AUTO|ON|OFF)$")
    message(FATAL_ERROR "TARN_BLAS is AUTO, ON or OFF, not '${TARN_BLAS}'")
endif()

if(NOT TARN_BLAS STREQUAL "OFF")
    # The usual places first, so that no run path is needed; then where pkg-config points.
    find_package(PkgConfig QUIET)
    if(PKG_CONFIG_FOUND)
        pkg_check_modules(PC_OPENBLAS QUIET openblas)
    endif()
    find_library(OPENBLAS_LIBRARY openblas)
    find_library(OPENBLAS_LIBRARY openblas PATHS ${PC_OPENBLAS_LIBRARY_DIRS} NO_DEFAULT_PATH)
    find_path(OPENBLAS_INCLUDE_DIR cblas.h
        HINTS ${PC_OPENBLAS_INCLUDE_DIRS} PATH_SUFFIXES openblas openblas-pthread openblas-openmp)
    mark_as_advanced(OPENBLAS_LIBRARY OPENBLAS_INCLUDE_DIR)

    if(OPENBLAS_LIBRARY AND OPENBLAS_INCLUDE_DIR)
        set(TARN__HAVE_OPENBLAS 1)
        set(TARN_OPENBLAS_TEXT "yes")
        get_filename_component(folder ${OPENBLAS_LIBRARY} DIRECTORY)
        if(OPENBLAS_LIBRARY MATCHES "\\.a$")
            set(TARN__OPENBLAS_IS_LINKED 1)
            set(TARN_OPENBLAS_LINK $<BUILD_INTERFACE:${OPENBLAS_LIBRARY}> $<INSTALL_INTERFACE:openblas>)
            set(TARN_OPENBLAS_PC "-lopenblas")
            if(NOT folder IN_LIST CMAKE_C_IMPLICIT_LINK_DIRECTORIES)
                set(TARN_OPENBLAS_PC "-L${folder} -lopenblas")
            endif()
        else()
            tarn_soname(${OPENBLAS_LIBRARY} TARN_OPENBLAS_FILE)
            if(NOT folder IN_LIST CMAKE_C_IMPLICIT_LINK_DIRECTORIES)
                set(TARN_OPENBLAS_FILE ${folder}/${TARN_OPENBLAS_FILE})
            endif()
        endif()
        target_include_directories(tarn_openblas SYSTEM INTERFACE ${OPENBLAS_INCLUDE_DIR})
    elseif(TARN_BLAS STREQUAL "ON")
        message(FATAL_ERROR "TARN_BLAS=ON, but OpenBLAS was not found: install libopenblas-dev (Debian, Ubuntu) "
            "or openblas-devel (Fedora)")
    else()
        message(STATUS "OpenBLAS was not found; matrix products use tarn's own kernel, which is slower "
            "(libopenblas-dev brings it)")
    endif()
endif()
