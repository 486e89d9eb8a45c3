# PCRE2, by TARN_PCRE2: the patterns of tokenizers. Defines
#   tarn_pcre2          include folders for its callers (empty when it is absent)
#   TARN_PCRE2_LINK     what the libraries link, in the build tree and from the installed package
#   TARN__HAVE_PCRE2    1 or 0, for tarn_features.h

add_library(tarn_pcre2 INTERFACE)
set(TARN_PCRE2_LINK)
set(TARN_PCRE2_PC)
set(TARN_PCRE2_TEXT "no")
set(TARN__HAVE_PCRE2 0)

if(NOT TARN_PCRE2 MATCHES "^(AUTO|ON|OFF)$")
    message(FATAL_ERROR "TARN_PCRE2 is AUTO, ON or OFF, not '${TARN_PCRE2}'")
endif()

if(NOT TARN_PCRE2 STREQUAL "OFF")
    find_library(TARN_PCRE2_LIBRARY pcre2-8)
    find_path(TARN_PCRE2_INCLUDE_DIR pcre2.h)
    mark_as_advanced(TARN_PCRE2_LIBRARY TARN_PCRE2_INCLUDE_DIR)

    if(TARN_PCRE2_LIBRARY AND TARN_PCRE2_INCLUDE_DIR)
        set(TARN__HAVE_PCRE2 1)
        set(TARN_PCRE2_TEXT "yes")
        set(TARN_PCRE2_LINK $<BUILD_INTERFACE:${TARN_PCRE2_LIBRARY}> $<INSTALL_INTERFACE:pcre2-8>)
        set(TARN_PCRE2_PC "-lpcre2-8")
        get_filename_component(folder ${TARN_PCRE2_LIBRARY} DIRECTORY)
        if(NOT folder IN_LIST CMAKE_C_IMPLICIT_LINK_DIRECTORIES)
            set(TARN_PCRE2_PC "-L${folder} -lpcre2-8")
        endif()
        target_include_directories(tarn_pcre2 SYSTEM INTERFACE ${TARN_PCRE2_INCLUDE_DIR})
    elseif(TARN_PCRE2 STREQUAL "ON")
        message(FATAL_ERROR "TARN_PCRE2=ON, but PCRE2 was not found: install libpcre2-dev (Debian, Ubuntu) or "
            "pcre2-devel (Fedora)")
    else()
        message(STATUS "PCRE2 was not found; BPE tokenizers cannot be used (libpcre2-dev brings it)")
    endif()
endif()
