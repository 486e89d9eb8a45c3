/* predict_table.c: `tarn predict RUN ROWS.csv`: predictions for the rows of a table, as CSV.
 *
 * The file of --output appears complete or not at all: rows go to a file next to it, which is renamed at the end. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/train/train.h"

/* The library hands out CSV in parts; false ends the prediction with an error. */
static bool write_bytes(const void *bytes, size_t count, void *ctx)
{
    return fwrite(bytes, 1, count, ctx) == count;
}

static int report_io(const char *path)
{
    fprintf(stderr, "tarn predict: '%s' cannot be written: %s\n", tarn__escaped(path), strerror(errno));
    return TARN__FAILED;
}

/* Predicts into an open file; flushed, so that a full disk is noticed. */
static int predict_to(tarn_run *run, const char *path, FILE *to, const char *output, int64_t *rows)
{
    if (!tarn_run_predict_table(run, path, write_bytes, to, rows))
        return tarn__print_error("predict");
    return fflush(to) == 0 ? TARN__DONE : report_io(output);
}

/* Predicts into a file next to `output`, then renames it. */
static int predict_file(tarn_run *run, const char *path, const char *output)
{
    char temporary[4096];
    int64_t rows = 0;
    if ((size_t)snprintf(temporary, sizeof(temporary), "%s.XXXXXX", output) >= sizeof(temporary)) {
        errno = ENAMETOOLONG;
        return report_io(output);
    }
    int file = mkstemp(temporary);
    FILE *to = file >= 0 ? fdopen(file, "w") : NULL;
    if (!to) {
        int why = errno;
        if (file >= 0)
            close(file), unlink(temporary);
        errno = why;
        return report_io(output);
    }
    int status = predict_to(run, path, to, output, &rows);
    /* mkstemp() made it readable to its owner alone */
    if (fchmod(file, 0644) != 0 && status == TARN__DONE)
        status = report_io(output);
    if (fclose(to) != 0 && status == TARN__DONE)
        status = report_io(output);
    if (status == TARN__DONE && rename(temporary, output) != 0)
        status = report_io(output);
    if (status != TARN__DONE)
        unlink(temporary);
    else
        fprintf(stderr, "%lld rows written to %s\n", (long long)rows, tarn__escaped(output));
    return status;
}

/* To standard output the rows that are done stay where a later one is wrong; a file appears only as a whole. */
int tarn__predict_table(const tarn__options *options, tarn_run *run)
{
    if (options->word_count != 2 || options->json) {
        fprintf(stderr, "tarn predict: a run on a table predicts one file of rows%s\n",
                options->json ? ", as CSV; --json applies to images" : " at a time");
        return TARN__MISUSED;
    }
    if (options->output)
        return predict_file(run, options->words[1], options->output);
    return predict_to(run, options->words[1], stdout, "standard output", NULL);
}
