/* command.h: the command, as its users meet it. TARN_COMMAND names the binary; without it a test is skipped. */
#ifndef TESTS_COMMAND_H
#define TESTS_COMMAND_H

#include <tarn/base.h>

/* What the last command wrote. */
extern char command_output[1 << 20];

/* printf() for the arguments of a command. The result stays valid for the next three calls. */
const char *command_line(const char *format, ...) TARN_PRINTF(1, 2);

/* Runs `tarn ARGUMENTS` through a shell and returns its status; the output is what it wrote to standard output, and
 * with 2>&1 to both. */
int run_command(const char *arguments);

/* The same; it must end with that status and write that text among others. */
void expect_command(const char *arguments, int status, const char *text);

/* The same; it must succeed, and every line must be one JSON object. Returns how many there are. */
int command_objects(const char *arguments);

#endif
