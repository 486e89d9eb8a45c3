/* test_http_server.c: the HTTP server over real sockets: connections that are kept, cut, slow or too many, streams,
 * work of other threads, and the stop. */
#include "tarn_features.h"

#include "support/check.h"

#if TARN__HAVE_EVENT

#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "serve/http/server.h"

enum { LARGE = 1 << 16, TORRENT = 24 << 20 };

static tarn__http_server *server;
static pthread_t thread;
static int gone;   /* kept exchanges whose client has gone */
static int copies; /* answers of /large */
static int keeps;  /* exchanges kept since the server began */
/* Seconds of a head, of idling, of a part of a body, and of a write without progress: longer than a test may have to
 * wait for a core, but in tests of the times themselves. */
enum { LONG = 30 };
static int head_time = LONG, idle_time = LONG, body_time = LONG, stalled_time = LONG;
static size_t unsent = 1 << 18;
static bool kept_has_body;
static tarn__http_exchange *kept;

/* ---- the server's side ------------------------------------------------------------------------------------------- */

static void count_gone(void *ctx)
{
    (void)ctx;
    kept = NULL;
    __atomic_add_fetch(&gone, 1, __ATOMIC_SEQ_CST);
}

static void answer_kept(void *ctx)
{
    (void)ctx;
    tarn__http_exchange *x = kept;
    kept = NULL;
    if (x)
        tarn__http_exchange_answer(x, 200, "text/plain", "later", 5);
}

/* Streams a MiB, which a client that does not read cannot take. */
static void flood(tarn__http_exchange *x)
{
    static char bytes[4096];
    memset(bytes, 'x', sizeof(bytes));
    tarn__http_exchange_keep(x, count_gone, NULL);
    tarn__http_stream_begin(x, 200, "text/plain");
    for (int i = 0; i < 256; i++)
        if (!tarn__http_stream_part(x, bytes, sizeof(bytes)))
            return;
    tarn__http_stream_end(x);
}

/* Streams more than the system's buffers take; the stream ends unless it is held. */
static void send_torrent(tarn__http_exchange *x, bool is_held)
{
    static char bytes[LARGE];
    memset(bytes, '#', sizeof(bytes));
    tarn__http_exchange_keep(x, count_gone, NULL);
    tarn__http_stream_begin(x, 200, "text/plain");
    for (int i = 0; i < TORRENT / LARGE; i++)
        if (!tarn__http_stream_part(x, bytes, sizeof(bytes)))
            return;
    if (!is_held)
        tarn__http_stream_end(x);
    __atomic_add_fetch(&keeps, 1, __ATOMIC_SEQ_CST);
}

static void answer_large(tarn__http_exchange *x)
{
    static char bytes[LARGE];
    memset(bytes, 'x', sizeof(bytes));
    __atomic_add_fetch(&copies, 1, __ATOMIC_SEQ_CST);
    tarn__http_exchange_answer(x, 200, "text/plain", bytes, sizeof(bytes));
}

static void handle(tarn__http_exchange *x, void *ctx)
{
    const tarn__http_request *r = tarn__http_exchange_request(x);
    (void)ctx;
    if (strcmp(r->path, "/keep") == 0) {
        tarn__http_exchange_keep(x, count_gone, NULL);
        kept_has_body = r->body || r->body_size;
        kept = x;
        __atomic_add_fetch(&keeps, 1, __ATOMIC_SEQ_CST);
    } else if (strcmp(r->path, "/stream") == 0) {
        tarn__http_exchange_keep(x, count_gone, NULL);
        tarn__http_stream_begin(x, 200, "text/event-stream");
        tarn__http_stream_part(x, "data: 1\n\n", 9);
        tarn__http_stream_part(x, "data: 2\n\n", 9);
        tarn__http_stream_end(x);
    } else if (strcmp(r->path, "/flood") == 0) {
        flood(x);
    } else if (strcmp(r->path, "/torrent") == 0) {
        send_torrent(x, *r->query);
    } else if (strcmp(r->path, "/large") == 0) {
        answer_large(x);
    } else {
        tarn__http_exchange_header(x, "X-Client", tarn__http_exchange_client(x));
        tarn__http_exchange_header(x, "X-Bad", "a\r\nSet-Cookie: b");
        tarn__http_exchange_answer(x, 200, "text/plain", r->body ? r->body : r->path,
                                   r->body ? r->body_size : strlen(r->path));
    }
}

static bool admits(const tarn__http_request *request, void *ctx)
{
    (void)ctx;
    return strcmp(request->path, "/closed") != 0;
}

static void *run(void *ctx)
{
    tarn__http_server_run(ctx);
    return NULL;
}

static void begin(int connections)
{
    tarn__http_options options = tarn__http_options_default();
    char error[256];
    options.port = 0;
    options.limits.body = 1 << 20;
    options.head_seconds = head_time;
    options.idle_seconds = idle_time;
    options.body_seconds = body_time;
    options.whole_body_seconds = 2 * body_time;
    options.bodies = 2 << 20;
    options.admits = admits;
    options.unsent = unsent;
    options.stalled_seconds = stalled_time;
    options.connections = connections;
    options.handler = handle;
    head_time = idle_time = body_time = stalled_time = LONG; /* of the next server */
    gone = keeps = 0;
    kept = NULL;
    server = tarn__http_server_new(&options, error, sizeof(error));
    if (!server)
        fail_msg("%s", error);
    assert_int_equal(pthread_create(&thread, NULL, run, server), 0);
}

static void stop_now(void *ctx)
{
    tarn__http_server_stop(server, *(int *)ctx);
}

static void end(int seconds)
{
    assert_true(tarn__http_server_post(server, stop_now, &seconds));
    pthread_join(thread, NULL);
    tarn__http_server_free(server);
}

/* ---- the client's side ------------------------------------------------------------------------------------------- */

/* `buffer`: bytes that the system receives ahead of reading; 0: as many as it likes. */
static int dial_with(int buffer)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)tarn__http_server_port(server))};
    int s = socket(AF_INET, SOCK_STREAM, 0);
    if (buffer)
        assert_int_equal(setsockopt(s, SOL_SOCKET, SO_RCVBUF, &buffer, sizeof(buffer)), 0);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_int_equal(connect(s, (struct sockaddr *)&to, sizeof(to)), 0);
    return s;
}

static int dial(void)
{
    return dial_with(0);
}

static void say(int s, const char *text)
{
    assert_int_equal(send(s, text, strlen(text), MSG_NOSIGNAL), (ssize_t)strlen(text));
}

/* What comes until the other side closes, or `text` has come, or nothing has for twenty seconds. */
static char *hear(int s, const char *text)
{
    static char heard[1 << 16];
    size_t count = 0;
    struct pollfd one = {s, POLLIN, 0};
    heard[0] = 0;
    while (count + 1 < sizeof(heard) && !(text && strstr(heard, text)) && poll(&one, 1, 20000) == 1) {
        ssize_t part = recv(s, heard + count, sizeof(heard) - 1 - count, 0);
        if (part <= 0)
            return heard;
        heard[count += (size_t)part] = 0;
    }
    if (!text)
        fail_msg("the connection is still open after twenty seconds: %s", heard);
    return heard;
}

static void expect_text(const char *heard, const char *text)
{
    if (!strstr(heard, text))
        fail_msg("no '%s' in: %s", text, heard);
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Until the count has come that far; at most twenty seconds. */
static int wait_until(const int *count, int wanted)
{
    double begin_time = seconds();
    while (__atomic_load_n(count, __ATOMIC_SEQ_CST) < wanted && seconds() - begin_time < 20)
        usleep(1000);
    return __atomic_load_n(count, __ATOMIC_SEQ_CST);
}

static void wait_for(const int *count, int wanted)
{
    assert_int_equal(wait_until(count, wanted), wanted);
}

/* ---- tests ------------------------------------------------------------------------------------------------------- */

static void connections_are_kept_and_requests_pipelined(void **state)
{
    (void)state;
    begin(100);
    int s = dial();
    say(s, "GET /one HTTP/1.1\r\nHost: a\r\n\r\n");
    const char *heard = hear(s, "/one");
    expect_text(heard, "HTTP/1.1 200 OK\r\n");
    expect_text(heard, "Content-Length: 4\r\nConnection: keep-alive\r\nX-Client: 127.0.0.1\r\n\r\n");
    assert_null(strstr(heard, "X-Bad")); /* a value with a line break is not sent */
    say(s, "POST /two HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabcHEAD /three HTTP/1.1\r\nHost: a\r\n\r\n"
           "GET /four HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    heard = hear(s, NULL);
    expect_text(heard, "\r\n\r\nabcHTTP/1.1 200 OK");
    expect_text(heard, "Content-Length: 6\r\n"); /* of HEAD, without the body */
    assert_null(strstr(heard, "\r\n\r\n/three"));
    expect_text(heard, "Connection: close");
    expect_text(heard, "\r\n\r\n/four");
    close(s);
    end(1);
}

/* Requests wait while their client does not read, for longer than a connection may idle; none is lost. */
static void unread_answers_hold_the_next_requests(void **state)
{
    enum { REQUESTS = 600 };
    (void)state;
    static char requests[REQUESTS * 64], bytes[LARGE];
    int length = 0;
    size_t total = 0;
    for (int i = 0; i < REQUESTS; i++)
        length += snprintf(requests + length, sizeof(requests) - (size_t)length,
                           "GET /large HTTP/1.1\r\nHost: a\r\n%s\r\n", i + 1 < REQUESTS ? "" : "Connection: close\r\n");
    idle_time = 1;
    begin(100);
    copies = 0;
    int s = dial();
    say(s, requests);
    wait_until(&copies, 1);
    usleep(1500000);
    assert_in_range(__atomic_load_n(&copies, __ATOMIC_SEQ_CST), 1, REQUESTS / 2);
    for (ssize_t part; (part = recv(s, bytes, sizeof(bytes), 0)) > 0;)
        total += (size_t)part;
    assert_true(total > (size_t)REQUESTS * LARGE);
    assert_int_equal(copies, REQUESTS);
    close(s);
    end(1);
}

static void a_half_closed_client_gets_its_answer(void **state)
{
    (void)state;
    begin(100);
    int s = dial();
    say(s, "GET /last HTTP/1.0\r\n\r\n");
    shutdown(s, SHUT_WR);
    expect_text(hear(s, NULL), "\r\n\r\n/last");
    close(s);
    end(1);
}

static void a_refusal_reaches_a_client_that_still_sends(void **state)
{
    (void)state;
    static char bytes[1 << 16];
    begin(100);
    int s = dial();
    say(s, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999\r\n\r\n");
    for (int i = 0; i < 64; i++)
        if (send(s, bytes, sizeof(bytes), MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
            break;
    expect_text(hear(s, "larger than this server takes"), "HTTP/1.1 413 ");
    close(s);
    end(1);
}

/* One that sends a part of a head, one that sends nothing and one that waits with its body. False: not all were ready
 * before the first time was up. */
static bool open_slow(int sockets[3])
{
    double begin_time = seconds();
    for (int i = 0; i < 3; i++)
        sockets[i] = dial();
    say(sockets[0], "GET / HTTP/1.1\r\nHo");
    say(sockets[2], "POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n");
    const char *heard = hear(sockets[2], "\r\n\r\n");
    bool is_ready = seconds() - begin_time < 0.5;
    if (is_ready)
        expect_text(heard, "HTTP/1.1 100 Continue");
    return is_ready;
}

static void slow_heads_and_idle_connections_are_closed(void **state)
{
    (void)state;
    int sockets[3];
    head_time = idle_time = body_time = 1;
    begin(100);
    for (int attempt = 1; !open_slow(sockets) && attempt < 10; attempt++)
        for (int i = 0; i < 3; i++)
            close(sockets[i]);
    double begin_time = seconds();
    expect_text(hear(sockets[0], NULL), "HTTP/1.1 408 ");
    assert_string_equal(hear(sockets[1], NULL), "");
    expect_text(hear(sockets[2], NULL), "HTTP/1.1 408 ");
    assert_true(seconds() - begin_time < 9); /* the times by default are 10 seconds and more */
    for (int i = 0; i < 3; i++)
        close(sockets[i]);
    end(1);
}

static void a_body_has_its_time_as_a_whole(void **state)
{
    (void)state;
    body_time = 1;
    begin(100);
    int s = dial();
    struct pollfd one = {s, POLLIN, 0};
    say(s, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n");
    double begin_time = seconds();
    while (poll(&one, 1, 300) == 0 && seconds() - begin_time < 10)
        say(s, "x");
    assert_true(seconds() - begin_time < 9); /* all of it would take 30 */
    expect_text(hear(s, NULL), "HTTP/1.1 408 ");
    close(s);
    end(1);
}

static void say_body(int s, size_t part, size_t whole)
{
    static char bytes[1 << 20];
    char head[128];
    snprintf(head, sizeof(head), "POST /body HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: %zu\r\n\r\n",
             whole);
    say(s, head);
    for (ssize_t sent; part > 0 && (sent = send(s, bytes, part, MSG_NOSIGNAL)) > 0;)
        part -= (size_t)sent;
}

enum { CLIENTS = 6, BODY_SIZE = 900000 };

/* Clients whose bodies end before their last byte. False: the first may have lost its time before the last was there.
 */
static bool open_bodies(int sockets[CLIENTS])
{
    double begin_time = seconds();
    for (int i = 0; i < CLIENTS; i++) {
        sockets[i] = dial();
        say_body(sockets[i], BODY_SIZE, BODY_SIZE + 1);
    }
    return seconds() - begin_time < 0.9;
}

/* Bodies that are read at a time have a limit in all; those that ended do not count. */
static void bodies_have_a_limit_together(void **state)
{
    (void)state;
    int sockets[CLIENTS], refused = 0, late = 0;
    body_time = 1;
    begin(100);
    for (int attempt = 1; !open_bodies(sockets) && attempt < 10; attempt++)
        for (int i = 0; i < CLIENTS; i++) {
            hear(sockets[i], NULL);
            close(sockets[i]);
        }
    for (int i = 0; i < CLIENTS; i++) {
        const char *heard = hear(sockets[i], NULL);
        refused += strstr(heard, "HTTP/1.1 503 ") != NULL;
        late += strstr(heard, "HTTP/1.1 408 ") != NULL;
        close(sockets[i]);
    }
    assert_true(refused > 0 && late > 0);
    assert_int_equal(refused + late, CLIENTS);
    for (int i = 0; i < CLIENTS; i++) {
        int s = dial();
        say_body(s, BODY_SIZE, BODY_SIZE);
        expect_text(hear(s, "\r\n\r\n"), "HTTP/1.1 200 OK");
        close(s);
    }
    end(1);
}

static void who_is_not_admitted_need_not_send_a_body(void **state)
{
    (void)state;
    begin(100);
    int s = dial();
    say(s, "POST /closed HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\nxy");
    const char *heard = hear(s, NULL);
    expect_text(heard, "HTTP/1.1 200 OK");
    expect_text(heard, "Connection: close");
    expect_text(heard, "\r\n\r\n/closed");
    close(s);
    s = dial();
    say(s, "POST /keep HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc");
    wait_for(&keeps, 1);
    assert_true(tarn__http_server_post(server, answer_kept, NULL));
    expect_text(hear(s, "later"), "\r\n\r\nlater");
    assert_false(kept_has_body);
    close(s);
    end(1);
}

static void streams_come_in_chunks(void **state)
{
    (void)state;
    begin(100);
    int s = dial();
    say(s, "GET /stream HTTP/1.1\r\nHost: a\r\n\r\nGET /next HTTP/1.1\r\nHost: a\r\n\r\n");
    const char *heard = hear(s, "/next");
    expect_text(heard, "Transfer-Encoding: chunked\r\n");
    expect_text(heard, "\r\n\r\n9\r\ndata: 1\n\n\r\n9\r\ndata: 2\n\n\r\n0\r\n\r\nHTTP/1.1 200");
    close(s);
    s = dial();
    say(s, "GET /stream HTTP/1.0\r\n\r\n");
    expect_text(hear(s, NULL), "Connection: close\r\n\r\ndata: 1\n\ndata: 2\n\n");
    close(s);
    assert_int_equal(gone, 0);
    end(1);
}

static void a_client_that_goes_is_noticed(void **state)
{
    (void)state;
    begin(100);
    int s = dial();
    say(s, "GET /keep HTTP/1.1\r\nHost: a\r\n\r\n");
    wait_for(&keeps, 1);
    double begin_time = seconds();
    close(s);
    wait_for(&gone, 1);
    assert_true(seconds() - begin_time < LONG / 3); /* at once, not when some time is up */
    s = dial();
    say(s, "GET /flood HTTP/1.1\r\nHost: a\r\n\r\n"); /* more than may wait for it */
    wait_for(&gone, 2);
    close(s);
    end(1);
}

static void other_threads_answer(void **state)
{
    (void)state;
    begin(100);
    int s = dial();
    say(s, "GET /keep HTTP/1.1\r\nHost: a\r\n\r\n");
    wait_for(&keeps, 1);
    assert_true(tarn__http_server_post(server, answer_kept, NULL));
    expect_text(hear(s, "later"), "\r\n\r\nlater");
    close(s);
    end(1);
}

static void connections_have_a_limit(void **state)
{
    (void)state;
    begin(2);
    int a = dial(), b = dial(), c = dial();
    assert_string_equal(hear(c, NULL), "");
    say(a, "GET /a HTTP/1.1\r\nHost: a\r\n\r\n");
    expect_text(hear(a, "/a"), "200 OK");
    close(a), close(b), close(c);
    end(1);
}

/* The exchange that is open when the stop comes is answered; one that never ends does not hold it. */
static void the_stop_drains(void **state)
{
    (void)state;
    int limit = LONG;
    begin(100);
    int s = dial();
    say(s, "GET /keep HTTP/1.1\r\nHost: a\r\n\r\n");
    wait_for(&keeps, 1);
    assert_true(tarn__http_server_post(server, stop_now, &limit)); /* before the answer: posts keep their order */
    assert_true(tarn__http_server_post(server, answer_kept, NULL));
    const char *heard = hear(s, NULL);
    expect_text(heard, "Connection: close");
    expect_text(heard, "later");
    close(s);
    double begin_time = seconds();
    pthread_join(thread, NULL);
    tarn__http_server_free(server);
    assert_true(seconds() - begin_time < LONG / 2);

    begin(100);
    s = dial();
    say(s, "GET /keep HTTP/1.1\r\nHost: a\r\n\r\n");
    wait_for(&keeps, 1);
    begin_time = seconds();
    end(1);
    assert_true(seconds() - begin_time < LONG / 3);
    assert_int_equal(gone, 1);
    close(s);
}

static double longest_pause; /* of the last sip(): seconds between two reads */

/* Reads an answer to its end, which takes at least `wanted_seconds`; 0: as fast as it comes. Returns the number of
 * its bytes, -1 where the connection was reset. */
static int64_t sip(int s, double wanted_seconds)
{
    static char bytes[LARGE];
    int64_t count = 0;
    double begin_time = seconds(), last = begin_time;
    longest_pause = 0;
    for (ssize_t part; (part = recv(s, bytes, sizeof(bytes), 0)) != 0;) {
        longest_pause = fmax(longest_pause, seconds() - last);
        last = seconds();
        if (part < 0)
            return -1;
        for (ssize_t i = 0; i < part; i++)
            count += bytes[i] == '#';
        double early = wanted_seconds * (double)count / TORRENT - (seconds() - begin_time);
        if (early > 0)
            usleep((useconds_t)(1e6 * early));
    }
    return count;
}

static const char torrent[] = "GET /torrent HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";

static void begin_torrents(int stalled_seconds)
{
    idle_time = 1, stalled_time = stalled_seconds, unsent = 2 * TORRENT;
    begin(100);
    unsent = 1 << 18;
}

enum { STALL = 3 }; /* seconds without progress; a server that has no core for so long sees none either */

/* False: this process had no core for so long that the slow client may have taken nothing for STALL seconds either. */
static bool cut_one_of_two(void)
{
    begin_torrents(STALL);
    int held = dial_with(LARGE), ended = dial_with(LARGE), slow = dial_with(LARGE);
    say(held, "GET /torrent?held HTTP/1.1\r\nHost: a\r\n\r\n");
    say(ended, torrent);
    say(slow, torrent);
    wait_for(&keeps, 3);
    double begin_time = seconds();
    int64_t got = sip(slow, 3 * STALL);
    double took = seconds() - begin_time;
    bool is_steady = longest_pause < 0.5 * STALL;
    wait_for(&gone, 1); /* the stream that was held, of a client that does not read */
    assert_true(sip(ended, 0) < TORRENT);
    assert_true(sip(held, 0) < TORRENT);
    close(held), close(ended), close(slow);
    end(1);
    assert_int_equal(gone, 1);
    if (is_steady) {
        assert_int_equal(got, TORRENT);
        assert_true(took > 3 * STALL - 0.1);
    }
    return is_steady;
}

/* A client that takes nothing for STALL seconds is cut, in a stream and after one; one that reads steadily is served
 * for as long as it takes. */
static void a_reader_that_stops_is_cut_and_a_slow_one_is_not(void **state)
{
    (void)state;
    int attempts = 0;
    while (attempts < 10 && !cut_one_of_two())
        attempts++;
    assert_true(attempts < 10);
}

static void join_server(void)
{
    pthread_join(thread, NULL);
    tarn__http_server_free(server);
}

/* Two clients of answers that are complete for the server; one of them keeps its connection. They read for 2.5 s, or
 * not at all until the stop has ended. Returns how many got all. */
static int stop_while_reading(int limit)
{
    begin_torrents(LONG);
    int s = dial_with(LARGE), next = dial_with(LARGE), whole = 0;
    say(s, torrent);
    say(next, "GET /torrent HTTP/1.1\r\nHost: a\r\n\r\n");
    wait_for(&keeps, 2);
    double begin_time = seconds();
    assert_true(tarn__http_server_post(server, stop_now, &limit));
    if (limit == 1)
        join_server();
    whole += sip(s, limit == 1 ? 0 : 2.5) == TORRENT;
    whole += sip(next, 0) == TORRENT;
    if (limit > 1)
        join_server();
    double took = seconds() - begin_time;
    assert_true(limit == 1 ? took > 0.9 && took < LONG / 3 : took > 2.4 && took < LONG);
    close(s), close(next);
    return whole;
}

/* What was answered before the stop is sent to slow readers until time is up. */
static void the_stop_waits_for_slow_readers(void **state)
{
    (void)state;
    assert_int_equal(stop_while_reading(2 * LONG), 2);
    assert_int_equal(stop_while_reading(1), 0);
}

static void watch_signals(void *ctx)
{
    atomic_store((atomic_bool *)ctx, tarn__http_server_stop_on_signals(server, 1));
}

/* What the process does after the loop, such as to wait for a thread, a signal ends. */
static void signals_have_their_effect_after_the_loop(void **state)
{
    (void)state;
    atomic_bool is_watched = false;
    struct sigaction action;
    begin(100);
    assert_true(tarn__http_server_post(server, watch_signals, &is_watched));
    for (int i = 0; i < 2000 && !atomic_load(&is_watched); i++)
        usleep(10000);
    assert_true(atomic_load(&is_watched));
    kill(getpid(), SIGTERM);
    pthread_join(thread, NULL);
    assert_int_equal(sigaction(SIGTERM, NULL, &action), 0);
    assert_true(action.sa_handler == SIG_DFL);
    tarn__http_server_free(server);
}

static void a_port_in_use_is_named(void **state)
{
    (void)state;
    char error[256];
    begin(100);
    tarn__http_options options = tarn__http_options_default();
    options.port = tarn__http_server_port(server);
    options.handler = handle;
    assert_null(tarn__http_server_new(&options, error, sizeof(error)));
    expect_text(error, "Address already in use");
    options.address = "localhost";
    assert_null(tarn__http_server_new(&options, error, sizeof(error)));
    expect_text(error, "'localhost' is not an IP address");
    end(1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(connections_are_kept_and_requests_pipelined),
        cmocka_unit_test(unread_answers_hold_the_next_requests),
        cmocka_unit_test(a_half_closed_client_gets_its_answer),
        cmocka_unit_test(a_refusal_reaches_a_client_that_still_sends),
        cmocka_unit_test(slow_heads_and_idle_connections_are_closed),
        cmocka_unit_test(a_body_has_its_time_as_a_whole),
        cmocka_unit_test(bodies_have_a_limit_together),
        cmocka_unit_test(who_is_not_admitted_need_not_send_a_body),
        cmocka_unit_test(streams_come_in_chunks),
        cmocka_unit_test(a_client_that_goes_is_noticed),
        cmocka_unit_test(other_threads_answer),
        cmocka_unit_test(connections_have_a_limit),
        cmocka_unit_test(the_stop_drains),
        cmocka_unit_test(a_reader_that_stops_is_cut_and_a_slow_one_is_not),
        cmocka_unit_test(the_stop_waits_for_slow_readers),
        cmocka_unit_test(signals_have_their_effect_after_the_loop),
        cmocka_unit_test(a_port_in_use_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#else

static void needs_libevent(void **state)
{
    (void)state;
    skip();
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(needs_libevent)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#endif
