/* Errors of every variant on the rows of test_real.c, mean of 12 seeds. Output: relative,
 * of the whole output of a layer. KL: of the weights, mean over queries. Logit: the largest
 * error of all. Rows are f16, which the variant f16 keeps; 1e-7 stands for nothing. */
#ifndef TEST_ACCURACY_REAL_BUDGETS_H
#define TEST_ACCURACY_REAL_BUDGETS_H

#include "tq/tq.h"

struct budget {
    tq_variant variant;
    int layer;
    double out, divergence, logit;
};

static const struct budget budgets[] = {
    {TQ_VARIANT_BF16, 0, 6.76e-04, 3.19e-06, 2.83e-02},
    {TQ_VARIANT_BF16, 15, 3.26e-03, 1.87e-05, 4.81e-02},
    {TQ_VARIANT_BF16, 29, 2.92e-03, 2.29e-05, 6.73e-02},
    {TQ_VARIANT_F16, 0, 1.00e-07, 1.00e-07, 1.00e-07},
    {TQ_VARIANT_F16, 15, 1.00e-07, 1.00e-07, 1.00e-07},
    {TQ_VARIANT_F16, 29, 1.00e-07, 1.00e-07, 1.00e-07},
    {TQ_VARIANT_FP8, 0, 1.31e-02, 7.10e-04, 5.12e-01},
    {TQ_VARIANT_FP8, 15, 6.26e-02, 5.73e-03, 7.94e-01},
    {TQ_VARIANT_FP8, 29, 4.59e-02, 5.74e-03, 8.86e-01},
    {TQ_VARIANT_INT8, 0, 2.30e-03, 3.34e-05, 1.12e-01},
    {TQ_VARIANT_INT8, 15, 8.60e-03, 1.22e-04, 1.27e-01},
    {TQ_VARIANT_INT8, 29, 7.84e-03, 1.42e-04, 1.53e-01},
    {TQ_VARIANT_K8V4, 0, 3.11e-02, 7.10e-04, 5.12e-01},
    {TQ_VARIANT_K8V4, 15, 8.45e-02, 5.73e-03, 7.94e-01},
    {TQ_VARIANT_K8V4, 29, 8.06e-02, 5.74e-03, 8.86e-01},
    {TQ_VARIANT_4BIT_NC, 0, 3.87e-02, 8.35e-03, 1.60e+00},
    {TQ_VARIANT_4BIT_NC, 15, 1.43e-01, 3.17e-02, 1.98e+00},
    {TQ_VARIANT_4BIT_NC, 29, 1.32e-01, 4.03e-02, 2.26e+00},
    {TQ_VARIANT_K3V4_NC, 0, 5.81e-02, 3.12e-02, 3.04e+00},
    {TQ_VARIANT_K3V4_NC, 15, 2.80e-01, 1.22e-01, 3.91e+00},
    {TQ_VARIANT_K3V4_NC, 29, 2.21e-01, 1.46e-01, 4.35e+00},
    {TQ_VARIANT_3BIT_NC, 0, 7.81e-02, 3.12e-02, 3.04e+00},
    {TQ_VARIANT_3BIT_NC, 15, 2.97e-01, 1.22e-01, 3.91e+00},
    {TQ_VARIANT_3BIT_NC, 29, 2.49e-01, 1.46e-01, 4.35e+00},
    {TQ_VARIANT_K3V2_NC, 0, 1.26e-01, 3.12e-02, 3.04e+00},
    {TQ_VARIANT_K3V2_NC, 15, 3.47e-01, 1.22e-01, 3.91e+00},
    {TQ_VARIANT_K3V2_NC, 29, 3.31e-01, 1.46e-01, 4.35e+00},
    {TQ_VARIANT_2BIT_NC, 0, 1.47e-01, 1.11e-01, 5.74e+00},
    {TQ_VARIANT_2BIT_NC, 15, 5.86e-01, 4.36e-01, 7.28e+00},
    {TQ_VARIANT_2BIT_NC, 29, 4.49e-01, 5.05e-01, 8.01e+00},
    {TQ_VARIANT_POLAR, 0, 5.95e-02, 3.14e-02, 3.12e+00},
    {TQ_VARIANT_POLAR, 15, 2.91e-01, 1.40e-01, 4.35e+00},
    {TQ_VARIANT_POLAR, 29, 2.34e-01, 1.52e-01, 4.19e+00},
    {TQ_VARIANT_POLAR_QJL, 0, 5.06e-02, 1.87e-02, 2.40e+00},
    {TQ_VARIANT_POLAR_QJL, 15, 1.99e-01, 7.11e-02, 3.36e+00},
    {TQ_VARIANT_POLAR_QJL, 29, 1.81e-01, 8.66e-02, 3.45e+00},
    {TQ_VARIANT_PROD4, 0, 5.02e-02, 1.83e-02, 2.48e+00},
    {TQ_VARIANT_PROD4, 15, 2.18e-01, 7.25e-02, 3.02e+00},
    {TQ_VARIANT_PROD4, 29, 1.74e-01, 8.07e-02, 3.38e+00},
    {TQ_VARIANT_PROD3, 0, 9.93e-02, 6.75e-02, 4.54e+00},
    {TQ_VARIANT_PROD3, 15, 4.23e-01, 2.52e-01, 5.75e+00},
    {TQ_VARIANT_PROD3, 29, 3.12e-01, 2.74e-01, 6.25e+00},
};

#endif
