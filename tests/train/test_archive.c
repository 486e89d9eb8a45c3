/* test_archive.c: files of earlier versions open, give the values that they gave, and resume.
 *
 * tests/archive has a folder per version, written once by scripts/archive with that version: runs with optimizer state,
 * an average of weights, adapters, token shards, a tokenizer, GGUF files. Values are compared within what instruction
 * levels may round differently. The folder is copied first, since runs are resumed in it. TARN_COMMAND names the
 * binary. */
#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include "support/command.h"
#include "support/files.h"
#include "tarn_features.h"

static char start_folder[1024];

static void copy_folder(const char *from, const char *to)
{
    DIR *list = opendir(from);
    assert_non_null(list);
    mkdir(to, 0755);
    for (struct dirent *entry; (entry = readdir(list));) {
        char source[2400], target[2400];
        struct stat about;
        size_t count;
        snprintf(source, sizeof(source), "%s/%s", from, entry->d_name);
        snprintf(target, sizeof(target), "%s/%s", to, entry->d_name);
        if (entry->d_name[0] == '.' || stat(source, &about) != 0)
            continue;
        if (S_ISDIR(about.st_mode)) {
            copy_folder(source, target);
            continue;
        }
        char *content = get_file(source, &count);
        put_file(target, content, count);
        free(content);
    }
    closedir(list);
}

/* The loss of a model on the data, "-" for the run's own, is `wanted`. */
static void check_loss(const char *path, const char *data, double wanted)
{
    bool has_data = strcmp(data, "-") != 0;
    expect_command(
        command_line("eval %s %s %s --device cpu --json", path, has_data ? "--data" : "", has_data ? data : ""), 0,
        "\"loss\": ");
    double found = atof(strstr(command_output, "\"loss\": ") + strlen("\"loss\": "));
    if (!(fabs(found - wanted) <= 1e-3 * wanted))
        fail_msg("%s: a loss of %g instead of %g", path, found, wanted);
}

/* A line of expected.tsv: path, data, loss, and for runs the loss after it was resumed. */
static void check_file(const char *line)
{
    char path[64], data[64], resumed[32];
    double loss;
    assert_int_equal(sscanf(line, "%63s %63s %lf %31s", path, data, &loss, resumed), 4);
    check_loss(path, data, loss);
    if (strcmp(resumed, "-") != 0) {
        expect_command(command_line("train --resume %s --steps 8 --quiet", path), 0, "");
        check_loss(path, data, atof(resumed));
    }
}

static void check_version(const char *folder)
{
    size_t count, tokens;
    int files = 0;
    assert_int_equal(chdir(folder), 0);
    char *wanted = get_file("tokens.txt", &tokens), *lines = get_file("expected.tsv", &count);
    expect_command("tokenize text.txt --tokenizer tokenizer", 0, "");
    assert_true(strlen(command_output) == tokens && memcmp(command_output, wanted, tokens) == 0);
    for (char *line = lines, *end; (end = memchr(line, '\n', count - (size_t)(line - lines))) != NULL; line = end + 1) {
        *end = 0;
        check_file(line);
        files++;
        if ((size_t)(end + 1 - lines) >= count)
            break;
    }
    assert_true(files >= 10);
    free(wanted);
    free(lines);
}

static void files_of_every_version_open_and_resume(void **state)
{
    (void)state;
    char archive[1100];
    int versions = 0;
    if (!getenv("TARN_COMMAND"))
        skip();
    snprintf(archive, sizeof(archive), "%s/tests/archive", getenv("TARN_SOURCE_DIR"));
    DIR *list = opendir(archive);
    assert_non_null(list);
    for (struct dirent *entry; (entry = readdir(list));) {
        char from[1400], to[1400];
        if (entry->d_name[0] == '.')
            continue;
        snprintf(from, sizeof(from), "%s/%s", archive, entry->d_name);
        snprintf(to, sizeof(to), "%s", scratch(entry->d_name));
        copy_folder(from, to);
        printf("version %s\n", entry->d_name);
        check_version(to);
        versions++;
    }
    closedir(list);
    assert_true(versions >= 1);
}

static int set_up(void **state)
{
    return getenv("TARN_SOURCE_DIR") && getcwd(start_folder, sizeof(start_folder)) ? make_scratch(state) : -1;
}

static int tear_down(void **state)
{
    return chdir(start_folder) == 0 ? remove_scratch(state) : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {in_scope(files_of_every_version_open_and_resume)};
    return TARN__HAVE_JANSSON && TARN__HAVE_PCRE2 ? cmocka_run_group_tests(tests, set_up, tear_down) : 0;
}
