# MPI, by TARN_MPI. Defines
#   TARN__HAVE_MPI     1 or 0; with it the target MPI::MPI_C
#   TARN_MPI_TEXT      for the summary

set(TARN__HAVE_MPI 0)
set(TARN_MPI_TEXT "no")

if(NOT TARN_MPI MATCHES "^(AUTO|ON|OFF)$")
    message(FATAL_ERROR "TARN_MPI is AUTO, ON or OFF, not '${TARN_MPI}'")
endif()

# Not for another architecture: the compiler wrappers of MPI name the libraries of this one.
if(NOT TARN_MPI STREQUAL "OFF" AND NOT CMAKE_CROSSCOMPILING)
    set(MPI_CXX_SKIP_MPICXX ON)
    find_package(MPI QUIET COMPONENTS C)
    if(MPI_C_FOUND)
        set(TARN__HAVE_MPI 1)
        set(TARN_MPI_TEXT "yes")
    elseif(TARN_MPI STREQUAL "ON")
        message(FATAL_ERROR "TARN_MPI=ON, but MPI was not found: install libopenmpi-dev (Debian, Ubuntu) or openmpi-devel (Fedora)")
    else()
        message(STATUS "MPI was not found; runs on several machines are left out (libopenmpi-dev brings it)")
    endif()
endif()
