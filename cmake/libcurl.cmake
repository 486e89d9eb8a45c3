# libcurl, by TARN_CURL: `tarn pull`, which opens it at run time. Defines
#   tarn_curl           include folders for the command (empty when it is absent)
#   TARN_CURL_FILE      the name to open it by, such as libcurl.so.4
#   TARN__HAVE_CURL     1 or 0, for tarn_features.h

add_library(tarn_curl INTERFACE)
set(TARN_CURL_TEXT "no")
set(TARN__HAVE_CURL 0)
set(TARN_CURL_FILE "")

if(NOT TARN_CURL MATCHES "^(AUTO|ON|OFF)$")
    message(FATAL_ERROR "TARN_CURL is AUTO, ON or OFF, not '${TARN_CURL}'")
endif()

if(NOT TARN_CURL STREQUAL "OFF")
    find_library(TARN_CURL_LIBRARY curl)
    find_path(TARN_CURL_INCLUDE_DIR curl/curl.h)
    mark_as_advanced(TARN_CURL_LIBRARY TARN_CURL_INCLUDE_DIR)

    if(TARN_CURL_LIBRARY MATCHES "\\.so")
        tarn_soname(${TARN_CURL_LIBRARY} TARN_CURL_FILE)
        get_filename_component(folder ${TARN_CURL_LIBRARY} DIRECTORY)
        if(NOT folder IN_LIST CMAKE_C_IMPLICIT_LINK_DIRECTORIES)
            set(TARN_CURL_FILE ${folder}/${TARN_CURL_FILE})
        endif()
    endif()
    if(TARN_CURL_FILE AND TARN_CURL_INCLUDE_DIR)
        set(TARN__HAVE_CURL 1)
        set(TARN_CURL_TEXT "yes")
        target_include_directories(tarn_curl SYSTEM INTERFACE ${TARN_CURL_INCLUDE_DIR})
    elseif(TARN_CURL STREQUAL "ON")
        message(FATAL_ERROR "TARN_CURL=ON, but libcurl was not found: install libcurl4-openssl-dev (Debian, Ubuntu) or "
            "libcurl-devel (Fedora)")
    else()
        message(STATUS "libcurl was not found; tarn pull cannot be used (libcurl4-openssl-dev brings it)")
    endif()
endif()
