# Writes a C file with the text of other files, one after the other: what `tarn demo` learns from. A string is read by the compiler ten times as fast
# as a list of numbers.
#
#   cmake -DOUTPUT=demo_text.c "-DINPUTS=a.c;b.c" -P demo_text.cmake

file(WRITE ${OUTPUT}.next "/* Made by the build from tarn's own sources. */
#include \"cli/train/train.h\"

#if defined(__GNUC__)
#pragma GCC diagnostic ignored \"-Woverlength-strings\"
#endif

const char tarn__demo_text[] =
")
foreach(input IN LISTS INPUTS)
    file(READ ${input} text)
    string(REPLACE "\\" "\\\\" text "${text}")
    string(REPLACE "\"" "\\\"" text "${text}")
    string(REPLACE "?" "\\?" text "${text}") # two of them would begin a trigraph
    string(REPLACE "\n" "\\n\"\n\"" text "${text}")
    file(APPEND ${OUTPUT}.next "\"${text}\"\n")
endforeach()
file(APPEND ${OUTPUT}.next ";\nconst size_t tarn__demo_length = sizeof(tarn__demo_text) - 1;\n")
file(RENAME ${OUTPUT}.next ${OUTPUT})
