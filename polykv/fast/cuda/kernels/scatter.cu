// y[row_of[i], ids[i]] = values[i], y [rows, n]. Where an id occurs twice its values are equal.

extern "C" __global__ void __launch_bounds__(256)
scatter(float* y, const float* values, const int* ids, const int* row_of, int count, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) y[(long long)row_of[i] * n + ids[i]] = values[i];
}
