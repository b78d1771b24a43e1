// One token of a gated delta net after its projections. The steps are: convolution over the last
// tokens, norms of queries and keys, gates, the delta rule on the state, and the gated norm.
//
// `S` names the sizes: kKeys and kValues (elements of a head), kKeyHeads, kHeads, kTaps. A block
// takes a head at a time; kLanes threads hold a row of its state, which they read before `wait`
// returns.

template <typename T>
struct DeltaToken {
  // Projections of the token: queries, keys and values; the output gate; the write gate; the decay
  // gate.
  const T* qkv;
  const T* z;
  const T* b;
  const T* a;
  // Weights of the convolution `[channels, kTaps]`, and the tokens before `[kTaps - 1, channels]`.
  const T* taps;
  const T* before;
  T* after;
  const float* bias;
  const float* decay;
  const float* q_scale;
  const float* k_scale;
  const T* norm;
  const float* state;
  float* next;
  // Whether the sequence begins: then nothing came before.
  const bool* begins;
  T* y;
  float q_eps;
  float k_eps;
  float eps;
};

template <typename T, typename S, int WARPS>
struct DeltaHead {
  static constexpr int kThreads = WARPS * 32;
  static constexpr int kLanes = kThreads / S::kValues;
  static constexpr int kQuads = S::kKeys / 4 / kLanes;
  static constexpr int kGroup = S::kHeads / S::kKeyHeads;
  static constexpr int kAllKeys = S::kKeyHeads * S::kKeys;
  static constexpr int kChannels = 2 * kAllKeys + S::kHeads * S::kValues;
  // Channels of a head, and of one thread.
  static constexpr int kOwn = 2 * S::kKeys + S::kValues;
  static constexpr int kEach = (kOwn + kThreads - 1) / kThreads;

  const DeltaToken<T>& s;
  // Query, key and value, then the result.
  float* row;

  template <typename Wait>
  __device__ void run(Wait wait) const {
    if (blockIdx.x >= S::kHeads) {
      wait();
    }
    for (int head = blockIdx.x; head < S::kHeads; head += gridDim.x) {
      step(head, [&] {
        if (head == blockIdx.x) {
          wait();
        }
      });
    }
  }

  __device__ static int channel(int head, int i) {
    int key_head = head / kGroup;
    return i < S::kKeys ? key_head * S::kKeys + i
        : i < 2 * S::kKeys ? kAllKeys + key_head * S::kKeys + i - S::kKeys
                           : 2 * kAllKeys + head * S::kValues + i - 2 * S::kKeys;
  }

  template <typename Wait>
  __device__ void step(int head, Wait wait) const {
    int thread = threadIdx.x;
    int lane = thread % kLanes;
    bool begins = *s.begins;
    size_t place = (static_cast<size_t>(head) * S::kValues + thread / kLanes) * S::kKeys + lane * 4;
    float4 state[kQuads];
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
      float4 v = *reinterpret_cast<const float4*>(s.state + place + i * 4 * kLanes);
      state[i] = begins ? make_float4(0.0f, 0.0f, 0.0f, 0.0f) : v;
    }
    float old[kEach][S::kTaps - 1];
    float taps[kEach][S::kTaps];
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      int c = channel(head, min(thread + e * kThreads, kOwn - 1));
#pragma unroll
      for (int t = 0; t < S::kTaps; ++t) {
        taps[e][t] = static_cast<float>(s.taps[c * S::kTaps + t]);
        if (t < S::kTaps - 1) {
          old[e][t] = begins ? 0.0f : static_cast<float>(s.before[t * kChannels + c]);
        }
      }
    }
    wait();
    convolve(head, old, taps);
    __syncthreads();
    float q_factor;
    float k_factor;
    float product;
    factors(q_factor, k_factor, product);
    float gate = __expf(softplus(static_cast<float>(__ldcg(s.a + head)) + s.bias[head]) * s.decay[head]);
    float beta = sigmoid(static_cast<float>(__ldcg(s.b + head)));
    float value = row[2 * S::kKeys + thread / kLanes];
    float known = 0.0f;
    float asked = 0.0f;
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
      float4 q = *reinterpret_cast<const float4*>(row + lane * 4 + i * 4 * kLanes);
      float4 k = *reinterpret_cast<const float4*>(row + S::kKeys + lane * 4 + i * 4 * kLanes);
      known += state[i].x * k.x + state[i].y * k.y + state[i].z * k.z + state[i].w * k.w;
      asked += state[i].x * q.x + state[i].y * q.y + state[i].z * q.z + state[i].w * q.w;
    }
#pragma unroll
    for (int d = 1; d < kLanes; d *= 2) {
      known += __shfl_xor_sync(~0u, known, d);
      asked += __shfl_xor_sync(~0u, asked, d);
    }
    float missing = beta * (value - gate * known * k_factor);
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
      float4 k = *reinterpret_cast<const float4*>(row + S::kKeys + lane * 4 + i * 4 * kLanes);
      float add = missing * k_factor;
      *reinterpret_cast<float4*>(s.next + place + i * 4 * kLanes) = make_float4(
          fmaf(add, k.x, gate * state[i].x), fmaf(add, k.y, gate * state[i].y), fmaf(add, k.z, gate * state[i].z),
          fmaf(add, k.w, gate * state[i].w));
    }
    float result = fmaf(missing * k_factor * q_factor, product, gate * asked * q_factor);
    finish(head, rounded<T>(result));
  }

  __device__ static float softplus(float x) {
    return fmaxf(x, 0.0f) + log1pf(__expf(-fabsf(x)));
  }

  // The activated channels of the head; key heads leave their part of the window once.
  __device__ void convolve(int head, const float (&old)[kEach][S::kTaps - 1], const float (&taps)[kEach][S::kTaps]) const {
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      int i = threadIdx.x + e * kThreads;
      if (i < kOwn) {
        int c = channel(head, i);
        T fresh = __ldcg(s.qkv + c);
        float sum = static_cast<float>(fresh) * taps[e][S::kTaps - 1];
#pragma unroll
        for (int t = 0; t < S::kTaps - 1; ++t) {
          sum = fmaf(old[e][t], taps[e][t], sum);
        }
        row[i] = rounded<T>(silu(rounded<T>(sum)));
        if (i >= 2 * S::kKeys || head % kGroup == 0) {
#pragma unroll
          for (int t = 0; t < S::kTaps - 2; ++t) {
            s.after[t * kChannels + c] = static_cast<T>(old[e][t + 1]);
          }
          s.after[(S::kTaps - 2) * kChannels + c] = fresh;
        }
      }
    }
  }

  // The factors of query and key, and the dot product of both before scaling.
  __device__ void factors(float& q_factor, float& k_factor, float& product) const {
    float q_squares = 0.0f;
    float k_squares = 0.0f;
    product = 0.0f;
    for (int i = threadIdx.x % 32; i < S::kKeys; i += 32) {
      float q = row[i];
      float k = row[S::kKeys + i];
      q_squares = fmaf(q, q, q_squares);
      k_squares = fmaf(k, k, k_squares);
      product = fmaf(q, k, product);
    }
    product = warp_sum(product);
    q_factor = rsqrtf(warp_sum(q_squares) / S::kKeys + s.q_eps) * *s.q_scale;
    k_factor = rsqrtf(warp_sum(k_squares) / S::kKeys + s.k_eps) * *s.k_scale;
  }

  __device__ void finish(int head, float result) const {
    float squares = block_sum<WARPS>(threadIdx.x % kLanes == 0 ? result * result : 0.0f);
    if (threadIdx.x % kLanes == 0) {
      int i = threadIdx.x / kLanes;
      float gated = rounded<T>(silu(static_cast<float>(__ldcg(s.z + head * S::kValues + i))));
      float normed = rounded<T>(result * rsqrtf(squares / S::kValues + s.eps) * static_cast<float>(s.norm[i]));
      s.y[head * S::kValues + i] = static_cast<T>(normed * gated);
    }
    __syncthreads();
  }
};
