/* terminal.c: a program on a pseudo-terminal. Its session is its own, so that Ctrl-C typed to it, and signals that it
 * sends to its group, reach it alone. */
#define _XOPEN_SOURCE 700 /* terminals */
#include "support/terminal.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include "support/check.h"

enum { PATIENCE_MS = 60000 }; /* of a machine under load */

/* The program that runs now; 0: none. A failing test does not reach terminal_finish(). */
static pid_t running;

void terminal_end(void)
{
    if (running > 0) {
        kill(running, SIGKILL);
        waitpid(running, NULL, 0);
    }
    running = 0;
}

/* In the child: does not return. */
static void run_on(const char *name, const char *command)
{
    setsid();
    int fd = open(name, O_RDWR);
    ioctl(fd, TIOCSCTTY, 0);
    setenv("TERM", "xterm", 1);
    for (int i = 0; i < 3; i++)
        dup2(fd, i);
    execl("/bin/sh", "sh", "-c", command, (char *)NULL);
    _exit(127);
}

terminal *terminal_start(int columns, const char *command)
{
    static terminal t;
    terminal_end();
    t = (terminal){.fd = getenv("TARN_COMMAND") ? posix_openpt(O_RDWR | O_NOCTTY) : -1};
    if (t.fd < 0)
        skip();
    assert_true(grantpt(t.fd) == 0 && unlockpt(t.fd) == 0);
    t.own = open(ptsname(t.fd), O_RDWR | O_NOCTTY); /* so that it stays open */
    assert_int_equal(ioctl(t.fd, TIOCSWINSZ, &(struct winsize){.ws_row = 24, .ws_col = (unsigned short)columns}), 0);
    t.child = fork();
    if (t.child == 0)
        run_on(ptsname(t.fd), command);
    assert_true(t.child > 0);
    running = t.child;
    return &t;
}

void terminal_type(terminal *t, const char *keys)
{
    assert_int_equal(write(t->fd, keys, strlen(keys)), strlen(keys));
}

static void read_some(terminal *t, int milliseconds)
{
    struct pollfd wait = {.fd = t->fd, .events = POLLIN};
    while (poll(&wait, 1, milliseconds) > 0 && t->used < sizeof(t->text) - 1) {
        ssize_t count = read(t->fd, t->text + t->used, sizeof(t->text) - 1 - t->used);
        if (count <= 0)
            break;
        t->used += (size_t)count;
        t->text[t->used] = 0;
        milliseconds = 0;
    }
}

int occurrences(const char *text, const char *part)
{
    int count = 0;
    for (const char *at = strstr(text, part); at; at = strstr(at + 1, part))
        count++;
    return count;
}

void terminal_wait_for(terminal *t, const char *part, int times)
{
    for (int waited = 0; occurrences(t->text, part) < times; waited += 20) {
        bool has_ended = waitpid(t->child, NULL, WNOHANG) != 0;
        if (has_ended)
            running = 0;
        if (has_ended || waited > PATIENCE_MS)
            fail_msg("'%s' does not come %d times:\n%s", part, times, t->text);
        read_some(t, 20);
    }
}

void terminal_wait_for_editor(terminal *t)
{
    struct termios settings;
    for (int waited = 0; tcgetattr(t->own, &settings) != 0 || settings.c_lflag & ICANON; waited += 20) {
        if (waited > PATIENCE_MS)
            fail_msg("the program does not edit a line:\n%s", t->text);
        read_some(t, 20);
    }
}

int terminal_finish(terminal *t, const char *keys)
{
    int status = 0;
    for (int waited = 0; waitpid(t->child, &status, WNOHANG) == 0; waited += 20) {
        if (waited > PATIENCE_MS)
            fail_msg("the program does not end:\n%s", t->text);
        if (keys && waited % 200 == 0)
            terminal_type(t, keys);
        read_some(t, 20);
    }
    running = 0;
    read_some(t, 0);
    close(t->own);
    close(t->fd);
    return status;
}
