// A grid-wide barrier. The grid must be resident: at most one block per multiprocessor. `state`
// counts arrivals at barriers and finished blocks; it is zero before and after a launch.

struct Barrier {
  unsigned* state;
  unsigned expected;

  // Makes the block's writes visible to the waiting blocks.
  __device__ void arrive() {
    __syncthreads();
    if (threadIdx.x == 0) {
      asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(state) : "memory");
    }
    expected += gridDim.x;
  }

  __device__ void wait() {
    if (threadIdx.x == 0) {
      unsigned seen;
      unsigned polls = 0;
      do {
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(state) : "memory");
        // A grid that is not resident as a whole would wait for ever; an error is better.
        if (++polls == 1u << 26) {
          asm volatile("trap;");
        }
      } while (seen < expected);
    }
    __syncthreads();
  }

  // Resets the state to zero.
  __device__ void leave() {
    if (threadIdx.x == 0) {
      unsigned before;
      asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(state + 1) : "memory");
      if (before == gridDim.x - 1) {
        state[0] = 0;
        state[1] = 0;
      }
    }
  }
};
