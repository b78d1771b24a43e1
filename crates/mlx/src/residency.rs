//! The number of concurrently resident blocks of a CUDA device, and the shared memory of each.

use flambeau_tensor::{DType, Shape};

use crate::{
    error::Result,
    ffi::{Api, Kernel, KernelText, Launch},
};

/// Resources of a device for one resident grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Residency {
    /// Multiprocessors: as many blocks are resident, one on each.
    pub(crate) blocks: usize,
    /// Bytes of shared memory that a block may have.
    pub(crate) shared_memory: usize,
}

/// Maximum number of multiprocessors that the measurement distinguishes.
const MOST: usize = 1023;

/// Blocks of the measurement: several for every multiprocessor of any device.
const BLOCKS: i32 = 4096;

/// Bytes of shared memory of a block by compute capability, without the static shared memory of
/// kernels. 0 for devices without asynchronous copies. Source: technical specifications in the CUDA
/// C++ Programming Guide.
fn shared_memory(capability: u32) -> usize {
    let kib = match capability {
        0..800 => return 0,
        800 | 870 => 163,
        900 | 1000 | 1030 | 1100 => 227,
        _ => 99,
    };
    (kib - 1) << 10
}

/// Measures the current device. It may find fewer multiprocessors than exist, never more.
///
/// # Errors
/// If MLX fails.
pub(crate) fn measure(api: Api) -> Result<Residency> {
    // Every block marks its multiprocessor. It runs long enough that later blocks need others.
    let source = format!(
        "unsigned at;asm volatile(\"mov.u32 %0, %%smid;\":\"=r\"(at));
         if(threadIdx.x==0&&at<{MOST})seen[at]=1;
         if(blockIdx.x==0&&threadIdx.x==0)seen[{MOST}]=__CUDA_ARCH__;
         long long begin=clock64();while(clock64()-begin<2000){{}}"
    );
    let kernel = Kernel::new(
        api,
        &KernelText {
            is_cuda: true,
            name: "flambeau_residency",
            source: &source,
            header: "",
            inputs: &[],
            outputs: &["seen".to_owned()],
            row_contiguous: true,
            atomic_outputs: false,
            shared_memory: 0,
        },
    )?;
    let outputs = [(DType::U32, Shape::from_slice(&[MOST + 1]))];
    let launch = Launch { outputs: &outputs, grid: [BLOCKS * 1024, 1, 1], threads: [1024, 1, 1], templates: &[], init: Some(0.0) };
    let array = kernel.launch(&[], &launch)?.into_iter().next();
    let seen = array.map(|array| array.cast(DType::I32)?.to_tensor()).transpose()?;
    let seen = seen.map(|seen| crate::values::integers(&seen)).transpose()?.unwrap_or_default();
    let capability = seen.get(MOST).map_or(0, |&v| u32::try_from(v).unwrap_or(0));
    let blocks = seen.iter().take(MOST).filter(|&&v| v != 0).count();
    Ok(Residency { blocks, shared_memory: shared_memory(capability) })
}
