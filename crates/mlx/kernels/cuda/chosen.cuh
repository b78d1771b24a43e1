// One row times the matrices of the experts that a router chooses, in two launches: their inner rows, and the weighted sum of their
// outputs. Matrices are of affine 4-bit codes. A warp computes whole rows, with all that it reads of one under way at once.
//
// `S` names the sizes: kExperts, kChosen, kHidden, kWidth (inner rows of an expert), kGroup.

constexpr int kChosenWarps = 8;
constexpr int kChosenThreads = kChosenWarps * 32;

template <typename T, typename S>
struct Chosen {
  using G = Gemv<T, 4, S::kGroup, 1, kChosenWarps>;
  static constexpr int kCodes = G::kCodes;

  // Matrices of all experts: codes, scales, biases.
  struct Matrices {
    const unsigned* w;
    const T* scales;
    const T* biases;
  };

  struct Piece {
    uint4 w;
    T scale;
    T bias;
  };

  __device__ static float rounded(float v) {
    return static_cast<float>(static_cast<T>(v));
  }

  // Chunk `c` of a row of `K` columns.
  template <int K>
  __device__ static Piece piece(const Matrices& m, size_t row, int c) {
    constexpr int kChunks = K / kCodes;
    c = min(c, kChunks - 1);
    size_t group = row * (K / S::kGroup) + c * kCodes / S::kGroup;
    return {load_once(reinterpret_cast<const uint4*>(m.w) + row * kChunks + c), m.scales[group], m.biases[group]};
  }

  // Puts a vector into shared memory as `Gemv` reads it. `factor(i)` weighs elements 8 i and on.
  template <int K, typename Factor>
  __device__ static void put(float* shared, const T* x, Factor factor) {
    constexpr int kPasses = (K / kCodes + 31) / 32;
    float4* xs = reinterpret_cast<float4*>(shared);
    float2* sums = reinterpret_cast<float2*>(xs + kPasses * 32 * G::kQuads);
    for (int i = threadIdx.x; i < kPasses * 32 * 4; i += kChosenThreads) {
      uint4 v = make_uint4(0, 0, 0, 0);
      float weight = 0.0f;
      if (i * 8 < K) {
        v = *reinterpret_cast<const uint4*>(x + i * 8);
        weight = factor(i);
      }
      float sum = 0.0f;
      float offset = 0.0f;
      float scaled[8];
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        float value = wide_at<T>(v, j) * weight;
        scaled[j] = value * G::input_scale(j);
        sum += value;
        offset += scaled[j] * 8388608.0f;
      }
      int c = i / 4;
      float4* to = xs + c / 32 * G::kQuads * 32 + c % 32 + i % 4 * 64;
      to[0] = make_float4(scaled[0], scaled[1], scaled[2], scaled[3]);
      to[32] = make_float4(scaled[4], scaled[5], scaled[6], scaled[7]);
#pragma unroll
      for (int d = 1; d < 4; d *= 2) {
        sum += __shfl_xor_sync(~0u, sum, d);
        offset += __shfl_xor_sync(~0u, offset, d);
      }
      if (i % 4 == 0) {
        sums[c] = make_float2(sum, offset);
      }
    }
  }

  // Sums of R rows, whose pieces `load(r, c)` reads, with the vector that `prepare()` puts into shared memory.
  template <int K, int R, typename Load, typename Prepare>
  __device__ static void product(const float* shared, Load load, Prepare prepare, float (&y)[R]) {
    constexpr int kPasses = (K / kCodes + 31) / 32;
    int lane = threadIdx.x % 32;
    Piece pieces[kPasses][R];
#pragma unroll
    for (int p = 0; p < kPasses; ++p) {
#pragma unroll
      for (int r = 0; r < R; ++r) {
        pieces[p][r] = load(r, p * 32 + lane);
      }
    }
    prepare();
    __syncthreads();
    const float2* sums = reinterpret_cast<const float2*>(reinterpret_cast<const float4*>(shared) + kPasses * 32 * G::kQuads);
#pragma unroll
    for (int p = 0; p < kPasses; ++p) {
      const float4* xs = reinterpret_cast<const float4*>(shared) + p * G::kQuads * 32 + lane;
      float2 sum = sums[p * 32 + lane];
      float dot[R] = {};
#pragma unroll
      for (int q = 0; q < G::kQuads; ++q) {
        float4 v = xs[q * 32];
#pragma unroll
        for (int r = 0; r < R; ++r) {
          dot[r] = fmaf(v.x, G::code(pieces[p][r].w, 4 * q), dot[r]);
          dot[r] = fmaf(v.y, G::code(pieces[p][r].w, 4 * q + 1), dot[r]);
          dot[r] = fmaf(v.z, G::code(pieces[p][r].w, 4 * q + 2), dot[r]);
          dot[r] = fmaf(v.w, G::code(pieces[p][r].w, 4 * q + 3), dot[r]);
        }
      }
#pragma unroll
      for (int r = 0; r < R; ++r) {
        y[r] += static_cast<float>(pieces[p][r].scale) * (dot[r] - sum.y) + static_cast<float>(pieces[p][r].bias) * sum.x;
      }
    }
#pragma unroll
    for (int r = 0; r < R; ++r) {
#pragma unroll
      for (int d = 16; d > 0; d /= 2) {
        y[r] += __shfl_xor_sync(~0u, y[r], d);
      }
    }
  }

  // The best of the experts, and their shares. Of equal ones the last counts first, as when a stable order is read from its end.
  __device__ static void route(const T* from, int* numbers, float* weights) {
    __shared__ __align__(16) float logits[S::kExperts];
    __shared__ float best[S::kChosen];
    int thread = threadIdx.x;
    for (int i = thread; i < S::kExperts; i += kChosenThreads) {
      logits[i] = static_cast<float>(from[i]);
    }
    __syncthreads();
    for (int i = thread; i < S::kExperts; i += kChosenThreads) {
      float own = logits[i];
      int ahead = 0;
#pragma unroll 8
      for (int j = 0; j < S::kExperts; j += 4) {
        float4 other = *reinterpret_cast<const float4*>(logits + j);
        ahead += other.x > own || (other.x == own && j > i);
        ahead += other.y > own || (other.y == own && j + 1 > i);
        ahead += other.z > own || (other.z == own && j + 2 > i);
        ahead += other.w > own || (other.w == own && j + 3 > i);
      }
      if (ahead < S::kChosen) {
        numbers[ahead] = i;
        best[ahead] = own;
      }
    }
    __syncthreads();
    if (thread < S::kChosen) {
      float sum = 0.0f;
      for (int i = 0; i < S::kChosen; ++i) {
        sum += __expf(best[i] - best[0]);
      }
      weights[thread] = rounded(__expf(best[thread] - best[0]) / sum);
    }
    __syncthreads();
  }

  // A block computes one inner value a warp; the first also leaves the choice: numbers and shares.
  __device__ static void inner(
      float* shared, const T* logits, const T* x, Matrices gate, Matrices up, T* to, int* choice, float* shares) {
    __shared__ int numbers[S::kChosen];
    __shared__ float weights[S::kChosen];
    // Not a number is ahead of nothing, and a choice must name experts all the same.
    if (threadIdx.x < S::kChosen) {
      numbers[threadIdx.x] = 0;
    }
    route(logits, numbers, weights);
    if (blockIdx.x == 0 && threadIdx.x < S::kChosen) {
      choice[threadIdx.x] = numbers[threadIdx.x];
      shares[threadIdx.x] = weights[threadIdx.x];
    }
    int at = blockIdx.x * kChosenWarps + threadIdx.x / 32;
    int tile = min(at, S::kChosen * S::kWidth - 1);
    size_t row = static_cast<size_t>(numbers[tile / S::kWidth]) * S::kWidth + tile % S::kWidth;
    float y[2] = {};
    product<S::kHidden, 2>(
        shared, [&](int r, int c) { return piece<S::kHidden>(r == 0 ? gate : up, row, c); },
        [&] { put<S::kHidden>(shared, x, [](int) { return 1.0f; }); }, y);
    if (at == tile && threadIdx.x % 32 == 0) {
      to[at] = static_cast<T>(rounded(silu(rounded(y[0]))) * rounded(y[1]));
    }
  }

  // A block computes one result a warp: the columns of all chosen experts, one behind the other, are one product.
  __device__ static void out(
      float* shared, const T* inner, const int* choice, const float* shares, Matrices down, T* to) {
    constexpr int kChunks = S::kWidth / kCodes;
    int at = blockIdx.x * kChosenWarps + threadIdx.x / 32;
    int row = min(at, S::kHidden - 1);
    float y[1] = {};
    product<S::kChosen * S::kWidth, 1>(
        shared,
        [&](int, int c) {
          int expert = min(c / kChunks, S::kChosen - 1);
          return piece<S::kWidth>(down, static_cast<size_t>(choice[expert]) * S::kHidden + row, c - expert * kChunks);
        },
        [&] { put<S::kChosen * S::kWidth>(shared, inner, [&](int i) { return shares[i * 8 / S::kWidth]; }); }, y);
    if (at == row && threadIdx.x % 32 == 0) {
      to[at] = static_cast<T>(y[0]);
    }
  }
};
