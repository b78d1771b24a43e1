//! The source text of the decoder-layer kernel, and its partition of rows and shared memory.

use std::fmt::Write as _;

use flambeau_tensor::DType;

use super::{
    attention::{Attention, MAX_HEADS, SPLIT_ROWS, SPLITS},
    linear::{Format, staged_bytes},
};
use crate::{
    cuda,
    cx::Machine,
    error::Result,
    ffi::{Kernel, KernelText},
    residency::Residency,
};

/// Warps of a block, as the kernel has them.
const WARPS: usize = 16;
/// Threads of a block.
pub(super) const THREADS: usize = WARPS * 32;
/// Number of counters after the key heads' counters: arrivals at barriers, and finished blocks.
pub(super) const COUNTERS: usize = 2;
/// Bytes of a matrix row per step of a warp, and rows per step.
const CHUNK: usize = 512;
const ROWS: usize = 4;
/// Steps whose weights are prefetched while a warp computes. With more, other loads would queue
/// behind them.
const SLOTS: usize = 1;
/// Pointers that a launch may have as arguments: CUDA takes 32,764 bytes of them.
const MAX_PLACES: usize = 4000;

/// A product of a layer: columns, tiles of rows, and the partition over warps. `ends` are the tile
/// counts up to the end of the first and the second matrix.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Product {
    k: usize,
    tiles: usize,
    ends: [usize; 2],
    chunks: usize,
    /// Logarithm of the number of warps that share a tile's columns, and chunks for each.
    ways: u32,
    each: usize,
    place: usize,
    gated: bool,
    partial: usize,
}

/// Compile-time parameters of the kernel.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct LayerSizes {
    device: Residency,
    dtype: DType,
    bits: usize,
    group: usize,
    layers: usize,
    hidden: usize,
    inner: usize,
    heads: usize,
    key_heads: usize,
    dim: usize,
    has_norms: bool,
    has_periods: bool,
}

/// Bytes of a block's shared memory, one part behind the other.
struct Memory {
    rows: usize,
    partial: usize,
    places: usize,
    rings: usize,
}

impl Memory {
    fn total(&self) -> usize {
        self.rows + self.partial + self.places + self.rings
    }
}

impl LayerSizes {
    /// The sizes, if the kernel takes them on the device.
    pub(super) fn of(
        device: Residency,
        dtype: DType,
        format: Format,
        layers: usize,
        [hidden, inner]: [usize; 2],
        attention: &Attention,
    ) -> Option<LayerSizes> {
        let (bits, group) = format.bits_and_group();
        let sizes = LayerSizes {
            device,
            dtype,
            bits,
            group,
            layers,
            hidden,
            inner,
            heads: attention.q.count,
            key_heads: attention.key_heads,
            dim: attention.q.dim,
            has_norms: attention.q.norm.is_some(),
            has_periods: attention.q.rope.is_some_and(|r| r.periods.is_some()),
        };
        sizes.fits().then_some(sizes)
    }

    fn fits(&self) -> bool {
        let columns = [self.hidden, self.heads * self.dim, self.inner];
        // Copies are of 16 bytes, of rows and of their scales.
        let whole =
            |k: usize| (k * self.bits / 8).is_multiple_of(16) && (self.bits == 16 || (k / self.group * 2).is_multiple_of(16));
        let scales = self.bits == 16 || (1..=4).contains(&(self.scales() / 16)) && self.scales().is_multiple_of(16);
        let rows = [self.hidden, self.heads * self.dim, self.key_heads * self.dim, self.inner];
        columns.iter().all(|&k| whole(k) && k.is_multiple_of(32))
            && rows.iter().all(|r| r.is_multiple_of(ROWS))
            && scales
            && self.device.blocks > 0
            && self.layers * self.layer_places() <= MAX_PLACES
            && self.memory().total() <= self.device.shared_memory
    }

    /// Blocks of the launch, all resident.
    pub(super) fn blocks(&self) -> usize {
        self.device.blocks
    }

    /// Bytes of the scales of one row of a chunk.
    fn scales(&self) -> usize {
        if self.bits == 16 { 0 } else { CHUNK * 8 / self.bits / self.group * 2 }
    }

    /// Pointers of a matrix, and of a layer.
    fn matrix_places(&self) -> usize {
        if self.bits == 16 { 1 } else { 3 }
    }

    fn layer_places(&self) -> usize {
        4 + 7 * self.matrix_places() + if self.has_norms { 2 } else { 0 }
    }

    /// Maximum number of position ranges distributed over blocks.
    fn splits(&self) -> usize {
        SPLITS.min(self.device.blocks / self.key_heads).max(1)
    }

    /// Elements of the rows that products leave for one another.
    fn rows(&self) -> [usize; 4] {
        let heads = self.heads * self.dim;
        [self.hidden, heads + 2 * self.key_heads * self.dim, heads, self.inner].map(|n| n.next_multiple_of(64))
    }

    /// Elements of scratch memory, in the type of the model.
    pub(super) fn scratch(&self) -> usize {
        self.rows().iter().sum()
    }

    /// Elements that attention's ranges leave for one another, f32.
    pub(super) fn parts(&self) -> usize {
        self.heads * self.splits() * (self.dim + 2)
    }

    fn product(&self, k: usize, rows: &[usize], gated: bool, place: usize) -> Product {
        let tiles = if gated { rows[0] / 2 } else { rows.iter().sum::<usize>() / ROWS };
        let ends = if gated { [tiles; 2] } else { [rows[0] / ROWS, rows.iter().take(2).sum::<usize>() / ROWS] };
        let chunks = (k * self.bits / 8).div_ceil(CHUNK);
        let of_block = tiles.div_ceil(self.device.blocks.max(1));
        let (ways, each) = share_out(of_block, chunks);
        Product { k, tiles, ends, chunks, ways, each, place, gated, partial: (of_block << ways) * ROWS }
    }

    /// The products of a layer, and the other places: the second norm, the norms of query and key,
    /// the caches. A layer's places begin with the first norm.
    fn products(&self) -> ([Product; 4], [usize; 3]) {
        let (heads, keys, matrix) = (self.heads * self.dim, self.key_heads * self.dim, self.matrix_places());
        let head_norms = 1 + 3 * matrix;
        let caches = head_norms + if self.has_norms { 2 } else { 0 };
        let o = caches + 2;
        let norm = o + matrix;
        let products = [
            self.product(self.hidden, &[heads, keys, keys], false, 1),
            self.product(heads, &[self.hidden], false, o),
            self.product(self.hidden, &[self.inner; 2], true, norm + 1),
            self.product(self.inner, &[self.hidden], false, norm + 1 + 2 * matrix),
        ];
        (products, [norm, head_norms, caches])
    }

    fn memory(&self) -> Memory {
        let (products, _) = self.products();
        let staged = products.iter().map(|p| staged_bytes(self.bits, p.k)).max().unwrap_or(0);
        let group = self.heads / self.key_heads;
        let attention = (group * self.dim + self.dim + 2 * WARPS * group + WARPS * group * self.dim) * 4;
        let slot = ROWS * (CHUNK + 2 * self.scales());
        Memory {
            rows: staged.max(attention).next_multiple_of(128),
            partial: (products.iter().map(|p| p.partial).max().unwrap_or(0) * 4).next_multiple_of(128),
            places: (self.layers * self.layer_places() * 8).next_multiple_of(128),
            rings: WARPS * SLOTS * slot,
        }
    }
}

/// The number of warps per tile (as a logarithm) and the chunks per warp. The choice minimises the
/// rounds of all warps; a sum costs a little more than half a chunk.
fn share_out(tiles: usize, chunks: usize) -> (u32, usize) {
    let cost = |&(ways, each): &(u32, usize)| (tiles << ways).div_ceil(WARPS) * (5 * each + 3);
    let choices = (0..5).filter(|&ways| ways == 0 || 1 << ways <= chunks).map(|ways| (ways, chunks.div_ceil(1 << ways)));
    choices.min_by_key(cost).unwrap_or((0, chunks))
}

/// The kernel.
///
/// # Errors
/// If MLX refuses it.
pub(super) fn kernel(m: &Machine, sizes: &LayerSizes, attention: &Attention, eps: f32) -> Result<Kernel> {
    let count = sizes.layers * sizes.layer_places();
    let mut inputs: Vec<String> = ["x", "position", "counters"].map(str::to_owned).into();
    inputs.extend(sizes.has_periods.then(|| "periods".to_owned()));
    inputs.extend((0..count).map(|i| format!("p{i}")));
    let memory = sizes.memory().total();
    let kernel = KernelText {
        is_cuda: true,
        // MLX sets a kernel's shared memory when it first sees its name and text, so both include
        // all sizes.
        name: &format!("flambeau_layers_{}_{}_{memory}", sizes.bits, sizes.layers),
        source: &source(sizes, attention, eps),
        header: cuda::layers(),
        inputs: &inputs,
        outputs: &["out", "scratch", "parts"].map(str::to_owned),
        row_contiguous: true,
        atomic_outputs: false,
        shared_memory: memory as i32,
    };
    Ok(Kernel::new(m.api, &kernel)?)
}

/// The kernel's body.
fn source(sizes: &LayerSizes, attention: &Attention, eps: f32) -> String {
    let ty = cuda::type_name(sizes.dtype).unwrap_or_default();
    let (memory, (products, [norm, head_norms, caches])) = (sizes.memory(), sizes.products());
    let tables = memory.rows + memory.partial;
    let mut text = format!(
        "extern __shared__ float shared[];__shared__ Product products[4];char* base=reinterpret_cast<char*>(shared);\n\
         const char** places=reinterpret_cast<const char**>(base+{tables});\n"
    );
    // Every warp writes its share of the pointers. Writing to a string cannot fail.
    let count = sizes.layers * sizes.layer_places();
    for (warp, first) in (0..count).step_by(count.div_ceil(WARPS)).enumerate() {
        let _ = writeln!(text, "if(threadIdx.x=={}){{", warp * 32);
        for i in first..count.min(first + count.div_ceil(WARPS)) {
            let _ = writeln!(text, "places[{i}]=reinterpret_cast<const char*>(p{i});");
        }
        text.push_str("}\n");
    }
    text.push_str("if(threadIdx.x==0){\n");
    for (i, p) in products.iter().enumerate() {
        let Product { k, tiles, ends: [first, second], chunks, ways, each, place, gated, .. } = p;
        let gated = u8::from(*gated);
        let _ = writeln!(text, "products[{i}]={{{k},{tiles},{first},{second},{chunks},{ways},{each},{place},{gated}}};");
    }
    text.push_str("}\n__syncthreads();\n");
    let [x, qkv, attended, _] = sizes.rows();
    let (at_qkv, at_attended, at_hidden) = (x, x + qkv, x + qkv + attended);
    let rope = attention.q.rope.map_or(0.0, |r| if sizes.has_periods { 0.0 } else { r.base.log2() });
    let head_eps = attention.q.norm.map_or(0.0, |n| n.1);
    let (layers, each, key_heads) = (sizes.layers, sizes.layer_places(), sizes.key_heads);
    let head_norms = if sizes.has_norms { head_norms as i64 } else { -1 };
    let periods = if sizes.has_periods { "periods" } else { "nullptr" };
    let _ = write!(
        text,
        "unsigned* tickets=const_cast<unsigned*>(counters);int at=*position;int splits=min({},1+at/{SPLIT_ROWS});\n\
         Layers<{ty}> s{{x,out,scratch,scratch+{at_qkv},scratch+{at_attended},scratch+{at_hidden},parts,tickets+{MAX_HEADS},tickets,\
         {periods},{layers},{each},{{0,{norm}}},{head_norms},{caches},{key_heads},{},splits,at,{:e}f,{rope:e}f,{eps:e}f,{head_eps:e}f}};\n",
        sizes.splits(),
        attention.capacity,
        attention.scale,
    );
    let _ = write!(
        text,
        "Decoder<{ty},{},{},{},{},{SLOTS}> d{{s,products,places,base,reinterpret_cast<float*>(base+{})}};d.run(base+{});",
        sizes.bits,
        sizes.group,
        sizes.dim,
        sizes.heads / sizes.key_heads,
        memory.rows,
        tables + memory.places,
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A model with 32 heads, 8 key heads and weights of `bits`, on 132 multiprocessors with
    /// `shared_memory` KiB per block.
    fn sizes([hidden, inner, dim, layers]: [usize; 4], bits: usize, shared_memory: usize) -> LayerSizes {
        let device = Residency { blocks: 132, shared_memory: shared_memory << 10 };
        let (dtype, group, heads, key_heads) = (DType::BF16, 64, 32, 8);
        let (has_norms, has_periods) = (dim == 128, false);
        LayerSizes { device, dtype, bits, group, layers, hidden, inner, heads, key_heads, dim, has_norms, has_periods }
    }

    const LLAMA_1B: [usize; 4] = [2048, 8192, 64, 16];
    const QWEN_8B: [usize; 4] = [4096, 12288, 128, 36];

    #[test]
    fn models_of_one_and_eight_billion_weights_fit_a_block_of_99_kib() {
        for shape in [LLAMA_1B, QWEN_8B] {
            for bits in [4, 16] {
                assert!(sizes(shape, bits, 98).fits(), "{shape:?} at {bits} bits");
            }
            assert!(!sizes(shape, 4, 48).fits(), "{shape:?} with too little shared memory");
        }
        let [hidden, inner, dim, _] = QWEN_8B;
        assert!(!sizes([hidden, inner, dim, 1000], 4, 1024).fits(), "more arguments than a launch takes");
        assert!(!sizes([hidden + 8, inner, dim, 36], 16, 226).fits(), "rows that are no whole steps");
    }

    #[test]
    fn warps_share_what_a_block_computes() {
        // Six tiles of two chunks: twelve halves are one round of sixteen warps. Thirty-two tiles
        // fill every warp twice.
        assert_eq!((share_out(6, 2), share_out(32, 2), share_out(1, 40)), ((1, 1), (0, 2), (4, 3)));
        for shape in [LLAMA_1B, QWEN_8B] {
            let (products, _) = sizes(shape, 4, 226).products();
            for p in products {
                assert!(p.each << p.ways >= p.chunks && p.partial * 132 >= p.tiles * ROWS, "{p:?}");
            }
        }
    }
}
