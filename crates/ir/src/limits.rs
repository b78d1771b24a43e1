//! Every bound on a graph, by name. A graph beyond one is refused, with the name of what is too large.

/// Tensor slots of a graph.
pub const MAX_TENSOR_SLOTS: u64 = 1_000_000;

/// Value slots of a graph.
pub const MAX_VALUE_SLOTS: u32 = 1_000_000;

/// Chains of a graph.
pub const MAX_CHAINS: usize = 1_000_000;

/// Nodes of one chain.
pub const MAX_CHAIN_NODES: usize = 1_000_000;

/// Entries of each slot map, of the name list and of the metadata list.
pub const MAX_MAP_ENTRIES: usize = 1_000_000;

/// Entries of a list within a node.
pub const MAX_LIST: usize = 1_000_000;

/// Dims of a tensor.
pub const MAX_RANK: usize = 16;

/// Elements along one axis: sizes are 32-bit on the wire and in MLX.
pub const MAX_DIM: i64 = i32::MAX as i64;

/// Bytes of a tensor that a node makes, views included.
pub const MAX_TENSOR_BYTES: i64 = 1 << 36;

/// Bytes of a tensor that a node makes out of nothing but its attributes, and of one mutable buffer.
pub const MAX_CREATED_BYTES: i64 = 1 << 32;

/// Chains that run one another: main, a branch in it, a branch in that, and so on.
pub const MAX_CHAIN_DEPTH: u64 = 64;

/// Nodes and list entries that one pass over a graph visits when it follows calls: a chain counts once for every place that runs
/// it.
pub const MAX_VISITED: u64 = 16_000_000;

/// Visits of one pass for each node and list entry that the graph has, beyond [`FREE_VISITS`]. Exporters write a chain for each
/// branch, so that a pass visits every node once.
pub const VISITS_PER_ENTRY: u64 = 8;

/// Visits that a pass over any graph may make.
pub const FREE_VISITS: u64 = 1 << 14;

/// [Weight](flambeau_tensor::Expr::weight) of a symbolic size. A larger expression becomes a fresh symbol, so chains of nodes cannot grow sizes without bound.
pub const MAX_SIZE_WEIGHT: usize = 128;
