/* jitter.c: random changes of an image's brightness, contrast and saturation, in this order, rounded once. */
#include <math.h>

#include "data/transform.h"

static float factor(float strength, tarn_random_state *random)
{
    return (float)(1 + (double)strength * (2 * tarn_random_unit(random) - 1));
}

static uint8_t rounded(float value)
{
    return (uint8_t)(value > 255 ? 255 : value > 0 ? value + 0.5f : 0);
}

/* ITU-R BT.601. */
static float luma(float red, float green, float blue)
{
    return 0.299f * red + 0.587f * green + 0.114f * blue;
}

/* The sum of integers is exact, so that contrast does not depend on the order of pixels. */
static float mean_of(const uint8_t *image, int channels, int64_t plane)
{
    int64_t sum[3] = {0};
    for (int c = 0; c < channels; c++)
        for (int64_t i = 0; i < plane; i++)
            sum[c] += image[c * plane + i];
    float n = (float)plane;
    return channels == 1 ? (float)sum[0] / n : luma((float)sum[0] / n, (float)sum[1] / n, (float)sum[2] / n);
}

/* Contrast moves values away from the mean, saturation away from the pixel's grey. */
void tarn__jitter(uint8_t *image, int channels, int64_t plane, float strength, tarn_random_state *random)
{
    float brightness = factor(strength, random), contrast = factor(strength, random),
          saturation = factor(strength, random);
    float scale = brightness * contrast, shift = mean_of(image, channels, plane) * brightness * (1 - contrast);
    for (int64_t i = 0; channels == 1 && i < plane; i++)
        image[i] = rounded((float)image[i] * scale + shift);
    for (int64_t i = 0; channels == 3 && i < plane; i++) {
        float red = (float)image[i] * scale + shift, green = (float)image[plane + i] * scale + shift,
              blue = (float)image[2 * plane + i] * scale + shift, grey = luma(red, green, blue);
        image[i] = rounded(grey + (red - grey) * saturation);
        image[plane + i] = rounded(grey + (green - grey) * saturation);
        image[2 * plane + i] = rounded(grey + (blue - grey) * saturation);
    }
}
