/*
 * Hadamard matrices of orders that are no power of two (R. E. A. C. Paley, On orthogonal
 * matrices, 1933).
 *
 * For an odd prime q let chi be the quadratic character modulo q (0 at 0, +1 at squares, -1
 * elsewhere) and S the matrix of order q + 1, rows and columns numbered from 0:
 *
 *     S(0,0) = 0,   S(0,j) = 1,   S(i,0) = chi(-1),   S(i,j) = chi(i - j).
 *
 * Then S S^T = q I, and S is skew where q = 3 mod 4, symmetric where q = 1 mod 4.
 *
 * Paley I, q = 3 mod 4: H = I + S, of order q + 1.
 * Paley II, q = 1 mod 4: H of order 2 (q + 1), from S by writing a 2x2 block for each entry:
 *
 *     +1: + +    -1: - -    0: + -
 *         + -        - +       - -
 */
#include "gen.h"

const int gen_hadamard_orders[GEN_HADAMARD_ORDERS] = {12, 20, 28, 36};

/* The quadratic character of a modulo q. */
static int chi(int a, int q) {
    const int residue = ((a % q) + q) % q;
    if (residue == 0) {
        return 0;
    }
    for (int x = 1; x < q; x++) {
        if (x * x % q == residue) {
            return 1;
        }
    }
    return -1;
}

/* Entry (i, j) of S. */
static int paley_core(int i, int j, int q) {
    if (i == 0) {
        return j == 0 ? 0 : 1;
    }
    return j == 0 ? chi(-1, q) : chi(i - j, q);
}

static int paley_one_entry(int i, int j, int q) {
    return paley_core(i, j, q) + (i == j);
}

static int paley_two_entry(int i, int j, int q) {
    static const int at_one[2][2] = {{1, 1}, {1, -1}};
    static const int at_zero[2][2] = {{1, -1}, {-1, -1}};
    const int s = paley_core(i / 2, j / 2, q);
    return s == 0 ? at_zero[i % 2][j % 2] : s * at_one[i % 2][j % 2];
}

/* H H^T = m I, and no entry but +1 and -1. */
static bool is_hadamard(const gen_hadamard *h) {
    for (int i = 0; i < h->order; i++) {
        for (int k = 0; k < h->order; k++) {
            int dot = 0;
            for (int j = 0; j < h->order; j++) {
                if (h->entry[i][j] * h->entry[i][j] != 1) {
                    return false;
                }
                dot += h->entry[i][j] * h->entry[k][j];
            }
            if (dot != (i == k ? h->order : 0)) {
                return false;
            }
        }
    }
    return true;
}

bool gen_hadamard_make(int order, gen_hadamard *out) {
    /* For 28 and 36 Paley I would need q = 27, a power of a prime but no prime, or 35, neither. */
    out->order = order;
    out->paley_two = order == 28 || order == 36;
    out->prime = (out->paley_two ? order / 2 : order) - 1;
    for (int i = 0; i < order; i++) {
        for (int j = 0; j < order; j++) {
            out->entry[i][j] = (signed char)(out->paley_two ? paley_two_entry(i, j, out->prime)
                                                            : paley_one_entry(i, j, out->prime));
        }
    }
    return is_hadamard(out);
}

bool gen_hadamard_is_symmetric(const gen_hadamard *matrix) {
    for (int i = 0; i < matrix->order; i++) {
        for (int j = 0; j < i; j++) {
            if (matrix->entry[i][j] != matrix->entry[j][i]) {
                return false;
            }
        }
    }
    return true;
}

uint64_t gen_hadamard_row_mask(const gen_hadamard *matrix, int row) {
    uint64_t mask = 0;
    for (int j = 0; j < matrix->order; j++) {
        if (matrix->entry[row][j] < 0) {
            mask |= UINT64_C(1) << j;
        }
    }
    return mask;
}
