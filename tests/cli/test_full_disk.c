/* test_full_disk.c: runs of language models on a full disk: a small tmpfs in its own mount namespace. Skipped where
 * namespaces are not allowed. */
#include <sys/stat.h>

#include "support/command.h"
#include "support/files.h"

/* A shell in the namespace: $DISK is a disk of 600 KiB, $TARN the command. A run of 20 steps, then the disk is filled
 * almost completely and the run resumed: it must fail with a message. Resumed with free space, it must be bitwise
 * identical to a run without a full disk. */
static const char script[] =
    "set -u\n"
    "flags=\"--data text:$TEXT --layers 2 --heads 2 --hidden-size 16 --context 12 --batch-size 8 --eval-every 10 "
    "--eval-batches 2 --log-every 5\n"
    "    --schedule constant --dropout 0.1 --keep 1 --device cpu\"\n"
    "mount -t tmpfs -o size=600k none \"$DISK\" || exit 77\n"
    "\"$TARN\" train $flags --steps 40 --out \"$WHOLE/run\" --quiet || exit 1\n"
    "for room in 0 4 16 48 96; do\n"
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
    "    for file in model.safetensors optimizer.safetensors best/model.safetensors step-40/model.safetensors; do\n"
    "        cmp \"$DISK/run/$file\" \"$WHOLE/run/$file\" || exit 8\n"
    "    done\n"
    "    rm -rf \"$DISK\"/*\n"
    "    cat /dev/zero > \"$DISK/filler\" 2> /dev/null\n"
    "    text=$(\"$TARN\" train $flags --steps 20 --out \"$DISK/new\" --quiet 2>&1)\n"
    "    [ $? = 1 ] || exit 9\n"
    "done\n"
    "echo done\n";

static void a_full_disk_loses_nothing(void **state)
{
    (void)state;
    const char *command = getenv("TARN_COMMAND");
    char text[3001], line[4096], output[16384] = "";
    if (!command)
        skip();
    for (int i = 0; i < 3000; i++)
        text[i] = "one two three four five; \n"[i % 26];
    text[3000] = 0;
    write_text("text.txt", text);
    write_text("script", script);
    mkdir(scratch("disk"), 0777);
    mkdir(scratch("whole"), 0777);
    snprintf(line, sizeof(line), "TARN=%s TEXT=%s DISK=%s WHOLE=%s unshare --user --map-root-user --mount sh %s 2>&1",
             command, scratch("text.txt"), scratch("disk"), scratch("whole"), scratch("script"));
    FILE *pipe = popen(line, "r");
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
    const struct CMUnitTest tests[] = {in_scope(a_full_disk_loses_nothing)};
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
