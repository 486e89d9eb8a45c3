/* test_finetune.c: fine-tuning by the command: the plan, killed runs, and a full disk. */
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <tarn/model.h>
#include <tarn/text.h>
#include <time.h>
#include <unistd.h>

#include "support/command.h"
#include "support/files.h"
#include "tarn_features.h"

static void assert_same(const char *folder, const char *other, const char *name)
{
    char path[2][1300];
    size_t count[2];
    snprintf(path[0], sizeof(path[0]), "%s/%s", folder, name);
    snprintf(path[1], sizeof(path[1]), "%s/%s", other, name);
    char *bytes_of[2] = {get_file(path[0], &count[0]), get_file(path[1], &count[1])};
    if (count[0] != count[1] || memcmp(bytes_of[0], bytes_of[1], count[0]) != 0)
        fail_msg("%s differs", name);
    free(bytes_of[0]);
    free(bytes_of[1]);
}

static void sleep_ms(int64_t milliseconds)
{
    nanosleep(&(struct timespec){.tv_nsec = milliseconds % 1000 * 1000000, .tv_sec = milliseconds / 1000}, NULL);
}

/* ---- a base of bytes, and a text --------------------------------------------------------------------------------- */

static void write_base(const char *name)
{
    const tarn_llama_config config = {.vocab_size = 256,
                                      .context = 32,
                                      .layers = 2,
                                      .heads = 2,
                                      .kv_heads = 1,
                                      .hidden_size = 32,
                                      .ffn_size = 64,
                                      .tie_embeddings = true};
    char text[2401], folder[1200];
    snprintf(folder, sizeof(folder), "%s", scratch(name));
    tarn_module *model = tarn_model_llama(&config, tarn_device_cpu(), 3);
    tarn_tokenizer *tokenizer = tarn_tokenizer_bytes();
    assert_true(tarn_model_write(model, folder) && tarn_tokenizer_save(tokenizer, folder));
    tarn_tokenizer_free(tokenizer);
    tarn_module_free(model);
    for (int i = 0; i < 2400; i++)
        text[i] = "the cat sat on the mat; a dog ran by.\n"[i % 38];
    text[2400] = 0;
    write_text("text.txt", text);
}

static const char *tuning(const char *folder)
{
    return command_line(
        "train --model %s --data text:%s --lora 4 --lora-dropout 0.1 --lr 0.01 --context 12 --batch-size 8 "
        "--micro-batch 4 --steps "
        "60 --eval-every 10 --log-every 5 --device cpu --out %s",
        scratch("base"), scratch("text.txt"), folder);
}

static void the_plan_is_printed_before_it_begins(void **state)
{
    (void)state;
    write_base("base");
    expect_command(command_line("%s --dry-run", tuning(scratch("dry"))), 0, "fine-tuning llama");
    static const char *const says[] = {"weights     ",
                                       "adapters    rank 4, alpha 8, dropout 0.1, in all linear layers but the head",
                                       "parameters  4096 trained, 26784 frozen",
                                       " of weights, ",
                                       " of gradients, ",
                                       " of optimizer state, ",
                                       " of activations"};
    for (size_t i = 0; i < sizeof(says) / sizeof(says[0]); i++)
        if (!strstr(command_output, says[i]))
            fail_msg("'%s' is not in\n%s", says[i], command_output);
    assert_int_equal(command_objects(command_line("%s --dry-run --json", tuning(scratch("dry")))), 1);
    assert_non_null(strstr(command_output, "\"trained\": 4096"));
    assert_non_null(strstr(command_output, "\"gradient_bytes\": 16384"));
    expect_command("train --model nosuchmodel --data digits 2>&1", 2, "must be one of mlp|lenet");
    expect_command(
        command_line("train --model %s --data text:%s --layers 3 2>&1", scratch("base"), scratch("text.txt")), 2,
        "layers is 3, but the base model");
    expect_command(command_line("train --model gpt2 --lora 4 --data text:%s 2>&1", scratch("text.txt")), 2,
                   "lora needs a base model");
    expect_command(
        "bench train --model llama --layers 1 --heads 2 --hidden-size 32 --context 16 --vocab-size 64 --batch 2 --lora "
        "2 --steps 1 "
        "--warmup 0 --device cpu --json",
        0, "\"lora\": 2");
    assert_non_null(strstr(command_output, "\"frozen\": "));
}

/* ---- killed ------------------------------------------------------------------------------------------------------ */

static pid_t start(const char *arguments)
{
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        char command[6600];
        snprintf(command, sizeof(command), "exec %s %s > /dev/null 2>&1", getenv("TARN_COMMAND"), arguments);
        execl("/bin/sh", "sh", "-c", command, (char *)NULL);
        _exit(127);
    }
    return child;
}

/* kill -9 at random instants: the resumed run is bitwise identical to an uninterrupted one. */
static void a_killed_run_of_adapters_resumes_bitwise_identically(void **state)
{
    (void)state;
    uint64_t random = test_seed(7);
    int rounds = getenv("TARN_TEST_LONG") ? 100 : 5, status;
    char folder[1200], trainer[1300];
    struct stat about;
    if (!getenv("TARN_COMMAND"))
        skip();
    write_base("base");
    expect_command(command_line("%s --quiet", tuning(scratch("untouched"))), 0, "");
    snprintf(folder, sizeof(folder), "%s", scratch("killed"));
    snprintf(trainer, sizeof(trainer), "%s/config.json", folder);
    pid_t child = start(tuning(folder));
    for (int i = 0; i < 3000 && stat(trainer, &about) != 0; i++)
        sleep_ms(5);
    for (int i = 0; i < rounds; i++) {
        sleep_ms(random_below(&random, 60));
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
        child = start(command_line("train --resume %s", folder));
    }
    waitpid(child, &status, 0);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_same(scratch("untouched"), folder, "adapter_model.safetensors");
    assert_same(scratch("untouched"), folder, "optimizer.safetensors");
    assert_same(scratch("untouched"), folder, "best/adapter_model.safetensors");
    assert_same(scratch("untouched"), folder, "frozen.json");
}

/* ---- a full disk ------------------------------------------------------------------------------------------------- */

/* A shell in its own mount namespace: $DISK is a disk of 400 KiB. A run of 20 steps, then the disk is filled almost
 * completely and the run resumed: it must fail with a message. Resumed with free space, it must be bitwise identical
 * to a run without a full disk. */
static const char script[] =
    "set -u\n"
    "flags=\"--model $BASE --data text:$TEXT --lora 4 --lora-dropout 0.1 --context 12 --batch-size 8 --eval-every 10 "
    "--eval-batches 2 "
    "--log-every 5 --schedule constant --keep 1 --device cpu\"\n"
    "mount -t tmpfs -o size=400k none \"$DISK\" || exit 77\n"
    "\"$TARN\" train $flags --steps 40 --out \"$WHOLE/run\" --quiet || exit 1\n"
    "for room in 0 4 16 48; do\n"
    "    rm -rf \"$DISK\"/*\n"
    "    \"$TARN\" train $flags --steps 20 --out \"$DISK/run\" --quiet || exit 2\n"
    "    head -c \"${room}k\" /dev/zero > \"$DISK/room\"\n"
    "    cat /dev/zero > \"$DISK/filler\" 2> /dev/null\n"
    "    rm \"$DISK/room\"\n"
    "    text=$(\"$TARN\" train --resume \"$DISK/run\" --steps 40 --quiet 2>&1)\n"
    "    status=$?\n"
    "    echo \"room for $room KiB, status $status: $text\"\n"
    "    [ $status = 1 ] || exit 3\n"
    "    case $text in *\"$DISK/run/\"*) ;; *) exit 4 ;; esac\n"
    "    case $text in *\"No space left on device\"*|*\"is the disk full?\"*) ;; *) exit 5 ;; esac\n"
    "    \"$TARN\" generate \"$DISK/run\" one --max-tokens 5 --device cpu > /dev/null || exit 6\n"
    "    rm \"$DISK/filler\"\n"
    "    \"$TARN\" train --resume \"$DISK/run\" --steps 40 --quiet || exit 7\n"
    "    for file in adapter_model.safetensors optimizer.safetensors best/adapter_model.safetensors "
    "step-40/adapter_model.safetensors; do\n"
    "        cmp \"$DISK/run/$file\" \"$WHOLE/run/$file\" || exit 8\n"
    "    done\n"
    "done\n"
    "echo done\n";

static void a_full_disk_loses_no_adapters(void **state)
{
    (void)state;
    char output[16384] = "";
    if (!getenv("TARN_COMMAND"))
        skip();
    write_base("base");
    write_text("script", script);
    mkdir(scratch("disk"), 0777);
    mkdir(scratch("whole"), 0777);
    FILE *pipe =
        popen(command_line("TARN=%s BASE=%s TEXT=%s DISK=%s WHOLE=%s unshare --user --map-root-user --mount sh %s 2>&1",
                           getenv("TARN_COMMAND"), scratch("base"), scratch("text.txt"), scratch("disk"),
                           scratch("whole"), scratch("script")),
              "r");
    assert_non_null(pipe);
    output[fread(output, 1, sizeof(output) - 1, pipe)] = 0;
    int status = pclose(pipe) >> 8;
    if (strstr(output, "unshare") || status == 77) {
        print_message("no disk of our own can be made here: %s\n", output);
        skip();
    }
    print_message("%s", output);
    if (status != 0 || !strstr(output, "done\n"))
        fail_msg("the script ended with status %d", status);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(the_plan_is_printed_before_it_begins),
        in_scope(a_killed_run_of_adapters_resumes_bitwise_identically),
        in_scope(a_full_disk_loses_no_adapters),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
