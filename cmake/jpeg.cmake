# libjpeg-turbo, by TARN_JPEG: JPEG images. Defines
#   tarn_jpeg          include folders for its callers (empty when it is absent)
#   TARN_JPEG_LINK     what the libraries link, in the build tree and from the installed package
#   TARN__HAVE_JPEG    1 or 0, for tarn_features.h

add_library(tarn_jpeg INTERFACE)
set(TARN_JPEG_LINK)
set(TARN_JPEG_PC)
set(TARN_JPEG_TEXT "no")
set(TARN__HAVE_JPEG 0)

if(NOT TARN_JPEG MATCHES "^(AUTO|ON|OFF)$")
    message(FATAL_ERROR "TARN_JPEG is AUTO, ON or OFF, not '${TARN_JPEG}'")
endif()

if(NOT TARN_JPEG STREQUAL "OFF")
    find_library(TARN_JPEG_LIBRARY jpeg)
    find_path(TARN_JPEG_INCLUDE_DIR jpeglib.h)
    # jpeglib.h includes jconfig.h, which has the library's version and may lie in the folder of an architecture
    find_path(TARN_JPEG_CONFIG_DIR jconfig.h HINTS ${TARN_JPEG_INCLUDE_DIR}
        PATH_SUFFIXES ${CMAKE_LIBRARY_ARCHITECTURE} "")
    mark_as_advanced(TARN_JPEG_LIBRARY TARN_JPEG_INCLUDE_DIR TARN_JPEG_CONFIG_DIR)

    if(TARN_JPEG_LIBRARY AND TARN_JPEG_INCLUDE_DIR AND TARN_JPEG_CONFIG_DIR)
        set(TARN__HAVE_JPEG 1)
        set(TARN_JPEG_TEXT "yes")
        set(TARN_JPEG_LINK $<BUILD_INTERFACE:${TARN_JPEG_LIBRARY}> $<INSTALL_INTERFACE:jpeg>)
        set(TARN_JPEG_PC "-ljpeg")
        get_filename_component(folder ${TARN_JPEG_LIBRARY} DIRECTORY)
        if(NOT folder IN_LIST CMAKE_C_IMPLICIT_LINK_DIRECTORIES)
            set(TARN_JPEG_PC "-L${folder} -ljpeg")
        endif()
        target_include_directories(tarn_jpeg SYSTEM INTERFACE ${TARN_JPEG_CONFIG_DIR} ${TARN_JPEG_INCLUDE_DIR})
    elseif(TARN_JPEG STREQUAL "ON")
        message(FATAL_ERROR "TARN_JPEG=ON, but libjpeg-turbo was not found: install libjpeg62-turbo-dev (Debian), "
            "libjpeg-turbo8-dev (Ubuntu) or libjpeg-turbo-devel (Fedora)")
    else()
        message(STATUS "libjpeg-turbo was not found; JPEG images cannot be read (libjpeg62-turbo-dev brings it)")
    endif()
endif()
