// Decoder layers in one launch: products and attention one after the other, with a barrier of the
// grid between them.
//
// Weights do not depend on barriers, so a warp can prefetch them in all layers. Its copies to
// shared memory run SLOTS steps ahead of its sums, past barriers and attention, to keep DRAM busy.
// A step is four rows of 512 bytes, with their scales and biases.
//
// The grid must be resident as a whole.

constexpr int kWarps = 16;
constexpr int kChunk = 512;
constexpr int kRows = 4;

// One of a layer's products. A tile has four rows; in a gated product, two rows of each matrix. A
// tile's columns are divided among 2^ways warps, `each` chunks per warp.
struct Product {
  int k;
  int tiles;
  int first;
  int second;
  int chunks;
  int ways;
  int each;
  int place;
  int gated;
};

// Asynchronous copies to shared memory. If not `wanted`, the copy reads nothing and writes zeros.
__device__ inline void copy_16(unsigned to, const void* from, bool wanted) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(wanted ? 16 : 0) : "memory");
}

// The steps of a warp, in the order in which it needs them.
template <typename T, int BITS, int GROUP, int PRODUCTS, int SLOTS>
struct Ring {
  static constexpr bool kScaled = BITS != 16;
  // Bytes of the scales of one row of a chunk.
  static constexpr int kScales = kScaled ? 4096 / BITS / GROUP * 2 : 0;
  static constexpr int kSlot = kRows * (kChunk + 2 * kScales);
  static constexpr int kPieces = kScales / 16;
  static constexpr int kMatrix = kScaled ? 3 : 1;

  const Product* products;
  const char* const* places;
  int layer_places;
  int layers_left;
  int product;
  int unit;
  int units;
  int begin_tile;
  int chunk;
  int end;
  const char* upper;
  const char* lower;
  const char* scales;
  unsigned at;
  int slot;

  __device__ static int first_tile(const Product& p, int block) {
    return static_cast<unsigned>(p.tiles * block) / gridDim.x;
  }

  __device__ void begin_product() {
    const Product& p = products[product];
    unit = threadIdx.x / 32;
    begin_tile = first_tile(p, blockIdx.x);
    units = (first_tile(p, blockIdx.x + 1) - begin_tile) << p.ways;
    chunk = end = 0;
  }

  // Advances to the warp's next unit; false after the last unit of all layers.
  __device__ bool aim() {
    while (unit >= units) {
      if (++product == PRODUCTS) {
        product = 0;
        places += layer_places;
        if (--layers_left == 0) {
          return false;
        }
      }
      begin_product();
    }
    const Product& p = products[product];
    int tile = begin_tile + (unit >> p.ways);
    int way = unit & ((1 << p.ways) - 1);
    unit += kWarps;
    chunk = min(way * p.each, p.chunks);
    end = min(chunk + p.each, p.chunks);
    const char* const* matrix = places + p.place;
    if (p.gated) {
      tile *= 2;
    } else {
      int skip = tile >= p.second ? 2 : tile >= p.first ? 1 : 0;
      tile = (tile - (skip == 2 ? p.second : skip == 1 ? p.first : 0)) * kRows;
      matrix += skip * kMatrix;
    }
    int lane = threadIdx.x % 32;
    size_t row_bytes = static_cast<size_t>(p.k) * BITS / 8;
    size_t at = tile * row_bytes + chunk * kChunk + lane * 16;
    upper = matrix[0] + at;
    lower = p.gated ? matrix[kMatrix] + at : upper + 2 * row_bytes;
    if constexpr (kScaled) {
      // Lanes take, in this order, pieces of rows of scales, then of biases.
      int row = lane / kPieces % kRows;
      int kind = 1 + lane / kPieces / kRows % 2;
      bool other = p.gated && row >= 2;
      size_t scale_bytes = static_cast<size_t>(p.k) / GROUP * 2;
      scales = matrix[kind + (other ? kMatrix : 0)] + (tile + (other ? row - 2 : row)) * scale_bytes + chunk * kScales +
          lane % kPieces * 16;
    }
    return true;
  }

  // Starts the copies of the next step into the slot of the last one that was read.
  __device__ void send() {
    while (layers_left > 0 && chunk == end) {
      if (!aim()) {
        break;
      }
    }
    if (layers_left > 0) {
      int lane = threadIdx.x % 32;
      const Product& p = products[product];
      int row_bytes = p.k * BITS / 8;
      bool inside = chunk * kChunk + lane * 16 < row_bytes;
      unsigned to = at + slot * kSlot + lane * 16;
      copy_16(to, upper, inside);
      copy_16(to + kChunk, upper + row_bytes, inside);
      copy_16(to + 2 * kChunk, lower, inside);
      copy_16(to + 3 * kChunk, lower + row_bytes, inside);
      upper += kChunk;
      lower += kChunk;
      if constexpr (kScaled) {
        if (lane < 2 * kRows * kPieces) {
          copy_16(to + kRows * kChunk, scales, chunk * kScales + lane % kPieces * 16 < p.k / GROUP * 2);
        }
        scales += kScales;
      }
      ++chunk;
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  }

  __device__ void begin(char* shared, int layers) {
    at = static_cast<unsigned>(__cvta_generic_to_shared(shared)) + threadIdx.x / 32 * SLOTS * kSlot;
    layers_left = layers;
    product = 0;
    begin_product();
    for (slot = 0; slot < SLOTS; ++slot) {
      send();
    }
    slot = 0;
  }

  // Reads the oldest step and starts the copies of one more.
  template <typename Step>
  __device__ void next(Step& s) {
    asm volatile("cp.async.wait_group %0;" ::"n"(SLOTS - 1) : "memory");
    __syncwarp();
    int lane = threadIdx.x % 32;
    unsigned from = at + slot * kSlot;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                   : "=r"(s.w[r].x), "=r"(s.w[r].y), "=r"(s.w[r].z), "=r"(s.w[r].w)
                   : "r"(from + r * kChunk + lane * 16));
      if constexpr (kScaled) {
        unsigned of = from + kRows * kChunk + r * kScales + lane * (128 / BITS) / GROUP * 2;
        s.scale[r][0] = half_of(of);
        s.bias[r][0] = half_of(of + kRows * kScales);
      }
    }
    __syncwarp();
    send();
    slot = slot + 1 == SLOTS ? 0 : slot + 1;
  }

  __device__ static T half_of(unsigned at) {
    unsigned short v;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(at));
    return *reinterpret_cast<T*>(&v);
  }
};

// Sums four values over a warp; every lane gets the sum of row `lane / 8`.
__device__ inline float sum_of_rows(const float (&y)[kRows]) {
  int lane = threadIdx.x % 32;
  bool high = lane & 16;
  float a = high ? y[2] : y[0];
  float b = high ? y[3] : y[1];
  a += __shfl_xor_sync(~0u, high ? y[0] : y[2], 16);
  b += __shfl_xor_sync(~0u, high ? y[1] : y[3], 16);
  bool odd = lane & 8;
  float sum = odd ? b : a;
  sum += __shfl_xor_sync(~0u, odd ? a : b, 8);
#pragma unroll
  for (int d = 4; d > 0; d /= 2) {
    sum += __shfl_xor_sync(~0u, sum, d);
  }
  return sum;
}

// Operands of a launch; rows are in scratch memory.
template <typename T>
struct Layers {
  const T* input;
  T* output;
  T* x;
  T* qkv;
  T* attended;
  T* hidden;
  float* parts;
  unsigned* state;
  unsigned* tickets;
  const float* periods;
  int layers;
  int layer_places;
  // Among a layer's places: norms of the layer, of query and key (or -1), the caches.
  int norms[2];
  int head_norms;
  int caches;
  int kv_heads;
  int capacity;
  int splits;
  int position;
  float scale;
  float log2_base;
  float eps;
  float head_eps;
};

template <typename T, int BITS, int GROUP, int D, int HEADS, int SLOTS>
struct Decoder {
  using G = Gemv<T, BITS, GROUP, kRows, kWarps>;
  static constexpr int kLanes = G::kCodes / 8;
  const Layers<T>& s;
  const Product* products;
  const char* const* places;
  char* shared;
  float* partial;
  Barrier barrier;
  Ring<T, BITS, GROUP, 4, SLOTS> ring;

  __device__ void run(char* rings) {
    barrier = {s.state, 0};
    ring.products = products;
    ring.places = places;
    ring.layer_places = s.layer_places;
    ring.begin(rings, s.layers);
#pragma unroll 1
    for (int layer = 0; layer < s.layers; ++layer) {
      const T* x = layer == 0 ? s.input : s.x;
#pragma unroll 1
      for (int i = 0; i < 4; ++i) {
        bool last = layer == s.layers - 1 && i == 3;
        const T* from = i == 0 ? x : i == 1 ? s.attended : i == 2 ? s.x : s.hidden;
        T* to = i == 0 ? s.qkv : i == 2 ? s.hidden : last ? s.output : s.x;
        const T* residual = i == 1 ? x : i == 3 ? s.x : nullptr;
        const T* norm = i % 2 == 0 ? reinterpret_cast<const T*>(places[s.norms[i / 2]]) : nullptr;
        product(products[i], from, norm, residual, to, layer > 0 || i > 0);
        if (last) {
          break;
        }
        barrier.arrive();
        if (i == 0) {
          attention();
          barrier.arrive();
        }
      }
      places += s.layer_places;
    }
    barrier.leave();
  }

  // Puts the vector into shared memory in `Gemv`'s order. Returns the factor of the RMS
  // normalisation, which is applied later.
  __device__ float put(const G& g, const T* x, const T* norm, uint4 n) {
    float squares = 0.0f;
#pragma unroll 1
    for (int i = threadIdx.x; i < g.passes * 32 * kLanes; i += kWarps * 32) {
      int c = i / kLanes;
      bool inside = c < g.chunks;
      uint4 v = inside ? load_new(x + i * 8) : make_uint4(0, 0, 0, 0);
      if (norm != nullptr && i >= kWarps * 32 && inside) {
        n = load_once(reinterpret_cast<const uint4*>(norm + i * 8));
      }
      float sum = 0.0f;
      float offset = 0.0f;
      float scaled[8];
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        scaled[j] = G::scale(v, n, norm != nullptr, j, squares, sum, offset);
      }
      float4* to = g.xs + c / 32 * G::kQuads * 32 + c % 32 + i % kLanes * 64;
      to[0] = make_float4(scaled[0], scaled[1], scaled[2], scaled[3]);
      to[32] = make_float4(scaled[4], scaled[5], scaled[6], scaled[7]);
      if constexpr (G::kScaled) {
#pragma unroll
        for (int d = 1; d < kLanes; d *= 2) {
          sum += __shfl_xor_sync(~0u, sum, d);
          offset += __shfl_xor_sync(~0u, offset, d);
        }
        if (i % kLanes == 0) {
          g.sums[c] = make_float2(sum, offset);
        }
      }
    }
    float sum = block_sum<kWarps>(squares);
    return norm == nullptr ? 1.0f : rsqrtf(sum / g.k + s.eps);
  }

  __device__ void product(const Product& p, const T* x, const T* norm, const T* residual, T* y, bool waits) {
    G g(reinterpret_cast<float*>(shared), p.k);
    int first = ring.first_tile(p, blockIdx.x);
    int tiles = ring.first_tile(p, blockIdx.x + 1) - first;
    int results = p.gated ? kRows / 2 : kRows;
    // Load the norm's weights, and the residual of this thread's result, before the vector is
    // available.
    uint4 n = make_uint4(0, 0, 0, 0);
    if (norm != nullptr && threadIdx.x * 8 < p.k) {
      n = load_once(reinterpret_cast<const uint4*>(norm + threadIdx.x * 8));
    }
    float before = 0.0f;
    if (residual != nullptr && threadIdx.x < tiles * results) {
      before = static_cast<float>(__ldcg(residual + first * results + threadIdx.x));
    }
    if (waits) {
      barrier.wait();
    }
    float factor = put(g, x, norm, n);
    int ways = 1 << p.ways;
#pragma unroll 1
    for (int unit = threadIdx.x / 32; unit < tiles << p.ways; unit += kWarps) {
      int chunk = min((unit & (ways - 1)) * p.each, p.chunks);
      int end = min(chunk + p.each, p.chunks);
      float sums[kRows] = {};
#pragma unroll 1
      for (; chunk < end; ++chunk) {
        typename G::Step step;
        ring.next(step);
        g.multiply(step, chunk, sums);
      }
      float sum = sum_of_rows(sums);
      if (threadIdx.x % 8 == 0) {
        partial[unit * kRows + threadIdx.x % 32 / 8] = sum;
      }
    }
    __syncthreads();
#pragma unroll 1
    for (int i = threadIdx.x; i < tiles * results; i += kWarps * 32) {
      const float* at = partial + (i / results << p.ways) * kRows + i % results;
      float value = 0.0f;
      float other = 0.0f;
      for (int w = 0; w < ways; ++w) {
        value += at[w * kRows];
        other += p.gated ? at[w * kRows + 2] : 0.0f;
      }
      value *= factor;
      if (p.gated) {
        value = silu(value) * (other * factor);
      }
      if (residual != nullptr) {
        float add = i < kWarps * 32 ? before : static_cast<float>(__ldcg(residual + first * results + i));
        value = static_cast<float>(static_cast<T>(value)) + add;
      }
      y[first * results + i] = static_cast<T>(value);
    }
  }

  __device__ void attention() {
    Attend<T> a;
    a.q = s.qkv;
    a.k = a.q + s.kv_heads * HEADS * D;
    a.v = a.k + s.kv_heads * D;
    bool normed = s.head_norms >= 0;
    a.q_norm = normed ? reinterpret_cast<const T*>(places[s.head_norms]) : nullptr;
    a.k_norm = normed ? reinterpret_cast<const T*>(places[s.head_norms + 1]) : nullptr;
    a.periods = s.periods;
    a.keys = const_cast<T*>(reinterpret_cast<const T*>(places[s.caches]));
    a.values = const_cast<T*>(reinterpret_cast<const T*>(places[s.caches + 1]));
    a.parts = s.parts;
    a.out = s.attended;
    a.tickets = s.tickets;
    a.kv_heads = s.kv_heads;
    a.capacity = s.capacity;
    a.window = 0;
    a.splits = s.splits;
    a.position = s.position;
    a.scale = s.scale;
    a.log2_base = s.log2_base;
    a.eps = s.head_eps;
    a.q_step = D;
    a.gate = nullptr;
    a.share = 1;
    a.norm_values = false;
    a.ring = false;
    Attention<T, D, HEADS, kWarps>(a, reinterpret_cast<float*>(shared)).run([&] { barrier.wait(); });
  }
};
