/* image_jpeg_none.c: the error of builds without libjpeg-turbo. */
#include "data/readers/image.h"

bool tarn__image_read_jpeg(tarn__data_input *input, tarn_array *image)
{
    (void)image;
    return tarn__raise(
        TARN_ERROR_UNSUPPORTED,
        "%s: %s is a JPEG image, but tarn was built without libjpeg-turbo; install libjpeg62-turbo-dev and "
        "build again, or save it as PNG",
        input->function, input->path);
}
