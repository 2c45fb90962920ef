"""What attention takes from the hardware (kernels/mma.cuh), for the emulator, as the PTX manual has it: copies arrive
when a thread waits for them, and not before."""

TENSOR = r"""
#include "half.cuh"
#include "mma_s8.cuh"
typedef unsigned int u32;
typedef unsigned short u16;
typedef unsigned char u8;
alignas(1024) static uint4 memory[1 << 14];
#define BELOW_ALL (-INFINITY)
#define FAINT 1e-33f

static int __float2int_rn(float x) { return (int)lrintf(x); }
static u32 __umulhi(u32 a, u32 b) { return (u32)((uint64_t)a * b >> 32); }
static int __all_sync(unsigned, int v) { return over_warp(v != 0, 1, [](int a, int b) { return a & b; }); }
static u32 __ballot_sync(unsigned, int v) {
    return (u32)over_warp((v != 0) << threadIdx.x % 32, 0, [](int a, int b) { return a | b; });
}

// D[16][8] += A[16][16] B[16][8] of floats of 16 bits.
template <typename F> static void mma_floats(float (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1, F value) {
    struct Given { u32 a[4], b[2]; } mine = {{a0, a1, a2, a3}, {b0, b1}};
    const auto all = given(mine);
    const int g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
    for (int i = 0; i < 4; ++i) {
        double sum = d[i];
        for (int k = 0; k < 16; ++k) {
            const auto left = taken<Given>(all, 4 * g + k % 8 / 2);
            const auto right = taken<Given>(all, 4 * (2 * q + i % 2) + k % 8 / 2);
            const double a = value(left.a[i / 2 + k / 8 * 2] >> k % 2 * 16 & 0xFFFF);
            sum += a * value(right.b[k / 8] >> k % 2 * 16 & 0xFFFF);
        }
        d[i] = (float)sum;
    }
}

static void mma_f16(float (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    mma_floats(d, a0, a1, a2, a3, b0, b1, f16_to_f32);
}
static void mma_bf16(float (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    mma_floats(d, a0, a1, a2, a3, b0, b1, bf16_to_f32);
}

static u32 down(u32 x, u32 power) { return __umulhi(x, power); }
static u32 pick(u32 lo, u32 hi, u32 sel) {
    const uint64_t both = (uint64_t)hi << 32 | lo;
    u32 y = 0;
    for (int i = 0; i < 4; ++i) {
        const int nibble = sel >> 4 * i & 15;
        const u32 byte = both >> 8 * (nibble & 7) & 255;
        y |= (nibble & 8 ? (byte & 128 ? 255u : 0u) : byte) << 8 * i;
    }
    return y;
}
static u32 bytes_times(u32 x, u32 by, u32 start) {
    for (int i = 0; i < 32; i += 8) start += (x >> i & 255) * (by >> i & 255);
    return start;
}
static u32 halves_times(u32 x, u32 by, u32 start) {
    return start + (x & 0xFFFF) * (by & 255) + (x >> 16) * (by >> 8 & 255);
}
static u32 scaled(u32 x, float power, u32 start) {
    return __float_as_uint(fmaf(__uint_as_float(x), power, __uint_as_float(start)));
}
static float power2(float x) { return exp2f(x); }

static u32 shared_address(const void* p) { return (u32)((const char*)p - (const char*)memory); }
template <typename T> static T shared_as(u32 at) {
    if (at % sizeof(T) || at + sizeof(T) > shared_bytes) __builtin_trap();
    T v;
    memcpy(&v, (const char*)memory + at, sizeof v);
    return v;
}
static uint4 shared16(u32 at) { return shared_as<uint4>(at); }
static uint2 shared8(u32 at) { return shared_as<uint2>(at); }
static u32 shared4(u32 at) { return shared_as<u32>(at); }
static u32 shared2(u32 at) { return shared_as<u16>(at); }
static void put(u32 at, const void* from, u32 size) {
    if (at % size || at + size > shared_bytes) __builtin_trap();
    memcpy((char*)memory + at, from, size);
}
static void put8(u32 at, u32 x, u32 y) { const u32 both[] = {x, y}; put(at, both, 8); }
static void put4(u32 at, float x) { put(at, &x, 4); }
struct Copy { u32 to; const void* from; int size; };
static std::vector<Copy> begun[1024];
static std::vector<std::vector<Copy>> sent[1024];
template <int BYTES> static void copy_async(u32 to, const void* from) {
    if (to % BYTES || (uintptr_t)from % BYTES) __builtin_trap();
    begun[threadIdx.x].push_back({to, from, BYTES});
}
static void copy16(u32 to, const void* from) { copy_async<16>(to, from); }
static void copies_sent() {
    sent[threadIdx.x].push_back(begun[threadIdx.x]);
    begun[threadIdx.x].clear();
}
template <int N> static void copies_but() {
    auto& groups = sent[threadIdx.x];
    for (; groups.size() > N; groups.erase(groups.begin()))
        for (const Copy& c : groups[0]) memcpy((char*)memory + c.to, c.from, c.size);
}
static Meeting teams[16];
static void meet(int id, int members) {
    teams[id].members = members;
    meet(teams[id]);
}

static void arrive(int id, int members) {
    teams[id].members = members;
    ++teams[id].arrived;
    release(teams[id]);
}
static float4 loaded16(const float* from) { return *(const float4*)from; }
static uint4 matrices(u32 at) {
    const auto all = given(at);
    u32 w[4];
    for (int i = 0; i < 4; ++i) w[i] = shared4(taken<u32>(all, 8 * i + threadIdx.x % 32 / 4) + threadIdx.x % 4 * 4);
    return {w[0], w[1], w[2], w[3]};
}

static int thread_again() { return threadIdx.x; }

static u32 transpose(u32 x) {
    const auto all = given(x);
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    u32 y = 0;
    for (int i = 0; i < 2; ++i) y |= (taken<u32>(all, 4 * (2 * t + i) + g / 2) >> g % 2 * 16 & 0xFFFF) << 16 * i;
    return y;
}
static float query_max(float x) {
    for (int o = 4; o < 32; o *= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, o));
    return x;
}
static float query_sum(float x) {
    for (int o = 4; o < 32; o *= 2) x += __shfl_xor_sync(~0u, x, o);
    return x;
}
"""

HALF_PAIRS = r"""
#include "half.cuh"
template <typename F> static unsigned of_halves(unsigned a, unsigned b, F with) {
    unsigned y = 0;
    for (int at = 0; at < 32; at += 16) {
        const float x = with(f16_to_f32(a >> at & 0xFFFF), f16_to_f32(b >> at & 0xFFFF));
        y |= (unsigned)f32_to_f16(x) << at;
    }
    return y;
}
static unsigned halves_times(unsigned a, unsigned b) { return of_halves(a, b, [](float x, float y) { return x * y; }); }
static unsigned halves_less(unsigned a, unsigned b) { return of_halves(a, b, [](float x, float y) { return x - y; }); }
static unsigned halves_least(unsigned a, unsigned b) {
    return of_halves(a, b, [](float x, float y) { return x != x || x < y ? x : y; });
}
static unsigned halves_most(unsigned a, unsigned b) {
    return of_halves(a, b, [](float x, float y) { return x != x || x > y ? x : y; });
}
"""

# Products of warpgroups read shared memory and add to registers when a thread waits for them, and not before.
WGMMA = r"""
struct Operand { u32 at; int along_n; };
struct Product { float (*d)[4]; int octets; float a[2][16]; Operand b; int add; };
static std::vector<Product> products[1024];
static std::vector<std::vector<Product>> product_groups[1024];
static Operand wgmma_matrix(u32 at, int along_n) {
    at *= 16, along_n *= 16;
    if (at % 512 >= 64 || at % 32 || along_n % 512) __builtin_trap();
    return {at, along_n};
}
static void wgmma_begin() {}
static void wgmma_sees() {}
static void wgmma_sent() {
    product_groups[threadIdx.x].push_back(products[threadIdx.x]);
    products[threadIdx.x].clear();
}
static void wgmma_now(const Product& p) {
    const int t = threadIdx.x % 4;
    for (int e = 0; e < 2 * p.octets; ++e) {
        float b[16];
        for (int k = 0; k < 16; ++k) {
            // The swizzle of 64 bytes: bits 7 and 8 of an address are added to bits 4 and 5.
            const u32 at = p.b.at + e / 2 * p.b.along_n + (2 * t + e % 2) * 64 + k * 2;
            b[k] = f16_to_f32(shared_as<u16>(at ^ (at >> 7 & 3) << 4));
        }
        for (int r = 0; r < 2; ++r) {
            double sum = p.add ? p.d[e / 2][2 * r + e % 2] : 0;
            for (int k = 0; k < 16; ++k) sum += (double)p.a[r][k] * b[k];
            p.d[e / 2][2 * r + e % 2] = (float)sum;
        }
    }
}
template <int N> static void wgmma_but() {
    auto& groups = product_groups[threadIdx.x];
    for (; groups.size() > N; groups.erase(groups.begin()))
        for (const Product& p : groups[0]) wgmma_now(p);
}
template <int O> static void wgmma_ready(float (&d)[O][4]) {}
static void wgmma_over() { wgmma_but<0>(); }
template <int O> static void wgmma_of(float (&d)[O][4], const u32 (&a)[4], Operand b, int add) {
    struct Given { u32 a[4]; } mine;
    memcpy(mine.a, a, sizeof mine);
    const auto all = given(mine);
    Product p = {d, O, {}, b, add};
    for (int k = 0; k < 16; ++k) {
        const auto of = taken<Given>(all, threadIdx.x % 32 / 4 * 4 + k % 8 / 2);
        for (int r = 0; r < 2; ++r) p.a[r][k] = f16_to_f32(of.a[r + k / 8 * 2] >> k % 2 * 16 & 0xFFFF);
    }
    products[threadIdx.x].push_back(p);
}
static void wgmma_32(float (&d)[4][4], const u32 (&a)[4], Operand b, int add) { wgmma_of(d, a, b, add); }
static void wgmma_64(float (&d)[8][4], const u32 (&a)[4], Operand b, int add) { wgmma_of(d, a, b, add); }
static void wgmma_128(float (&d)[16][4], const u32 (&a)[4], Operand b, int add) { wgmma_of(d, a, b, add); }
template <int N> static void more_registers() {}
template <int N> static void fewer_registers() {}
"""

# Copies of whole regions come when a lane waits for them, and not before.
BULK = r"""
struct Bulk { u32 barrier; long phases; std::vector<Copy> coming; int bytes; };
static std::vector<Bulk> bulks;
static Bulk& bulk_of(u32 barrier) {
    for (Bulk& b : bulks)
        if (b.barrier == barrier) return b;
    bulks.push_back({barrier, 0, {}, 0});
    return bulks.back();
}
static void bulk_barrier(u32 at) {
    if (at % 8 || at + 8 > shared_bytes) __builtin_trap();
    bulk_of(at) = {at, 0, {}, 0};
}
static void bulk_sees() {}
static void bulk_copy(u32 to, const void* from, int bytes, u32 barrier) {
    Bulk& b = bulk_of(barrier);
    if (to % 16 || (uintptr_t)from % 16 || bytes % 16 || !b.coming.empty()) __builtin_trap();
    b.coming.push_back({to, from}), b.bytes = bytes;
}
static void bulk_wait(u32 barrier, int odd) {
    Bulk& b = bulk_of(barrier);
    if (b.phases % 2 == odd) {
        if (b.coming.empty()) __builtin_trap();
        memcpy((char*)memory + b.coming[0].to, b.coming[0].from, b.bytes);
        b.coming.clear(), ++b.phases;
    }
}
"""

# Copies that a thread has begun and not sent are there when it arrives for them.
TURNS = r"""
struct Turn { int arrivals, left; long past; };
static Turn turns[64];
static Turn& turn_at(u32 at) { return turns[at / 8 % 64]; }
static void turn_init(u32 at, int arrivals) { turn_at(at) = {arrivals, arrivals, 0}; }
static void turn_arrive(u32 at) {
    Turn& turn = turn_at(at);
    if (--turn.left == 0) turn.left = turn.arrivals, ++turn.past;
}
constexpr int WARP_ARRIVALS = 1;
static void turn_arrive_warp(u32 at, int lane) {
    __syncwarp();
    if (lane == 0) turn_arrive(at);
}
static void turn_arrive_copied(u32 at) {
    copies_sent();
    for (const Copy& c : sent[threadIdx.x].back()) memcpy((char*)memory + c.to, c.from, c.size);
    sent[threadIdx.x].pop_back();
    turn_arrive(at);
}
static void turn_wait(u32 at, int parity) {
    while ((turn_at(at).past & 1) == parity) {
        Thread* me = running;
        swapcontext(&me->context, &home);
    }
}
"""
