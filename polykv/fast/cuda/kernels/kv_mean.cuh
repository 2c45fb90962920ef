// The mean of centered keys of one block and head (docs/CENTERED.md), in the space of the codes: of every slice a signed byte
// for each dim, then a half for 32 of them each, in whole 16 bytes. In files it is blocks of q8_0 one after the other.

struct Mean {
    u8* data;
    int width;

    __device__ __forceinline__ u8* slice(int d) const { return data + d / width * (width + 16); }
    __device__ __forceinline__ u8* code(int d) const { return slice(d) + d % width; }
    __device__ __forceinline__ u16* scale(int d) const { return (u16*)(slice(d) + width) + d % width / 32; }
    __device__ __forceinline__ float value(int d) const { return f16_to_f32(*scale(d)) * (float)(signed char)*code(d); }

    // Where byte k of a file's is, of a mean of so many dims; null behind its last block.
    __device__ __forceinline__ u8* in_file(int k, int dims) const {
        const int d = k / 34 * 32, at = k % 34;
        return d >= dims ? nullptr : at < 2 ? (u8*)scale(d) + at : code(d + at - 2);
    }
};

// Of all blocks and heads; no data: codes are not centered.
struct Means {
    u8* data;
    long long block_bytes, head_bytes;
    __device__ __forceinline__ Mean of(const Form& f, int head, int block) const {
        return {data + head * head_bytes + block * block_bytes, f.width};
    }
};

// v.x as blocks of q8_0; zeros behind f.stored values.
__device__ __forceinline__ void mean_put(const Mean& to, Vector& v, const Form& f, int lane, int lanes) {
    for (int i = lane; i < f.room / 32; i += lanes) {
        const float d = Q8_0::scale(v.x + 32 * i);
        v.measure[i] = inverse_of(d);
        if (32 * i < f.width * f.slices) *to.scale(32 * i) = f32_to_f16(d);
    }
    __syncwarp();
    for (int i = lane; i < f.width * f.slices; i += lanes) *to.code(i) = (u8)Q8_0::code(v.x[i] * v.measure[i / 32]);
}

// The mean as a vector of the keys' own space, in v.y; v.x is overwritten.
__device__ __forceinline__ void mean_apart(const Mean& from, Vector& v, const Form& f, const Tables& t, int lane, int lanes) {
    for (int i = lane; i < f.stored; i += lanes) v.x[i] = from.value(i);
    leave(v, f, t, lane, lanes);
    __syncwarp();
    for (int i = lane; i < f.dim; i += lanes) v.y[i] = v.x[i];
    __syncwarp();
}

// v.x less v.y, zeros behind the dims that there are.
__device__ __forceinline__ void less_mean(Vector& v, const Form& f, bool centered, int lane, int lanes) {
    __syncwarp();
    for (int i = lane; i < f.resident; i += lanes) v.x[i] = i < f.dim ? v.x[i] - (centered ? v.y[i] : 0.0f) : 0.0f;
    __syncwarp();
}
