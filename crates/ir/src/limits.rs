//! Limits on graphs. A graph beyond a limit is refused, and the error names the quantity.

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

/// Axes of a tensor.
pub const MAX_RANK: usize = 16;

/// Elements along one axis. Sizes have 32 bits on the wire and in MLX.
pub const MAX_DIM: i64 = i32::MAX as i64;

/// Bytes of a node's result, including views.
pub const MAX_TENSOR_BYTES: i64 = 1 << 36;

/// Bytes of a result created only from attributes, and of one mutable buffer.
pub const MAX_CREATED_BYTES: i64 = 1 << 32;

/// Depth of nested chains: the main chain, a branch in it, a branch in that branch.
pub const MAX_CHAIN_DEPTH: u64 = 64;

/// Nodes and list entries visited by one pass over a graph that follows calls. A chain counts once
/// per call site.
pub const MAX_VISITED: u64 = 16_000_000;

/// Visits of one pass per node and list entry of the graph, beyond [`FREE_VISITS`]. Exporters write
/// a chain for each branch, so a pass visits every node once.
pub const VISITS_PER_ENTRY: u64 = 8;

/// Visits of one pass that any graph may need.
pub const FREE_VISITS: u64 = 1 << 14;

/// [Weight](flambeau_tensor::Expr::weight) of a symbolic size. A larger expression becomes a fresh
/// symbol, so chains of nodes cannot grow sizes without bound.
pub const MAX_SIZE_WEIGHT: usize = 128;
