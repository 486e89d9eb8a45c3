# Writes a C file with the bytes of the pages and a table of them by name.
#
#   cmake -DOUTPUT=pages.c "-DINPUTS=a.html;a.css" -P pages.cmake

file(WRITE ${OUTPUT}.next "/* Made by the build from src/serve/pages. */\n#include \"serve/pages/pages.h\"\n\n")
set(rows)
set(number 0)
foreach(input IN LISTS INPUTS)
    file(READ ${input} bytes HEX)
    string(REGEX REPLACE "(..)" "0x\\1," bytes "${bytes}")
    get_filename_component(name ${input} NAME)
    file(APPEND ${OUTPUT}.next "static const unsigned char page_${number}[] = {${bytes}};\n")
    string(APPEND rows "    {\"${name}\", page_${number}, sizeof(page_${number})},\n")
    math(EXPR number "${number} + 1")
endforeach()
file(APPEND ${OUTPUT}.next "\nconst tarn__page tarn__pages[] = {\n${rows}};\nconst int tarn__page_count = ${number};\n")
file(RENAME ${OUTPUT}.next ${OUTPUT})
