# Toolchain file: builds for Linux on another processor, with Debian's cross compiler and the packages that
# scripts/sysroot has unpacked.
#   TARN_CROSS_PROCESSOR   aarch64 or x86_64
#   TARN_CROSS_SYSROOT     the folder of scripts/sysroot, an absolute path

set(CMAKE_TRY_COMPILE_PLATFORM_VARIABLES TARN_CROSS_PROCESSOR TARN_CROSS_SYSROOT)

set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR ${TARN_CROSS_PROCESSOR})
set(CMAKE_C_COMPILER ${TARN_CROSS_PROCESSOR}-linux-gnu-gcc)
set(CMAKE_SYSROOT ${TARN_CROSS_SYSROOT})

# Libraries and headers of the sysroot alone; this system's programs. What pkg-config knows is this system's.
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(CMAKE_DISABLE_FIND_PACKAGE_PkgConfig ON)
