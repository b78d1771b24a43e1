// One row times up to three matrices of affine codes or of 16-bit floats, bound by memory.
//
// A warp computes R rows of a matrix at once. Its lanes read 16 bytes of each row per step and
// prefetch the next step while they multiply. The vector is in shared memory as f32, in the lanes'
// read order. A code becomes a float without a conversion: its bits go into the mantissa of 2^23,
// at bit 15 or above, and the vector is scaled by the inverse power of two. One subtraction per
// group removes the resulting offset of 2^23 from the sums. Lanes past the end of a row read its
// last bytes again and multiply them by zeros in shared memory.

// The sum with the previous step's product x: `out` = (`row` + norm(x)) * `scale`, without `scale`
// if there is none.
template <typename T, typename N>
struct Join {
  const T* row;
  const N* norm;
  float eps;
  const T* scale;
  T* out;
};

template <typename T, int BITS, int GROUP, int R, int WARPS>
struct Gemv {
  static constexpr int kCodes = 128 / BITS;
  static constexpr int kQuads = kCodes / 4;
  static constexpr int kParts = BITS == 16 || GROUP >= kCodes ? 1 : kCodes / GROUP;
  static constexpr bool kScaled = BITS != 16;

  struct Step {
    uint4 w[R];
    T scale[R][kParts];
    T bias[R][kParts];
  };

  int k;
  int chunks;
  int passes;
  float4* xs;
  float2* sums;

  __device__ Gemv(float* shared, int k) : k(k), chunks(k / kCodes), passes((chunks + 31) / 32) {
    xs = reinterpret_cast<float4*>(shared);
    sums = reinterpret_cast<float2*>(xs + passes * 32 * kQuads);
  }

  __device__ static float code(const uint4& v, int j) {
    if constexpr (BITS == 16) {
      return wide_at<T>(v, j);
    } else {
      constexpr int per_byte = 8 / BITS;
      constexpr unsigned ones = (1u << BITS) - 1;
      int byte = j / per_byte % 4;
      unsigned w = word(v, j / per_byte / 4);
      unsigned moved = byte == 0 ? w << 15 : byte == 1 ? w << 7 : byte == 2 ? w >> 1 : w >> 9;
      return __uint_as_float((moved & (ones << (15 + j % per_byte * BITS))) | 0x4B000000u);
    }
  }

  __device__ static constexpr float input_scale(int j) {
    constexpr int per_byte = BITS == 16 ? 1 : 8 / BITS;
    return BITS == 16 ? 1.0f : 1.0f / static_cast<float>(1 << (15 + j % per_byte * (BITS % 16)));
  }

  // Element `j` of eight in the lanes' scaled form, times `norm`'s element if there is one.
  // Accumulates the squares of the vector, and the sum and the offset of the element's group.
  __device__ static float scale(
      const uint4& v, const uint4& norm, bool has_norm, int j, float& squares, float& sum, float& offset) {
    float value = wide_at<T>(v, j);
    squares += value * value;
    if (has_norm) {
      value *= wide_at<T>(norm, j);
    }
    float scaled = value * input_scale(j);
    sum += value;
    offset += scaled * 8388608.0f;
    return scaled;
  }

  // Puts the vector into shared memory: `eight(i, v)` reads elements 8 i to 8 i + 7.
  template <typename Eight>
  __device__ void put(Eight eight) const {
    constexpr int kLanes = kCodes / 8;
    for (int i = threadIdx.x; i < passes * 32 * kLanes; i += WARPS * 32) {
      int c = i / kLanes;
      float v[8] = {};
      if (c < chunks) {
        eight(i, v);
      }
      float sum = 0.0f;
      float offset = 0.0f;
      float scaled[8];
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        scaled[j] = v[j] * input_scale(j);
        sum += v[j];
        offset += scaled[j] * 8388608.0f;
      }
      float4* to = xs + c / 32 * kQuads * 32 + c % 32 + i % kLanes * 64;
      to[0] = make_float4(scaled[0], scaled[1], scaled[2], scaled[3]);
      to[32] = make_float4(scaled[4], scaled[5], scaled[6], scaled[7]);
      if constexpr (kScaled) {
#pragma unroll
        for (int d = 1; d < kLanes; d *= 2) {
          sum += __shfl_xor_sync(~0u, sum, d);
          offset += __shfl_xor_sync(~0u, offset, d);
        }
        if (i % kLanes == 0) {
          sums[c] = make_float2(sum, offset);
        }
      }
    }
  }

  // Puts a row into shared memory, times `norm` if there is one. Returns the factor of the RMS
  // normalisation, which is applied later.
  template <typename N>
  __device__ float put_row(const T* x, const N* norm, float eps) const {
    float squares = 0.0f;
    put([&](int i, float (&v)[8]) {
      uint4 row = load_new(x + i * 8);
      float weights[8];
      if (norm != nullptr) {
        read_eight(norm + i * 8, weights);
      }
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        v[j] = wide_at<T>(row, j);
        squares += v[j] * v[j];
        v[j] *= norm != nullptr ? weights[j] : 1.0f;
      }
    });
    if (norm == nullptr) {
      __syncthreads();
      return 1.0f;
    }
    return rsqrtf(block_sum<WARPS>(squares) / k + eps);
  }

  // Normalises, adds and scales `x` as `Join` states, then puts the sum into shared memory like
  // `put_row`. The first block stores the sum.
  template <typename N>
  __device__ float put_joined(const T* x, const Join<T, N>& join, const N* norm, float eps) const {
    // Rows of up to 8192 elements.
    constexpr int kMost = 32 / WARPS;
    uint4 added[kMost];
    uint4 row[kMost];
    float squares = 0.0f;
#pragma unroll
    for (int e = 0; e < kMost; ++e) {
      int i = threadIdx.x + e * WARPS * 32;
      if (i * 8 < k) {
        added[e] = load_new(x + i * 8);
        row[e] = load_new(join.row + i * 8);
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          squares += wide_at<T>(added[e], j) * wide_at<T>(added[e], j);
        }
      }
    }
    float factor = rsqrtf(block_sum<WARPS>(squares) / k + join.eps);
    float scale = join.scale == nullptr ? 1.0f : static_cast<float>(*join.scale);
    squares = 0.0f;
#pragma unroll
    for (int e = 0; e < kMost; ++e) {
      int i = threadIdx.x + e * WARPS * 32;
      if (i * 8 < k) {
        float weights[8];
        read_eight(join.norm + i * 8, weights);
        float sum[8];
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          sum[j] = rounded<T>(wide_at<T>(row[e], j) + rounded<T>(wide_at<T>(added[e], j) * factor * weights[j]));
          sum[j] = join.scale == nullptr ? sum[j] : rounded<T>(sum[j] * scale);
          squares += sum[j] * sum[j];
        }
        row[e] = make_uint4(
            narrow_pair(sum[0], sum[1], T{}), narrow_pair(sum[2], sum[3], T{}), narrow_pair(sum[4], sum[5], T{}),
            narrow_pair(sum[6], sum[7], T{}));
        if (blockIdx.x == 0) {
          *reinterpret_cast<uint4*>(join.out + i * 8) = row[e];
        }
      }
    }
    int e = 0;
    put([&](int i, float (&v)[8]) {
      float weights[8];
      if (norm != nullptr) {
        read_eight(norm + i * 8, weights);
      }
      uint4 own = row[0];
#pragma unroll
      for (int other = 1; other < kMost; ++other) {
        own = e == other ? row[other] : own;
      }
      ++e;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        v[j] = wide_at<T>(own, j) * (norm != nullptr ? weights[j] : 1.0f);
      }
    });
    float sum = block_sum<WARPS>(squares);
    return norm == nullptr ? 1.0f : rsqrtf(sum / k + eps);
  }

  // Reads pass `p` of the rows that begin at `row`; rows from `split` on are in `second`.
  __device__ void load(Step& s, const Matrix<T>& first, const Matrix<T>& second, int row, int split, int p) const {
    int c = min(p * 32 + static_cast<int>(threadIdx.x) % 32, chunks - 1);
#pragma unroll
    for (int r = 0; r < R; ++r) {
      const Matrix<T>& at = r < split ? first : second;
      size_t line = row + (r < split ? r : r - split);
      s.w[r] = load_once(static_cast<const uint4*>(at.w) + line * chunks + c);
      if constexpr (kScaled) {
#pragma unroll
        for (int i = 0; i < kParts; ++i) {
          size_t group = line * (k / GROUP) + c * kCodes / GROUP + i;
          s.scale[r][i] = at.scales[group];
          s.bias[r][i] = at.biases[group];
        }
      }
    }
  }

  __device__ void multiply(const Step& s, int p, float (&y)[R]) const {
    int lane = threadIdx.x % 32;
    const float4* x = xs + p * kQuads * 32 + lane;
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      float dot[R] = {};
#pragma unroll
      for (int q = i * kQuads / kParts; q < (i + 1) * kQuads / kParts; ++q) {
        float4 v = x[q * 32];
#pragma unroll
        for (int r = 0; r < R; ++r) {
          dot[r] = fmaf(v.x, code(s.w[r], 4 * q), dot[r]);
          dot[r] = fmaf(v.y, code(s.w[r], 4 * q + 1), dot[r]);
          dot[r] = fmaf(v.z, code(s.w[r], 4 * q + 2), dot[r]);
          dot[r] = fmaf(v.w, code(s.w[r], 4 * q + 3), dot[r]);
        }
      }
      float2 sum = make_float2(0.0f, 0.0f);
      if constexpr (kScaled) {
        sum = sums[(p * kParts + i) * 32 + lane];
      }
#pragma unroll
      for (int r = 0; r < R; ++r) {
        if constexpr (kScaled) {
          y[r] += static_cast<float>(s.scale[r][i]) * (dot[r] - sum.y) + static_cast<float>(s.bias[r][i]) * sum.x;
        } else {
          y[r] += dot[r];
        }
      }
    }
  }
};

// y = [other +] norm(x) W for the rows of all matrices. With GATE the one result is act(A x) * (B
// x) for two matrices, or act(A x) * other for one. With UPDATED, products get the low-rank updates
// of the matrices. The number of rows of each matrix is a multiple of its share of a tile. The
// first weights are read before `wait`; `wait` returns when the row is available. Returns the
// norm's factor. The row stays in dynamic shared memory: 4 bytes per element of k, rounded up to 32
// steps of 16 bytes of codes. For codes, add 8 bytes per group of each lane's step.
template <typename T, int BITS, int GROUP, int R, int WARPS, Gate GATE, typename N, bool UPDATED = false, int COUNT, typename Wait>
__device__ inline float linear(
    float* shared, const T* x, const Join<T, N>* join, const N* norm, float eps, const T* other, int k,
    const Matrix<T> (&all)[COUNT], Wait wait) {
  constexpr bool GATED = GATE != Gate::kNone && COUNT > 1;
  using G = Gemv<T, BITS, GROUP, R, WARPS>;
  G g(shared, k);
  constexpr int kTile = GATED ? R / 2 : R;
  int lane = threadIdx.x % 32;
  int total = all[0].rows;
#pragma unroll
  for (int i = 1; i < COUNT && !GATED; ++i) {
    total += all[i].rows;
  }
  int stride = gridDim.x * WARPS * kTile;
  int row = (threadIdx.x / 32 * gridDim.x + blockIdx.x) * kTile;

  auto pick = [&](int& line) { return GATED ? all[0] : matrix_of(all, line); };
  auto fetch = [&](typename G::Step& s, int at, int p) {
    if (at < total) {
      int line = at;
      Matrix<T> first = pick(line);
      g.load(s, first, all[GATED ? COUNT - 1 : 0], line, kTile, p);
    }
  };

  // The product of row `at` of `matrix` with its bias and its update, in all lanes.
  auto complete = [&](float product, const Matrix<T>& matrix, int at) {
    if (matrix.bias != nullptr) {
      product = (BITS == 16 ? product : rounded<T>(product)) + static_cast<float>(matrix.bias[at]);
    }
    if constexpr (UPDATED) {
      const LowRank<T>& update = matrix.update;
      float sum = 0.0f;
      for (int j = lane; j < update.rank; j += 32) {
        float low = rounded<T>(static_cast<float>(__ldcg(update.low + j)) * static_cast<float>(update.scales[j]));
        sum += low * static_cast<float>(update.up[static_cast<size_t>(j) * matrix.rows + at]);
      }
      product = rounded<T>(rounded<T>(product) + rounded<T>(warp_sum(sum)));
    }
    return product;
  };

  auto leave = [&](int row, float factor, float (&y)[R]) {
    int line = row;
    Matrix<T> at = pick(line);
#pragma unroll
    for (int r = 0; r < R; ++r) {
      y[r] = complete(warp_sum(y[r]) * factor, r < kTile ? at : all[COUNT - 1], line + r % kTile);
    }
#pragma unroll
    for (int r = 0; r < kTile; ++r) {
      if (lane == r) {
        float value = y[r];
        if constexpr (GATED) {
          value = activate<GATE>(value) * y[kTile + r];
        }
        if constexpr (GATE != Gate::kNone && !GATED) {
          value = activate<GATE>(value) * static_cast<float>(__ldcg(other + row + r));
        } else if (other != nullptr) {
          value = rounded<T>(value) + static_cast<float>(__ldcg(other + row + r));
        }
        at.y[line + r] = static_cast<T>(value);
      }
    }
#pragma unroll
    for (int r = 0; r < R; ++r) {
      y[r] = 0.0f;
    }
  };

  // Number of steps in flight, limited by registers.
  constexpr int kAhead = R > 2 ? 2 : 4;
  typename G::Step steps[kAhead];
  int sent_row = row;
  int sent_p = 0;
  auto send = [&](typename G::Step& s) {
    fetch(s, sent_row, sent_p);
    if (++sent_p == g.passes) {
      sent_p = 0;
      sent_row += stride;
    }
  };
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    send(steps[i]);
  }
  wait();
  float factor = join == nullptr ? g.put_row(x, norm, eps) : g.put_joined(x, *join, norm, eps);
  float y[R] = {};
  int p = 0;
  while (row < total) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (row < total) {
        g.multiply(steps[i], p, y);
        send(steps[i]);
        if (++p == g.passes) {
          leave(row, factor, y);
          p = 0;
          row += stride;
        }
      }
    }
  }
  return factor;
}

// y = norm(x) W for the few rows of all float matrices, a row per block at a time. Each thread
// reads its pieces of a row at once, up to 64 elements per thread. The first row's weights are read
// before `wait`.
template <typename T, typename N, int WARPS, int COUNT, typename Wait>
__device__ inline void low_rows(const T* x, const N* norm, float eps, int k, const Matrix<T> (&all)[COUNT], Wait wait) {
  constexpr int kThreads = WARPS * 32;
  constexpr int kPieces = 8;
  int total = 0;
#pragma unroll
  for (int i = 0; i < COUNT; ++i) {
    total += all[i].rows;
  }
  bool is_first = true;
  for (int row = blockIdx.x; row < total; row += gridDim.x) {
    int line = row;
    Matrix<T> at = matrix_of(all, line);
    uint4 weights[kPieces];
#pragma unroll
    for (int p = 0; p < kPieces; ++p) {
      int piece = threadIdx.x + p * kThreads;
      if (piece * 8 < k) {
        weights[p] = load_once(static_cast<const uint4*>(at.w) + static_cast<size_t>(line) * (k / 8) + piece);
      }
    }
    if (is_first) {
      wait();
      is_first = false;
    }
    float dot = 0.0f;
    float squares = 0.0f;
#pragma unroll
    for (int p = 0; p < kPieces; ++p) {
      int piece = threadIdx.x + p * kThreads;
      if (piece * 8 < k) {
        add_eight<T>(weights[p], load_new(x + piece * 8), norm == nullptr ? norm : norm + piece * 8, dot, squares);
      }
    }
    dot = block_sum<WARPS>(dot);
    float factor = norm == nullptr ? 1.0f : rsqrtf(block_sum<WARPS>(squares) / k + eps);
    if (threadIdx.x == 0) {
      at.y[line] = static_cast<T>(dot * factor);
    }
  }
  if (is_first) {
    wait();
  }
}
