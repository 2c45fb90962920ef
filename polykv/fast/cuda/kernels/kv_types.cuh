// Codes of a vector and back, by type; arithmetic and order of sums are those of polykv/ref, so codes are the same.
//
// A type says how a vector becomes codes (`encode`: v.x to v.codes and v.scales) and values (`decode`: back, in the
// space of the codes). v.x has f.resident values, zeros behind those that there are.

#include "kv_form.cuh"
#include "kv_rotate.cuh"

#define F16_MAX 65504.0f
// Longer values cannot be stored, and their squares would overflow; shorter groups count as zero (ref/rotation.py).
#define LARGEST 1e17f
#define SMALLEST 1e-10f
#define INFINITE __uint_as_float(0x7F800000u)

__device__ __forceinline__ void clamp_all(float* x, int n, float limit, int lane, int lanes) {
KV_LOOP
    for (int i = lane; i < n; i += lanes) x[i] = clamped(x[i], -limit, limit);
    __syncwarp();
}

// Floats of 16 bits: what a value becomes, and back.
struct F16 {
    enum { BITS = 16, SCALED = 0, NIBBLES = 0, PATH = 0 };
    __device__ static void encode(Vector& v, const Form& f, const Tables&, int lane, int lanes) {
KV_LOOP
        for (int i = lane; i < f.resident; i += lanes) v.codes[i] = f32_to_f16(clamped(v.x[i], -F16_MAX, F16_MAX));
    }
    __device__ static void decode(Vector& v, const Form& f, const Tables&, int lane, int lanes) {
KV_LOOP
        for (int i = lane; i < f.resident; i += lanes) v.x[i] = f16_to_f32(v.codes[i]);
    }
};

struct BF16 {
    enum { BITS = 16, SCALED = 0, NIBBLES = 0, PATH = 0 };
    __device__ static void encode(Vector& v, const Form& f, const Tables&, int lane, int lanes) {
        // Above the largest finite one there are float32 values that would become infinite.
        const float most = bf16_to_f32(0x7F7F);
KV_LOOP
        for (int i = lane; i < f.resident; i += lanes) v.codes[i] = f32_to_bf16(clamped(v.x[i], -most, most));
    }
    __device__ static void decode(Vector& v, const Form& f, const Tables&, int lane, int lanes) {
KV_LOOP
        for (int i = lane; i < f.resident; i += lanes) v.x[i] = bf16_to_f32(v.codes[i]);
    }
};

#include "kv_scalar.cuh"

// Rotated unit vectors: codes that stand for levels, and a norm for every group. T says in which order squares are added
// (`lengths`, which may use room for as many values, those themselves too), and chooses the codes of v.x (`choose`);
// `levels`: those of its codes.
template <class T> struct Rotated {
    __device__ static void encode(Vector& v, const Form& f, const Tables& t, int lane, int lanes) {
        const float* levels = T::levels(t);
        clamp_all(v.x, f.resident, LARGEST, lane, lanes);
        T::lengths(v.measure, v.x, v.y, f, lane, lanes);
        for (int i = lane; i < f.resident / f.group; i += lanes)
            v.y[i] = v.measure[i] > SMALLEST ? 1.0f / v.measure[i] : 0.0f;
        __syncwarp();
KV_LOOP
        for (int i = lane; i < f.resident; i += lanes) v.x[i] *= v.y[i / f.group];
        __syncwarp();
        rotate(v.x, v.y, f.resident, f, t, false, t.numbers[Tables::ENCODE_SCALE], lane, lanes);
        T::choose(v, f, t, lane, lanes);
KV_LOOP
        for (int i = lane; i < f.resident; i += lanes) v.x[i] = levels[v.codes[i]] * t.numbers[Tables::UNIT];
        __syncwarp();
        // What the codes stand for has this length.
        T::lengths(v.y, v.x, v.x, f, lane, lanes);
KV_LOOP
        for (int i = lane; i < f.resident / f.group; i += lanes) {
            const float n = v.measure[i], r = v.y[i];
            const float norm = (r > SMALLEST ? n / r : n) * t.numbers[Tables::ALPHA];
            v.scales[i] = f32_to_f16(norm > F16_MAX ? F16_MAX : norm);
        }
    }
    __device__ static void decode(Vector& v, const Form& f, const Tables& t, int lane, int lanes) {
        const float* levels = T::levels(t);
KV_LOOP
        for (int i = lane; i < f.resident; i += lanes)
            v.x[i] = levels[v.codes[i]] * t.numbers[Tables::UNIT] * f16_to_f32(v.scales[i / f.group]);
    }
};

// An index of levels for every value.
template <int B> struct Levels : Rotated<Levels<B>> {
    enum { BITS = B, SCALED = 0, NIBBLES = 0, PATH = 0 };

    __device__ static const float* levels(const Tables& t) { return t.numbers + Tables::THRESHOLDS + (1 << B) - 1; }

    // |x| of every group, the squares added one after the other.
    __device__ static void lengths(float* measure, const float* x, float*, const Form& f, int lane, int lanes) {
KV_LOOP
        for (int i = lane; i < f.resident / f.group; i += lanes) {
            // A chain of additions: what it needs is loaded well before. All groups are whole octets.
            float sum = 0.0f;
#pragma unroll 4
            for (int j = 0; j < f.group / 4; ++j) {
                const float4 a = ((const float4*)(x + i * f.group))[j];
                sum += a.x * a.x, sum += a.y * a.y, sum += a.z * a.z, sum += a.w * a.w;
            }
            measure[i] = sqrtf(sum);
        }
        __syncwarp();
    }

    // The number of thresholds that are not above y.
    __device__ static int index(float y, const float* thresholds) {
        int code = 0;
#pragma unroll
        for (int step = 1 << (B - 1); step > 0; step /= 2)
            if (y >= thresholds[code + step - 1]) code += step;
        return code;
    }

    __device__ static void choose(Vector& v, const Form& f, const Tables& t, int lane, int lanes) {
        const float* thresholds = t.numbers + Tables::THRESHOLDS;
KV_LOOP
        for (int i = lane; i < f.resident; i += lanes) v.codes[i] = (u16)index(v.x[i], thresholds);
    }
};

#include "kv_trellis.cuh"

typedef Levels<2> TURBO2;
typedef Levels<3> TURBO3;
typedef Levels<4> TURBO4;
typedef Levels<8> TURBO8;
typedef Trellis<3> TURBO3_TCQ;
typedef Trellis<2> TURBO2_TCQ;

// v.x, decoded, from the space of the codes to the vector's own.
__device__ __forceinline__ void leave(Vector& v, const Form& f, const Tables& t, int lane, int lanes) {
    __syncwarp();
    if (f.turn) rotate(v.x, v.y, f.stored, f, t, true, t.numbers[Tables::DECODE_SCALE], lane, lanes);
}
