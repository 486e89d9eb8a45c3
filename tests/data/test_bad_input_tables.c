/* test_bad_input_tables.c: invalid arguments to the functions for tables. */
#include "support/files.h"
#include "support/refuse.h"

static void tables(void **state)
{
    (void)state;
    tarn_column_info column;
    tarn_table_info info;
    const char *path = write_text("good.csv", "a,y\n1,u\n2,v\n3,u\n");
    static const tarn_table_options bad[] = {{.delimiter = 'x'},
                                             {.header = (tarn_csv_header)9},
                                             {.decimal = (tarn_csv_decimal)9},
                                             {.delimiter = ',', .decimal = TARN_DECIMAL_COMMA}};
    REFUSE(tarn_table_open, tarn_table_open_sized(NULL, NULL, 0));
    REFUSE(tarn_table_open, tarn_table_open("", NULL));
    REFUSE(tarn_table_open, tarn_table_open("/", NULL));
    REFUSE(tarn_table_open, tarn_table_open(scratch("nosuch.csv"), NULL));
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        REFUSE(tarn_table_open, tarn_table_open(path, &bad[i]));
    tarn_table *table = tarn_table_open(path, NULL);
    REFUSE(tarn_table_query, tarn_table_query(NULL, &info));
    REFUSE(tarn_table_query, tarn_table_query(table, NULL));
    REFUSE(tarn_table_column, tarn_table_column(NULL, 0, &column));
    REFUSE(tarn_table_column, tarn_table_column(table, 0, NULL));
    REFUSE(tarn_table_column, tarn_table_column(table, -1, &column));
    REFUSE(tarn_table_column, tarn_table_column(table, 2, &column));
    tarn_table_free(table);
    tarn_table_free(NULL);
}

static void encoders(void **state)
{
    (void)state;
    tarn_table_encoder_info info;
    tarn_table *table = tarn_table_open(write_text("good.csv", "a,y\n1,u\n2,v\n3,u\n"), NULL);
    static const tarn_table_encoder_options bad[] = {{.val_fraction = 1},
                                                     {.task = TARN_TABLE_REGRESS},
                                                     {.task = (tarn_table_task)9},
                                                     {.target = "z"},
                                                     {.target = "3"},
                                                     {.drop = "a"},
                                                     {.drop = "y"},
                                                     {.drop = "b"}};
    REFUSE(tarn_table_encoder_new, tarn_table_encoder_new_sized(NULL, NULL, 0));
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        REFUSE(tarn_table_encoder_new, tarn_table_encoder_new(table, &bad[i]));
    tarn_table_encoder *encoder = tarn_table_encoder_new(table, NULL);
    REFUSE(tarn_table_encoder_query, tarn_table_encoder_query(NULL, &info));
    REFUSE(tarn_table_encoder_query, tarn_table_encoder_query(encoder, NULL));
    REFUSE(tarn_table_encoder_class, tarn_table_encoder_class(NULL, 0));
    REFUSE(tarn_table_encoder_class, tarn_table_encoder_class(encoder, 2));
    REFUSE(tarn_table_encoder_class, tarn_table_encoder_class(encoder, -1));
    REFUSE(tarn_dataset_table, tarn_dataset_table(NULL, encoder, TARN_TABLE_ALL));
    REFUSE(tarn_dataset_table, tarn_dataset_table(table, NULL, TARN_TABLE_ALL));
    REFUSE(tarn_dataset_table, tarn_dataset_table(table, encoder, (tarn_table_part)9));
    tarn_table_encoder_free(encoder);
    tarn_table_encoder_free(NULL);
    tarn_table_free(table);
}

int main(void)
{
    const struct CMUnitTest tests[] = {in_scope(tables), in_scope(encoders)};
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
