// Types with a scale for every 32 values, some with a minimum too (polykv/ref/scalar.py, in whose order everything is).

// 1 / d, and 0 for a scale that float32 cannot invert.
__device__ __forceinline__ float inverse_of(float d) { return fabsf(d) >= 1.17549435e-38f ? 1.0f / d : 0.0f; }

// The value of largest magnitude, the first one of several.
__device__ __forceinline__ float peak_of(const float* x) {
    float peak = x[0];
    for (int i = 1; i < 32; ++i) peak = fabsf(x[i]) > fabsf(peak) || x[i] != x[i] ? x[i] : peak;
    return peak;
}

// Into the space of the codes.
__device__ __forceinline__ void turn_in(Vector& v, const Form& f, const Tables& t, int lane, int lanes) {
    if (!f.turn) return;
    clamp_all(v.x, f.stored, LARGEST, lane, lanes);
    rotate(v.x, v.y, f.stored, f, t, false, t.numbers[Tables::ENCODE_SCALE], lane, lanes);
}

// T says how a scale is found and a value becomes a code, and back.
template <class T> struct Scalar {
    enum { SCALED = 1, PATH = 0 };
    __device__ static void encode(Vector& v, const Form& f, const Tables& t, int lane, int lanes) {
        turn_in(v, f, t, lane, lanes);
KV_LOOP
        for (int i = lane; i < f.resident / 32; i += lanes) {
            const float d = T::scale(v.x + 32 * i);
            v.scales[i] = f32_to_f16(d), v.measure[i] = inverse_of(d);
        }
        __syncwarp();
KV_LOOP
        for (int i = lane; i < f.resident; i += lanes) v.codes[i] = (u16)T::code(v.x[i] * v.measure[i / 32]);
    }
    __device__ static void decode(Vector& v, const Form& f, const Tables&, int lane, int lanes) {
KV_LOOP
        for (int i = lane; i < f.resident; i += lanes) v.x[i] = f16_to_f32(v.scales[i / 32]) * T::value(v.codes[i]);
    }
};

struct Q8_0 : Scalar<Q8_0> {
    enum { BITS = 8, NIBBLES = 0 };
    __device__ static float scale(const float* x) {
        float top = 0.0f;
        for (int i = 0; i < 32; ++i) top = fabsf(x[i]) > top || x[i] != x[i] ? fabsf(x[i]) : top;
        const float d = top / 127.0f;
        return d > F16_MAX ? F16_MAX : d;
    }
    // Halves away from zero.
    __device__ static int code(float y) { return (int)clamped(roundf(y), -127.0f, 127.0f) & 255; }
    __device__ static float value(int code) { return (float)(signed char)code; }
};

// The peak becomes -2^(B - 1).
template <int B> struct Signed : Scalar<Signed<B>> {
    enum { BITS = B, NIBBLES = 1, HALF = 1 << (B - 1) };
    __device__ static float scale(const float* x) { return clamped(peak_of(x) / -(float)HALF, -F16_MAX, F16_MAX); }
    __device__ static int code(float y) { return (int)clamped(y + (HALF + 0.5f), 0.0f, 2.0f * HALF - 1.0f); }
    __device__ static float value(int code) { return (float)(code - HALF); }
};

// Codes from 0 on, above a minimum, which lies behind all scales of the vector.
template <int B> struct Ranged {
    enum { BITS = B, SCALED = 2, NIBBLES = 1, PATH = 0, TOP = (1 << B) - 1 };
    __device__ static void encode(Vector& v, const Form& f, const Tables& t, int lane, int lanes) {
        turn_in(v, f, t, lane, lanes);
        const int blocks = f.resident / 32;
KV_LOOP
        for (int i = lane; i < blocks; i += lanes) {
            const float* x = v.x + 32 * i;
            float low = x[0], high = x[0];
            for (int j = 1; j < 32; ++j) low = x[j] < low || x[j] != x[j] ? x[j] : low, high = x[j] > high ? x[j] : high;
            const float m = clamped(low, -F16_MAX, F16_MAX), d = clamped((high - m) / (float)TOP, 0.0f, F16_MAX);
            v.scales[i] = f32_to_f16(d), v.scales[blocks + i] = f32_to_f16(m);
            v.measure[i] = inverse_of(d), v.y[i] = m;
        }
        __syncwarp();
KV_LOOP
        for (int i = lane; i < f.resident; i += lanes)
            v.codes[i] = (u16)clamped((v.x[i] - v.y[i / 32]) * v.measure[i / 32] + 0.5f, 0.0f, (float)TOP);
    }
    __device__ static void decode(Vector& v, const Form& f, const Tables&, int lane, int lanes) {
        const int blocks = f.resident / 32;
KV_LOOP
        for (int i = lane; i < f.resident; i += lanes)
            v.x[i] = f16_to_f32(v.scales[i / 32]) * (float)v.codes[i] + f16_to_f32(v.scales[blocks + i / 32]);
    }
};

// Indices of a table of sixteen. The scale is that of least squared error, values weighted by their squares.
struct IQ4_NL {
    enum { BITS = 4, SCALED = 1, NIBBLES = 0, PATH = 0 };
    __device__ static const float* table(const Tables& t) { return t.numbers + Tables::THRESHOLDS; }

    // The nearest entry, the upper one of two.
    __device__ static int nearest(float y, const float* table) {
        int upper = 1;
        while (upper < 15 && y >= table[upper]) ++upper;
        return y - table[upper - 1] < table[upper] - y ? upper - 1 : upper;
    }

    __device__ static void encode(Vector& v, const Form& f, const Tables& t, int lane, int lanes) {
        turn_in(v, f, t, lane, lanes);
        const float* levels = table(t);
        // Products of six larger ones would leave the range of float32.
        clamp_all(v.x, f.resident, 127.0f * F16_MAX, lane, lanes);
KV_LOOP
        for (int i = lane; i < f.resident / 32; i += lanes) v.y[i] = peak_of(v.x + 32 * i) / -127.0f, v.measure[i] = inverse_of(v.y[i]);
        __syncwarp();
KV_LOOP
        for (int i = lane; i < f.resident; i += lanes) v.codes[i] = (u16)nearest(v.x[i] * v.measure[i / 32], levels);
        __syncwarp();
KV_LOOP
        for (int i = lane; i < f.resident / 32; i += lanes) {
            float xy = 0.0f, yy = 0.0f;
            for (int j = 32 * i; j < 32 * i + 32; ++j) {
                const float x = v.x[j], level = levels[v.codes[j]], weighted = x * x * level;
                xy += weighted * x, yy += weighted * level;
            }
            v.scales[i] = f32_to_f16(clamped(yy > 0.0f ? xy / yy : v.y[i], -F16_MAX, F16_MAX));
        }
    }
    __device__ static void decode(Vector& v, const Form& f, const Tables& t, int lane, int lanes) {
        const float* levels = table(t);
KV_LOOP
        for (int i = lane; i < f.resident; i += lanes) v.x[i] = f16_to_f32(v.scales[i / 32]) * levels[v.codes[i]];
    }
};

typedef Signed<4> Q4_0;
typedef Signed<5> Q5_0;
typedef Signed<6> Q6_0;
typedef Ranged<4> Q4_1;
typedef Ranged<5> Q5_1;
