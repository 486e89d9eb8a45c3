# Writes a C file with the bytes of other files, one after the other: what `tarn demo` learns from.
#
#   cmake -DOUTPUT=demo_text.c "-DINPUTS=a.c;b.c" -P demo_text.cmake

file(WRITE ${OUTPUT}.next "/* Made by the build from tarn's own sources. */\n#include \"cli/demo_text.h\"\n\nconst unsigned char tarn__demo_text[] = {\n")
set(length 0)
foreach(input IN LISTS INPUTS)
    file(READ ${input} bytes HEX)
    string(LENGTH "${bytes}" digits)
    math(EXPR length "${length} + ${digits} / 2")
    string(REGEX REPLACE "(..)" "0x\\1," bytes "${bytes}")
    file(APPEND ${OUTPUT}.next "${bytes}\n")
endforeach()
file(APPEND ${OUTPUT}.next "};\nconst size_t tarn__demo_length = ${length};\n")
file(RENAME ${OUTPUT}.next ${OUTPUT})
