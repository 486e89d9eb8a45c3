# jansson, by TARN_JSON: the JSON in safetensors files, runs and tokenizers. Defines
#   tarn_jansson          include folders for its callers (empty when it is absent)
#   TARN_JANSSON_LINK     what the libraries link, in the build tree and from the installed package
#   TARN__HAVE_JANSSON    1 or 0, for tarn_features.h

add_library(tarn_jansson INTERFACE)
set(TARN_JANSSON_LINK)
set(TARN_JANSSON_PC)
set(TARN_JANSSON_TEXT "no")
set(TARN__HAVE_JANSSON 0)

if(NOT TARN_JSON MATCHES "^(AUTO|ON|OFF)$")
    message(FATAL_ERROR "TARN_JSON is AUTO, ON or OFF, not '${TARN_JSON}'")
endif()

if(NOT TARN_JSON STREQUAL "OFF")
    find_package(PkgConfig QUIET)
    if(PKG_CONFIG_FOUND)
        pkg_check_modules(PC_JANSSON QUIET jansson)
    endif()
    find_library(JANSSON_LIBRARY jansson HINTS ${PC_JANSSON_LIBRARY_DIRS})
    find_path(JANSSON_INCLUDE_DIR jansson.h HINTS ${PC_JANSSON_INCLUDE_DIRS})
    mark_as_advanced(JANSSON_LIBRARY JANSSON_INCLUDE_DIR)

    if(JANSSON_LIBRARY AND JANSSON_INCLUDE_DIR)
        set(TARN__HAVE_JANSSON 1)
        set(TARN_JANSSON_TEXT "yes")
        set(TARN_JANSSON_LINK $<BUILD_INTERFACE:${JANSSON_LIBRARY}> $<INSTALL_INTERFACE:jansson>)
        set(TARN_JANSSON_PC "-ljansson")
        get_filename_component(folder ${JANSSON_LIBRARY} DIRECTORY)
        if(NOT folder IN_LIST CMAKE_C_IMPLICIT_LINK_DIRECTORIES)
            set(TARN_JANSSON_PC "-L${folder} -ljansson")
        endif()
        target_include_directories(tarn_jansson SYSTEM INTERFACE ${JANSSON_INCLUDE_DIR})
    elseif(TARN_JSON STREQUAL "ON")
        message(FATAL_ERROR "TARN_JSON=ON, but jansson was not found: install libjansson-dev (Debian, Ubuntu) "
            "or jansson-devel (Fedora)")
    else()
        message(STATUS "jansson was not found; safetensors files and tokenizers cannot be read (libjansson-dev brings it)")
    endif()
endif()
