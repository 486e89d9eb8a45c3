# libedit, by TARN_EDIT: line editing in `tarn chat`, which opens it at run time. Defines
#   tarn_edit           include folders for the command (empty when it is absent)
#   TARN_EDIT_FILE      the name to open it by, such as libedit.so.2
#   TARN__HAVE_EDIT     1 or 0, for tarn_features.h

add_library(tarn_edit INTERFACE)
set(TARN_EDIT_TEXT "no")
set(TARN__HAVE_EDIT 0)
set(TARN_EDIT_FILE "")

if(NOT TARN_EDIT MATCHES "^(AUTO|ON|OFF)$")
    message(FATAL_ERROR "TARN_EDIT is AUTO, ON or OFF, not '${TARN_EDIT}'")
endif()

if(NOT TARN_EDIT STREQUAL "OFF")
    find_library(TARN_EDIT_LIBRARY edit)
    find_path(TARN_EDIT_INCLUDE_DIR histedit.h)
    mark_as_advanced(TARN_EDIT_LIBRARY TARN_EDIT_INCLUDE_DIR)

    if(TARN_EDIT_LIBRARY MATCHES "\\.so")
        tarn_soname(${TARN_EDIT_LIBRARY} TARN_EDIT_FILE)
        get_filename_component(folder ${TARN_EDIT_LIBRARY} DIRECTORY)
        if(NOT folder IN_LIST CMAKE_C_IMPLICIT_LINK_DIRECTORIES)
            set(TARN_EDIT_FILE ${folder}/${TARN_EDIT_FILE})
        endif()
    endif()
    if(TARN_EDIT_FILE AND TARN_EDIT_INCLUDE_DIR)
        set(TARN__HAVE_EDIT 1)
        set(TARN_EDIT_TEXT "yes")
        target_include_directories(tarn_edit SYSTEM INTERFACE ${TARN_EDIT_INCLUDE_DIR})
    elseif(TARN_EDIT STREQUAL "ON")
        message(FATAL_ERROR "TARN_EDIT=ON, but libedit was not found: install libedit-dev (Debian, Ubuntu) or "
            "libedit-devel (Fedora)")
    else()
        message(STATUS "libedit was not found; tarn chat has no line editing (libedit-dev brings it)")
    endif()
endif()
