// Helpers of the kernels in this folder: conversions of 16-bit floats to f32, and loads that bypass
// the L1 cache.

__device__ inline uint4 load_once(const uint4* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}

// Loads a value that another block of the launch may have written.
__device__ inline uint4 load_new(const void* p) {
  uint4 v;
  asm volatile("ld.global.cg.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p) : "memory");
  return v;
}

__device__ inline unsigned word(const uint4& v, int i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

__device__ inline float half_at(unsigned pair, int j, __nv_bfloat16) {
  return __uint_as_float(j ? pair & 0xffff0000u : pair << 16);
}

__device__ inline float half_at(unsigned pair, int j, __half) {
  return __half2float(__ushort_as_half(static_cast<unsigned short>(j ? pair >> 16 : pair)));
}

template <typename T>
__device__ inline float wide_at(const uint4& v, int j) {
  return half_at(word(v, j / 2), j % 2, T{});
}

__device__ inline unsigned narrow_pair(float low, float high, __nv_bfloat16) {
  __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<unsigned*>(&pair);
}

__device__ inline unsigned narrow_pair(float low, float high, __half) {
  __half2 pair = __floats2half2_rn(low, high);
  return *reinterpret_cast<unsigned*>(&pair);
}

__device__ inline float silu(float x) {
  return x / (1.0f + __expf(-x));
}

// The activation of a gate.
enum class Gate { kNone, kSilu, kGelu };

template <Gate GATE>
__device__ inline float activate(float x) {
  if constexpr (GATE == Gate::kGelu) {
    return 0.5f * x * (1.0f + tanhf(0.797884561f * (x + 0.044715f * x * x * x)));
  }
  return silu(x);
}

__device__ inline float sigmoid(float x) {
  return 1.0f / (1.0f + __expf(-x));
}

template <typename T>
__device__ inline float rounded(float v) {
  return static_cast<float>(static_cast<T>(v));
}

// Eight values of a constant vector.
template <typename N>
__device__ inline void read_eight(const N* p, float (&to)[8]) {
  if constexpr (sizeof(N) == 4) {
    float4 a = *reinterpret_cast<const float4*>(p);
    float4 b = *reinterpret_cast<const float4*>(p + 4);
    to[0] = a.x, to[1] = a.y, to[2] = a.z, to[3] = a.w;
    to[4] = b.x, to[5] = b.y, to[6] = b.z, to[7] = b.w;
  } else {
    uint4 v = *reinterpret_cast<const uint4*>(p);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      to[j] = wide_at<N>(v, j);
    }
  }
}

// Adds eight elements of the product of weights and a row to `dot`, and their squares to `squares`.
// The weights of a norm scale the row's elements in the product, if there is a norm.
template <typename T, typename N>
__device__ inline void add_eight(const uint4& weights, const uint4& values, const N* norm, float& dot, float& squares) {
  float factors[8];
  if (norm != nullptr) {
    read_eight(norm, factors);
  }
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    float value = wide_at<T>(values, j);
    squares += value * value;
    dot += value * (norm != nullptr ? factors[j] : 1.0f) * wide_at<T>(weights, j);
  }
}

__device__ inline float warp_sum(float v) {
#pragma unroll
  for (int d = 16; d > 0; d /= 2) {
    v += __shfl_xor_sync(~0u, v, d);
  }
  return v;
}

// Every thread gets the sum over the block.
template <int WARPS>
__device__ inline float block_sum(float v) {
  __shared__ float total[WARPS];
  v = warp_sum(v);
  __syncthreads();
  if (threadIdx.x % 32 == 0) {
    total[threadIdx.x / 32] = v;
  }
  __syncthreads();
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < WARPS; ++i) {
    sum += total[i];
  }
  return sum;
}

// The low-rank update of a product: the row `low` [rank] times `scales` [rank] times `up` [rank,
// rows].
template <typename T>
struct LowRank {
  const T* low = nullptr;
  const T* scales = nullptr;
  const T* up = nullptr;
  int rank = 0;
};

// A matrix of `rows` rows, its scales and biases if it holds codes, the place of its products, the
// row that is added to them, if there is one, and the update of an adapter, if there is one.
template <typename T>
struct Matrix {
  const void* w;
  const T* scales;
  const T* biases;
  T* y;
  int rows;
  const T* bias;
  LowRank<T> update = {};
};

// The matrix that holds a row of all matrices' rows in order. `row` becomes the row of that matrix.
template <typename T, int COUNT, typename Row>
__device__ inline Matrix<T> matrix_of(const Matrix<T> (&all)[COUNT], Row& row) {
  Matrix<T> at = all[0];
#pragma unroll
  for (int i = 1; i < COUNT; ++i) {
    if (row >= at.rows) {
      row -= at.rows;
      at = all[i];
    }
  }
  return at;
}
