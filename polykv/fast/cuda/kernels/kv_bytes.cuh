// A vector in the bytes of files, exchange layout or packed (docs/FORMATS.md): group after group, scales first.

// Byte `at` of the codes of a group: of scalar types upper bits, if there are any, and then nibbles j and j + 16; or fields of
// bits, first value lowest, each in whole bytes; or of a path's stream.
template <class T> __device__ __forceinline__ u8 byte_of(const u16* codes, int at, int group) {
    if constexpr (T::PATH) return T::byte_of(codes, at, group);
    if constexpr (T::BITS == 16) return (u8)(codes[at / 2] >> 8 * (at % 2));
    if constexpr (T::BITS == 8) return (u8)codes[at];
    if constexpr (T::SCALED) {
        constexpr int UPPER = T::BITS == 5 ? 4 : T::BITS == 6 ? 8 : 0;
        if (at >= UPPER) return (u8)(codes[at - UPPER] & 15 | (codes[at - UPPER + 16] & 15) << 4);
        u32 byte = 0;
        if (T::BITS == 5)
            for (int i = 0; i < 8; ++i) byte |= codes[8 * at + i] >> 4 << i;
        else
            for (int i = 0; i < 4; ++i) byte |= codes[at + 16 * (i % 2) + 8 * (i / 2)] >> 4 << 2 * i;
        return (u8)byte;
    }
    constexpr int FIRST = T::BITS == 4 ? 4 : 2;
    const int bytes = (FIRST * group + 7) / 8, field = at < bytes ? FIRST : 1, low = at < bytes ? 0 : 2;
    const int per = 8 / field, start = (at < bytes ? at : at - bytes) * per;
    u32 byte = 0;
    for (int i = 0; i < per && start + i < group; ++i) byte |= (codes[start + i] >> low & ((1 << field) - 1)) << field * i;
    return (u8)byte;
}

// The reverse: code j of a group.
template <class T> __device__ __forceinline__ u16 code_of(const u8* bytes, int j, int group) {
    if constexpr (T::PATH) return T::state_of(bytes, j);
    if constexpr (T::BITS == 16) return bytes[2 * j] | bytes[2 * j + 1] << 8;
    if constexpr (T::BITS == 8) return bytes[j];
    if constexpr (T::SCALED) {
        constexpr int UPPER = T::BITS == 5 ? 4 : T::BITS == 6 ? 8 : 0;
        const u16 low = bytes[UPPER + j % 16] >> 4 * (j / 16) & 15;
        if (T::BITS == 5) return low | (bytes[j / 8] >> j % 8 & 1) << 4;
        if (T::BITS == 6) return low | (bytes[j % 8] >> 2 * (j / 16 + j % 16 / 8 * 2) & 3) << 4;
        return low;
    }
    if constexpr (T::BITS == 4) return bytes[j / 2] >> 4 * (j % 2) & 15;
    const u16 code = bytes[j / 4] >> 2 * (j % 4) & 3;
    if constexpr (T::BITS == 2) return code;
    return code | (bytes[(2 * group + 7) / 8 + j / 8] >> j % 8 & 1) << 2;
}

template <class T> __device__ __forceinline__ void bytes_put(u8* to, const Vector& v, const Form& f, int lane, int lanes) {
    __syncwarp();
    const int groups = f.resident / f.group;
    constexpr int halves = T::SCALED ? T::SCALED : 1;
#pragma unroll 1
    for (int i = lane; i < f.vector_bytes; i += lanes) {
        const int group = i / f.group_bytes, at = i % f.group_bytes;
        // What lies between scale and codes is reserved, and zero.
        to[i] = at >= f.codes_at ? byte_of<T>(v.codes + group * f.group, at - f.codes_at, f.group)
                                 : at < 2 * halves ? (u8)(v.scales[at / 2 * groups + group] >> 8 * (at % 2)) : (u8)0;
    }
}

template <class T> __device__ __forceinline__ void bytes_get(Vector& v, const u8* from, const Form& f, int lane, int lanes) {
#pragma unroll 1
    for (int i = lane; i < f.resident; i += lanes) {
        const u8* group = from + i / f.group * f.group_bytes;
        v.codes[i] = code_of<T>(group + f.codes_at, i % f.group, f.group);
        if (f.codes_at && i % f.group == 0)
            for (int k = 0; k < (T::SCALED ? T::SCALED : 1); ++k)
                v.scales[k * (f.resident / f.group) + i / f.group] = group[2 * k] | group[2 * k + 1] << 8;
    }
    __syncwarp();
}
