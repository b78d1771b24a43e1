// One row times the matrices of the chosen experts and of an optional shared expert: first their
// inner rows, then the weighted sum of their outputs. Matrices hold affine codes. A warp
// computes whole rows and issues all loads of a row at once. With RESIDENT both parts are one
// launch: a block loads its weights of the second part before their operand is computed.
//
// `S` names the sizes: kExperts, kChosen, kHidden, kWidth (inner rows of an expert), kBits, kGroup,
// kShared (1 with a shared expert), and kJoined (1 if an expert's gate and up projection are one
// matrix, the gate first; then `gate` and `up` are the same).

template <typename T, typename S, int WARPS, bool RESIDENT>
struct Mixture {
  using G = Gemv<T, S::kBits, S::kGroup, 1, WARPS>;
  static constexpr int kCodes = G::kCodes;
  static constexpr int kThreads = WARPS * 32;
  static constexpr int kAll = S::kChosen + S::kShared;

  // Matrices of all experts, or of the shared expert: codes, scales, biases.
  struct Matrices {
    const unsigned* w;
    const T* scales;
    const T* biases;
  };

  // Selects one of two without a copy in local memory.
  __device__ static Matrices either(bool first, const Matrices& a, const Matrices& b) {
    return {first ? a.w : b.w, first ? a.scales : b.scales, first ? a.biases : b.biases};
  }

  struct Piece {
    uint4 w;
    T scale;
    T bias;
  };

  // Chunk `c` of a row of `K` columns.
  template <int K>
  __device__ static Piece piece(const Matrices& m, size_t row, int c) {
    constexpr int kChunks = K / kCodes;
    c = min(c, kChunks - 1);
    size_t group = row * (K / S::kGroup) + c * kCodes / S::kGroup;
    return {load_once(reinterpret_cast<const uint4*>(m.w) + row * kChunks + c), m.scales[group], m.biases[group]};
  }

  // A warp's registers for R rows of K columns.
  template <int K, int R>
  struct Pieces {
    static constexpr int kPasses = (K / kCodes + 31) / 32;
    Piece at[kPasses][R];

    // `read(r, c)` gives chunk `c` of row `r`.
    template <typename Read>
    __device__ void load(Read read) {
#pragma unroll
      for (int p = 0; p < kPasses; ++p) {
#pragma unroll
        for (int r = 0; r < R; ++r) {
          at[p][r] = read(r, p * 32 + static_cast<int>(threadIdx.x) % 32);
        }
      }
    }

    // The rows' dot products with the vector in shared memory.
    __device__ void multiply(const G& g, float (&y)[R]) const {
      int lane = threadIdx.x % 32;
#pragma unroll
      for (int r = 0; r < R; ++r) {
        y[r] = 0.0f;
      }
#pragma unroll
      for (int p = 0; p < kPasses; ++p) {
        const float4* xs = g.xs + p * G::kQuads * 32 + lane;
        float2 sum = g.sums[p * 32 + lane];
        float dot[R] = {};
#pragma unroll
        for (int q = 0; q < G::kQuads; ++q) {
          float4 v = xs[q * 32];
#pragma unroll
          for (int r = 0; r < R; ++r) {
            dot[r] = fmaf(v.x, G::code(at[p][r].w, 4 * q), dot[r]);
            dot[r] = fmaf(v.y, G::code(at[p][r].w, 4 * q + 1), dot[r]);
            dot[r] = fmaf(v.z, G::code(at[p][r].w, 4 * q + 2), dot[r]);
            dot[r] = fmaf(v.w, G::code(at[p][r].w, 4 * q + 3), dot[r]);
          }
        }
#pragma unroll
        for (int r = 0; r < R; ++r) {
          y[r] += static_cast<float>(at[p][r].scale) * (dot[r] - sum.y) + static_cast<float>(at[p][r].bias) * sum.x;
        }
      }
#pragma unroll
      for (int r = 0; r < R; ++r) {
        y[r] = warp_sum(y[r]);
      }
    }
  };

  // Numbers and shares of the best experts. Among equal logits the last expert comes first, as at
  // the end of a stable ascending sort.
  __device__ static void route(const T* from, int* numbers, float* shares) {
    // Keys sort like logits, then by number; NaN sorts last.
    __shared__ __align__(16) unsigned keys[S::kExperts];
    __shared__ float best[S::kChosen];
    __shared__ int ahead[S::kExperts];
    // Several threads per expert if there are enough threads.
    constexpr int kParts = kThreads / S::kExperts > 1 && S::kExperts % (kThreads / S::kExperts * 4) == 0 ? kThreads / S::kExperts : 1;
    constexpr int kEach = S::kExperts / kParts;
    int thread = threadIdx.x;
    for (int i = thread; i < S::kExperts; i += kThreads) {
      T logit = __ldcg(from + i);
      unsigned bits = *reinterpret_cast<unsigned short*>(&logit);
      bool is_number = static_cast<float>(logit) == static_cast<float>(logit);
      keys[i] = (is_number ? bits ^ (bits >> 15 ? 0xffffu : 0x8000u) : 0) << 16 | i;
      ahead[i] = 0;
    }
    __syncthreads();
    for (int at = thread; at < S::kExperts * kParts; at += kThreads) {
      int i = at % S::kExperts;
      int begin = at / S::kExperts * kEach;
      unsigned own = keys[i];
      int count = 0;
#pragma unroll 8
      for (int j = begin; j < begin + kEach; j += 4) {
        uint4 other = *reinterpret_cast<const uint4*>(keys + j);
        count += other.x > own;
        count += other.y > own;
        count += other.z > own;
        count += other.w > own;
      }
      atomicAdd(ahead + i, count);
    }
    __syncthreads();
    for (int i = thread; i < S::kExperts; i += kThreads) {
      if (ahead[i] < S::kChosen) {
        numbers[ahead[i]] = i;
        best[ahead[i]] = static_cast<float>(from[i]);
      }
    }
    __syncthreads();
    if (thread < S::kChosen) {
      float sum = 0.0f;
      for (int i = 0; i < S::kChosen; ++i) {
        sum += __expf(best[i] - best[0]);
      }
      shares[thread] = rounded<T>(__expf(best[thread] - best[0]) / sum);
    }
    __syncthreads();
  }

  // A warp computes one inner value at a time; the values of all chosen experts are concatenated.
  // Each block stores the choice (numbers and shares) for the block of the same index in `out`. If
  // the launches may differ in block count, the first block stores it for all. The row is
  // normalised if there is `norm`. `staged` is its factor if the row is already in shared memory.
  template <bool STAGED, typename N, typename Wait>
  __device__ static void inner(
      float* shared, const T* logits, const T* x, const N* norm, float eps, float staged, Matrices gate, Matrices up, T* to,
      int* choice, float* choice_shares, Wait wait) {
    __shared__ int numbers[S::kChosen];
    __shared__ float shares[S::kChosen];
    wait();
    route(logits, numbers, shares);
    int place = RESIDENT ? blockIdx.x * S::kChosen : 0;
    if ((RESIDENT || blockIdx.x == 0) && threadIdx.x < S::kChosen) {
      choice[place + threadIdx.x] = numbers[threadIdx.x];
      choice_shares[place + threadIdx.x] = shares[threadIdx.x];
    }
    constexpr int kTotal = S::kChosen * S::kWidth;
    Pieces<S::kHidden, 2> now;
    Pieces<S::kHidden, 2> next;
    auto fetch = [&](Pieces<S::kHidden, 2>& pieces, int at) {
      if (at < kTotal) {
        constexpr int kRows = S::kJoined ? 2 * S::kWidth : S::kWidth;
        size_t row = static_cast<size_t>(numbers[at / S::kWidth]) * kRows + at % S::kWidth;
        pieces.load([&](int r, int c) {
          return piece<S::kHidden>(r == 0 ? gate : up, row + (S::kJoined && r == 1 ? S::kWidth : 0), c);
        });
      }
    };
    int at = threadIdx.x / 32 * gridDim.x + blockIdx.x;
    int stride = gridDim.x * WARPS;
    fetch(now, at);
    fetch(next, at + stride);
    G g(shared, S::kHidden);
    float factor = staged;
    if constexpr (!STAGED) {
      factor = g.put_row(x, norm, eps);
    }
    while (at < kTotal) {
      float y[2];
      now.multiply(g, y);
      if (threadIdx.x % 32 == 0) {
        to[at] = static_cast<T>(rounded<T>(silu(rounded<T>(y[0] * factor))) * rounded<T>(y[1] * factor));
      }
      now = next;
      at += stride;
      fetch(next, at + stride);
    }
  }

  // A warp computes one result at a time, as one product over the concatenated columns of all
  // chosen experts. The sigmoid of `own_share` weights the shared expert's output; its inner row is
  // silu(own_gate) * own_up.
  template <typename Wait>
  __device__ static void out(
      float* shared, const T* inner, const int* choice, const float* shares, Matrices down, Matrices own_down, const T* own_gate,
      const T* own_up, const T* own_share, const T* residual, T* to, Wait wait) {
    constexpr int kChunks = S::kWidth / kCodes;
    constexpr int kColumns = kAll * S::kWidth;
    __shared__ int numbers[S::kChosen];
    if constexpr (RESIDENT) {
      choice += blockIdx.x * S::kChosen;
      shares += blockIdx.x * S::kChosen;
    } else {
      wait();
    }
    if (threadIdx.x < S::kChosen) {
      numbers[threadIdx.x] = __ldcg(choice + threadIdx.x);
    }
    __syncthreads();
    Pieces<kColumns, 1> pieces;
    auto fetch = [&](int at) {
      int row = min(at, S::kHidden - 1);
      pieces.load([&](int, int c) {
        int expert = min(c / kChunks, kAll - 1);
        bool is_own = S::kShared && expert == S::kChosen;
        size_t line = row + (is_own ? 0 : static_cast<size_t>(numbers[min(expert, S::kChosen - 1)]) * S::kHidden);
        return piece<S::kWidth>(either(is_own, own_down, down), line, c - expert * kChunks);
      });
    };
    int at = threadIdx.x / 32 * gridDim.x + blockIdx.x;
    fetch(at);
    if constexpr (RESIDENT) {
      wait();
    }
    G g(shared, kColumns);
    put_inner(g, inner, shares, own_gate, own_up, own_share);
    while (at < S::kHidden) {
      float y[1];
      pieces.multiply(g, y);
      if (threadIdx.x % 32 == 0) {
        float value = residual == nullptr ? y[0] : rounded<T>(y[0]) + static_cast<float>(__ldcg(residual + at));
        to[at] = static_cast<T>(value);
      }
      at += gridDim.x * WARPS;
      if (at < S::kHidden) {
        fetch(at);
      }
    }
  }

  __device__ static void put_inner(
      const G& g, const T* inner, const float* shares, const T* own_gate, const T* own_up, const T* own_share) {
    g.put([&](int i, float (&v)[8]) {
      int expert = i * 8 / S::kWidth;
      if (expert < S::kChosen) {
        uint4 row = load_new(inner + i * 8);
        float share = __ldcg(shares + expert);
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          v[j] = wide_at<T>(row, j) * share;
        }
      } else {
        int at = i * 8 - S::kChosen * S::kWidth;
        uint4 low = load_new(own_gate + at);
        uint4 high = load_new(own_up + at);
        float share = rounded<T>(sigmoid(static_cast<float>(__ldcg(own_share))));
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          v[j] = rounded<T>(rounded<T>(silu(wide_at<T>(low, j))) * wide_at<T>(high, j)) * share;
        }
      }
    });
    __syncthreads();
  }
};
