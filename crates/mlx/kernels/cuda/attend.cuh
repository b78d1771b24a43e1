// One new position of attention: rotary embedding of query and key, the cache's new row, and softmax(q K) V.
//
// A block serves one key head and one of `splits` ranges of positions; the HEADS query heads that share the key head are read
// together. Lanes hold 8 dimensions each, so that D / 8 lanes read one position. The block that finishes a head last merges the
// ranges; `tickets` counts them and returns to zero by itself.

template <typename T>
struct Attend {
  const T* q;
  const T* k;
  const T* v;
  const T* q_norm;
  const T* k_norm;
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
};

// Normalises and rotates one head with one warp; the result is rounded as the model's type, then multiplied by `factor`.
template <typename T, int D>
__device__ inline void prepare_head(const Attend<T>& s, const T* from, const T* norm, float factor, float* to) {
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
#pragma unroll
  for (int e = 0; e < kEach; ++e) {
    int i = e * 32 + lane;
    float rate = s.periods != nullptr ? 1.0f / s.periods[i] : exp2f(-s.log2_base * i / (D / 2));
    float sin;
    float cos;
    sincospif(s.position * rate * 0.318309886f, &sin, &cos);
    to[i] = static_cast<float>(static_cast<T>(low[e] * cos - high[e] * sin)) * factor;
    to[i + D / 2] = static_cast<float>(static_cast<T>(low[e] * sin + high[e] * cos)) * factor;
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
  float top[HEADS];
  float sum[HEADS];
  float acc[HEADS][8];

  __device__ void clear() {
#pragma unroll
    for (int g = 0; g < HEADS; ++g) {
      top[g] = -1e30f;
      sum[g] = 0.0f;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        acc[g][j] = 0.0f;
      }
    }
  }

  // Adds AHEAD positions for each group of D / 8 lanes; those outside weigh nothing. `query` is scaled for base 2.
  __device__ void add(const float* query, const uint4 (&k)[AHEAD], const uint4 (&v)[AHEAD], const bool (&inside)[AHEAD]) {
#pragma unroll
    for (int g = 0; g < HEADS; ++g) {
      float q[8];
      read_shared(query + g * D, q);
      float score[AHEAD];
      float next = top[g];
#pragma unroll
      for (int u = 0; u < AHEAD; ++u) {
        score[u] = 0.0f;
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          score[u] = fmaf(q[j], wide_at<T>(k[u], j), score[u]);
        }
#pragma unroll
        for (int d = D / 16; d > 0; d /= 2) {
          score[u] += __shfl_xor_sync(~0u, score[u], d);
        }
        score[u] = inside[u] ? score[u] : -2e30f;
        next = fmaxf(next, score[u]);
      }
      float keep = exp2f(top[g] - next);
      top[g] = next;
      sum[g] *= keep;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        acc[g][j] *= keep;
      }
#pragma unroll
      for (int u = 0; u < AHEAD; ++u) {
        float weight = inside[u] ? exp2f(score[u] - next) : 0.0f;
        sum[g] += weight;
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          acc[g][j] = fmaf(weight, wide_at<T>(v[u], j), acc[g][j]);
        }
      }
    }
  }

  // Merges the groups of lanes of a warp.
  __device__ void merge_lanes() {
#pragma unroll
    for (int g = 0; g < HEADS; ++g) {
#pragma unroll
      for (int d = D / 8; d < 32; d *= 2) {
        float other = __shfl_xor_sync(~0u, top[g], d);
        float next = fmaxf(top[g], other);
        float keep = exp2f(top[g] - next);
        float take = exp2f(other - next);
        top[g] = next;
        sum[g] = sum[g] * keep + __shfl_xor_sync(~0u, sum[g], d) * take;
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          acc[g][j] = acc[g][j] * keep + __shfl_xor_sync(~0u, acc[g][j], d) * take;
        }
      }
    }
  }
};

template <typename T, int D, int HEADS, int WARPS>
struct Attention {
  static constexpr int kLanes = D / 8;
  static constexpr int kGroups = 32 / kLanes;
  static constexpr int kAhead = 2;
  static constexpr int kPart = D + 2;

  const Attend<T>& s;
  float* query;
  float* key;
  float* tops;
  float* totals;
  float* sums;

  __device__ Attention(const Attend<T>& s, float* shared) : s(s) {
    query = shared;
    key = query + HEADS * D;
    tops = key + D;
    totals = tops + WARPS * HEADS;
    sums = totals + WARPS * HEADS;
  }

  // `wait` returns when query, key and value are there; the cache is read before. A block without work waits all the same.
  template <typename Wait>
  __device__ void run(Wait wait) {
    __shared__ bool last;
    if (blockIdx.x >= s.kv_heads * s.splits) {
      wait();
    }
#pragma unroll 1
    for (int item = blockIdx.x; item < s.kv_heads * s.splits; item += gridDim.x) {
      int head = item / s.splits;
      attend(head, item % s.splits, [&] {
        if (item == blockIdx.x) {
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
    T* keys = s.keys + static_cast<size_t>(head) * s.capacity * D;
    T* values = s.values + static_cast<size_t>(head) * s.capacity * D;
    bool newest = to == s.position + 1 && from < to;

    uint4 k[kAhead];
    uint4 v[kAhead];
    bool inside[kAhead];
    auto read = [&](int t) {
#pragma unroll
      for (int u = 0; u < kAhead; ++u) {
        int row = t + u * kGroups + lane / kLanes;
        inside[u] = row < to;
        size_t at = static_cast<size_t>(inside[u] ? row : 0) * D + part;
        k[u] = *reinterpret_cast<const uint4*>(keys + at);
        v[u] = *reinterpret_cast<const uint4*>(values + at);
      }
    };
    // The newest row goes from the projections into the cache, and into the sums without going through it.
    uint4 fresh;
    auto put_newest = [&](int t) {
#pragma unroll
      for (int u = 0; u < kAhead; ++u) {
        int row = t + u * kGroups + lane / kLanes;
        if (row == s.position) {
          k[u] = make_uint4(
              narrow_pair(key[part], key[part + 1], T{}), narrow_pair(key[part + 2], key[part + 3], T{}),
              narrow_pair(key[part + 4], key[part + 5], T{}), narrow_pair(key[part + 6], key[part + 7], T{}));
          size_t at = static_cast<size_t>(row) * D + part;
          v[u] = fresh;
          *reinterpret_cast<uint4*>(keys + at) = k[u];
          *reinterpret_cast<uint4*>(values + at) = v[u];
        }
      }
    };
    int t = from + warp * kGroups * kAhead;
    read(t);
    wait();
    fresh = *reinterpret_cast<const uint4*>(s.v + head * D + part);
    for (int g = warp; g <= HEADS; g += WARPS) {
      if (g < HEADS) {
        prepare_head<T, D>(s, s.q + (head * HEADS + g) * D, s.q_norm, s.scale * 1.44269504f, query + g * D);
      } else if (newest) {
        prepare_head<T, D>(s, s.k + head * D, s.k_norm, 1.0f, key);
      }
    }
    __syncthreads();
    Softmax<T, D, HEADS, kAhead> soft;
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
        for (int j = 0; j < 8; ++j) {
          sums[(warp * HEADS + g) * D + part + j] = soft.acc[g][j];
        }
      }
    }
    __syncthreads();
  }

  // Merges the block's warps: into the result if there is one range. Parts hold, for each range and query head, D sums, their
  // total weight and its exponent.
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
        s.out[head * HEADS * D + i] = static_cast<T>(value / total);
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

  // Merges the ranges. What each weighs is read first, by as many threads as there are ranges of heads: the sums then arrive
  // together instead of one behind the other.
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
      s.out[head * HEADS * D + i] = static_cast<T>(value / total);
    }
  }
};
