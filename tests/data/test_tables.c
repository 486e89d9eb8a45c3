/* test_tables.c: tables of numbers and words: dialects, types, missing values, broken rows, the encoder and its split.
 */
#include <math.h>

#include "support/files.h"

static tarn_table *open_text(const char *text)
{
    return tarn_table_open(write_file("table.csv", text, strlen(text)), NULL);
}

static tarn_table_info info_of(const tarn_table *table)
{
    tarn_table_info info = {0};
    assert_true(tarn_table_query(table, &info));
    return info;
}

static tarn_column_info column_of(const tarn_table *table, int index)
{
    tarn_column_info column = {0};
    assert_true(tarn_table_column(table, index, &column));
    return column;
}

static void expect_error(const char *part)
{
    if (!strstr(tarn_error(), part))
        print_error("expected '%s' in: %s\n", part, tarn_error());
    assert_non_null(strstr(tarn_error(), part));
    tarn_clear_error();
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

static void delimiter_and_decimal_point_are_found(void **state)
{
    static const struct {
        const char *text;
        char delimiter, decimal;
        int columns;
        bool has_header;
    } cases[] = {
        {"a,b,c\n1,2,3\n", ',', '.', 3, true},
        {"a;b\n1,5;2\n2;3,25\n", ';', ',', 2, true},
        {"a;b\n1.5;2\n2;3.25\n", ';', '.', 2, true},
        {"1,5;2,5\n2,5;3,25\n", ';', ',', 2, false},
        {"a\tb, c\n1\t2\n", '\t', '.', 2, true},
        {"\xEF\xBB\xBF\"a\";\"b;c\"\r\n1;2\r\n", ';', '.', 2, true},
        {"5.1,3.5,setosa\n4.9,3.0,setosa\n", ',', '.', 3, false},
        {"1,2\n3,4", ',', '.', 2, false},
        {"x\n\n1\n\n2\n", ',', '.', 1, true},
        {"name,2019\nx,1\n", ',', '.', 2, false},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        tarn_table *table = open_text(cases[i].text);
        assert_ok();
        tarn_table_info info = info_of(table);
        assert_int_equal(info.delimiter, cases[i].delimiter);
        assert_int_equal(info.decimal, cases[i].decimal);
        assert_int_equal(info.columns, cases[i].columns);
        assert_int_equal(info.has_header, cases[i].has_header);
        assert_int_equal(info.rows, cases[i].has_header || i == 9 ? (i == 0 || i == 4 || i == 5 ? 1 : 2) : 2);
        tarn_table_free(table);
    }
}

static void options_override_what_is_found(void **state)
{
    (void)state;
    const char *path = write_file("t.csv", "a;b\nc;d\n1,5;2\n", 14);
    tarn_table *table =
        tarn_table_open(path, &(tarn_table_options){.header = TARN_HEADER_NO, .decimal = TARN_DECIMAL_POINT});
    assert_int_equal(info_of(table).rows, 3);
    assert_int_equal(info_of(table).decimal, '.');
    assert_string_equal(column_of(table, 1).name, "2");
    tarn_table_free(table);
    assert_null(tarn_table_open(path, &(tarn_table_options){.delimiter = 'x'}));
    expect_error("it must be ',', ';' or tab");
    assert_null(tarn_table_open(path, &(tarn_table_options){.delimiter = ',', .decimal = TARN_DECIMAL_COMMA}));
    expect_error("both delimiter and decimal point");
}

static void types_and_missing_values(void **state)
{
    (void)state;
    tarn_table *table = open_text("n,w,q,\n1, x ,\"a \"\"b\"\"\nc\",1\n?,NA,z,2\nNaN,null,,3\n-2.5e3,y,\"x,y\",4\n");
    assert_ok();
    tarn_column_info n = column_of(table, 0), w = column_of(table, 1), q = column_of(table, 2);
    assert_true(!n.is_category && n.missing == 2 && n.categories == 0);
    assert_true(w.is_category && w.missing == 2 && w.categories == 2);
    assert_true(q.is_category && q.missing == 1 && q.categories == 3);
    assert_string_equal(column_of(table, 3).name, "4"); /* without a name */
    assert_int_equal(info_of(table).rows, 4);
    tarn_table_free(table);
}

static void broken_rows_are_skipped_and_counted(void **state)
{
    (void)state;
    char text[4096] = "a,b\n";
    for (int i = 0; i < 40; i++)
        strcat(text, i == 7 ? "1\n" : i == 20 ? "\"x\"y,2\n" : i == 30 ? "1,2,3\n" : "1,2\n");
    tarn_table *table = open_text(text);
    assert_ok();
    assert_int_equal(info_of(table).rows, 37);
    assert_int_equal(info_of(table).broken, 3);
    tarn_table_free(table);
    assert_null(open_text("a,b\n1,2\n3\n4\n5\n"));
    expect_error("3 of 4 rows are broken; the delimiter is ',', is that right? line 3: 1 fields");
}

static void bad_files_are_refused_with_line_and_column(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"a,b\n1,\"2\n", "line 2, column 2: the file ends inside quotes"},
        {"a,b\n1,\xFFz\n", "line 2, column 2: text that is not UTF-8"},
        {"a,a\n1,2\n", "columns 1 and 2 have the same name 'a'"},
        {"", "the file is empty"},
        {"a,b\n1e999,2\n", "line 2, column 1 ('a'): '1e999' is too large"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_null(open_text(cases[i][0]));
        expect_error(cases[i][1]);
    }
    assert_null(tarn_table_open(write_file("zero.csv", "a,b\n1,\0x\n", 9), NULL));
    expect_error("line 2, column 2: a zero byte");
}

/* ---- the encoder ------------------------------------------------------------------------------------------------- */

static void read_row(tarn_dataset *dataset, int64_t index, float *x, void *label)
{
    assert_true(tarn_dataset_read(dataset, index, (void *const[]){x, label}));
}

/* Mean 2 and std sqrt(2/3) of 1, 2, 3; "r" twice, "g" twice, "b" once. */
static void values_become_features(void **state)
{
    (void)state;
    float x[16];
    int64_t label;
    tarn_table *table = open_text("n,w,y\n1,r,no\n2,g,yes\n3,r,no\n,g,yes\n2,,no\n2,b,yes\n");
    tarn_table_encoder *encoder = tarn_table_encoder_new(table, &(tarn_table_encoder_options){.val_fraction = -1});
    assert_ok();
    tarn_table_encoder_info info;
    assert_true(tarn_table_encoder_query(encoder, &info));
    assert_int_equal(info.features, 2 + 4); /* number, indicator; g, r, other, indicator */
    assert_int_equal(info.classes, 2);
    assert_string_equal(tarn_table_encoder_class(encoder, 1), "yes");
    tarn_dataset *all = tarn_dataset_table(table, encoder, TARN_TABLE_ALL);
    assert_int_equal(tarn_dataset_count(all), 6);
    const double std = sqrt(2.0 / 5);
    const float expected[6][6] = {{(float)(-1 / std), 0, 0, 1, 0, 0},
                                  {0, 0, 1, 0, 0, 0},
                                  {(float)(1 / std), 0, 0, 1, 0, 0},
                                  {0, 1, 1, 0, 0, 0},
                                  {0, 0, 1, 0, 0, 1},
                                  {0, 0, 0, 0, 1, 0}};
    for (int i = 0; i < 6; i++) {
        read_row(all, i, x, &label);
        for (int k = 0; k < 6; k++)
            assert_float_equal(x[k], expected[i][k], 1e-6f);
        assert_int_equal(label, i % 2);
    }
    tarn_dataset_free(all);
    /* other rows: columns in another order, an unseen word, a number that looks like no word */
    const char *text = "y,w,extra,n\nyes,violet,1,4\n";
    tarn_table *other =
        tarn_table_open(write_file("other.csv", text, strlen(text)), &(tarn_table_options){.like = encoder});
    all = tarn_dataset_table(other, encoder, TARN_TABLE_ALL);
    assert_ok();
    read_row(all, 0, x, &label);
    assert_float_equal(x[0], (float)(2 / std), 1e-6f);
    assert_true(x[2] == 0 && x[3] == 0 && x[4] == 1 && x[5] == 0);
    tarn_dataset_free(all);
    tarn_table_free(other);
    text = "y,extra\nyes,1\n";
    other = tarn_table_open(write_file("other.csv", text, strlen(text)), &(tarn_table_options){.like = encoder});
    assert_null(tarn_dataset_table(other, encoder, TARN_TABLE_ALL));
    expect_error("missing columns: 'n', 'w'");
    tarn_table_free(other);
    text = "y,n,w\nyes,1,r\nmaybe,2,g\n";
    other = tarn_table_open(write_file("other.csv", text, strlen(text)), &(tarn_table_options){.like = encoder});
    assert_null(tarn_dataset_table(other, encoder, TARN_TABLE_ALL));
    expect_error("line 3, column 'y': unknown class 'maybe'");
    tarn_table_free(other);
    tarn_table_free(table);
    tarn_table_encoder_free(encoder);
}

static void task_follows_from_the_target(void **state)
{
    static const struct {
        const char *text;
        tarn_table_task task;
        bool is_regression;
        int64_t classes;
    } cases[] = {{"a,y\n1,0\n2,1\n3,0\n", TARN_TABLE_AUTO, false, 2},
                 {"a,y\n1,10\n2,2\n3,10\n", TARN_TABLE_AUTO, false, 2},
                 {"a,y\n1,0.5\n2,1\n3,0\n", TARN_TABLE_AUTO, true, 0},
                 {"a,y\n1,u\n2,v\n3,u\n", TARN_TABLE_AUTO, false, 2},
                 {"a,y\n1,0\n2,1\n3,0\n", TARN_TABLE_REGRESS, true, 0},
                 {"a,y\n1,0.5\n2,1\n3,0.5\n", TARN_TABLE_CLASSIFY, false, 2}};
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        tarn_table *table = open_text(cases[i].text);
        tarn_table_encoder *e = tarn_table_encoder_new(table, &(tarn_table_encoder_options){.task = cases[i].task});
        tarn_table_encoder_info info;
        assert_true(tarn_table_encoder_query(e, &info));
        assert_int_equal(info.is_regression, cases[i].is_regression);
        assert_int_equal(info.classes, cases[i].classes);
        if (i == 1)
            assert_string_equal(tarn_table_encoder_class(e, 0), "2"); /* numbers in their order */
        tarn_table_encoder_free(e);
        tarn_table_free(table);
    }
    char many[2048] = "a,y\n";
    for (int i = 0; i < 25; i++)
        sprintf(many + strlen(many), "1,%d\n", i);
    tarn_table *table = open_text(many);
    tarn_table_encoder *e = tarn_table_encoder_new(table, NULL);
    tarn_table_encoder_info info;
    assert_true(tarn_table_encoder_query(e, &info) && info.is_regression);
    tarn_table_encoder_free(e);
    tarn_table_free(table);
}

static void columns_are_found_by_name_and_number(void **state)
{
    (void)state;
    tarn_table *table = open_text("id,age,group\n1,30,a\n2,40,b\n3,50,a\n");
    tarn_table_encoder_info info;
    static const struct {
        const char *target, *drop, *error;
        int inputs;
    } cases[] = {{NULL, NULL, NULL, 2},
                 {"group", "id", NULL, 1},
                 {"2", NULL, NULL, 2},
                 {"-2", "1", NULL, 1},
                 {"x", NULL, "no column 'x'", 0},
                 {NULL, "ages", "did you mean 'age'?", 0},
                 {NULL, "group", "the target is", 0},
                 {NULL, "id,age", "no input column is left", 0}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        tarn_table_encoder *e = tarn_table_encoder_new(
            table, &(tarn_table_encoder_options){.target = cases[i].target, .drop = cases[i].drop});
        if (cases[i].error) {
            assert_null(e);
            expect_error(cases[i].error);
            continue;
        }
        assert_true(tarn_table_encoder_query(e, &info));
        assert_int_equal(info.inputs, cases[i].inputs);
        tarn_table_encoder_free(e);
    }
    tarn_table_free(table);
}

/* Each class gives a tenth, up to one row; a class of one row is for training; parts are disjoint and complete. */
static void the_split_is_stratified(void **state)
{
    (void)state;
    static char text[65536];
    strcpy(text, "i,y\n");
    for (int i = 0; i < 1000; i++)
        sprintf(text + strlen(text), "%d,%s\n", i, i == 500 ? "rare" : i % 10 == 0 ? "b" : "a");
    tarn_table *table = open_text(text);
    for (uint64_t seed = 0; seed < 5; seed++) {
        tarn_table_encoder *e = tarn_table_encoder_new(table, &(tarn_table_encoder_options){.seed = seed});
        int64_t counts[2][3] = {{0}}, label;
        float x;
        for (int part = 0; part < 2; part++) {
            tarn_dataset *d = tarn_dataset_table(table, e, part ? TARN_TABLE_VALIDATION : TARN_TABLE_TRAINING);
            for (int64_t i = 0; i < tarn_dataset_count(d); i++) {
                read_row(d, i, &x, &label);
                counts[part][label]++;
            }
            tarn_dataset_free(d);
        }
        assert_in_range(counts[1][0], 89, 91);
        assert_in_range(counts[1][1], 9, 11);
        assert_int_equal(counts[1][2], 0);
        assert_int_equal(counts[0][2], 1);
        assert_int_equal(counts[0][0] + counts[1][0], 900);
        tarn_table_encoder_free(e);
    }
    tarn_table_free(table);
}

/* Normalization is fitted to the training rows alone. */
static void regression_labels_are_normalized(void **state)
{
    (void)state;
    static char text[65536];
    strcpy(text, "a;y\n");
    for (int i = 0; i < 200; i++)
        sprintf(text + strlen(text), "%d;%d,5\n", i % 17, 3 * (i % 17) + 100);
    tarn_table *table = open_text(text);
    tarn_table_encoder *e = tarn_table_encoder_new(table, NULL);
    tarn_dataset *d = tarn_dataset_table(table, e, TARN_TABLE_TRAINING);
    assert_ok();
    assert_int_equal(tarn_dataset_count(d), 180);
    double sum[2] = {0}, squares[2] = {0};
    for (int64_t i = 0; i < 180; i++) {
        float x, y;
        read_row(d, i, &x, &y);
        sum[0] += (double)x, sum[1] += (double)y;
        squares[0] += (double)x * (double)x, squares[1] += (double)y * (double)y;
    }
    for (int k = 0; k < 2; k++)
        assert_true(fabs(sum[k]) < 1e-4 && fabs(squares[k] / 180 - 1) < 1e-5);
    tarn_dataset_free(d);
    tarn_table_encoder_free(e);
    tarn_table_free(table);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(delimiter_and_decimal_point_are_found),
        in_scope(options_override_what_is_found),
        in_scope(types_and_missing_values),
        in_scope(broken_rows_are_skipped_and_counted),
        in_scope(bad_files_are_refused_with_line_and_column),
        in_scope(values_become_features),
        in_scope(task_follows_from_the_target),
        in_scope(columns_are_found_by_name_and_number),
        in_scope(the_split_is_stratified),
        in_scope(regression_labels_are_normalized),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
