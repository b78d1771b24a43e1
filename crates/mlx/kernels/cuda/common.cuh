// What the kernels of this folder share: 16-bit floats as f32, loads that do not stay in the first cache.

__device__ inline uint4 load_once(const uint4* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
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
