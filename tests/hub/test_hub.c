/* test_hub.c: the parts of the hub that need no network: hashes, names that may become paths, the choice of files, and
 * links, refs and lookups in the cache. */
#include <sys/stat.h>
#include <unistd.h>

#include "hub/hub.h"
#include "hub/sha.h"
#include "support/check.h"
#include "support/files.h"

#define COMMIT "0123456789abcdef0123456789abcdef01234567"

/* ---- hashes ------------------------------------------------------------------------------------------------------ */

static void hash(bool is_sha1, const void *message, size_t count, size_t first, char text[TARN__SHA_TEXT])
{
    tarn__sha sha;
    if (is_sha1)
        tarn__sha1_begin(&sha);
    else
        tarn__sha256_begin(&sha);
    tarn__sha_add(&sha, message, first);
    tarn__sha_add(&sha, (const char *)message + first, count - first);
    tarn__sha_end(&sha, text);
}

/* The vectors of FIPS 180-4, and the empty message. */
static void hashes_of_known_messages(void **state)
{
    (void)state;
    static const char *const known[][3] = {{"", "da39a3ee5e6b4b0d3255bfef95601890afd80709",
                                            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
                                           {"abc", "a9993e364706816aba3e25717850c26c9cd0d89d",
                                            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
                                           {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
                                            "84983e441c3bd26ebaae4aa1f95129e5e54670f1",
                                            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"}};
    char text[TARN__SHA_TEXT];
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        hash(true, known[i][0], strlen(known[i][0]), 0, text);
        assert_string_equal(text, known[i][1]);
        hash(false, known[i][0], strlen(known[i][0]), 0, text);
        assert_string_equal(text, known[i][2]);
    }
    static char million[1000000];
    memset(million, 'a', sizeof(million));
    hash(true, million, sizeof(million), 77, text);
    assert_string_equal(text, "34aa973cd4c4daa4f61eeb2bdbad27316534016f");
    hash(false, million, sizeof(million), 77, text);
    assert_string_equal(text, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

/* Every length around the borders of a block, cut anywhere. */
static void hashes_do_not_depend_on_the_parts(void **state)
{
    (void)state;
    char message[200], whole[TARN__SHA_TEXT], parts[TARN__SHA_TEXT];
    for (size_t i = 0; i < sizeof(message); i++)
        message[i] = (char)(7 * i);
    for (size_t count = 0; count <= sizeof(message); count++)
        for (size_t first = 0; first <= count; first += 1 + count / 9)
            for (int is_sha1 = 0; is_sha1 < 2; is_sha1++) {
                hash(is_sha1, message, count, 0, whole);
                hash(is_sha1, message, count, first, parts);
                assert_string_equal(whole, parts);
            }
}

/* ---- names ------------------------------------------------------------------------------------------------------- */

static void names_of_models(void **state)
{
    (void)state;
    static const char *const good[] = {"org/name", "Qwen/Qwen2.5-0.5B", "a/b_c", "0/1"};
    static const char *const bad[] = {"",     "name", "/name",  "org/",  "a/b/c", "../b",   "a/..",   "a/.b",
                                      "-a/b", "a/b-", "a--b/c", "a/b c", "a/b\n", "a/b..c", "a\\b/c", "a/b%2f"};
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++)
        assert_true(tarn__hub_is_repo(good[i]));
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        if (tarn__hub_is_repo(bad[i]))
            fail_msg("'%s' passes for a model", bad[i]);
    char longest[300];
    memset(longest, 'a', sizeof(longest));
    longest[96] = '/';
    longest[193] = 0;
    assert_true(tarn__hub_is_repo(longest));
    longest[193] = 'a';
    longest[194] = 0;
    assert_false(tarn__hub_is_repo(longest));
}

static void names_of_revisions_and_blobs(void **state)
{
    (void)state;
    static const char *const good[] = {"main", "v1.0", "refs/pr/1", COMMIT, "a+b"};
    static const char *const bad[] = {"", "..", "a/../b", "/a", "a/", "-a", ".a", "a//b", "a/.b", "a b", "a\n", "a\\b"};
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++)
        assert_true(tarn__hub_is_revision(good[i]));
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        if (tarn__hub_is_revision(bad[i]))
            fail_msg("'%s' passes for a revision", bad[i]);
    assert_true(tarn__hub_is_etag(COMMIT) && tarn__hub_is_etag("5d8c-1"));
    assert_false(tarn__hub_is_etag("") || tarn__hub_is_etag("a/b") || tarn__hub_is_etag("..") ||
                 tarn__hub_is_etag(".a") || tarn__hub_is_etag("a b"));
    assert_true(tarn__hub_is_sha1(COMMIT));
    assert_false(tarn__hub_is_sha1("0123456789ABCDEF0123456789abcdef01234567") || tarn__hub_is_sha256(COMMIT));
}

static void names_of_files(void **state)
{
    (void)state;
    static const char *const good[] = {"config.json", "1_Pooling/config.json", "a b/\xC3\xA4.txt", "...", "a..b"};
    static const char *const bad[] = {"",      "/etc/x",    "..",    "../x",         "a/../x",   "a/..",
                                      "./a",   "a//b",      "a/",    "a\\b",         "a\x1b[2J", "a\n",
                                      "a\x7f", "a\xC2\x9B", "a\xFF", "a\xE2\x80\xAE"};
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++)
        assert_true(tarn__hub_check_file("org/name", good[i]));
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        if (tarn__hub_check_file("org/name", bad[i]))
            fail_msg("name %zu passes for a file", i);
        assert_error(TARN_ERROR_FORMAT, "unsafe name");
    }
    char longest[2 * TARN__HUB_FILE];
    memset(longest, 'a', sizeof(longest));
    longest[255] = 0;
    assert_true(tarn__hub_check_file("org/name", longest));
    longest[255] = 'a';
    longest[256] = 0;
    assert_false(tarn__hub_check_file("org/name", longest));
    assert_error(TARN_ERROR_FORMAT, "255 bytes");
    for (size_t i = 0; i < TARN__HUB_FILE; i++)
        longest[i] = i % 2 ? '/' : 'a';
    longest[TARN__HUB_FILE] = 0;
    assert_false(tarn__hub_check_file("org/name", longest));
    assert_error(TARN_ERROR_FORMAT, "too long");
}

/* ---- selection --------------------------------------------------------------------------------------------------- */

/* Selects among names that end with NULL; `chosen` lists what is selected, with spaces. */
static bool choose(const char *const *names, const char *pattern, char chosen[400])
{
    tarn__hub_file files[24] = {{0}};
    tarn__hub_listing listing = {.commit = COMMIT, .files = files};
    for (; names[listing.count]; listing.count++)
        files[listing.count] = (tarn__hub_file){.name = (char *)(uintptr_t)names[listing.count], .bytes = -1};
    bool good = tarn__hub_select("org/name", &listing, &pattern, pattern ? 1 : 0);
    chosen[0] = 0;
    for (size_t i = 0; i < listing.count; i++)
        if (files[i].is_selected)
            snprintf(chosen + strlen(chosen), 400 - strlen(chosen), "%s ", names[i]);
    return good;
}

#define NAMES(...) ((const char *const[]){__VA_ARGS__, NULL})

static void one_set_of_weights_is_selected(void **state)
{
    (void)state;
    char chosen[400];
    assert_true(choose(NAMES("README.md", "config.json", "flax_model.msgpack", "merges.txt", "model.safetensors",
                             "model.safetensors.index.json", "model-00001-of-00001.safetensors", "q.gguf",
                             "pytorch_model.bin", "tokenizer.json", "tokenizer.model", "vocab.json"),
                       NULL, chosen));
    assert_string_equal(chosen, "config.json merges.txt model.safetensors tokenizer.json tokenizer.model vocab.json ");
    assert_true(choose(NAMES("adapter_config.json", "adapter_model.bin", "adapter_model.safetensors"), NULL, chosen));
    assert_string_equal(chosen, "adapter_config.json adapter_model.safetensors ");
    assert_true(choose(NAMES("README.md", "tokenizer.json", "special_tokens_map.json"), NULL, chosen));
    assert_string_equal(chosen, "tokenizer.json special_tokens_map.json ");
    assert_true(choose(NAMES("a.gguf", "config.json", "imatrix.gguf", "mmproj-a.gguf"), NULL, chosen));
    assert_string_equal(chosen, "a.gguf ");
    assert_true(choose(NAMES("a.gguf", "sub/b.gguf", "sub/c.bin"), "*.gguf", chosen));
    assert_string_equal(chosen, "a.gguf sub/b.gguf ");
}

#define SHARDS_OF(name) name "-00001-of-00002.gguf", name "-00002-of-00002.gguf"

static void all_shards_of_a_gguf_model_are_selected(void **state)
{
    (void)state;
    char chosen[400];
    assert_true(choose(NAMES("README.md", SHARDS_OF("a"), "mmproj-a.gguf"), NULL, chosen));
    assert_string_equal(chosen, "a-00001-of-00002.gguf a-00002-of-00002.gguf ");
    assert_true(choose(NAMES(SHARDS_OF("q4/a"), SHARDS_OF("q8/a")), "q4/a-00001-of-00002.gguf", chosen));
    assert_string_equal(chosen, "q4/a-00001-of-00002.gguf q4/a-00002-of-00002.gguf ");
    assert_true(choose(NAMES(SHARDS_OF("a"), SHARDS_OF("b"), "c.gguf"), "b-00002*", chosen));
    assert_string_equal(chosen, "b-00001-of-00002.gguf b-00002-of-00002.gguf ");
    assert_true(choose(NAMES("a-00001-of-00003.gguf", SHARDS_OF("a"), "a.gguf"), "*-00002-of-00002.gguf", chosen));
    assert_string_equal(chosen, "a-00001-of-00002.gguf a-00002-of-00002.gguf ");
    assert_false(choose(NAMES(SHARDS_OF("a"), "b.gguf"), NULL, chosen));
    assert_error_about(TARN_ERROR_ARGUMENT, "has 2 GGUF models", "a-00001-of-00002.gguf, b.gguf");
}

static void what_cannot_be_selected(void **state)
{
    (void)state;
    char chosen[400];
    assert_false(choose(NAMES("a.gguf", "b.gguf"), NULL, chosen));
    assert_error_about(TARN_ERROR_ARGUMENT, "--include", "a.gguf, b.gguf");
    assert_false(choose(NAMES("config.json", "x.bin"), NULL, chosen));
    assert_error(TARN_ERROR_UNSUPPORTED, "'x.bin' is a pickle");
    assert_false(choose(NAMES("a-00001-of-00003.gguf", "a-00003-of-00003.gguf"), NULL, chosen));
    assert_error(TARN_ERROR_FORMAT, "has 'a-00001-of-00003.gguf', but not its shard 'a-00002-of-00003.gguf'");
    assert_false(choose(NAMES("a-00002-of-00002.gguf"), NULL, chosen));
    assert_error(TARN_ERROR_UNSUPPORTED, "such as 'a-00002-of-00002.gguf', but none is the first");
    assert_false(choose(NAMES("a.gguf"), "*.bin", chosen));
    assert_error(TARN_ERROR_ARGUMENT, "matches --include '*.bin'");
    assert_false(choose(NAMES("Model.gguf", "model.gguf"), "*.gguf", chosen));
    assert_error(TARN_ERROR_FORMAT, "case alone");
}

/* ---- the cache --------------------------------------------------------------------------------------------------- */

/* A model in the cache of the scratch folder, with a blob "blob" and links to it. */
static const char *make_model(const char *repo, const char *first, const char *second)
{
    static char cache[TARN__HUB_PATH];
    char path[TARN__HUB_PATH];
    snprintf(cache, sizeof(cache), "%s", scratch("cache"));
    setenv("HF_HUB_CACHE", cache, 1);
    assert_true(tarn__hub_path(path, cache, repo, "blobs/%s", "blob") && tarn__hub_make_folders(path));
    put_file(path, "text", 4);
    assert_true(tarn__hub_link(cache, repo, COMMIT, first, "blob"));
    assert_true(!second || tarn__hub_link(cache, repo, COMMIT, second, "blob"));
    assert_true(tarn__hub_write_ref(cache, repo, "main", COMMIT));
    return cache;
}

static void links_are_relative_and_replaced(void **state)
{
    (void)state;
    const char *cache = make_model("org/links", "a/b/c.json", NULL);
    char path[TARN__HUB_PATH], target[100] = "", commit[TARN__HUB_REVISION];
    assert_true(tarn__hub_path(path, cache, "org/links", "snapshots/%s/a/b/c.json", COMMIT));
    assert_true(readlink(path, target, sizeof(target) - 1) > 0);
    assert_string_equal(target, "../../../../blobs/blob");
    assert_true(tarn__hub_link(cache, "org/links", COMMIT, "a/b/c.json", "other"));
    memset(target, 0, sizeof(target));
    assert_true(readlink(path, target, sizeof(target) - 1) > 0);
    assert_string_equal(target, "../../../../blobs/other");
    assert_true(tarn__hub_commit(cache, "org/links", "main", commit));
    assert_string_equal(commit, COMMIT);
    assert_false(tarn__hub_commit(cache, "org/links", "v1", commit));
    assert_true(tarn__hub_write_ref(cache, "org/links", "main", "ffffffffffffffffffffffffffffffffffffffff"));
    assert_false(tarn__hub_commit(cache, "org/links", "main", commit)); /* no such snapshot */
    assert_true(tarn__hub_commit(cache, "org/links", COMMIT, commit));
    assert_ok();
}

static bool ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), tail = strlen(end);
    return length >= tail && strcmp(text + length - tail, end) == 0;
}

static void models_are_found_by_name(void **state)
{
    (void)state;
    char path[TARN__HUB_PATH];
    make_model("org/folder", "config.json", "extra.gguf");
    assert_true(tarn__hub_open("org/folder", path) && ends_with(path, "models--org--folder/snapshots/" COMMIT));
    assert_true(tarn__hub_open("org/folder@main", path) && tarn__hub_open("org/folder@" COMMIT "/config.json", path));
    make_model("org/one", "sub/a.gguf", NULL);
    assert_true(tarn__hub_open("org/one", path) && ends_with(path, COMMIT "/sub/a.gguf"));
    make_model("org/two", "a.gguf", "b.gguf");
    assert_false(tarn__hub_open("org/two", path));
    assert_error(TARN_ERROR_ARGUMENT, "give one: org/two/a.gguf, org/two/b.gguf");
    assert_true(tarn__hub_open("org/two/b.gguf", path) && ends_with(path, "/b.gguf"));
    make_model("org/shards", "a-00001-of-00002.gguf", "a-00002-of-00002.gguf");
    assert_true(tarn__hub_open("org/shards", path) && ends_with(path, "/a-00001-of-00002.gguf"));
    assert_false(tarn__hub_open("org/two/c.gguf", path));
    assert_error(TARN_ERROR_IO, "run `tarn pull org/two --include 'c.gguf'`");
    assert_false(tarn__hub_open("org/two@v1/a.gguf", path));
    assert_error(TARN_ERROR_IO, "run `tarn pull org/two --revision v1`");
    assert_false(tarn__hub_open("org/two/../../../blobs/blob", path));
    assert_error(TARN_ERROR_FORMAT, "unsafe name");
    static const char *const others[] = {"org/absent", "model.gguf", "/org/two", "../org/two", "https://a/b", "", "/"};
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        assert_false(tarn__hub_open(others[i], path));
    assert_ok();
}

static void a_path_that_exists_comes_first(void **state)
{
    (void)state;
    char path[TARN__HUB_PATH], before[TARN__HUB_PATH];
    make_model("org/here", "config.json", NULL);
    assert_non_null(getcwd(before, sizeof(before)));
    mkdir(scratch("work"), 0777);
    assert_int_equal(chdir(scratch("work")), 0);
    assert_true(tarn__hub_open("org/here", path));
    mkdir("org", 0777);
    mkdir("org/here", 0777);
    assert_false(tarn__hub_open("org/here", path));
    assert_ok();
    assert_int_equal(chdir(before), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(hashes_of_known_messages),
        in_scope(hashes_do_not_depend_on_the_parts),
        in_scope(names_of_models),
        in_scope(names_of_revisions_and_blobs),
        in_scope(names_of_files),
        in_scope(one_set_of_weights_is_selected),
        in_scope(all_shards_of_a_gguf_model_are_selected),
        in_scope(what_cannot_be_selected),
        in_scope(links_are_relative_and_replaced),
        in_scope(models_are_found_by_name),
        in_scope(a_path_that_exists_comes_first),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
