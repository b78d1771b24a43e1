// The gated delta rule. Each head has a state S of Dv rows and Dk columns. For each step, S' = g S
// + β (v − g S k) kᵀ and y = S' q.
//
// A row of the state depends on no other row. Eight lanes keep one row in registers for all steps,
// so that no step waits for memory. A block holds 32 rows of one head. S k and S q are summed
// together, since S' q = g S q + β (v − g S k) (k·q). Keys, queries, values and gates are copied to
// shared memory several steps at a time, while earlier steps are computed.

constexpr int kDeltaThreads = 256;
constexpr int kDeltaRows = 32;
constexpr int kDeltaLanes = 8;

struct DeltaRule {
  const float* q;
  const float* k;
  const float* v;
  const float* g;
  const float* beta;
  const float* state;
  float* y;
  float* next;
  int steps;
  int key_heads;
  int heads;
  int dv;
};

template <int BYTES>
__device__ inline void delta_copy(void* to, const void* from, bool wanted) {
  unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(to));
  if constexpr (BYTES == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(wanted ? 16 : 0) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(at), "l"(from), "r"(wanted ? 4 : 0) : "memory");
  }
}

// Block (x, y): rows from 32 y on of head x, counted over all sequences. DK is a multiple of 32, at
// most 256.
template <int DK>
__device__ void delta_rule(const DeltaRule& d) {
  constexpr int kSteps = 2048 / DK;
  constexpr int kQuads = DK / 4;
  constexpr int kEach = kQuads / kDeltaLanes;
  __shared__ float4 ks[2][kSteps][kQuads];
  __shared__ float4 qs[2][kSteps][kQuads];
  __shared__ float vs[2][kSteps][kDeltaRows];
  __shared__ float gates[2][2][kSteps];
  __shared__ float products[kSteps];
  __shared__ float results[kSteps][kDeltaRows];
  int batch = blockIdx.x / d.heads;
  int head = blockIdx.x % d.heads;
  int key_head = head / (d.heads / d.key_heads);
  int first_row = blockIdx.y * kDeltaRows;
  int thread = threadIdx.x;
  int lane = thread % kDeltaLanes;
  int row = first_row + thread / kDeltaLanes;
  bool holds = row < d.dv;

  auto load = [&](int begin, int to) {
    for (int i = thread; i < kSteps * kQuads; i += kDeltaThreads) {
      int step = i / kQuads;
      bool inside = begin + step < d.steps;
      size_t line = static_cast<size_t>(batch) * d.steps + (inside ? begin + step : 0);
      size_t at = (line * d.key_heads + key_head) * DK + i % kQuads * 4;
      delta_copy<16>(&ks[to][step][i % kQuads], d.k + at, inside);
      delta_copy<16>(&qs[to][step][i % kQuads], d.q + at, inside);
    }
    for (int i = thread; i < kSteps * kDeltaRows; i += kDeltaThreads) {
      int step = i / kDeltaRows;
      int at_row = first_row + i % kDeltaRows;
      bool inside = begin + step < d.steps && at_row < d.dv;
      size_t line = static_cast<size_t>(batch) * d.steps + (inside ? begin + step : 0);
      delta_copy<4>(&vs[to][step][i % kDeltaRows], d.v + (line * d.heads + head) * d.dv + (inside ? at_row : 0), inside);
    }
    for (int i = thread; i < 2 * kSteps; i += kDeltaThreads) {
      int step = i % kSteps;
      bool inside = begin + step < d.steps;
      size_t line = static_cast<size_t>(batch) * d.steps + (inside ? begin + step : 0);
      delta_copy<4>(&gates[to][i / kSteps][step], (i < kSteps ? d.g : d.beta) + line * d.heads + head, inside);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  };

  load(0, 0);
  float4 s[kEach];
  size_t place = (static_cast<size_t>(blockIdx.x) * d.dv + (holds ? row : 0)) * DK + lane * 4;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    s[i] = *reinterpret_cast<const float4*>(d.state + place + i * 4 * kDeltaLanes);
  }
  for (int begin = 0, at = 0; begin < d.steps; begin += kSteps, at ^= 1) {
    load(begin + kSteps, at ^ 1);
    asm volatile("cp.async.wait_group 1;" ::: "memory");
    __syncthreads();
    for (int step = thread / 32; step < kSteps; step += kDeltaThreads / 32) {
      float sum = 0.0f;
      for (int i = thread % 32; i < kQuads; i += 32) {
        float4 a = ks[at][step][i];
        float4 b = qs[at][step][i];
        sum += a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w;
      }
      for (int i = 16; i > 0; i /= 2) {
        sum += __shfl_xor_sync(~0u, sum, i);
      }
      if (thread % 32 == 0) {
        products[step] = sum;
      }
    }
    __syncthreads();
    int count = min(kSteps, d.steps - begin);
#pragma unroll 2
    for (int step = 0; step < count; ++step) {
      float4 k[kEach];
      float4 known = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      float4 asked = known;
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        k[i] = ks[at][step][i * kDeltaLanes + lane];
        float4 q = qs[at][step][i * kDeltaLanes + lane];
        known.x = fmaf(s[i].x, k[i].x, known.x);
        known.y = fmaf(s[i].y, k[i].y, known.y);
        known.z = fmaf(s[i].z, k[i].z, known.z);
        known.w = fmaf(s[i].w, k[i].w, known.w);
        asked.x = fmaf(s[i].x, q.x, asked.x);
        asked.y = fmaf(s[i].y, q.y, asked.y);
        asked.z = fmaf(s[i].z, q.z, asked.z);
        asked.w = fmaf(s[i].w, q.w, asked.w);
      }
      float before = (known.x + known.y) + (known.z + known.w);
      float answer = (asked.x + asked.y) + (asked.z + asked.w);
#pragma unroll
      for (int i = 1; i < kDeltaLanes; i *= 2) {
        before += __shfl_xor_sync(~0u, before, i);
        answer += __shfl_xor_sync(~0u, answer, i);
      }
      float gate = gates[at][0][step];
      float missing = gates[at][1][step] * (vs[at][step][thread / kDeltaLanes] - gate * before);
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        s[i].x = fmaf(missing, k[i].x, gate * s[i].x);
        s[i].y = fmaf(missing, k[i].y, gate * s[i].y);
        s[i].z = fmaf(missing, k[i].z, gate * s[i].z);
        s[i].w = fmaf(missing, k[i].w, gate * s[i].w);
      }
      if (lane == 0) {
        results[step][thread / kDeltaLanes] = fmaf(missing, products[step], gate * answer);
      }
    }
    __syncthreads();
    for (int i = thread; i < count * kDeltaRows; i += kDeltaThreads) {
      int at_row = first_row + i % kDeltaRows;
      if (at_row < d.dv) {
        size_t line = static_cast<size_t>(batch) * d.steps + begin + i / kDeltaRows;
        d.y[(line * d.heads + head) * d.dv + at_row] = results[i / kDeltaRows][i % kDeltaRows];
      }
    }
  }
  if (holds) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      *reinterpret_cast<float4*>(d.next + place + i * 4 * kDeltaLanes) = s[i];
    }
  }
}
