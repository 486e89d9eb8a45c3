# Writes a C file with the bytes of other files and a table of them by name: the kernels that the OpenCL backend hands to drivers.
#
#   cmake -DOUTPUT=opencl_sources.c "-DINPUTS=a.cl;b.cl" -P opencl_sources.cmake

file(WRITE ${OUTPUT}.next "/* Made by the build from the kernels' sources. */\n#include \"backends/opencl/runtime/opencl.h\"\n\n")
set(rows)
set(number 0)
foreach(input IN LISTS INPUTS)
    file(READ ${input} bytes HEX)
    string(REGEX REPLACE "(..)" "0x\\1," bytes "${bytes}")
    get_filename_component(name ${input} NAME)
    file(APPEND ${OUTPUT}.next "static const unsigned char file_${number}[] = {${bytes}};\n")
    string(APPEND rows "    {\"${name}\", file_${number}, sizeof(file_${number})},\n")
    math(EXPR number "${number} + 1")
endforeach()
file(APPEND ${OUTPUT}.next "\nconst tarn__cl_file tarn__cl_files[] = {\n${rows}};\nconst int tarn__cl_file_count = ${number};\n")
file(RENAME ${OUTPUT}.next ${OUTPUT})
