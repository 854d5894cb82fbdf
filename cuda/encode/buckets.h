/*
 * Buckets of |y| for the 4-bit book. Six evenly spaced bounds keep its seven thresholds
 * apart, so that the bucket of a number is the index of the one threshold that it must still
 * be compared with: level = bucket + [|y| > threshold[bucket]]. test/unit/test_buckets.c.
 */
#ifndef TQI_CUDA_ENCODE_BUCKETS_H
#define TQI_CUDA_ENCODE_BUCKETS_H

enum { TQI_BUCKETS = 7 };

/* Bucket = |y| * scale + offset, clamped to 0..1, times TQI_BUCKETS - 1, to the nearest. */
struct tqi_buckets {
    float scale, offset;
};

static inline struct tqi_buckets tqi_buckets_of(const float threshold[TQI_BUCKETS]) {
    float width = (threshold[5] - threshold[1]) / 4, first = 0.8f * threshold[1] - width / 2;
    struct tqi_buckets b = {1 / (6 * width), -first / (6 * width)};
    return b;
}

#endif
