# zlib, by TARN_ZLIB. Defines
#   tarn_zlib          include folders for its callers (empty when it is absent)
#   TARN_ZLIB_LINK     what the libraries link, in the build tree and from the installed package
#   TARN__HAVE_ZLIB    1 or 0, for tarn_features.h

add_library(tarn_zlib INTERFACE)
set(TARN_ZLIB_LINK)
set(TARN_ZLIB_PC)
set(TARN_ZLIB_TEXT "no")
set(TARN__HAVE_ZLIB 0)

if(NOT TARN_ZLIB MATCHES "^(AUTO|ON|OFF)$")
    message(FATAL_ERROR "TARN_ZLIB is AUTO, ON or OFF, not '${TARN_ZLIB}'")
endif()

if(NOT TARN_ZLIB STREQUAL "OFF")
    find_library(TARN_ZLIB_LIBRARY z)
    find_path(TARN_ZLIB_INCLUDE_DIR zlib.h)
    mark_as_advanced(TARN_ZLIB_LIBRARY TARN_ZLIB_INCLUDE_DIR)

    if(TARN_ZLIB_LIBRARY AND TARN_ZLIB_INCLUDE_DIR)
        set(TARN__HAVE_ZLIB 1)
        set(TARN_ZLIB_TEXT "yes")
        set(TARN_ZLIB_LINK $<BUILD_INTERFACE:${TARN_ZLIB_LIBRARY}> $<INSTALL_INTERFACE:z>)
        set(TARN_ZLIB_PC "-lz")
        get_filename_component(folder ${TARN_ZLIB_LIBRARY} DIRECTORY)
        if(NOT folder IN_LIST CMAKE_C_IMPLICIT_LINK_DIRECTORIES)
            set(TARN_ZLIB_PC "-L${folder} -lz")
        endif()
        target_include_directories(tarn_zlib SYSTEM INTERFACE ${TARN_ZLIB_INCLUDE_DIR})
    elseif(TARN_ZLIB STREQUAL "ON")
        message(FATAL_ERROR "TARN_ZLIB=ON, but zlib was not found: install zlib1g-dev (Debian, Ubuntu) or zlib-devel (Fedora)")
    else()
        message(STATUS "zlib was not found; gzip data files cannot be read (zlib1g-dev brings it)")
    endif()
endif()
