# Writes a C file with the bytes of other files and a table of them by name: rows {name, bytes, size} of a struct that a header declares, and
# their count. TABLE is the name of the struct without its prefix: cl_file gives tarn__cl_files and tarn__cl_file_count.
#
#   cmake -DOUTPUT=pages.c "-DINPUTS=a.html;a.css" -DHEADER=serve/pages/pages.h -DTABLE=page -P embed_files.cmake

file(WRITE ${OUTPUT}.next "/* Made by the build from the files that it names. */\n#include \"${HEADER}\"\n\n")
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
file(APPEND ${OUTPUT}.next "\nconst tarn__${TABLE} tarn__${TABLE}s[] = {\n${rows}};\nconst int tarn__${TABLE}_count = ${number};\n")
file(RENAME ${OUTPUT}.next ${OUTPUT})
