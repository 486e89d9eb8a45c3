/* test_images.c: `tarn train --data images:FOLDER`, `tarn eval` and `tarn predict`, end to end, on drawn shapes of
 * various sizes and colours: accuracy, the same run with any number of workers, resuming, broken files and wrong
 * calls. */
#include <math.h>
#include <sys/stat.h>

#include "support/command.h"
#include "support/files.h"

enum { EACH = 100 }; /* images per class */
static const char *const shapes[] = {"disc", "ring", "stripes"};

/* 1 inside the shape, at a point from -1 to 1 along both axes. */
static bool is_inside(int shape, double y, double x)
{
    double r = sqrt(y * y + x * x);
    return shape == 0 ? r < 0.6 : shape == 1 ? r > 0.4 && r < 0.8 : fmod(y + 2, 0.5) < 0.25;
}

static void draw(const char *name, int shape, uint64_t *random)
{
    static bytes b;
    char head[40];
    int height = 24 + (int)random_below(random, 30), width = 24 + (int)random_below(random, 30);
    int side = height < width ? height : width;
    double down = (double)random_below(random, 100) / 400, across = (double)random_below(random, 100) / 400;
    int64_t dark = random_below(random, 90), light = 130 + random_below(random, 90);
    b.count = 0;
    snprintf(head, sizeof(head), "P6 %d %d 255\n", width, height);
    put_text(&b, head);
    for (int i = 0; i < height * width; i++) {
        double y = (i / width - height * 0.5) * 2 / side + down, x = (i % width - width * 0.5) * 2 / side + across;
        for (int c = 0; c < 3; c++)
            put(&b,
                &(unsigned char){(unsigned char)((is_inside(shape, y, x) ? light : dark) + random_below(random, 30))},
                1);
    }
    write_file(name, b.data, b.count);
}

/* Draws the classes below a folder. */
static void draw_all(const char *folder, int each, uint64_t seed)
{
    uint64_t random = seed;
    char name[80];
    mkdir(scratch(folder), 0777);
    for (int k = 0; k < 3; k++) {
        snprintf(name, sizeof(name), "%s/%s", folder, shapes[k]);
        mkdir(scratch(name), 0777);
        for (int i = 0; i < each; i++) {
            snprintf(name, sizeof(name), "%s/%s/%03d.ppm", folder, shapes[k], i);
            draw(name, k, &random);
        }
    }
}

#define LENET "--model lenet --image-size 16 --batch-size 16 --lr 0.003 --device cpu --quiet"

static char data[600], run[600];

static int make_data(void **state)
{
    int failed = make_scratch(state);
    draw_all("data", EACH, 20261118);
    write_text("data/disc/notes.txt", "not an image");
    write_text("data/disc/broken.ppm", "P6 20 20 255 too short");
    write_text("data/ring/other.webp", "RIFF");
    snprintf(data, sizeof(data), "%s", scratch("data"));
    snprintf(run, sizeof(run), "%s", scratch("run"));
    return failed;
}

/* A small network tells the shapes apart; images that it has not seen are classified, also by the folder. */
static void a_folder_of_images_is_trained_on(void **state)
{
    (void)state;
    int right = 0;
    char expected[64], path[700];
    expect_command(command_line("train --data images:%s " LENET " --epochs 8 --out %s 2>&1", data, run), 0,
                   "skipped ring/other.webp");
    assert_non_null(strstr(command_output, "skipped disc/broken.ppm"));
    expect_command(command_line("eval %s --json 2>/dev/null", run), 0, "\"accuracy\": ");
    double accuracy = strtod(strstr(command_output, "\"accuracy\": ") + strlen("\"accuracy\": "), NULL);
    print_message("accuracy %.4f\n", accuracy);
    assert_true(accuracy > 0.9);
    draw_all("new", 5, 7);
    snprintf(path, sizeof(path), "%s", scratch("new"));
    assert_int_equal(run_command(command_line("predict %s %s", run, path)), 0);
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < 5; i++) {
            snprintf(expected, sizeof(expected), "%s/%03d.ppm: %s ", shapes[k], i, shapes[k]);
            right += strstr(command_output, expected) != NULL;
        }
    print_message("%d of 15 right\n", right);
    assert_true(right >= 12);
    assert_int_equal(mkdir(scratch("none"), 0777), 0);
    expect_command(command_line("predict %s %s 2>&1", run, scratch("none")), 1, "has no images");
    assert_int_equal(command_objects(command_line("predict %s %s --json", run, path)), 15);
    assert_non_null(strstr(command_output, "\"name\": \"stripes\""));
    /* what is mistaken: stripes that are called discs, and the other way round */
    char from[800], to[800];
    snprintf(from, sizeof(from), "%s/disc/000.ppm", path);
    snprintf(to, sizeof(to), "%s/stripes/wrong.ppm", path);
    assert_int_equal(rename(from, to), 0);
    expect_command(command_line("eval %s --data images:%s --confusion --mistakes 1 2>&1", run, path), 0,
                   "on 15 samples");
    assert_non_null(strstr(command_output, "  disc                 4     0     0\n"));
    assert_non_null(strstr(command_output, "  stripes              1     0     5\n"));
    assert_non_null(strstr(command_output, "stripes/wrong.ppm: stripes "));
    expect_command(command_line("eval %s --data images:%s --confusion --mistakes 1 --json 2>/dev/null", run, path), 0,
                   "\"confusion\": [[4, 0, 0], [0, 5, 0], [1, 0, 5]], \"mistakes\": [{\"index\": 14, \"image\": "
                   "\"stripes/wrong.ppm\", \"class\": \"stripes\"");
}

static void assert_same_weights(const char *a, const char *b)
{
    char path[2][700];
    size_t count[2];
    snprintf(path[0], sizeof(path[0]), "%s/model.safetensors", scratch(a));
    snprintf(path[1], sizeof(path[1]), "%s/model.safetensors", scratch(b));
    char *x = get_file(path[0], &count[0]), *y = get_file(path[1], &count[1]);
    assert_int_equal(count[0], count[1]);
    assert_memory_equal(x, y, count[0]);
    free(x);
    free(y);
}

/* Augmented samples depend on seed, epoch and sample alone; so does a resumed run. */
static void any_number_of_workers_gives_the_same_run(void **state)
{
    (void)state;
    static const char options[] = LENET " --augment --jitter 0.3 --seed 5 2>&1";
    expect_command(
        command_line("train --data images:%s --workers 1 --epochs 2 --out %s %s", data, scratch("one"), options), 0,
        "");
    expect_command(
        command_line("train --data images:%s --workers 5 --epochs 2 --out %s %s", data, scratch("five"), options), 0,
        "");
    assert_same_weights("one", "five");
    expect_command(command_line("train --resume %s --epochs 3 --quiet 2>&1", scratch("one")), 0, "");
    expect_command(command_line("train --resume %s --epochs 3 --quiet --workers 2 2>&1", scratch("five")), 0, "");
    assert_same_weights("one", "five");
}

/* Weights of a run with other classes: all but the head are loaded. */
static void a_new_head_on_the_weights_of_another_run(void **state)
{
    (void)state;
    char path[700], other[700];
    draw_all("two", 20, 5);
    snprintf(path, sizeof(path), "%s", scratch("two/stripes"));
    assert_int_equal(rename(path, scratch("stripes")), 0);
    snprintf(path, sizeof(path), "%s", scratch("two"));
    snprintf(other, sizeof(other), "%s", scratch("tuned"));
    expect_command(
        command_line("train --data images:%s --model lenet --image-size 16 --epochs 4 --batch-size 8 --lr 0.003 "
                     "--freeze --finetune %s --device cpu --out %s 2>&1",
                     path, run, other),
        0, "fine-tuning lenet");
    assert_non_null(strstr(command_output, "4 tensors loaded, the head (7) drawn anew"));
    assert_non_null(strstr(command_output, "parameters  1026 trained, "));
    expect_command(command_line("eval %s --json 2>/dev/null", other), 0, "\"accuracy\": 1");
    expect_command(command_line("train --resume %s --epochs 5 --quiet 2>&1", other), 0, "");
    /* the same classes: the head too */
    expect_command(
        command_line("train --data images:%s --model lenet --image-size 16 --finetune %s --dry-run 2>&1", data, run), 0,
        "6 tensors loaded, the head too");
    expect_command(command_line("train --data images:%s --model resnet18 --finetune %s --dry-run 2>&1", data, run), 1,
                   "has no 'conv1.weight' of [64, 3, 7, 7]; is it another network?");
    expect_command(
        command_line("train --data images:%s --model lenet --finetune %s --dry-run 2>&1", data, scratch("nosuch")), 1,
        "nosuch");
    expect_command("train --data text:x --finetune y --dry-run 2>&1", 2, "--finetune");
}

/* train/ and val/ are the two sets, with the classes of train/. */
static void folders_for_training_and_validation(void **state)
{
    (void)state;
    mkdir(scratch("both"), 0777);
    draw_all("both/train", 6, 1);
    draw_all("both/val", 2, 2);
    expect_command(command_line("train --data images:%s --grey --dry-run --device cpu 2>&1", scratch("both")), 0,
                   "18 training samples of 1 × 64 × 64, 6 validation samples, 3 classes");
    expect_command(command_line("train --data images:%s --val-fraction 0.2 --dry-run 2>&1", scratch("both")), 2,
                   "has a validation set");
}

static void wrong_calls_say_what_is_wrong(void **state)
{
    (void)state;
    static const struct {
        const char *arguments, *text;
    } calls[] = {{"--data images", "'images' has no path; must be images:FOLDER"},
                 {"--image-size 7", "out of range; must be from 8 to 4096"},
                 {"--image-size 32", "--image-size applies to images:FOLDER only; the data is 'digits'"},
                 {"--grey", "--grey applies to images:FOLDER only"},
                 {"--jitter 0.2", "--jitter applies to images:FOLDER only"},
                 {"--jitter 2", "out of range"},
                 {"--crop-scale 0", "out of range"},
                 {"--crop-scale 0.5", "--crop-scale applies to images:FOLDER only"},
                 {"--val-fraction 0.5", "--val-fraction applies to tables (FILE.csv), images:FOLDER and chats"}};
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++)
        expect_command(command_line("train %s --dry-run --device cpu 2>&1", calls[i].arguments), 2, calls[i].text);
    expect_command(command_line("train --data images:%s 2>&1", scratch("nosuch")), 1, "nosuch");
    expect_command(command_line("train --data %s 2>&1", data), 2, "is a folder; of images: images:");
    mkdir(scratch("empty"), 0777);
    expect_command(command_line("train --data images:%s 2>&1", scratch("empty")), 1,
                   "needs a folder of images per class");
    /* the data of a run is recognized by its files */
    draw_all("data", EACH + 1, 3);
    expect_command(command_line("train --resume %s --epochs 9 2>&1", run), 1,
                   "is not the data that the run was started with");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_folder_of_images_is_trained_on), cmocka_unit_test(any_number_of_workers_gives_the_same_run),
        cmocka_unit_test(a_new_head_on_the_weights_of_another_run),
        cmocka_unit_test(folders_for_training_and_validation), cmocka_unit_test(wrong_calls_say_what_is_wrong)};
    return cmocka_run_group_tests(tests, make_data, remove_scratch);
}
