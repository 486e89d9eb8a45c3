/* test_tensorboard.c: TensorBoard's event files, taken apart by a reader of the test's own. With a folder as its
 * argument the program writes what stands on its standard input there, a line "STEP VALUE TAG" a point, "resume STEP" a
 * restart: tests/parity/events.py reads it back with TensorBoard. */
#include <dirent.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "support/check.h"
#include "support/scratch.h"
#include "train/output/tensorboard.h"

/* ---- the reader -------------------------------------------------------------------------------------------------- */

typedef struct point {
    double wall;
    int64_t step;
    char tag[1100];
    float value;
    bool is_resume;
} point;

/* Bit by bit, so that it shares no table with what it checks. */
static uint32_t masked_crc(const unsigned char *from, size_t count)
{
    uint32_t crc = ~0u;
    for (size_t i = 0; i < count; i++) {
        crc ^= from[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0x82F63B78u : 0);
    }
    crc = ~crc;
    return (crc >> 15 | crc << 17) + 0xA282EAD8u;
}

static uint64_t little(const unsigned char *from, int bytes)
{
    uint64_t number = 0;
    for (int i = 0; i < bytes; i++)
        number |= (uint64_t)from[i] << 8 * i;
    return number;
}

static uint64_t varint(const unsigned char **at)
{
    uint64_t number = 0;
    for (int shift = 0;; shift += 7) {
        number |= (uint64_t)(**at & 0x7F) << shift;
        if (*(*at)++ < 0x80)
            return number;
    }
}

/* Reads the fields of one message into a point; `level` 0 is the event, 1 the summary or session log, 2 the value. */
static void read_message(const unsigned char *at, const unsigned char *end, int level, point *to, char *version)
{
    while (at < end) {
        int field = *at >> 3, kind = *at & 7;
        at++;
        if (kind == 0) {
            int64_t number = (int64_t)varint(&at);
            if (level == 0 && field == 2)
                to->step = number;
            else if (level == 1 && field == 1)
                to->is_resume = number == 1;
            else
                fail_msg("field %d of level %d", field, level);
        } else if (kind == 1 && level == 0 && field == 1) {
            uint64_t bits = little(at, 8);
            memcpy(&to->wall, &bits, 8);
            at += 8;
        } else if (kind == 5 && level == 2 && field == 2) {
            uint32_t bits = (uint32_t)little(at, 4);
            memcpy(&to->value, &bits, 4);
            at += 4;
        } else {
            assert_int_equal(kind, 2);
            size_t length = varint(&at);
            assert_true(at + length <= end);
            if (level == 0 && field == 3)
                snprintf(version, 32, "%.*s", (int)length, (const char *)at);
            else if (level == 2 && field == 1)
                snprintf(to->tag, sizeof(to->tag), "%.*s", (int)length, (const char *)at);
            else if ((level == 0 && (field == 5 || field == 7)) || (level == 1 && field == 1))
                read_message(at, at + length, level + 1, to, version);
            else
                fail_msg("field %d of level %d", field, level);
            at += length;
        }
    }
    assert_ptr_equal(at, end);
}

/* Every point of a file, in order; the first record is the version. */
static int read_points(const char *path, point *points, int most)
{
    size_t count;
    int found = 0;
    char version[32] = "", *file = get_file(path, &count);
    const unsigned char *at = (const unsigned char *)file, *end = at + count;
    for (int record = 0; at < end; record++) {
        assert_true(end - at >= 16);
        uint64_t length = little(at, 8);
        assert_true(length <= (uint64_t)(end - at) - 16);
        assert_int_equal(little(at + 8, 4), masked_crc(at, 8));
        assert_int_equal(little(at + 12 + length, 4), masked_crc(at + 12, length));
        point one = {.step = -1};
        read_message(at + 12, at + 12 + length, 0, &one, version);
        assert_true(one.wall > 1.7e9 && one.wall < 1e11);
        if (record == 0)
            assert_true(one.step == -1 && strcmp(version, "brain.Event:2") == 0);
        else if (found < most)
            points[found++] = one;
        at += 16 + length;
    }
    free(file);
    return found;
}

/* The paths of the event files in a folder, sorted, as viewers sort them. */
static int list_files(const char *folder, char paths[][512], int most)
{
    struct dirent **list;
    int count = scandir(folder, &list, NULL, alphasort), found = 0;
    assert_true(count >= 0);
    for (int i = 0; i < count; i++) {
        if (strncmp(list[i]->d_name, "events.out.tfevents.", 20) == 0 && found < most)
            snprintf(paths[found++], 512, "%s/%.200s", folder, list[i]->d_name);
        free(list[i]);
    }
    free(list);
    return found;
}

static const char *new_folder(const char *name)
{
    const char *folder = scratch(name);
    assert_int_equal(mkdir(folder, 0777), 0);
    return folder;
}

static void remove_folder(const char *folder)
{
    static char paths[8][512];
    for (int i = list_files(folder, paths, 8); i-- > 0;)
        assert_int_equal(remove(paths[i]), 0);
    assert_int_equal(rmdir(folder), 0);
}

/* ---- tests ------------------------------------------------------------------------------------------------------- */

static void checksums_are_the_published_ones(void **state)
{
    (void)state;
    unsigned char zeros[32] = {0}; /* of RFC 3720, appendix B.4 */
    uint32_t masked = masked_crc(zeros, 32) - 0xA282EAD8u;
    assert_int_equal((masked << 15 | masked >> 17), 0x8A9136AAu);
}

static void points_come_back(void **state)
{
    (void)state;
    static point points[16];
    static char paths[4][512], tag[1025];
    const char *folder = new_folder("points");
    tarn__tensorboard *events = tarn__tensorboard_open(folder);
    memset(tag, 'x', 1024);
    assert_true(tarn__tensorboard_scalar(events, "loss/train", 0, 2.25));
    assert_true(tarn__tensorboard_scalar(events, "é漢😀", 127, -0.1));
    assert_true(tarn__tensorboard_scalar(events, "a", 128, NAN));
    assert_true(tarn__tensorboard_scalar(events, "a", INT64_MAX, 1e300));
    assert_true(tarn__tensorboard_scalar(events, tag, 5, 0));
    assert_true(tarn__tensorboard_resume(events, 300));
    assert_true(tarn__tensorboard_close(events));
    assert_int_equal(list_files(folder, paths, 4), 1);
    assert_int_equal(read_points(paths[0], points, 16), 6);
    assert_true(points[0].step == 0 && points[0].value == 2.25f && strcmp(points[0].tag, "loss/train") == 0);
    assert_true(points[1].step == 127 && points[1].value == -0.1f && strcmp(points[1].tag, "é漢😀") == 0);
    assert_true(points[2].step == 128 && isnan(points[2].value));
    assert_true(points[3].step == INT64_MAX && isinf(points[3].value));
    assert_true(points[4].step == 5 && strcmp(points[4].tag, tag) == 0);
    assert_true(points[5].step == 300 && points[5].is_resume && !points[5].tag[0]);
    remove_folder(folder);
}

static void a_flush_shows_what_was_added(void **state)
{
    (void)state;
    static point points[4];
    static char paths[4][512];
    const char *folder = new_folder("flush");
    tarn__tensorboard *events = tarn__tensorboard_open(folder);
    assert_int_equal(list_files(folder, paths, 4), 1);
    assert_int_equal(read_points(paths[0], points, 4), 0); /* the version alone */
    assert_true(tarn__tensorboard_scalar(events, "a", 1, 1) && tarn__tensorboard_flush(events));
    assert_int_equal(read_points(paths[0], points, 4), 1);
    assert_true(tarn__tensorboard_close(events));
    remove_folder(folder);
}

static void a_second_file_leaves_the_first_alone(void **state)
{
    (void)state;
    static point points[4];
    static char paths[4][512];
    const char *folder = new_folder("second");
    for (int i = 0; i < 3; i++) { /* mostly within one second */
        tarn__tensorboard *events = tarn__tensorboard_open(folder);
        assert_true(tarn__tensorboard_scalar(events, "a", i, i));
        assert_true(tarn__tensorboard_close(events));
    }
    assert_int_equal(list_files(folder, paths, 4), 3);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(read_points(paths[i], points, 4), 1);
        assert_int_equal(points[0].step, i);
    }
    remove_folder(folder);
}

static void mistakes_are_refused(void **state)
{
    (void)state;
    char tag[1026];
    assert_null(tarn__tensorboard_open(NULL));
    assert_error(TARN_ERROR_ARGUMENT, "tensorboard_open: the folder is NULL");
    assert_null(tarn__tensorboard_open(scratch("nowhere")));
    assert_error_about(TARN_ERROR_IO, "tensorboard_open: '", "cannot be created: No such file");
    const char *folder = new_folder("mistakes");
    tarn__tensorboard *events = tarn__tensorboard_open(folder);
    memset(tag, 'x', 1025);
    tag[1025] = 0;
    static const char *const wrong[] = {NULL,      "", "\xFF", "\xC3", "\xC0\x80", "\xED\xA0\x80", "\xF5\x80\x80\x80",
                                        "\xE2\x82"};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        assert_false(tarn__tensorboard_scalar(events, wrong[i], 0, 0));
        assert_error(TARN_ERROR_ARGUMENT, "tensorboard_scalar: the tag is ");
    }
    assert_false(tarn__tensorboard_scalar(events, tag, 0, 0));
    assert_error(TARN_ERROR_ARGUMENT, "longer than 1024 bytes");
    assert_false(tarn__tensorboard_scalar(events, "a", -1, 0));
    assert_error(TARN_ERROR_ARGUMENT, "step -1 is below 0");
    assert_false(tarn__tensorboard_resume(events, -5));
    assert_error(TARN_ERROR_ARGUMENT, "step -5");
    assert_false(tarn__tensorboard_scalar(NULL, "a", 0, 0));
    assert_error(TARN_ERROR_ARGUMENT, "the events are NULL");
    assert_false(tarn__tensorboard_flush(NULL));
    assert_error(TARN_ERROR_ARGUMENT, "tensorboard_flush");
    assert_true(tarn__tensorboard_close(events));
    assert_true(tarn__tensorboard_close(NULL));
    remove_folder(folder);
}

/* A limit on the size of files stands in for a disk that is full. */
static void a_full_disk_is_an_error(void **state)
{
    (void)state;
    struct rlimit before, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    const char *folder = new_folder("full");
    tarn__tensorboard *events = tarn__tensorboard_open(folder);
    small = (struct rlimit){64, before.rlim_max};
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    assert_true(tarn__tensorboard_scalar(events, "a", 1, 1)); /* still in the buffer */
    assert_false(tarn__tensorboard_flush(events));
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    signal(SIGXFSZ, handler);
    assert_error_about(TARN_ERROR_IO, "tensorboard_flush: '", "cannot be written: File too large");
    tarn__tensorboard_close(events);
    tarn_clear_error();
    remove_folder(folder);
}

/* ---- for the comparison ------------------------------------------------------------------------------------------ */

static int write_events(const char *folder)
{
    char line[2048], tag[2048], value[64];
    long long step;
    tarn__tensorboard *events = tarn__tensorboard_open(folder);
    while (events && fgets(line, sizeof(line), stdin)) {
        if (sscanf(line, "resume %lld", &step) == 1)
            tarn__tensorboard_resume(events, step);
        else if (sscanf(line, "%lld %63s %2047[^\n]", &step, value, tag) == 3)
            tarn__tensorboard_scalar(events, tag, step, strtod(value, NULL));
        else
            tarn_set_error(TARN_ERROR_FORMAT, "no point: %s", line);
    }
    tarn__tensorboard_close(events);
    if (tarn_failed())
        fprintf(stderr, "%s\n", tarn_error());
    return tarn_failed() ? 1 : 0;
}

int main(int count, char **arguments)
{
    if (count > 1)
        return write_events(arguments[1]);
    const struct CMUnitTest tests[] = {in_scope(checksums_are_the_published_ones),
                                       in_scope(points_come_back),
                                       in_scope(a_flush_shows_what_was_added),
                                       in_scope(a_second_file_leaves_the_first_alone),
                                       in_scope(mistakes_are_refused),
                                       in_scope(a_full_disk_is_an_error)};
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
