// Rows times indexed matrices of affine 4-bit codes, in tiles of rows with the same matrix.
//
// `expert_tiles` sorts the rows by their matrices and cuts each matrix's rows into tiles.
// `expert_products` computes a tile of 64 rows by 128 matrix rows. Each step of 64 columns is
// unpacked once to shared memory, in the rows' type, and multiplied by tensor cores. Rows are
// gathered from and results scattered to their original places. The summation order within a row is
// fixed.

constexpr int kTileRows = 64;
constexpr int kTileColumns = 128;
constexpr int kTileDepth = 64;
constexpr int kTileThreads = 128;
constexpr int kSortThreads = 1024;
// Buffers of rows, and of unpacked weights, in shared memory.
constexpr int kRowBuffers = 3;
constexpr int kWeightBuffers = 2;

// Runs as one block, for at most `kSortThreads` matrices. `order` receives the sorted rows'
// numbers. A tile is three integers: matrix, position of its first row in `order`, and number of
// rows (zero past the last tile). `tiles` has room for the maximum number of tiles.
__device__ inline void expert_tiles(const unsigned* chosen, int count, int experts, int* order, int* tiles) {
  __shared__ int sums[2][kSortThreads];
  __shared__ int cursor[kSortThreads];
  int most_tiles = count / kTileRows + min(experts, count);
  int thread = threadIdx.x;
  cursor[thread] = 0;
  __syncthreads();
  for (int i = thread; i < count; i += kSortThreads) {
    atomicAdd(&cursor[chosen[i]], 1);
  }
  __syncthreads();
  int rows = cursor[thread];
  int own = (rows + kTileRows - 1) / kTileRows;
  sums[0][thread] = rows;
  sums[1][thread] = own;
  __syncthreads();
  for (int d = 1; d < kSortThreads; d *= 2) {
    int a = thread >= d ? sums[0][thread - d] : 0;
    int b = thread >= d ? sums[1][thread - d] : 0;
    __syncthreads();
    sums[0][thread] += a;
    sums[1][thread] += b;
    __syncthreads();
  }
  int first = sums[0][thread] - rows;
  int tile = sums[1][thread] - own;
  cursor[thread] = first;
  for (int i = 0; i < own; ++i) {
    tiles[(tile + i) * 3] = thread;
    tiles[(tile + i) * 3 + 1] = first + i * kTileRows;
    tiles[(tile + i) * 3 + 2] = min(kTileRows, rows - i * kTileRows);
  }
  for (int i = sums[1][kSortThreads - 1] + thread; i < most_tiles; i += kSortThreads) {
    tiles[i * 3 + 2] = 0;
  }
  __syncthreads();
  for (int i = thread; i < count; i += kSortThreads) {
    order[atomicAdd(&cursor[chosen[i]], 1)] = i;
  }
}

__device__ inline void read_tiles(unsigned (&v)[4], unsigned at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
               : "r"(at));
}

// Swizzle of shared memory. Each line of 128 bytes permutes its eight pieces of 16 bytes, so that
// the same piece of eight lines covers all banks.
__device__ inline unsigned piece_at(unsigned base, int line, int piece) {
  return base + line * 128 + ((piece ^ (line & 7)) << 4);
}

template <typename T>
struct ExpertProducts {
  const T* x;
  const unsigned* w;
  const T* scales;
  const T* biases;
  const int* order;
  const int* tiles;
  T* y;
  // Columns and rows of a matrix; number of results per row of `x`.
  int k;
  int n;
  int each;
};

// The codes of a step of one row of a matrix, and what unpacks them.
template <typename T, int GROUP>
struct PackedStep {
  static constexpr int kGroups = GROUP >= kTileDepth ? 1 : kTileDepth / GROUP;
  uint4 codes[2];
  T scale[kGroups];
  T bias[kGroups];

  __device__ void load(const ExpertProducts<T>& p, size_t row, int step) {
    const uint4* from = reinterpret_cast<const uint4*>(p.w + row * (p.k / 8) + step * (kTileDepth / 8));
    codes[0] = load_once(from);
    codes[1] = load_once(from + 1);
    size_t group = row * (p.k / GROUP) + step * kTileDepth / GROUP;
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
      scale[i] = p.scales[group + i];
      bias[i] = p.biases[group + i];
    }
  }

  __device__ void unpack(unsigned base, int line) const {
#pragma unroll
    for (int word_at = 0; word_at < 8; ++word_at) {
      int group = word_at * 8 * kGroups / kTileDepth;
      unsigned pair[4];
      unpack_pairs<T>(word(codes[word_at / 4], word_at % 4), twice(scale[group]), twice(bias[group]), pair);
      uint4 v;
      v.x = __byte_perm(pair[0], pair[1], 0x5410);
      v.y = __byte_perm(pair[2], pair[3], 0x5410);
      v.z = __byte_perm(pair[0], pair[1], 0x7632);
      v.w = __byte_perm(pair[2], pair[3], 0x7632);
      asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(piece_at(base, line, word_at)), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                   : "memory");
    }
  }
};

// Block (x, y): columns from 128 x on of tile y. `k` is a multiple of 64 and of the group, `n`
// of 128. Dynamic shared memory: the buffers, of 8 KiB for rows and 16 KiB for weights.
template <typename T, int GROUP>
__device__ void expert_products(const ExpertProducts<T>& p) {
  extern __shared__ __align__(128) char buffers[];
  int expert = p.tiles[blockIdx.y * 3];
  int first = p.tiles[blockIdx.y * 3 + 1];
  int count = p.tiles[blockIdx.y * 3 + 2];
  if (count == 0) {
    return;
  }
  int thread = threadIdx.x;
  int lane = thread % 32;
  unsigned rows_at = static_cast<unsigned>(__cvta_generic_to_shared(buffers));
  unsigned weights_at = rows_at + kRowBuffers * kTileRows * 128;

  // Rows: a thread copies a piece of 16 bytes of every sixteenth row.
  const T* from[kTileRows / 16];
#pragma unroll
  for (int i = 0; i < kTileRows / 16; ++i) {
    int line = thread / 8 + i * 16;
    int row = p.order[first + min(line, count - 1)];
    from[i] = p.x + static_cast<size_t>(row / p.each) * p.k + thread % 8 * 8;
  }
  auto copy_rows = [&](int step, int buffer) {
    unsigned to = rows_at + buffer * kTileRows * 128;
#pragma unroll
    for (int i = 0; i < kTileRows / 16; ++i) {
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(piece_at(to, thread / 8 + i * 16, thread % 8)),
                   "l"(from[i] + step * kTileDepth)
                   : "memory");
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  };

  size_t weight_row = static_cast<size_t>(expert) * p.n + blockIdx.x * kTileColumns + thread;
  PackedStep<T, GROUP> packed;
  packed.load(p, weight_row, 0);
  copy_rows(0, 0);
  int steps = p.k / kTileDepth;
  // Warps: two by two, of 32 rows and 64 columns.
  int warp_row = thread / 64 * 32;
  int warp_column = thread / 32 % 2 * 64;
  float sums[2][8][4] = {};
  for (int step = 0; step < steps; ++step) {
    unsigned weights = weights_at + step % kWeightBuffers * kTileColumns * 128;
    packed.unpack(weights, thread);
    if (step + 1 < steps) {
      packed.load(p, weight_row, step + 1);
      copy_rows(step + 1, (step + 1) % kRowBuffers);
      asm volatile("cp.async.wait_group 1;" ::: "memory");
    } else {
      asm volatile("cp.async.wait_group 0;" ::: "memory");
    }
    __syncthreads();
    if (warp_row >= count) {
      continue;
    }
    unsigned rows = rows_at + step % kRowBuffers * kTileRows * 128;
#pragma unroll
    for (int depth = 0; depth < kTileDepth / 16; ++depth) {
      unsigned a[2][4];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        read_tiles(a[i], piece_at(rows, warp_row + i * 16 + lane % 16, depth * 2 + lane / 16));
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        // Sixteen columns: both halves of the depth of the first eight, then of the others.
        unsigned b[4];
        read_tiles(b, piece_at(weights, warp_column + j * 16 + lane / 16 * 8 + lane % 8, depth * 2 + lane / 8 % 2));
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          multiply_tile(sums[i][2 * j], a[i], b[0], b[1], T{});
          multiply_tile(sums[i][2 * j + 1], a[i], b[2], b[3], T{});
        }
      }
    }
  }
  if (warp_row >= count) {
    return;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    int line = warp_row + i * 8 + lane / 4;
    if (line < count) {
      T* to = p.y + static_cast<size_t>(p.order[first + line]) * p.n + blockIdx.x * kTileColumns + warp_column + lane % 4 * 2;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        *reinterpret_cast<unsigned*>(to + j * 8) = narrow_pair(sums[i / 2][j][i % 2 * 2], sums[i / 2][j][i % 2 * 2 + 1], T{});
      }
    }
  }
}
