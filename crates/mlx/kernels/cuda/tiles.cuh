// Helpers of the tensor-core kernels: pairs of 16-bit floats, and the product of a 16x16 and a 16x8
// tile.

__device__ inline unsigned without(unsigned a, unsigned b, __nv_bfloat16) {
  __nv_bfloat162 x = *reinterpret_cast<__nv_bfloat162*>(&a);
  __nv_bfloat162 y = *reinterpret_cast<__nv_bfloat162*>(&b);
  x = __hsub2(x, y);
  return *reinterpret_cast<unsigned*>(&x);
}

__device__ inline unsigned without(unsigned a, unsigned b, __half) {
  __half2 x = __hsub2(*reinterpret_cast<__half2*>(&a), *reinterpret_cast<__half2*>(&b));
  return *reinterpret_cast<unsigned*>(&x);
}

__device__ inline unsigned scaled_pair(unsigned a, unsigned b, unsigned c, __nv_bfloat16) {
  __nv_bfloat162 x = __hfma2(
      *reinterpret_cast<__nv_bfloat162*>(&a), *reinterpret_cast<__nv_bfloat162*>(&b), *reinterpret_cast<__nv_bfloat162*>(&c));
  return *reinterpret_cast<unsigned*>(&x);
}

__device__ inline unsigned scaled_pair(unsigned a, unsigned b, unsigned c, __half) {
  __half2 x = __hfma2(*reinterpret_cast<__half2*>(&a), *reinterpret_cast<__half2*>(&b), *reinterpret_cast<__half2*>(&c));
  return *reinterpret_cast<unsigned*>(&x);
}

__device__ inline void multiply_tile(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, __nv_bfloat16) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ inline void multiply_tile(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, __half) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// A pair of powers of two whose lowest mantissa bits take a 4-bit code unchanged.
__device__ inline unsigned power_of_codes(__nv_bfloat16) {
  return 0x43004300u;
}

__device__ inline unsigned power_of_codes(__half) {
  return 0x64006400u;
}

// A number twice.
__device__ inline unsigned twice(__nv_bfloat16 v) {
  return __bfloat16_as_ushort(v) * 0x10001u;
}

__device__ inline unsigned twice(__half v) {
  return __half_as_ushort(v) * 0x10001u;
}

// Eight codes as pairs (0, 4), (1, 5), (2, 6), (3, 7). A code is placed in the mantissa of a power
// of two, which is then subtracted; the result is exact.
template <typename T>
__device__ inline void unpack_pairs(unsigned w, unsigned scale, unsigned bias, unsigned (&pair)[4]) {
  unsigned power = power_of_codes(T{});
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    pair[i] = scaled_pair(without((w >> (4 * i) & 0x000F000Fu) | power, power, T{}), scale, bias, T{});
  }
}
