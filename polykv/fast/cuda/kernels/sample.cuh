// One token out of a row of logits, as polykv/ref/sampling.py defines it, without sorting.
//
// In the order of descending logit, then ascending id, what top-k, top-p and min-p leave is a beginning of the row, and
// a draw is the first place where the sum of weights exceeds u. All of them are `find`: the place in that order where a
// sum of weights (1 for top-k) exceeds a target. It narrows a range of logits down, 1024 buckets a pass, until one
// logit is left, and then counts ids.
//
// Weights are exp() in float64, rounded to 2^-44 of the largest, so that sums are integers: they come out the same in any
// order, and a row of 2^19 logits cannot overflow; longer rows have a bit less for each doubling. The reference's own sums
// are as exact as 2^-53; where a draw differs, u is within 1e-8 of a border between two tokens, at most (1e-7 in a row of
// 2^22).
//
// A place in the order is a number: the place of the logit in the upper 32 bits, the id in the lower ones.

#include "block_select.cuh"

#define SAMPLE_ONE 17592186044416.0

struct Sampling {
    float temperature;
    int top_k;
    float top_p, min_p;
    double u;
};

struct SampleRow {
    const float* logits;
    int n;
    float top, lowest;  // the largest logit, and the smallest that is not -infinity
    double one;         // weight of the largest
};

// Larger logits come first; NaN before all, so that it is seen. -0 is 0.
__device__ __forceinline__ unsigned sample_order(float logit) {
    unsigned bits = __float_as_uint(logit);
    if (logit != logit) return 0;
    if (bits == 0x80000000u) bits = 0;
    return ~(bits ^ ((bits >> 31) ? 0xffffffffu : 0x80000000u));
}

__device__ __forceinline__ u64 sample_place(float logit, int id) {
    return (u64)sample_order(logit) << 32 | (unsigned)id;
}

__device__ __forceinline__ float sample_logit(unsigned order) {
    const unsigned bits = ~order;
    return __uint_as_float((bits >> 31) ? bits ^ 0x80000000u : ~bits);
}

// visit(id, logit) for the elements of a row, shared out over the threads.
template <typename Visit>
__device__ __forceinline__ void sample_each(const SampleRow& row, Visit visit) {
    if (row.n % 4 == 0 && (u64)row.logits % 16 == 0) {
        for (int i = block_thread(); i < row.n / 4; i += BLOCK_THREADS) {
            const float4 v = ((const float4*)row.logits)[i];
            visit(4 * i, v.x);
            visit(4 * i + 1, v.y);
            visit(4 * i + 2, v.z);
            visit(4 * i + 3, v.w);
        }
    } else {
        for (int i = block_thread(); i < row.n; i += BLOCK_THREADS) visit(i, row.logits[i]);
    }
}

__device__ __forceinline__ double sample_exp(const SampleRow& row, float logit, double temperature) {
    return exp((double)logit / temperature - (double)row.top / temperature);
}

// temperature 0: every element weighs 1.
__device__ __forceinline__ u64 sample_weight(const SampleRow& row, float logit, double temperature) {
    return temperature == 0.0 ? 1 : (u64)(sample_exp(row, logit, temperature) * row.one + 0.5);
}

// The place of the j-th element, counted from 0 in the order of ids, of those with this order up to `limit`.
__device__ __forceinline__ u64 sample_nth(const SampleRow& row, unsigned order, u64 limit, u64 j) {
    u64 first = ~0ull;
    sample_each(row, [&](int id, float logit) {
        const u64 place = sample_place(logit, id);
        if (place >> 32 == order && place < first) first = place;
    });
    first = block_smallest(first);
    if (j == 0) return first;
    u64 seen = 0, found = 0;
    for (int start = 0; start < row.n && seen <= j; start += BLOCK_THREADS) {
        const int id = start + block_thread();
        const u64 place = id < row.n ? sample_place(row.logits[id], id) : ~0ull;
        const bool here = place >> 32 == order && place <= limit;
        u64 total;
        const u64 before = seen + block_before(here, total);
        if (here && before <= j) found = place;
        seen += total;
    }
    return block_largest(found);
}

// The first place at which the sum of weights, of elements up to place `limit`, exceeds target_of(sum of all); the last
// one when none.
template <typename Target>
__device__ __forceinline__ u64 sample_find(const SampleRow& row, double temperature, u64 limit, Target target_of) {
    __shared__ u64 buckets[BLOCK_BUCKETS];
    u64 target, before;
    // First buckets of equal width, in which the many logits of a row are spread evenly.
    const float span = row.top - row.lowest, width = span > 0.0f ? (BLOCK_BUCKETS - 1) / span : 1.0f;
    const auto bucket_of = [&](float logit) {
        return (int)fminf((row.top - logit) * width, (float)(BLOCK_BUCKETS - 1));
    };
    block_clear(buckets);
    sample_each(row, [&](int id, float logit) {
        if (sample_place(logit, id) > limit) return;
        const u64 weight = sample_weight(row, logit, temperature);
        if (weight) block_add(&buckets[bucket_of(logit)], weight);
    });
    const int chosen = block_bucket(buckets, target_of, target, before);
    u64 low = ~0ull, high = 0;
    sample_each(row, [&](int id, float logit) {
        const u64 place = sample_place(logit, id);
        if (place > limit || bucket_of(logit) != chosen) return;
        low = min(low, place >> 32);
        high = max(high, place >> 32);
    });
    low = block_smallest(low);
    high = block_largest(high);
    // Then a range of the numbers that stand for logits, cut into 1024 each time: at most four times.
    while (low < high) {
        int shift = 0;
        while ((high - low) >> shift >= BLOCK_BUCKETS) ++shift;
        const u64 left = target - before;
        u64 same, earlier;
        block_clear(buckets);
        sample_each(row, [&](int id, float logit) {
            const u64 place = sample_place(logit, id), order = place >> 32;
            if (place > limit || order < low || order > high) return;
            const u64 weight = sample_weight(row, logit, temperature);
            if (weight) block_add(&buckets[(order - low) >> shift], weight);
        });
        const u64 bucket = block_bucket(buckets, [=](u64) { return left; }, same, earlier);
        before += earlier;
        low += bucket << shift;
        high = min(high, low + (1ull << shift) - 1);
    }
    const u64 weight = sample_weight(row, sample_logit((unsigned)low), temperature);
    return sample_nth(row, (unsigned)low, limit, (target - before) / weight);
}

// The row's token.
__device__ __forceinline__ int sample_row(const float* logits, int n, const Sampling& s) {
    SampleRow row = {logits, n, 0.0f, 0.0f, SAMPLE_ONE};
    for (int m = n; m > 1 << 19; m = m / 2 + 1) row.one *= 0.5;
    u64 first = ~0ull, last = 0;
    sample_each(row, [&](int id, float logit) {
        const u64 place = sample_place(logit, id);
        first = min(first, place);
        if (fabsf(logit) <= 3.40282347e38f) last = max(last, place >> 32);
    });
    first = block_smallest(first);
    last = block_largest(last);
    // A row that begins with NaN or an infinity has no distribution.
    row.top = first >> 32 == 0 ? 0.0f : sample_logit((unsigned)(first >> 32));
    if (s.temperature == 0.0f || first >> 32 == 0 || !(fabsf(row.top) <= 3.40282347e38f)) return (int)(unsigned)first;
    row.lowest = sample_logit((unsigned)last);
    u64 limit = ~0ull;
    if (s.top_k > 0) limit = sample_find(row, 0.0, limit, [=](u64) { return (u64)(s.top_k - 1); });
    if (s.top_p < 1.0f) {
        // The shortest beginning whose sum is at least top_p of the whole: it exceeds the integer below that.
        const double p = s.top_p;
        limit = sample_find(row, 1.0, limit, [=](u64 total) {
            const u64 least = (u64)ceil(p * (double)total);
            return least > 0 ? least - 1 : 0;
        });
    }
    if (s.min_p > 0.0f) {
        u64 kept = first;
        sample_each(row, [&](int id, float logit) {
            const u64 place = sample_place(logit, id);
            if (place <= limit && sample_exp(row, logit, 1.0) >= (double)s.min_p) kept = max(kept, place);
        });
        limit = block_largest(kept);
    }
    const double u = s.u;
    return (int)(unsigned)sample_find(row, s.temperature, limit, [=](u64 total) { return (u64)(u * (double)total); });
}
