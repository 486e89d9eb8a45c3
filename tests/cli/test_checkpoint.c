/* test_checkpoint.c: commands use the best weights of a run, or with --checkpoint last the last ones, and
 * print which. */
#include <stdlib.h>

#include "support/command.h"
#include "support/files.h"

/* Replaces the best weights with those of another seed, so that the output shows which ones were used. */
static void make_best_another(const char *folder, const char *other, const char *name)
{
    char from[1200], to[1200];
    size_t count;
    snprintf(from, sizeof(from), "%s/%s", other, name);
    snprintf(to, sizeof(to), "%s/%s", folder, name);
    char *content = get_file(from, &count);
    put_file(to, content, count);
    free(content);
}

/* The text after a key of the last command's output, up to the end of the line. */
static void copy_after(const char *key, char *to, size_t size)
{
    const char *found = strstr(command_output, key);
    if (!found)
        fail_msg("no %s in: %s", key, command_output);
    snprintf(to, size, "%.*s", (int)strcspn(found, "\n"), found);
}

static void the_words_of_a_run_are_of_its_best_weights(void **state)
{
    (void)state;
    char text[3001], data[600], run[2][600], best[400], last[400], now[400];
    for (int i = 0; i < 3000; i++)
        text[i] = "one two three four five; \n"[i % 26];
    text[3000] = 0;
    snprintf(data, sizeof(data), "%s", write_text("numbers.txt", text));
    for (int i = 0; i < 2; i++) {
        snprintf(run[i], sizeof(run[i]), "%s", scratch(i ? "other" : "run"));
        expect_command(
            command_line(
                "train --data text:%s --layers 1 --heads 2 --hidden-size 16 --context 12 --batch-size 8 --steps "
                "4 --eval-every 2 --seed %d --device cpu --out %s",
                data, i + 1, run[i]),
            0, "best");
    }
    const char *how = "--json --ids 1,2,3 --max-tokens 12 --temperature 0 --device cpu";
    expect_command(command_line("generate %s %s", run[1], how), 0, "\"checkpoint\": \"best\", \"checkpoint_step\": 4");
    copy_after("\"tokens\": ", best, sizeof(best));
    best[strcspn(best, "]")] = 0;
    expect_command(command_line("generate %s %s", run[0], how), 0, "\"checkpoint\": \"best\"");
    copy_after("\"tokens\": ", last, sizeof(last));
    last[strcspn(last, "]")] = 0;
    assert_string_not_equal(best, last);
    make_best_another(run[0], run[1], "best/model.safetensors");

    expect_command(command_line("generate %s %s", run[0], how), 0, "\"checkpoint\": \"best\", \"checkpoint_step\": 4");
    assert_contains(command_output, best);
    expect_command(command_line("generate %s %s --checkpoint last", run[0], how), 0,
                   "\"checkpoint\": \"last\", \"checkpoint_step\": 4");
    assert_contains(command_output, last);
    expect_command(command_line("generate %s one --max-tokens 3 --device cpu 2>&1", run[0]), 0,
                   "(best weights of the run, step 4)");
    expect_command(command_line("generate %s one --max-tokens 3 --device cpu --checkpoint last 2>&1", run[0]), 0,
                   "(last weights of the run, step 4)");

    expect_command(command_line("eval %s --json --device cpu", run[1]), 0, "\"checkpoint\": \"best\"");
    copy_after("\"loss\": ", best, sizeof(best));
    expect_command(command_line("eval %s --json --device cpu", run[0]), 0, "\"checkpoint\": \"best\"");
    copy_after("\"loss\": ", now, sizeof(now));
    assert_string_equal(now, best);
    expect_command(command_line("eval %s --json --device cpu --checkpoint last", run[0]), 0,
                   "\"checkpoint\": \"last\"");
    copy_after("\"loss\": ", now, sizeof(now));
    assert_string_not_equal(now, best);
    expect_command(command_line("eval %s --device cpu 2>&1", run[0]), 0, "(best weights of the run, step 4)");
    expect_command(command_line("chat %s --device cpu --checkpoint wurst 2>&1 < /dev/null", run[0]), 2,
                   "--checkpoint: 'wurst' must be best or last");
    expect_command(command_line("generate %s/best one --device cpu --checkpoint last 2>&1", run[0]), 2,
                   "is not a run of tarn train");
    char folder[600];
    snprintf(folder, sizeof(folder), "%s", scratch("model.gguf"));
    expect_command(command_line("convert %s %s --checkpoint last --json 2>&1", run[0], folder), 1, "");
}

static void the_classes_of_a_run_are_of_its_best_weights(void **state)
{
    (void)state;
    char run[2][600], best[100], now[100];
    for (int i = 0; i < 2; i++) {
        snprintf(run[i], sizeof(run[i]), "%s", scratch(i ? "classes" : "classifier"));
        expect_command(
            command_line("train --model mlp --data digits:60 --mlp-sizes 8 --batch-size 20 --steps 4 --eval-every 2 "
                         "--device cpu --seed %d --out %s",
                         i + 1, run[i]),
            0, "best");
    }
    expect_command(command_line("eval %s --json --device cpu", run[1]), 0, "\"checkpoint\": \"best\"");
    copy_after("\"loss\": ", best, 18);
    make_best_another(run[0], run[1], "best.safetensors");
    expect_command(command_line("eval %s --json --device cpu", run[0]), 0, "\"checkpoint\": \"best\"");
    copy_after("\"loss\": ", now, 18);
    assert_string_equal(now, best);
    expect_command(command_line("eval %s --json --device cpu --checkpoint last", run[0]), 0,
                   "\"checkpoint\": \"last\"");
    copy_after("\"loss\": ", now, 18);
    assert_string_not_equal(now, best);
    unsigned char image[28 * 28 + 13] = "P5 28 28 255\n";
    char picture[600];
    snprintf(picture, sizeof(picture), "%s", write_file("seven.pgm", image, 13 + 28 * 28));
    expect_command(command_line("predict %s %s --device cpu 2>&1", run[0], picture), 0,
                   "(best weights of the run, step ");
    expect_command(command_line("predict %s %s --device cpu --json --checkpoint last", run[0], picture), 0,
                   "\"checkpoint\": \"last\"");
    /* Without an evaluation there are no best weights. */
    char path[700];
    snprintf(path, sizeof(path), "%s/best.safetensors", run[0]);
    assert_int_equal(remove(path), 0);
    expect_command(command_line("predict %s %s --device cpu 2>&1", run[0], picture), 0,
                   "(last weights of the run, step 4; no evaluation yet)");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(the_words_of_a_run_are_of_its_best_weights),
        in_scope(the_classes_of_a_run_are_of_its_best_weights),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
