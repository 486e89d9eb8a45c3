/* classes.c: the sections of a classifier's page: the confusion matrix, or with many classes a table of those that are
 * recognized least, and the worst mistakes with their pictures.
 *
 * Pictures are BMP files in data URIs: every browser shows them, and they need no compressor. */
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "text/files/pipeline/base64.h"
#include "train/report/report.h"

#define MAX_ROWS 20 /* of the table of many classes */

/* ---- classes ----------------------------------------------------------------------------------------------------- */

/* Fraction of a class's samples that are recognized; 2 without samples: nothing can be said. */
static double recall_of(const tarn__class_results *r, int64_t i)
{
    return r->class_samples[i] ? (double)r->class_correct[i] / (double)r->class_samples[i] : 2;
}

static void begin_section(tarn__page *page, const char *title, const tarn__class_results *r)
{
    char samples[64], step[64];
    tarn__step_text((double)r->samples, samples, sizeof(samples));
    tarn__step_text((double)r->step, step, sizeof(step));
    tarn__page_format(page,
                      "<section class=\"table card\"><h2>%s</h2>\n<p class=\"note\">validation set, %s samples, best "
                      "weights (step %s)</p>\n",
                      title, samples, step);
}

static void write_name(tarn__page *page, const tarn__class_results *r, int64_t class_index, const char *scope)
{
    tarn__page_format(page, "<th scope=\"%s\">", scope);
    tarn__page_text(page, r->names[class_index]);
    tarn__page_html(page, "</th>");
}

static void write_recall(tarn__page *page, const tarn__class_results *r, int64_t class_index)
{
    double recall = recall_of(r, class_index);
    if (recall > 1)
        tarn__page_html(page, "<td>–</td>");
    else
        tarn__page_format(page, "<td>%.1f %%</td>", 100 * recall);
}

/* Cells are shaded by their fraction of the row: right ones green, wrong ones red. */
static void write_matrix(tarn__page *page, const tarn__class_results *r)
{
    begin_section(page, "Confusion matrix", r);
    tarn__page_html(page, "<p class=\"note\">rows: class; columns: predicted class</p>\n<div class=\"scroll\"><table "
                          "class=\"matrix\">\n<thead><tr><th></th>");
    for (int64_t j = 0; j < r->classes; j++)
        write_name(page, r, j, "col");
    tarn__page_html(page, "<th scope=\"col\">recall</th></tr></thead>\n<tbody>\n");
    for (int64_t i = 0; i < r->classes; i++) {
        int64_t samples = r->class_samples[i];
        tarn__page_html(page, "<tr>");
        write_name(page, r, i, "row");
        for (int64_t j = 0; j < r->classes; j++) {
            int64_t count = r->confusion[i * r->classes + j];
            tarn__page_format(page, "<td class=\"%s\" style=\"--part:%.0f%%\">%lld</td>", i == j ? "right" : "wrong",
                              samples ? 100 * (double)count / (double)samples : 0, (long long)count);
        }
        write_recall(page, r, i);
        tarn__page_html(page, "</tr>\n");
    }
    tarn__page_html(page, "</tbody></table></div></section>\n");
}

/* The class after `last` by recall, then by index; -1: none. O(rows · classes), with few rows. The order is that of
 * a sort, without memory for one. */
static int64_t next_class(const tarn__class_results *r, int64_t last)
{
    int64_t best = -1;
    double bound = last < 0 ? -1 : recall_of(r, last), found = 3;
    for (int64_t i = 0; i < r->classes; i++) {
        double recall = recall_of(r, i);
        if ((recall > bound || (recall == bound && i > last)) && recall < found) {
            best = i;
            found = recall;
        }
    }
    return best;
}

static void write_table(tarn__page *page, const tarn__class_results *r)
{
    begin_section(page, "Classes recognized least", r);
    tarn__page_html(page, "<div class=\"scroll\"><table>\n<thead><tr><th></th><th scope=\"col\">samples</th><th "
                          "scope=\"col\">correct</th><th scope=\"col\">recall</th></tr></thead>\n<tbody>\n");
    int64_t at = -1;
    for (int row = 0; row < MAX_ROWS && (at = next_class(r, at)) >= 0; row++) {
        tarn__page_html(page, "<tr>");
        write_name(page, r, at, "row");
        tarn__page_format(page, "<td>%lld</td><td>%lld</td>", (long long)r->class_samples[at],
                          (long long)r->class_correct[at]);
        write_recall(page, r, at);
        tarn__page_html(page, "</tr>\n");
    }
    tarn__page_html(page, "</tbody></table></div></section>\n");
}

/* ---- mistakes ---------------------------------------------------------------------------------------------------- */

/* Little-endian, as all numbers of BMP. */
static void put32(unsigned char *to, int64_t value)
{
    for (int i = 0; i < 4; i++)
        to[i] = (unsigned char)(value >> (8 * i));
}

/* A BMP file of 24 bits per pixel: 54 bytes of headers, then the rows from the bottom, in BGR, each padded to 4
 * bytes. `file` has zeros. */
static void write_bmp(const tarn_array *picture, unsigned char *file, int64_t bytes)
{
    int64_t channels = picture->shape.size[0], height = picture->shape.size[1], width = picture->shape.size[2],
            stride = (3 * width + 3) / 4 * 4;
    const unsigned char *pixels = picture->data;
    file[0] = 'B';
    file[1] = 'M';
    put32(file + 2, bytes);
    put32(file + 10, 54); /* offset of the rows */
    put32(file + 14, 40); /* bytes of the second header */
    put32(file + 18, width);
    put32(file + 22, height);
    file[26] = 1; /* planes */
    file[28] = 24;
    for (int64_t y = 0; y < height; y++)
        for (int64_t x = 0; x < width; x++)
            for (int64_t c = 0; c < 3; c++)
                file[54 + (height - 1 - y) * stride + 3 * x + c] =
                    pixels[((channels == 3 ? 2 - c : 0) * height + y) * width + x];
}

static void write_picture(tarn__page *page, const tarn_array *picture)
{
    int64_t bytes = 54 + (3 * picture->shape.size[2] + 3) / 4 * 4 * picture->shape.size[1];
    unsigned char *file = tarn__alloc((size_t)bytes);
    tarn__buffer text = {0};
    if (file) {
        memset(file, 0, (size_t)bytes);
        write_bmp(picture, file, bytes);
    }
    if (file && tarn__base64_encode(&text, (const char *)file, (size_t)bytes) && tarn__buffer_add(&text, "", 1, 1)) {
        tarn__page_html(page, "<img alt=\"\" src=\"data:image/bmp;base64,");
        tarn__page_html(page, text.data);
        tarn__page_html(page, "\"/>");
    } else {
        page->good = false;
    }
    tarn__buffer_free(&text, 1);
    tarn__release(file, file ? (size_t)bytes : 0);
}

static void write_mistake(tarn__page *page, const tarn__class_results *r, const tarn__mistake *m)
{
    const tarn_prediction *p = &m->prediction;
    tarn__page_html(page, "<figure>");
    if (m->picture.data)
        write_picture(page, &m->picture);
    tarn__page_html(page, "<figcaption><b>");
    tarn__page_text(page, r->names[p->label]);
    tarn__page_format(page, "</b> %.1f %%<br/>taken for <b>", 100 * p->label_probability);
    tarn__page_text(page, r->names[p->predicted]);
    tarn__page_format(page, "</b> %.1f %%<small>", 100 * p->probability);
    if (m->path)
        tarn__page_text(page, m->path);
    else
        tarn__page_format(page, "sample %lld", (long long)p->index);
    tarn__page_html(page, "</small></figcaption></figure>\n");
}

/* Without a confusion matrix there were too many classes for one. */
void tarn__classes_write(tarn__page *page, const tarn__class_results *r)
{
    if (r->confusion)
        write_matrix(page, r);
    else
        write_table(page, r);
    if (r->count == 0)
        return;
    begin_section(page, "Worst mistakes", r);
    tarn__page_html(page, "<div class=\"mistakes\">\n");
    for (int i = 0; i < r->count && page->good; i++)
        write_mistake(page, r, &r->worst[i]);
    tarn__page_html(page, "</div></section>\n");
}
