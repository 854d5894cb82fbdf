/* Errors of every variant on the rows of test_real.c, as it measures them. Output: relative,
 * of the whole output of a layer. KL: of the weights, mean over queries. Logit: the largest
 * error of all. The variant f16 keeps rows that are f16; 1e-7 stands for nothing. */
#ifndef TEST_ACCURACY_REAL_BUDGETS_H
#define TEST_ACCURACY_REAL_BUDGETS_H

#include "tq/tq.h"

struct budget {
    tq_variant variant;
    int layer;
    double out, divergence, logit;
};

static const struct budget smollm2_budgets[] = {
    {TQ_VARIANT_BF16, 0, 6.76e-04, 3.19e-06, 2.83e-02},
    {TQ_VARIANT_BF16, 15, 3.26e-03, 1.87e-05, 4.81e-02},
    {TQ_VARIANT_BF16, 29, 2.92e-03, 2.29e-05, 6.73e-02},
    {TQ_VARIANT_F16, 0, 1.00e-07, 1.00e-07, 1.00e-07},
    {TQ_VARIANT_F16, 15, 1.00e-07, 1.00e-07, 1.00e-07},
    {TQ_VARIANT_F16, 29, 1.00e-07, 1.00e-07, 1.00e-07},
    {TQ_VARIANT_FP8, 0, 1.31e-02, 7.10e-04, 5.12e-01},
    {TQ_VARIANT_FP8, 15, 6.26e-02, 5.73e-03, 7.94e-01},
    {TQ_VARIANT_FP8, 29, 4.59e-02, 5.74e-03, 8.86e-01},
    {TQ_VARIANT_INT8, 0, 2.08e-03, 2.92e-05, 1.35e-01},
    {TQ_VARIANT_INT8, 15, 7.94e-03, 1.21e-04, 1.07e-01},
    {TQ_VARIANT_INT8, 29, 8.57e-03, 1.52e-04, 1.41e-01},
    {TQ_VARIANT_K8V4, 0, 3.08e-02, 7.10e-04, 5.12e-01},
    {TQ_VARIANT_K8V4, 15, 8.51e-02, 5.73e-03, 7.94e-01},
    {TQ_VARIANT_K8V4, 29, 8.10e-02, 5.74e-03, 8.86e-01},
    {TQ_VARIANT_4BIT_NC, 0, 3.78e-02, 7.81e-03, 1.52e+00},
    {TQ_VARIANT_4BIT_NC, 15, 1.41e-01, 3.42e-02, 2.37e+00},
    {TQ_VARIANT_4BIT_NC, 29, 1.34e-01, 4.29e-02, 2.31e+00},
    {TQ_VARIANT_K3V4_NC, 0, 5.17e-02, 2.96e-02, 2.64e+00},
    {TQ_VARIANT_K3V4_NC, 15, 2.61e-01, 1.18e-01, 3.91e+00},
    {TQ_VARIANT_K3V4_NC, 29, 2.18e-01, 1.54e-01, 4.17e+00},
    {TQ_VARIANT_3BIT_NC, 0, 7.62e-02, 2.96e-02, 2.64e+00},
    {TQ_VARIANT_3BIT_NC, 15, 2.77e-01, 1.18e-01, 3.91e+00},
    {TQ_VARIANT_3BIT_NC, 29, 2.47e-01, 1.54e-01, 4.17e+00},
    {TQ_VARIANT_K3V2_NC, 0, 1.29e-01, 2.96e-02, 2.64e+00},
    {TQ_VARIANT_K3V2_NC, 15, 3.33e-01, 1.18e-01, 3.91e+00},
    {TQ_VARIANT_K3V2_NC, 29, 3.33e-01, 1.54e-01, 4.17e+00},
    {TQ_VARIANT_2BIT_NC, 0, 1.73e-01, 1.05e-01, 5.08e+00},
    {TQ_VARIANT_2BIT_NC, 15, 5.87e-01, 4.00e-01, 6.97e+00},
    {TQ_VARIANT_2BIT_NC, 29, 4.91e-01, 5.50e-01, 7.78e+00},
    {TQ_VARIANT_POLAR, 0, 6.68e-02, 3.57e-02, 3.71e+00},
    {TQ_VARIANT_POLAR, 15, 2.54e-01, 1.27e-01, 4.42e+00},
    {TQ_VARIANT_POLAR, 29, 2.59e-01, 1.55e-01, 4.44e+00},
    {TQ_VARIANT_POLAR_QJL, 0, 4.71e-02, 1.84e-02, 2.33e+00},
    {TQ_VARIANT_POLAR_QJL, 15, 2.01e-01, 6.84e-02, 3.35e+00},
    {TQ_VARIANT_POLAR_QJL, 29, 1.70e-01, 8.27e-02, 2.89e+00},
    {TQ_VARIANT_PROD4, 0, 5.17e-02, 1.95e-02, 2.13e+00},
    {TQ_VARIANT_PROD4, 15, 1.88e-01, 7.16e-02, 2.97e+00},
    {TQ_VARIANT_PROD4, 29, 1.65e-01, 7.87e-02, 3.13e+00},
    {TQ_VARIANT_PROD3, 0, 9.10e-02, 6.38e-02, 4.04e+00},
    {TQ_VARIANT_PROD3, 15, 4.03e-01, 2.50e-01, 5.55e+00},
    {TQ_VARIANT_PROD3, 29, 3.24e-01, 2.82e-01, 6.04e+00},
};

/* With centred keys. */
static const struct budget qwen_budgets[] = {
    {TQ_VARIANT_BF16, 0, 2.13e-03, 1.09e-05, 1.24e-01},
    {TQ_VARIANT_BF16, 14, 3.50e-03, 1.41e-05, 3.72e-02},
    {TQ_VARIANT_BF16, 27, 1.50e-03, 4.29e-06, 2.69e-02},
    {TQ_VARIANT_F16, 0, 1.16e-04, 1.05e-07, 2.07e-02},
    {TQ_VARIANT_F16, 14, 8.14e-04, 6.28e-07, 5.06e-03},
    {TQ_VARIANT_F16, 27, 1.31e-04, 1.00e-07, 1.92e-03},
    {TQ_VARIANT_FP8, 0, 3.20e-02, 2.03e-03, 1.86e+00},
    {TQ_VARIANT_FP8, 14, 5.30e-02, 3.32e-03, 6.04e-01},
    {TQ_VARIANT_FP8, 27, 2.11e-02, 1.10e-03, 3.93e-01},
    {TQ_VARIANT_INT8, 0, 6.14e-03, 6.68e-05, 4.59e-01},
    {TQ_VARIANT_INT8, 14, 1.01e-02, 1.04e-04, 1.06e-01},
    {TQ_VARIANT_INT8, 27, 4.01e-03, 3.18e-05, 6.67e-02},
    {TQ_VARIANT_K8V4, 0, 8.64e-02, 2.03e-03, 1.86e+00},
    {TQ_VARIANT_K8V4, 14, 8.56e-02, 3.32e-03, 6.04e-01},
    {TQ_VARIANT_K8V4, 27, 5.11e-02, 1.10e-03, 3.93e-01},
    {TQ_VARIANT_4BIT_NC, 0, 9.07e-02, 2.28e-02, 8.51e+00},
    {TQ_VARIANT_4BIT_NC, 14, 1.37e-01, 2.20e-02, 1.62e+00},
    {TQ_VARIANT_4BIT_NC, 27, 6.21e-02, 7.08e-03, 1.04e+00},
    {TQ_VARIANT_K3V4_NC, 0, 1.08e-01, 4.19e-02, 1.27e+01},
    {TQ_VARIANT_K3V4_NC, 14, 2.78e-01, 9.76e-02, 2.81e+00},
    {TQ_VARIANT_K3V4_NC, 27, 1.00e-01, 2.79e-02, 1.55e+00},
    {TQ_VARIANT_3BIT_NC, 0, 1.75e-01, 4.19e-02, 1.27e+01},
    {TQ_VARIANT_3BIT_NC, 14, 3.00e-01, 9.76e-02, 2.81e+00},
    {TQ_VARIANT_3BIT_NC, 27, 1.31e-01, 2.79e-02, 1.55e+00},
    {TQ_VARIANT_K3V2_NC, 0, 3.08e-01, 4.19e-02, 1.27e+01},
    {TQ_VARIANT_K3V2_NC, 14, 3.68e-01, 9.76e-02, 2.81e+00},
    {TQ_VARIANT_K3V2_NC, 27, 2.07e-01, 2.79e-02, 1.55e+00},
    {TQ_VARIANT_2BIT_NC, 0, 3.34e-01, 2.60e-01, 2.18e+01},
    {TQ_VARIANT_2BIT_NC, 14, 5.13e-01, 2.71e-01, 4.82e+00},
    {TQ_VARIANT_2BIT_NC, 27, 2.54e-01, 1.04e-01, 3.43e+00},
    {TQ_VARIANT_POLAR, 0, 1.02e-01, 5.92e-02, 1.67e+01},
    {TQ_VARIANT_POLAR, 14, 2.51e-01, 9.42e-02, 2.90e+00},
    {TQ_VARIANT_POLAR, 27, 1.04e-01, 3.15e-02, 1.88e+00},
    {TQ_VARIANT_POLAR_QJL, 0, 9.76e-02, 5.77e-02, 1.13e+01},
    {TQ_VARIANT_POLAR_QJL, 14, 1.91e-01, 4.73e-02, 2.16e+00},
    {TQ_VARIANT_POLAR_QJL, 27, 7.82e-02, 1.80e-02, 1.45e+00},
    {TQ_VARIANT_PROD4, 0, 1.04e-01, 3.39e-02, 8.88e+00},
    {TQ_VARIANT_PROD4, 14, 2.35e-01, 5.62e-02, 2.07e+00},
    {TQ_VARIANT_PROD4, 27, 8.43e-02, 1.76e-02, 1.52e+00},
    {TQ_VARIANT_PROD3, 0, 1.92e-01, 2.05e-01, 1.48e+01},
    {TQ_VARIANT_PROD3, 14, 2.90e-01, 1.38e-01, 3.68e+00},
    {TQ_VARIANT_PROD3, 27, 1.70e-01, 7.01e-02, 2.78e+00},
};

#endif
