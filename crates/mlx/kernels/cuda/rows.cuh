// Few rows times matrices of affine 4-bit codes, bound by memory: a code is read once for all rows.
//
// `arrange_rows` normalises rows, if they are to be, and puts them in the order in which `row_products` hands them to tensor cores. There a
// block computes 16 TILES rows of a matrix; its warps share the depth out and add up their sums in one order. Codes are unpacked in registers.
// A row's sums do not depend on the rows beside it, nor on how many there are.

constexpr int kRowWarps = 8;
// Columns of a step of one warp: 32 for each of four lanes that share a row.
constexpr int kStep = 128;

__device__ inline unsigned bits_of(__nv_bfloat16 v) {
  return __bfloat16_as_ushort(v) * 0x10001u;
}

__device__ inline unsigned bits_of(__half v) {
  return __half_as_ushort(v) * 0x10001u;
}

// One block a row; rows from `count` on are zeros. Piece ((c * 4 + w) * columns + n) * 4 + t of 16 bytes holds elements 128 c + 32 t + 8 w and on
// of row n as pairs (0, 4), (1, 5), (2, 6), (3, 7), where `columns` is the number of rows, rounded up to eights.
template <typename T, typename N>
__device__ void arrange_rows(const T* x, const N* norm, float eps, int k, int count, uint4* to) {
  int row = blockIdx.x;
  int columns = gridDim.x;
  const uint4* from = reinterpret_cast<const uint4*>(x + static_cast<size_t>(row) * k);
  float factor = 1.0f;
  if (norm != nullptr && row < count) {
    float squares = 0.0f;
    for (int i = threadIdx.x; i < k / 8; i += kRowWarps * 32) {
      uint4 v = from[i];
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        squares += wide_at<T>(v, j) * wide_at<T>(v, j);
      }
    }
    factor = rsqrtf(block_sum<kRowWarps>(squares) / k + eps);
  }
  for (int i = threadIdx.x; i < k / 8; i += kRowWarps * 32) {
    uint4 v = make_uint4(0, 0, 0, 0);
    if (row < count) {
      v = from[i];
      if (norm != nullptr) {
        float weights[8];
        read_eight(norm + i * 8, weights);
        float y[8];
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          y[j] = wide_at<T>(v, j) * factor * weights[j];
        }
        v = make_uint4(
            narrow_pair(y[0], y[1], T{}), narrow_pair(y[2], y[3], T{}), narrow_pair(y[4], y[5], T{}), narrow_pair(y[6], y[7], T{}));
      }
    }
    int chunk = i / 16;
    int lane = i / 4 % 4;
    int part = i % 4;
    to[((chunk * 4 + part) * columns + row) * 4 + lane] = make_uint4(
        __byte_perm(v.x, v.z, 0x5410), __byte_perm(v.x, v.z, 0x7632), __byte_perm(v.y, v.w, 0x5410), __byte_perm(v.y, v.w, 0x7632));
  }
}

// Eight codes as pairs (0, 4), (1, 5), (2, 6), (3, 7). A code becomes a float by its place in the mantissa of a power of two, which is then
// subtracted: exactly.
template <typename T>
__device__ inline void unpack_pairs(unsigned w, unsigned scale, unsigned bias, unsigned (&pair)[4]) {
  unsigned power = power_of_codes(T{});
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    pair[i] = scaled_pair(without((w >> (4 * i) & 0x000F000Fu) | power, power, T{}), scale, bias, T{});
  }
}

// y[n, row] = [residual +] x[n] W for the rows of all matrices and `count` rows x, which are arranged. With GATE there are two matrices, and
// act(A x) * (B x) is the one result; a tile of the one then stands beside the same tile of the other. Rows of each matrix are a multiple of what
// a block takes of it. Dynamic shared memory: 8 EIGHTS columns of 16 TILES + 4 sums for each warp.
template <typename T, int GROUP, int TILES, int EIGHTS, Gate GATE, int COUNT>
__device__ void row_products(char* memory, const uint4* x, const T* residual, int k, int count, const Matrix<T> (&all)[COUNT]) {
  constexpr bool kGated = GATE != Gate::kNone;
  constexpr int kLines = (kGated ? TILES / 2 : TILES) * 16;
  constexpr int kColumns = EIGHTS * 8;
  int lane = threadIdx.x % 32;
  int warp = threadIdx.x / 32;
  int line = blockIdx.x * kLines;
  Matrix<T> at = all[0];
#pragma unroll
  for (int i = 1; i < COUNT; ++i) {
    if (!kGated && line >= at.rows) {
      line -= at.rows;
      at = all[i];
    }
  }
  const Matrix<T>& second = kGated ? all[COUNT - 1] : at;
  // Rows lane / 4 and lane / 4 + 8 of each tile.
  size_t rows[TILES];
#pragma unroll
  for (int i = 0; i < TILES; ++i) {
    rows[i] = line + (kGated ? i % (TILES / 2) : i) * 16 + lane / 4;
  }
  struct Step {
    uint4 w[TILES][2];
    T scale[TILES][2];
    T bias[TILES][2];
  };
  auto load = [&](Step& s, int c) {
#pragma unroll
    for (int i = 0; i < TILES; ++i) {
      const Matrix<T>& from = kGated && i >= TILES / 2 ? second : at;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        size_t row = rows[i] + h * 8;
        s.w[i][h] = load_once(static_cast<const uint4*>(from.w) + row * (k / 32) + c * 4 + lane % 4);
        size_t group = row * (k / GROUP) + (c * kStep + lane % 4 * 32) / GROUP;
        s.scale[i][h] = from.scales[group];
        s.bias[i][h] = from.biases[group];
      }
    }
  };
  float sums[TILES][EIGHTS][4] = {};
  int steps = k / kStep;
  Step now;
  if (warp < steps) {
    load(now, warp);
  }
  for (int c = warp; c < steps; c += kRowWarps) {
    Step s = now;
    if (c + kRowWarps < steps) {
      load(now, c + kRowWarps);
    }
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      uint4 v[EIGHTS];
#pragma unroll
      for (int n = 0; n < EIGHTS; ++n) {
        v[n] = __ldg(x + ((c * 4 + w) * EIGHTS + n) * 32 + lane);
      }
#pragma unroll
      for (int i = 0; i < TILES; ++i) {
        unsigned pair[2][4];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          unpack_pairs<T>(word(s.w[i][h], w), bits_of(s.scale[i][h]), bits_of(s.bias[i][h]), pair[h]);
        }
        unsigned low[4] = {pair[0][0], pair[1][0], pair[0][1], pair[1][1]};
        unsigned high[4] = {pair[0][2], pair[1][2], pair[0][3], pair[1][3]};
#pragma unroll
        for (int n = 0; n < EIGHTS; ++n) {
          multiply_tile(sums[i][n], low, v[n].x, v[n].y, T{});
          multiply_tile(sums[i][n], high, v[n].z, v[n].w, T{});
        }
      }
    }
  }
  // What a warp has summed, [column][row], each column in other banks than the one before.
  constexpr int kPitch = TILES * 16 + 4;
  float* parts = reinterpret_cast<float*>(memory);
  float* own = parts + warp * kColumns * kPitch;
#pragma unroll
  for (int i = 0; i < TILES; ++i) {
#pragma unroll
    for (int n = 0; n < EIGHTS; ++n) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        own[(n * 8 + lane % 4 * 2 + j % 2) * kPitch + i * 16 + lane / 4 + j / 2 * 8] = sums[i][n][j];
      }
    }
  }
  __syncthreads();
  auto total = [&](int at) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kRowWarps; ++i) {
      sum += parts[i * kColumns * kPitch + at];
    }
    return sum;
  };
  // Threads side by side leave results side by side.
  for (int i = threadIdx.x; i < kLines * kColumns; i += kRowWarps * 32) {
    int column = i / kLines;
    int row = i % kLines;
    if (column < count) {
      float value = total(column * kPitch + row);
      if constexpr (kGated) {
        value = activate<GATE>(value) * total(column * kPitch + kLines + row);
      }
      size_t to = static_cast<size_t>(column) * at.rows + line + row;
      if (residual != nullptr) {
        value = rounded<T>(value) + static_cast<float>(residual[to]);
      }
      at.y[to] = static_cast<T>(value);
    }
  }
}
