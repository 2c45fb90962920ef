// A cell of a tile, written and read (attend_types.cuh says how tiles lie, polykv/fast/cuda/layout.py the same for NumPy).
//
// Codes of 8 and 16 bits have bytes of their own. Smaller ones share words with other cells, which other warps may be
// writing: a word's bits are cleared and then set by atomic operations that touch no others, so that the order in
// which cells of a tile are written means nothing.

#include "tile_words.cuh"

// Who has dim d of a cell: group, lane, and which of the eight codes of the group.
struct Owner {
    int group, lane, i;
    __device__ __forceinline__ Owner(int cell, int d, int values) {
        const int j = cell / 8, g = cell % 8;
        if (values) group = d / 8, lane = 4 * (d % 8) + g / 2, i = 2 * j + g % 2;
        else group = 4 * (d / 32) + j, lane = 4 * g + d % 32 / 8, i = d % 8;
    }
};

// Nibbles of scalar types, but iq4_nl, are in an order of their own: even places, then odd ones.
template <class T> __device__ __forceinline__ int nibble_of(int i) { return T::NIBBLES ? 2 * (i % 4) + i / 4 : i; }

__device__ __forceinline__ void set_bits(u32* word, u32 mask, u32 bits) {
    if (mask == ~0u) {
        *word = bits;
        return;
    }
    atomicAnd(word, ~mask);
    if (bits) atomicOr(word, bits);
}

#include "kv_path.cuh"

// A region whose words hold PER groups: 4 / PER bits of every code, those from bit `low` on, in a nibble of their own.
template <class T, int PER> struct Plane {
    enum { FIELD = 4 / PER, ONES = (1 << FIELD) - 1 };

    __device__ static u32 field(const u16* codes, int d, int low) { return codes[d] >> low & ONES; }

    __device__ static void put(u32* to, const u16* codes, int width, int cell, int values, int low, int lane, int lanes) {
        const int count = width / 8 / PER;
        // In the order of K a word has eight codes of a cell; in that of V one nibble, the same dim of PER groups.
KV_LOOP
        for (int i = lane; i < (values ? width / PER : width / 8); i += lanes) {
            const int d = values ? i / 8 * 8 * PER + i % 8 : 8 * i;
            const Owner at(cell, d, values);
            u32 bits = 0;
            if (values) for (int p = 0; p < PER; ++p) bits |= field(codes, d + 8 * p, low) << FIELD * p;
            else for (int k = 0; k < 8; ++k) bits |= field(codes, d + k, low) << 4 * nibble_of<T>(k);
            const int shift = values ? 4 * nibble_of<T>(at.i) : FIELD * (at.group % PER);
            const u32 mask = values ? 15u : 0x11111111u * ONES;
            set_bits(to + word_at(count, at.group / PER, at.lane), mask << shift, bits << shift);
        }
    }

    __device__ static void get(u16* codes, const u32* from, int width, int cell, int values, int low, int lane, int lanes) {
KV_LOOP
        for (int d = lane; d < width; d += lanes) {
            const Owner at(cell, d, values);
            const u32 word = from[word_at(width / 8 / PER, at.group / PER, at.lane)];
            codes[d] = (low ? codes[d] : 0) | (word >> (4 * nibble_of<T>(at.i) + FIELD * (at.group % PER)) & ONES) << low;
        }
    }
};

// Codes of whole bytes: where that of dim d is, in units of a code.
template <int BITS> __device__ __forceinline__ int code_at(int width, int cell, int d, int values) {
    const int per = 32 / BITS;
    const Owner at(cell, d, values);
    return word_at(width / per, (8 * at.group + at.i) / per, at.lane) * per + at.i % per;
}

// Codes of a slice of a cell, zeros behind the last of `n`: v.codes from `first` on.
template <class T> struct Slice {
    __device__ static void put(u8* to, u16* codes, const Form& f, int cell, int lane, int lanes) {
        if constexpr (T::PATH) Path<T>(f.width, cell, f.values).put(to, codes, lane, lanes);
        else if constexpr (T::BITS == 16)
KV_LOOP
            for (int d = lane; d < f.width; d += lanes) ((u16*)to)[code_at<16>(f.width, cell, d, f.values)] = codes[d];
        else if constexpr (T::BITS == 8)
KV_LOOP
            for (int d = lane; d < f.width; d += lanes) to[code_at<8>(f.width, cell, d, f.values)] = (u8)codes[d];
        else if constexpr (T::BITS >= 4) Plane<T, 1>::put((u32*)to, codes, f.width, cell, f.values, 0, lane, lanes);
        else Plane<T, 2>::put((u32*)to, codes, f.width, cell, f.values, 0, lane, lanes);
        if constexpr (T::BITS == 3 && !T::PATH)
            Plane<T, 4>::put((u32*)(to + 8 * f.width), codes, f.width, cell, f.values, 2, lane, lanes);
        if constexpr (T::BITS == 5 || T::BITS == 6)
            Plane<T, T::BITS == 5 ? 4 : 2>::put((u32*)(to + 16 * f.width), codes, f.width, cell, f.values, 4, lane, lanes);
    }

    __device__ static void get(u16* codes, const u8* from, const Form& f, int cell, int lane, int lanes) {
        if constexpr (T::PATH) Path<T>(f.width, cell, f.values).get(codes, from, lane, lanes);
        else if constexpr (T::BITS == 16)
KV_LOOP
            for (int d = lane; d < f.width; d += lanes) codes[d] = ((const u16*)from)[code_at<16>(f.width, cell, d, f.values)];
        else if constexpr (T::BITS == 8)
KV_LOOP
            for (int d = lane; d < f.width; d += lanes) codes[d] = from[code_at<8>(f.width, cell, d, f.values)];
        else if constexpr (T::BITS >= 4) Plane<T, 1>::get(codes, (const u32*)from, f.width, cell, f.values, 0, lane, lanes);
        else Plane<T, 2>::get(codes, (const u32*)from, f.width, cell, f.values, 0, lane, lanes);
        if constexpr (T::BITS == 3 && !T::PATH)
            Plane<T, 4>::get(codes, (const u32*)(from + 8 * f.width), f.width, cell, f.values, 2, lane, lanes);
        if constexpr (T::BITS == 5 || T::BITS == 6)
            Plane<T, T::BITS == 5 ? 4 : 2>::get(codes, (const u32*)(from + 16 * f.width), f.width, cell, f.values, 4, lane, lanes);
    }
};

// A cell's scale or norm in a region of 64 bytes.
__device__ __forceinline__ u16* scale_in(u8* region, int cell) { return (u16*)region + 4 * (cell % 8) + cell / 8; }

template <class T> __device__ __forceinline__ void tile_put(u8* tile, Vector& v, const Form& f, int cell, int lane, int lanes) {
    const int codes = f.width * 4 * T::BITS, blocks = f.width / 32;
KV_LOOP
    for (int i = f.resident + lane; i < f.width * f.slices; i += lanes) v.codes[i] = 0;
    __syncwarp();
    for (int s = 0; s < f.slices; ++s)
        Slice<T>::put(tile + s * f.slice_bytes, v.codes + s * f.width, f, cell, lane, lanes);
    if constexpr (T::SCALED)
KV_LOOP
        for (int i = lane; i < f.slices * blocks; i += lanes)
            for (int k = 0; k < T::SCALED; ++k)
                *scale_in(tile + i / blocks * f.slice_bytes + codes + 64 * (k * blocks + i % blocks), cell) =
                    i < f.resident / 32 ? v.scales[k * (f.resident / 32) + i] : (u16)0;
    else if constexpr (T::BITS < 16)
        // A group may be longer than a slice: every slice of it has its norm.
        for (int s = lane; s < f.slices; s += lanes)
            *scale_in(tile + s * f.slice_bytes + codes, cell) = v.scales[f.group < f.stored ? s * f.width / f.group : 0];
}

template <class T> __device__ __forceinline__ void tile_get(Vector& v, u8* tile, const Form& f, int cell, int lane, int lanes) {
    const int codes = f.width * 4 * T::BITS, blocks = f.width / 32;
    for (int s = 0; s < f.slices; ++s) Slice<T>::get(v.codes + s * f.width, tile + s * f.slice_bytes, f, cell, lane, lanes);
    if constexpr (T::SCALED)
KV_LOOP
        for (int i = lane; i < f.resident / 32; i += lanes)
            for (int k = 0; k < T::SCALED; ++k)
                v.scales[k * (f.resident / 32) + i] =
                    *scale_in(tile + i / blocks * f.slice_bytes + codes + 64 * (k * blocks + i % blocks), cell);
    else if constexpr (T::BITS < 16)
KV_LOOP
        for (int i = lane; i < f.resident / f.group; i += lanes)
            v.scales[i] = *scale_in(tile + i * f.group / f.width * f.slice_bytes + codes, cell);
    __syncwarp();
}
