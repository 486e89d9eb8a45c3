# OpenCL's headers and loader, by TARN_OPENCL. Defines
#   TARN__HAVE_OPENCL        1 or 0
#   TARN_OPENCL_LIBRARY, TARN_OPENCL_INCLUDE_DIR
#   TARN_OPENCL_TEXT         for the summary

set(TARN__HAVE_OPENCL 0)
set(TARN_OPENCL_TEXT "OpenCL off")

if(NOT TARN_OPENCL MATCHES "^(AUTO|ON|OFF)$")
    message(FATAL_ERROR "TARN_OPENCL is AUTO, ON or OFF, not '${TARN_OPENCL}'")
endif()

if(NOT TARN_OPENCL STREQUAL "OFF")
    find_library(TARN_OPENCL_LIBRARY OpenCL)
    find_path(TARN_OPENCL_INCLUDE_DIR CL/cl.h)
    mark_as_advanced(TARN_OPENCL_LIBRARY TARN_OPENCL_INCLUDE_DIR)

    if(TARN_OPENCL_LIBRARY AND TARN_OPENCL_INCLUDE_DIR)
        set(TARN__HAVE_OPENCL 1)
        set(TARN_OPENCL_TEXT "OpenCL yes")
    elseif(TARN_OPENCL STREQUAL "ON")
        message(FATAL_ERROR "TARN_OPENCL=ON, but OpenCL's headers and loader were not found: install ocl-icd-opencl-dev and opencl-headers (Debian, Ubuntu) or ocl-icd-devel and opencl-headers (Fedora)")
    else()
        set(TARN_OPENCL_TEXT "no OpenCL: its headers and loader were not found")
        message(STATUS "OpenCL's headers and loader were not found; the OpenCL backend is left out (ocl-icd-opencl-dev and opencl-headers bring them)")
    endif()
endif()
