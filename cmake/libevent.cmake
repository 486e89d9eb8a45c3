# libevent, by TARN_EVENT: the HTTP server of the command. Defines
#   tarn_event          include folders and libraries for the command (empty when it is absent)
#   TARN__HAVE_EVENT    1 or 0, for tarn_features.h

add_library(tarn_event INTERFACE)
set(TARN_EVENT_TEXT "no")
set(TARN__HAVE_EVENT 0)

if(NOT TARN_EVENT MATCHES "^(AUTO|ON|OFF)$")
    message(FATAL_ERROR "TARN_EVENT is AUTO, ON or OFF, not '${TARN_EVENT}'")
endif()

if(NOT TARN_EVENT STREQUAL "OFF")
    find_library(TARN_EVENT_LIBRARY event_core)
    find_path(TARN_EVENT_INCLUDE_DIR event2/bufferevent.h)
    mark_as_advanced(TARN_EVENT_LIBRARY TARN_EVENT_INCLUDE_DIR)

    if(TARN_EVENT_LIBRARY AND TARN_EVENT_INCLUDE_DIR)
        set(TARN__HAVE_EVENT 1)
        set(TARN_EVENT_TEXT "yes")
        target_include_directories(tarn_event SYSTEM INTERFACE ${TARN_EVENT_INCLUDE_DIR})
        target_link_libraries(tarn_event INTERFACE ${TARN_EVENT_LIBRARY})
    elseif(TARN_EVENT STREQUAL "ON")
        message(FATAL_ERROR "TARN_EVENT=ON, but libevent was not found: install libevent-dev (Debian, Ubuntu) or libevent-devel (Fedora)")
    else()
        message(STATUS "libevent was not found; tarn board and tarn serve cannot be used (libevent-dev brings it)")
    endif()
endif()
