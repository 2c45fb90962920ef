// Repetition penalty: logits of ids that occurred recently, divided by the penalty when positive, multiplied when not.
//
// Id i belongs to row row_of[i]. First all new values are computed, then stored (scatter.cu): an id that occurs twice
// takes its penalty once, also when the result replaces the logits.

extern "C" __global__ void __launch_bounds__(256)
penalized(float* values, const float* logits, const int* ids, const int* row_of, const float* penalty, int count, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    const float old = logits[(long long)row_of[i] * n + ids[i]], p = penalty[row_of[i]];
    values[i] = old > 0.0f ? old / p : old * p;
}
