/* terminal.h: a program on a pseudo-terminal, as its users meet it: what it draws, and keys typed to it. */
#ifndef TESTS_TERMINAL_H
#define TESTS_TERMINAL_H

#include <stddef.h>
#include <sys/types.h>

typedef struct terminal {
    int fd, own;
    pid_t child;
    char text[1 << 19]; /* all that it wrote, terminated */
    size_t used;
} terminal;

/* Runs a shell command with TERM=xterm in a session of its own, whose terminal has so many columns and is its standard
 * input, output and error. Ends the program of an earlier call. The result is static; skips the test without
 * TARN_COMMAND or a terminal. */
terminal *terminal_start(int columns, const char *command);

/* Types keys. */
void terminal_type(terminal *t, const char *keys);

/* Reads until a string has occurred `times` times; the test fails when the program ends before, or after a minute. */
void terminal_wait_for(terminal *t, const char *part, int times);

/* Waits until the program reads keys itself: before that the terminal edits what is typed. Fails after a minute. */
void terminal_wait_for_editor(terminal *t);

/* Reads to the end of the program; its status, as of waitpid(). Unless NULL, `keys` are typed five times a second until
 * then: a key that arrives while the program changes the mode of the terminal is lost. Fails after a minute. */
int terminal_finish(terminal *t, const char *keys);

/* Ends the program of a test that failed: for teardowns. */
void terminal_end(void);

int occurrences(const char *text, const char *part);

#endif
