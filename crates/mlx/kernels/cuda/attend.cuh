// One new position of attention: rotary embedding of query and key, the cache's new row, and
// softmax(q K) V.
//
// A block serves HEADS query heads that share a key head, and one of `splits` ranges of positions;
// `share` blocks then serve a key head. Lanes hold 8 dimensions each, or 16 for heads wider
// than 256. The last block of the same query heads merges their ranges; `tickets` counts finished
// blocks and returns to zero.

template <typename T, typename N = T>
struct Attend {
  const T* q;
  // The position's key and value; null if the caches already hold them.
  const T* k;
  const T* v;
  const N* q_norm;
  const N* k_norm;
  const float* periods;
  T* keys;
  T* values;
  float* parts;
  T* out;
  unsigned* tickets;
  int kv_heads;
  int capacity;
  int window;
  int splits;
  int position;
  float scale;
  float log2_base;
  float eps;
  // Elements from one query head to the next, and the optional gate with the same step: its sigmoid
  // multiplies the result.
  int q_step;
  const T* gate;
  int share;
  // Whether values are normalised, by the same constant and no weights.
  bool norm_values;
  // Whether the caches are rings: position p is in row p % capacity. The window is at most the
  // capacity.
  bool ring;
};

// Sine and cosine of pair `i` of ROTATED / 2 at the position.
template <int ROTATED, typename T, typename N>
__device__ inline void rotate(const Attend<T, N>& s, int i, float& sin, float& cos) {
  float rate = s.periods != nullptr ? 1.0f / s.periods[i] : exp2f(-s.log2_base * i / (ROTATED / 2));
  sincospif(s.position * rate * 0.318309886f, &sin, &cos);
}

// Normalises one head with one warp and rotates its first ROTATED elements. The result is rounded
// to the model's type, then multiplied by `factor`.
template <int D, int ROTATED, typename T, typename N>
__device__ inline void prepare_head(const Attend<T, N>& s, const T* from, const N* norm, float factor, float* to) {
  constexpr int kEach = D / 64;
  int lane = threadIdx.x % 32;
  float low[kEach];
  float high[kEach];
  float squares = 0.0f;
#pragma unroll
  for (int e = 0; e < kEach; ++e) {
    int i = e * 32 + lane;
    low[e] = static_cast<float>(from[i]);
    high[e] = static_cast<float>(from[i + D / 2]);
    squares += low[e] * low[e] + high[e] * high[e];
  }
  if (norm != nullptr) {
    for (int d = 16; d > 0; d /= 2) {
      squares += __shfl_xor_sync(~0u, squares, d);
    }
    float r = rsqrtf(squares / D + s.eps);
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      int i = e * 32 + lane;
      low[e] = static_cast<float>(static_cast<T>(low[e] * r * static_cast<float>(norm[i])));
      high[e] = static_cast<float>(static_cast<T>(high[e] * r * static_cast<float>(norm[i + D / 2])));
    }
  }
  if constexpr (ROTATED < D) {
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      to[e * 32 + lane] = low[e];
      to[e * 32 + lane + D / 2] = high[e];
    }
    __syncwarp();
    for (int i = lane; i < ROTATED / 2; i += 32) {
      float sin;
      float cos;
      rotate<ROTATED>(s, i, sin, cos);
      float a = to[i];
      float b = to[i + ROTATED / 2];
      to[i] = rounded<T>(a * cos - b * sin);
      to[i + ROTATED / 2] = rounded<T>(a * sin + b * cos);
    }
    __syncwarp();
    for (int i = lane; i < D; i += 32) {
      to[i] *= factor;
    }
  } else {
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      int i = e * 32 + lane;
      float sin;
      float cos;
      rotate<D>(s, i, sin, cos);
      to[i] = rounded<T>(low[e] * cos - high[e] * sin) * factor;
      to[i + D / 2] = rounded<T>(low[e] * sin + high[e] * cos) * factor;
    }
  }
}

// Eight floats of shared memory, read again at each use: there are no registers to keep them in.
__device__ inline void read_shared(const float* from, float (&to)[8]) {
  unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(from));
#pragma unroll
  for (int i = 0; i < 8; i += 4) {
    asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3}, [%4];"
                 : "=f"(to[i]), "=f"(to[i + 1]), "=f"(to[i + 2]), "=f"(to[i + 3])
                 : "r"(at + i * 4));
  }
}

// Running softmax of HEADS heads over the positions that a group of lanes sees.
template <typename T, int D, int HEADS, int AHEAD>
struct Softmax {
  static constexpr int kPieces = D > 256 ? D / 256 : 1;
  static constexpr int kLanes = D / 8 / kPieces;
  float top[HEADS];
  float sum[HEADS];
  float acc[HEADS][kPieces][8];

  __device__ void clear() {
#pragma unroll
    for (int g = 0; g < HEADS; ++g) {
      top[g] = -1e30f;
      sum[g] = 0.0f;
#pragma unroll
      for (int j = 0; j < kPieces * 8; ++j) {
        acc[g][j / 8][j % 8] = 0.0f;
      }
    }
  }

  // Adds AHEAD positions for each group of lanes; positions outside have weight zero. `query` is
  // scaled for base 2.
  __device__ void add(
      const float* query, const uint4 (&k)[AHEAD][kPieces], const uint4 (&v)[AHEAD][kPieces], const bool (&inside)[AHEAD]) {
#pragma unroll
    for (int g = 0; g < HEADS; ++g) {
      float score[AHEAD] = {};
      float next = top[g];
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        float q[8];
        read_shared(query + g * D + i * kLanes * 8, q);
#pragma unroll
        for (int u = 0; u < AHEAD; ++u) {
#pragma unroll
          for (int j = 0; j < 8; ++j) {
            score[u] = fmaf(q[j], wide_at<T>(k[u][i], j), score[u]);
          }
        }
      }
#pragma unroll
      for (int u = 0; u < AHEAD; ++u) {
#pragma unroll
        for (int d = kLanes / 2; d > 0; d /= 2) {
          score[u] += __shfl_xor_sync(~0u, score[u], d);
        }
        score[u] = inside[u] ? score[u] : -2e30f;
        next = fmaxf(next, score[u]);
      }
      float keep = exp2f(top[g] - next);
      top[g] = next;
      sum[g] *= keep;
#pragma unroll
      for (int j = 0; j < kPieces * 8; ++j) {
        acc[g][j / 8][j % 8] *= keep;
      }
#pragma unroll
      for (int u = 0; u < AHEAD; ++u) {
        float weight = inside[u] ? exp2f(score[u] - next) : 0.0f;
        sum[g] += weight;
#pragma unroll
        for (int j = 0; j < kPieces * 8; ++j) {
          acc[g][j / 8][j % 8] = fmaf(weight, wide_at<T>(v[u][j / 8], j % 8), acc[g][j / 8][j % 8]);
        }
      }
    }
  }

  // Merges the groups of lanes of a warp.
  __device__ void merge_lanes() {
#pragma unroll
    for (int g = 0; g < HEADS; ++g) {
#pragma unroll
      for (int d = kLanes; d < 32; d *= 2) {
        float other = __shfl_xor_sync(~0u, top[g], d);
        float next = fmaxf(top[g], other);
        float keep = exp2f(top[g] - next);
        float take = exp2f(other - next);
        top[g] = next;
        sum[g] = sum[g] * keep + __shfl_xor_sync(~0u, sum[g], d) * take;
#pragma unroll
        for (int j = 0; j < kPieces * 8; ++j) {
          float& own = acc[g][j / 8][j % 8];
          own = own * keep + __shfl_xor_sync(~0u, own, d) * take;
        }
      }
    }
  }
};

template <typename T, int D, int HEADS, int WARPS, int ROTATED = D, typename N = T>
struct Attention {
  static constexpr int kAhead = D > 128 || D * HEADS > 1024 ? 1 : 2;
  using Sums = Softmax<T, D, HEADS, kAhead>;
  static constexpr int kPieces = Sums::kPieces;
  static constexpr int kLanes = Sums::kLanes;
  static constexpr int kGroups = 32 / kLanes;
  static constexpr int kPart = D + 2;

  const Attend<T, N>& s;
  float* query;
  float* key;
  float* tops;
  float* totals;
  float* sums;
  float* value;

  __device__ Attention(const Attend<T, N>& s, float* shared) : s(s) {
    query = shared;
    key = query + HEADS * D;
    tops = key + D;
    totals = tops + WARPS * HEADS;
    sums = totals + WARPS * HEADS;
    value = sums + WARPS * HEADS * D;
  }

  // `wait` returns when query, key and value are available; the cache is read before. A block
  // without work also waits. The block begins with item `first`.
  template <typename Wait>
  __device__ void run(Wait wait, int first = blockIdx.x) {
    __shared__ bool last;
    int items = s.kv_heads * s.share * s.splits;
    if (first >= items) {
      wait();
    }
#pragma unroll 1
    for (int item = first; item < items; item += gridDim.x) {
      int head = item / s.splits;
      attend(head, item % s.splits, [&] {
        if (item == first) {
          wait();
        }
      });
      gather(head, item % s.splits);
      if (s.splits == 1) {
        __syncthreads();
        continue;
      }
      __threadfence();
      __syncthreads();
      if (threadIdx.x == 0) {
        last = atomicInc(s.tickets + head, s.splits - 1) == s.splits - 1;
      }
      __syncthreads();
      if (last) {
        __threadfence();
        merge(head);
      }
      __syncthreads();
    }
  }

  template <typename Wait>
  __device__ void attend(int head, int split, Wait wait) {
    int warp = threadIdx.x / 32;
    int lane = threadIdx.x % 32;
    int part = lane % kLanes * 8;
    int first = s.window > 0 ? max(0, s.position + 1 - s.window) : 0;
    int each = (s.position + 1 - first + s.splits - 1) / s.splits;
    int from = first + split * each;
    int to = min(from + each, s.position + 1);
    int key_head = head / s.share;
    T* keys = s.keys + static_cast<size_t>(key_head) * s.capacity * D;
    T* values = s.values + static_cast<size_t>(key_head) * s.capacity * D;
    bool newest = s.k != nullptr && to == s.position + 1 && from < to;
    int round = s.ring ? first / s.capacity * s.capacity : 0;
    auto row_of = [&](int position) {
      int row = position - round;
      return s.ring && row >= s.capacity ? row - s.capacity : row;
    };

    uint4 k[kAhead][kPieces];
    uint4 v[kAhead][kPieces];
    bool inside[kAhead];
    auto read = [&](int t) {
#pragma unroll
      for (int u = 0; u < kAhead; ++u) {
        int row = t + u * kGroups + lane / kLanes;
        inside[u] = row < to;
        size_t at = static_cast<size_t>(inside[u] ? row_of(row) : 0) * D + part;
#pragma unroll
        for (int i = 0; i < kPieces; ++i) {
          k[u][i] = *reinterpret_cast<const uint4*>(keys + at + i * kLanes * 8);
          v[u][i] = *reinterpret_cast<const uint4*>(values + at + i * kLanes * 8);
        }
      }
    };
    // Writes the newest row from the projections to the cache, and adds it to the sums without
    // reading it back.
    uint4 fresh[kPieces];
    auto narrow_eight = [](const float* row) {
      return make_uint4(
          narrow_pair(row[0], row[1], T{}), narrow_pair(row[2], row[3], T{}), narrow_pair(row[4], row[5], T{}),
          narrow_pair(row[6], row[7], T{}));
    };
    auto put_newest = [&](int t) {
#pragma unroll
      for (int u = 0; u < kAhead; ++u) {
        int row = t + u * kGroups + lane / kLanes;
        if (row == s.position) {
#pragma unroll
          for (int i = 0; i < kPieces; ++i) {
            int piece = part + i * kLanes * 8;
            k[u][i] = narrow_eight(key + piece);
            v[u][i] = s.norm_values ? narrow_eight(value + piece) : fresh[i];
            if (head % s.share == 0) {
              size_t at = static_cast<size_t>(row_of(row)) * D + piece;
              *reinterpret_cast<uint4*>(keys + at) = k[u][i];
              *reinterpret_cast<uint4*>(values + at) = v[u][i];
            }
          }
        }
      }
    };
    int t = from + warp * kGroups * kAhead;
    read(t);
    wait();
    if (newest && !s.norm_values) {
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        fresh[i] = *reinterpret_cast<const uint4*>(s.v + key_head * D + part + i * kLanes * 8);
      }
    }
    for (int g = warp; g <= HEADS + 1; g += WARPS) {
      if (g < HEADS) {
        prepare_head<D, ROTATED>(s, s.q + (head * HEADS + g) * s.q_step, s.q_norm, s.scale * 1.44269504f, query + g * D);
      } else if (g == HEADS && newest) {
        prepare_head<D, ROTATED>(s, s.k + key_head * D, s.k_norm, 1.0f, key);
      } else if (newest && s.norm_values) {
        prepare_value(s.v + key_head * D);
      }
    }
    __syncthreads();
    Sums soft;
    soft.clear();
#pragma unroll 1
    while (t < to) {
      if (newest) {
        put_newest(t);
      }
      soft.add(query + part, k, v, inside);
      t += WARPS * kGroups * kAhead;
      if (t < to) {
        read(t);
      }
    }
    soft.merge_lanes();
    if (lane < kLanes) {
#pragma unroll
      for (int g = 0; g < HEADS; ++g) {
        tops[warp * HEADS + g] = soft.top[g];
        totals[warp * HEADS + g] = soft.sum[g];
#pragma unroll
        for (int j = 0; j < kPieces * 8; ++j) {
          sums[(warp * HEADS + g) * D + part + j / 8 * kLanes * 8 + j % 8] = soft.acc[g][j / 8][j % 8];
        }
      }
    }
    __syncthreads();
  }

  // Normalises the new value with one warp.
  __device__ void prepare_value(const T* from) {
    float own[D / 32];
    float squares = 0.0f;
#pragma unroll
    for (int e = 0; e < D / 32; ++e) {
      own[e] = static_cast<float>(from[e * 32 + threadIdx.x % 32]);
      squares += own[e] * own[e];
    }
    float r = rsqrtf(warp_sum(squares) / D + s.eps);
#pragma unroll
    for (int e = 0; e < D / 32; ++e) {
      value[e * 32 + threadIdx.x % 32] = rounded<T>(own[e] * r);
    }
  }

  // Merges the block's warps: into the result if there is one range. Parts hold, for each range and
  // query head, D sums, their total weight and its exponent.
  __device__ void gather(int head, int split) {
    for (int i = threadIdx.x; i < HEADS * D; i += WARPS * 32) {
      int g = i / D;
      float top = -1e30f;
#pragma unroll
      for (int w = 0; w < WARPS; ++w) {
        top = fmaxf(top, tops[w * HEADS + g]);
      }
      float total = 0.0f;
      float value = 0.0f;
#pragma unroll
      for (int w = 0; w < WARPS; ++w) {
        float keep = exp2f(tops[w * HEADS + g] - top);
        total += totals[w * HEADS + g] * keep;
        value += sums[(w * HEADS + g) * D + i % D] * keep;
      }
      if (s.splits == 1) {
        leave(head, i, value / total);
        continue;
      }
      float* at = s.parts + (static_cast<size_t>(head * HEADS + g) * s.splits + split) * kPart;
      __stcg(at + i % D, value);
      if (i % D == 0) {
        __stcg(at + D, total);
        __stcg(at + D + 1, top);
      }
    }
  }

  // Element `i` of the result of a key head's query heads.
  __device__ void leave(int head, int i, float value) {
    if (s.gate != nullptr) {
      float gate = static_cast<float>(__ldcg(s.gate + (head * HEADS + i / D) * s.q_step + i % D));
      value = rounded<T>(value) * rounded<T>(sigmoid(gate));
    }
    s.out[head * HEADS * D + i] = static_cast<T>(value);
  }

  // Merges the ranges. One thread per head and range reads a range's weight first. The loads of the
  // sums then overlap instead of running one after the other.
  __device__ void merge(int head) {
    const float* parts = s.parts + static_cast<size_t>(head * HEADS) * s.splits * kPart;
    float2* weights = reinterpret_cast<float2*>(sums);
    for (int i = threadIdx.x; i < HEADS * s.splits; i += WARPS * 32) {
      weights[i] = make_float2(__ldcg(parts + i * kPart + D), __ldcg(parts + i * kPart + D + 1));
    }
    __syncthreads();
    for (int i = threadIdx.x; i < HEADS * D; i += WARPS * 32) {
      const float2* weight = weights + i / D * s.splits;
      const float* at = parts + i / D * s.splits * kPart + i % D;
      float top = -1e30f;
      for (int p = 0; p < s.splits; ++p) {
        top = fmaxf(top, weight[p].y);
      }
      float total = 0.0f;
      float value = 0.0f;
#pragma unroll 8
      for (int p = 0; p < s.splits; ++p) {
        float keep = exp2f(weight[p].y - top);
        total += weight[p].x * keep;
        value += __ldcg(at + p * kPart) * keep;
      }
      leave(head, i, value / total);
    }
  }
};
