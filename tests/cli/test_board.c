/* test_board.c: `tarn board`: the page and the metrics of runs that grow, and what it refuses. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/check.h"
#include "support/command.h"
#include "support/files.h"
#include "tarn_features.h"

static pid_t board;
static int port;

/* Starts the board on any free port, which its first line names. */
static void start(const char *folder)
{
    int pipes[2];
    char line[512] = "", *colon;
    if (!getenv("TARN_COMMAND") || !TARN__HAVE_EVENT)
        skip();
    assert_int_equal(pipe(pipes), 0);
    board = fork();
    assert_true(board >= 0);
    if (board == 0) {
        dup2(pipes[1], 1);
        close(pipes[0]);
        execl(getenv("TARN_COMMAND"), "tarn", "board", folder, "--port", "0", (char *)NULL);
        _exit(127);
    }
    close(pipes[1]);
    FILE *from = fdopen(pipes[0], "r");
    assert_non_null(fgets(line, sizeof(line), from));
    fclose(from);
    colon = strstr(line, "127.0.0.1:");
    assert_non_null(colon);
    port = atoi(colon + strlen("127.0.0.1:"));
}

static void stop(void)
{
    int status;
    kill(board, SIGTERM);
    assert_int_equal(waitpid(board, &status, 0), board);
    board = 0;
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* A test that failed has left its board behind. */
static int clean_up(void **state)
{
    if (board > 0) {
        kill(board, SIGKILL);
        waitpid(board, NULL, 0);
        board = 0;
    }
    return remove_scratch(state);
}

/* The whole answer to one request. */
static const char *ask(const char *method, const char *target, const char *host)
{
    static char heard[1 << 16];
    char request[1024];
    size_t count = 0;
    ssize_t part;
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int s = socket(AF_INET, SOCK_STREAM, 0);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_int_equal(connect(s, (struct sockaddr *)&to, sizeof(to)), 0);
    int length = snprintf(request, sizeof(request), "%s %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", method,
                          target, host);
    assert_int_equal(send(s, request, (size_t)length, MSG_NOSIGNAL), length);
    while (count + 1 < sizeof(heard) && (part = recv(s, heard + count, sizeof(heard) - 1 - count, 0)) > 0)
        count += (size_t)part;
    heard[count] = 0;
    close(s);
    return heard;
}

static void expect_answer(const char *target, const char *status, const char *text)
{
    const char *heard = ask("GET", target, "localhost");
    if (strncmp(heard, "HTTP/1.1 ", 9) != 0 || strncmp(heard + 9, status, strlen(status)) != 0 || !strstr(heard, text))
        fail_msg("%s: not %s with '%s': %s", target, status, text, heard);
}

static void metrics_are_served_as_they_grow(void **state)
{
    static const char first[] = "{\"step\": 1, \"loss\": 2.5}\n", second[] = "{\"step\": 2, \"loss\": 2.25}\n";
    (void)state;
    char runs[512], path[1024];
    snprintf(runs, sizeof(runs), "%s", scratch("runs"));
    assert_int_equal(mkdir(runs, 0777), 0);
    snprintf(path, sizeof(path), "%s/a \"run\"", runs);
    assert_int_equal(mkdir(path, 0777), 0);
    snprintf(path, sizeof(path), "%s/empty", runs);
    assert_int_equal(mkdir(path, 0777), 0);
    snprintf(path, sizeof(path), "%s/a \"run\"/metrics.jsonl", runs);
    put_file(path, first, sizeof(first) - 1);
    start(runs);
    expect_answer("/", "200", "<title>tarn board</title>");
    expect_answer("/", "200", "Content-Security-Policy: default-src 'none';");
    expect_answer("/board.js", "200", "Content-Type: text/javascript");
    expect_answer("/board.css", "200", "Content-Type: text/css");
    expect_answer("/api/runs", "200", "{\"name\": \"a \\\"run\\\"\", \"bytes\": 25,");
    assert_null(strstr(ask("GET", "/api/runs", "localhost"), "empty"));
    expect_answer("/api/metrics?run=a%20%22run%22&from=0", "200", first);

    char text[128]; /* a line that is still being written is not handed out */
    int length = snprintf(text, sizeof(text), "%s%s{\"step\": 3", first, second);
    put_file(path, text, (size_t)length);
    expect_answer("/api/metrics?run=a%20%22run%22&from=25", "200", second);
    assert_null(strstr(ask("GET", "/api/metrics?run=a+%22run%22&from=25", "localhost"), "\"step\": 3"));
    expect_answer("/api/metrics?run=a%20%22run%22&from=10000", "409", "shorter");
    stop();
}

static void other_requests_are_refused(void **state)
{
    (void)state;
    char runs[512], path[1024];
    snprintf(runs, sizeof(runs), "%s", scratch("refused"));
    assert_int_equal(mkdir(runs, 0777), 0);
    snprintf(path, sizeof(path), "%s/metrics.jsonl", runs); /* beside the folder that is served */
    put_file(path, "{}\n", 3);
    snprintf(path, sizeof(path), "%s/inner", runs);
    assert_int_equal(mkdir(path, 0777), 0);
    start(path);
    static const char *const missing[] = {"/api/metrics?run=..&from=0",
                                          "/api/metrics?run=%2e%2e&from=0",
                                          "/api/metrics?run=../refused&from=0",
                                          "/api/metrics?run=.hidden&from=0",
                                          "/../metrics.jsonl",
                                          "/pages.h",
                                          "/board.html/"};
    for (size_t i = 0; i < sizeof(missing) / sizeof(missing[0]); i++)
        expect_answer(missing[i], "404", "no such");
    expect_answer("/api/metrics?run=.", "400", "from");
    expect_answer("/api/metrics?run=.&from=-1", "400", "from");
    expect_answer("/api/runs", "200", "\"runs\": []");
    assert_non_null(strstr(ask("GET", "/", "evil.example"), "HTTP/1.1 403 "));
    assert_non_null(strstr(ask("POST", "/", "localhost"), "HTTP/1.1 405 "));
    assert_non_null(strstr(ask("DELETE", "/api/runs", "localhost"), "Allow: GET, HEAD"));
    stop();
    expect_command("board /no/such/folder 2>&1", 1, "is not a folder of runs");
    expect_command("board --port 65536 2>&1", 2, "--port");
    expect_command("board --json 2>&1", 2, "--json");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(metrics_are_served_as_they_grow, make_scratch, clean_up),
        cmocka_unit_test_setup_teardown(other_requests_are_refused, make_scratch, clean_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
