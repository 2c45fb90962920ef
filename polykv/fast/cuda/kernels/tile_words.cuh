// Where the words of a lane lie in a region of a tile.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;

// Word k of a lane in a region of `count` words for each: chunks of four, then two, then one.
__device__ __forceinline__ int word_at(int count, int k, int lane) {
    const int fours = count / 4, rest = k - 4 * fours;
    if (rest < 0) return k / 4 * 128 + 4 * lane + k % 4;
    if (count % 4 / 2 && rest < 2) return 128 * fours + 2 * lane + rest;
    return 128 * fours + count % 4 / 2 * 64 + lane;
}
