// Few rows times matrices of affine 4-bit codes or of 16-bit floats, bound by memory: a weight is
// read once for all rows.
//
// `arrange_rows` normalises rows if required and stores them in the tensor-core operand order of
// `RowProducts`. `low_rows_of_each` computes the rows of low rank for adapters. `RowProducts`
// divides tiles of 16 matrix rows among blocks, and the depth among a block's warps. The warps'
// sums are added in a fixed order. Codes are unpacked in registers. A row's sums do not depend on
// the other rows or on their number.
//
// `arrange_rows` and `RowProducts` call `wait` before they read results of other blocks.
// `low_rows_of_each` follows `arrange_rows` in the same part of a launch, after its `wait`.

// Columns per step of a warp: 32 for each of the four lanes of a row.
constexpr int kStep = 128;

// Stores piece `i` (8 elements) of a row. Piece ((c * 4 + w) * columns + n) * 4 + t holds 8
// elements of row n, from element 128 c + 32 t + 8 w. Their order is pairs (0, 4), (1, 5), (2, 6),
// (3, 7).
__device__ inline void put_piece(uint4* to, int columns, int row, int i, uint4 v) {
  to[((i / 16 * 4 + i % 4) * columns + row) * 4 + i / 4 % 4] = make_uint4(
      __byte_perm(v.x, v.z, 0x5410), __byte_perm(v.x, v.z, 0x7632), __byte_perm(v.y, v.w, 0x5410), __byte_perm(v.y, v.w, 0x7632));
}

// Rows from `count` to `columns` stay undefined; their sums are not used.
template <int WARPS, typename T, typename N, typename Wait>
__device__ void arrange_rows(const T* x, const N* norm, float eps, int k, int count, int columns, uint4* to, Wait wait) {
  int pieces = k / 8;
  wait();
  if (norm == nullptr) {
    for (int i = blockIdx.x * WARPS * 32 + threadIdx.x; i < count * pieces; i += gridDim.x * WARPS * 32) {
      put_piece(to, columns, i / pieces, i % pieces, load_new(x + static_cast<size_t>(i) * 8));
    }
    return;
  }
  for (int row = blockIdx.x; row < count; row += gridDim.x) {
    const T* from = x + static_cast<size_t>(row) * k;
    float squares = 0.0f;
    for (int i = threadIdx.x; i < pieces; i += WARPS * 32) {
      uint4 v = load_new(from + i * 8);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        squares += wide_at<T>(v, j) * wide_at<T>(v, j);
      }
    }
    float factor = rsqrtf(block_sum<WARPS>(squares) / k + eps);
    for (int i = threadIdx.x; i < pieces; i += WARPS * 32) {
      uint4 v = load_new(from + i * 8);
      float weights[8];
      read_eight(norm + i * 8, weights);
      float y[8];
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        y[j] = wide_at<T>(v, j) * factor * weights[j];
      }
      v = make_uint4(
          narrow_pair(y[0], y[1], T{}), narrow_pair(y[2], y[3], T{}), narrow_pair(y[4], y[5], T{}), narrow_pair(y[6], y[7], T{}));
      put_piece(to, columns, row, i, v);
    }
  }
}

// y[n, row] = norm(x[n]) W for the few rows of all float matrices, a result per warp at a time. The
// last blocks begin, because `arrange_rows` keeps the first ones busy.
template <int WARPS, typename T, typename N, int COUNT>
__device__ void low_rows_of_each(const T* x, const N* norm, float eps, int k, int count, const Matrix<T> (&all)[COUNT]) {
  int total = 0;
#pragma unroll
  for (int i = 0; i < COUNT; ++i) {
    total += all[i].rows;
  }
  int lane = threadIdx.x % 32;
  int warp = (gridDim.x - 1 - blockIdx.x) * WARPS + threadIdx.x / 32;
  for (int i = warp; i < total * count; i += gridDim.x * WARPS) {
    int n = i / total;
    int line = i % total;
    Matrix<T> at = matrix_of(all, line);
    const uint4* weights = static_cast<const uint4*>(at.w) + static_cast<size_t>(line) * (k / 8);
    const T* row = x + static_cast<size_t>(n) * k;
    float dot = 0.0f;
    float squares = 0.0f;
#pragma unroll 4
    for (int piece = lane; piece < k / 8; piece += 32) {
      uint4 w = load_once(weights + piece);
      add_eight<T>(w, load_new(row + piece * 8), norm == nullptr ? norm : norm + piece * 8, dot, squares);
    }
    dot = warp_sum(dot);
    float factor = norm == nullptr ? 1.0f : rsqrtf(warp_sum(squares) / k + eps);
    if (lane == 0) {
      at.y[n * at.rows + line] = static_cast<T>(dot * factor);
    }
  }
}

// y[n, row] = [residual +] x[n] W for the rows of all matrices and `count` arranged rows x. With
// GATE there are two matrices, and the one result is act(A x) * (B x). The same tile of both
// matrices is then computed together. The rows of each matrix are whole tiles. With UPDATED,
// products get the low-rank updates of their matrices, with rows `low` and `scales` [n, rank].
//
// Matrices are of codes in groups of GROUP, or of floats if that is 0.
//
// A group of SIDES warps shares its columns of x, read once per multiprocessor; each warp computes
// up to TILES tiles. DEEP such groups divide the depth. Dynamic shared memory: BUFFERS times 8
// EIGHTS columns of 16 TILES SIDES + 4 sums for each of these groups. With two buffers, warps
// continue while others still add their sums.
template <typename T, int GROUP, int TILES, int EIGHTS, Gate GATE, int WARPS, int SIDES, int DEEP, int BUFFERS, bool UPDATED, int COUNT>
struct RowProducts {
  static constexpr bool kGated = GATE != Gate::kNone;
  // Result tiles per round of a warp, and of a block.
  static constexpr unsigned kUnits = kGated ? TILES / 2 : TILES;
  static constexpr unsigned kRound = kUnits * SIDES;
  static constexpr unsigned kColumns = EIGHTS * 8;
  // The padding puts consecutive columns of sums into different banks.
  static constexpr unsigned kPitch = SIDES * TILES * 16 + 4;

  static constexpr bool kCoded = GROUP != 0;
  // Pieces of 16 bytes that a lane reads of a row in a step: 32 columns.
  static constexpr unsigned kPieces = kCoded ? 1 : 4;
  static constexpr unsigned kColumnsOfPiece = 32 / kPieces;

  struct Step {
    uint4 w[TILES][2][kPieces];
    T scale[TILES][2];
    T bias[TILES][2];
  };

  // Tiles of results that a warp computes in a round.
  struct Units {
    unsigned first;
    unsigned count;
  };

  const Matrix<T> (&all)[COUNT];
  unsigned k;

  // The matrix of a tile of results, and the tile's first row there.
  __device__ Matrix<T> find(unsigned unit, unsigned& row) const {
    row = unit * 16;
    return kGated ? all[0] : matrix_of(all, row);
  }

  // The tiles of the warp's side in the round from `unit` on.
  __device__ Units units(unsigned unit, unsigned end) const {
    unsigned side = threadIdx.x / 32 / DEEP;
    unsigned tiles = unit < end ? min(kRound, end - unit) : 0;
    unsigned from = tiles * side / SIDES;
    return {unit + from, tiles * (side + 1) / SIDES - from};
  }

  // Columns of step `c`.
  __device__ void load(Step& s, const Units& at, unsigned c) const {
    unsigned lane = threadIdx.x % 32;
#pragma unroll
    for (unsigned i = 0; i < TILES; ++i) {
      unsigned tile = kGated ? i % kUnits : i;
      if (tile >= at.count) {
        continue;
      }
      unsigned row;
      Matrix<T> from = find(at.first + tile, row);
      if (kGated && i >= kUnits) {
        from = all[COUNT - 1];
      }
      row += lane / 4;
      unsigned pieces = k / kColumnsOfPiece;
      unsigned piece = row * pieces + (c * 4 + lane % 4) * kPieces;
#pragma unroll
      for (unsigned h = 0; h < 2; ++h) {
#pragma unroll
        for (unsigned w = 0; w < kPieces; ++w) {
          s.w[i][h][w] = load_once(static_cast<const uint4*>(from.w) + piece + h * 8 * pieces + w);
        }
        if constexpr (kCoded) {
          unsigned group = (row + h * 8) * (k / GROUP) + (c * kStep + lane % 4 * 32) / GROUP;
          s.scale[i][h] = from.scales[group];
          s.bias[i][h] = from.biases[group];
        }
      }
    }
  }

  // Codes, each group's scale and bias in one word; or floats.
  struct Weights {
    uint4 w[TILES][2][kPieces];
    unsigned affine[TILES][2];

    __device__ explicit Weights(const Step& s) {
#pragma unroll
      for (unsigned i = 0; i < TILES; ++i) {
#pragma unroll
        for (unsigned h = 0; h < 2; ++h) {
#pragma unroll
          for (unsigned p = 0; p < kPieces; ++p) {
            w[i][h][p] = s.w[i][h][p];
          }
          if constexpr (kCoded) {
            affine[i][h] = __byte_perm(twice(s.scale[i][h]), twice(s.bias[i][h]), 0x5410);
          }
        }
      }
    }

    // Columns 8 p and on of the lane's as pairs (0, 4), (1, 5), (2, 6), (3, 7).
    __device__ void pairs(unsigned i, unsigned h, unsigned p, unsigned (&pair)[4]) const {
      if constexpr (kCoded) {
        unsigned both = affine[i][h];
        unpack_pairs<T>(word(w[i][h][0], p), __byte_perm(both, 0, 0x1010), __byte_perm(both, 0, 0x3232), pair);
      } else {
        const uint4& v = w[i][h][p % kPieces];
        pair[0] = __byte_perm(v.x, v.z, 0x5410);
        pair[1] = __byte_perm(v.x, v.z, 0x7632);
        pair[2] = __byte_perm(v.y, v.w, 0x5410);
        pair[3] = __byte_perm(v.y, v.w, 0x7632);
      }
    }
  };

  __device__ void multiply(const Weights& s, const uint4* x, unsigned count, unsigned c, float (&sums)[TILES][EIGHTS][4]) const {
#pragma unroll
    for (unsigned w = 0; w < 4; ++w) {
      uint4 v[EIGHTS];
#pragma unroll
      for (unsigned n = 0; n < EIGHTS; ++n) {
        v[n] = x[((c * 4 + w) * EIGHTS + n) * 32 + threadIdx.x % 32];
      }
#pragma unroll
      for (unsigned i = 0; i < TILES; ++i) {
        if ((kGated ? i % kUnits : i) >= count) {
          continue;
        }
        unsigned pair[2][4];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          s.pairs(i, h, w, pair[h]);
        }
        unsigned low[4] = {pair[0][0], pair[1][0], pair[0][1], pair[1][1]};
        unsigned high[4] = {pair[0][2], pair[1][2], pair[0][3], pair[1][3]};
#pragma unroll
        for (unsigned n = 0; n < EIGHTS; ++n) {
          multiply_tile(sums[i][n], low, v[n].x, v[n].y, T{});
          multiply_tile(sums[i][n], high, v[n].z, v[n].w, T{});
        }
      }
    }
  }

  // Stores a warp's sums, [column][row].
  __device__ void put(float* parts, const float (&sums)[TILES][EIGHTS][4]) const {
    unsigned lane = threadIdx.x % 32;
    unsigned warp = threadIdx.x / 32;
    float* own = parts + warp % DEEP * kColumns * kPitch + warp / DEEP * TILES * 16;
#pragma unroll
    for (unsigned i = 0; i < TILES; ++i) {
#pragma unroll
      for (unsigned n = 0; n < EIGHTS; ++n) {
#pragma unroll
        for (unsigned j = 0; j < 4; ++j) {
          own[(n * 8 + lane % 4 * 2 + j % 2) * kPitch + i * 16 + lane / 4 + j / 2 * 8] = sums[i][n][j];
        }
      }
    }
  }

  // A product with the bias and the update of `row` of its matrix.
  __device__ float finished(const Matrix<T>& matrix, unsigned column, unsigned row, float value) const {
    if (matrix.bias != nullptr) {
      value = (kCoded ? rounded<T>(value) : value) + static_cast<float>(matrix.bias[row]);
    }
    if constexpr (UPDATED) {
      const LowRank<T>& update = matrix.update;
      const T* low = update.low + column * update.rank;
      const T* scales = update.scales + column * update.rank;
      float sum = 0.0f;
#pragma unroll 4
      for (int j = 0; j < update.rank; ++j) {
        float scaled = rounded<T>(static_cast<float>(__ldcg(low + j)) * static_cast<float>(__ldcg(scales + j)));
        sum += scaled * static_cast<float>(update.up[static_cast<size_t>(j) * matrix.rows + row]);
      }
      value = rounded<T>(value) + rounded<T>(sum);
    }
    return value;
  }

  // Adds the sums of all warps and stores the results of `tiles` tiles from `unit` on.
  __device__ void leave(const float* parts, const T* residual, unsigned count, unsigned unit, unsigned tiles) const {
    auto total = [&](unsigned at) {
      float sum = 0.0f;
#pragma unroll
      for (unsigned i = 0; i < DEEP; ++i) {
        sum += parts[i * kColumns * kPitch + at];
      }
      return sum;
    };
    // Adjacent threads store adjacent results.
    for (unsigned i = threadIdx.x; i < kRound * 16 * count; i += WARPS * 32) {
      unsigned column = i / (kRound * 16);
      unsigned line = i % (kRound * 16);
      unsigned tile = line / 16;
      if (tile >= tiles) {
        continue;
      }
      unsigned side = ((tile + 1) * SIDES - 1) / tiles;
      unsigned at = column * kPitch + (side * TILES + tile - tiles * side / SIDES) * 16 + line % 16;
      unsigned row;
      Matrix<T> matrix = find(unit + tile, row);
      row += line % 16;
      float value = finished(matrix, column, row, total(at));
      if constexpr (kGated) {
        value = activate<GATE>(value) * finished(all[COUNT - 1], column, row, total(at + kUnits * 16));
      }
      size_t to = static_cast<size_t>(column) * matrix.rows + row;
      if (residual != nullptr) {
        value = rounded<T>(value) + static_cast<float>(residual[to]);
      }
      matrix.y[to] = static_cast<T>(value);
    }
  }

  template <typename Wait>
  __device__ void run(char* memory, const uint4* x, const T* residual, unsigned count, Wait wait) const {
    unsigned tiles = 0;
#pragma unroll
    for (int i = 0; i < (kGated ? 1 : COUNT); ++i) {
      tiles += all[i].rows / 16;
    }
    unsigned unit = tiles * blockIdx.x / gridDim.x;
    unsigned end = tiles * (blockIdx.x + 1) / gridDim.x;
    bool works = threadIdx.x / 32 < SIDES * DEEP;
    unsigned deep = threadIdx.x / 32 % DEEP;
    unsigned steps = works ? k / kStep : 0;
    float* base = reinterpret_cast<float*>(memory);
    float* parts = base;
    Step now;
    if (deep < steps) {
      load(now, units(unit, end), deep);
    }
    wait();
#pragma unroll 1
    for (; unit < end; unit += kRound) {
      Units own = units(unit, end);
      float sums[TILES][EIGHTS][4] = {};
#pragma unroll 1
      for (unsigned c = deep; c < steps && own.count > 0; c += DEEP) {
        Weights s(now);
        bool goes_on = c + DEEP < steps;
        // Floats leave no registers for what is ahead.
        if constexpr (!kCoded) {
          multiply(s, x, own.count, c, sums);
        }
        load(now, goes_on ? own : units(unit + kRound, end), goes_on ? c + DEEP : deep);
        if constexpr (kCoded) {
          multiply(s, x, own.count, c, sums);
        }
      }
      float* buffer = parts;
      parts = parts == base ? base + (BUFFERS - 1) * DEEP * kColumns * kPitch : base;
      if (works) {
        put(buffer, sums);
      }
      __syncthreads();
      leave(buffer, residual, count, unit, min(kRound, end - unit));
      if (BUFFERS == 1) {
        __syncthreads();
      }
    }
  }
};
