//! Bounds on what an archive may ask for. Each is far above what real programs need.

/// Bytes of one program's JSON.
pub const MAX_JSON_BYTES: usize = 1 << 30;
/// Nodes of a program, sub-graphs included.
pub const MAX_NODES: usize = 1 << 20;
/// Nesting depth of sub-graphs.
pub const MAX_GRAPH_NESTING: usize = 8;
/// Dims of a tensor.
pub const MAX_RANK: usize = 64;
/// Bytes of a symbolic expression's text.
pub const MAX_EXPR_BYTES: usize = 64 << 10;
/// Operators and operands of a symbolic expression.
pub const MAX_EXPR_NODES: usize = 1024;
/// Nesting of a symbolic expression.
pub const MAX_EXPR_DEPTH: usize = 64;
/// Terms to which a product of symbolic sums may expand; beyond, it stays opaque.
pub const MAX_EXPR_TERMS: usize = 256;
/// Factors of a symbolic term; beyond, it stays opaque.
pub const MAX_EXPR_DEGREE: usize = 64;
/// [Weight](flambeau_tensor::Expr::weight) of a product of symbolic sums; beyond, it stays opaque.
pub const MAX_EXPR_WEIGHT: usize = 1 << 14;
/// Bytes of one pickle, without its storages.
pub const MAX_PICKLE_BYTES: usize = 64 << 20;
/// Entries of a tensor subclass, and items of one of its attributes.
pub const MAX_ATTRIBUTE_ITEMS: usize = 64;
/// Bytes of a text attribute of a tensor subclass.
pub const MAX_ATTRIBUTE_BYTES: usize = 4096;
/// How many times larger than the archive a deflated member may become, beyond [`FREE_INFLATION`].
pub const MAX_INFLATION_RATIO: u64 = 64;
/// Bytes that any deflated member may inflate to.
pub const FREE_INFLATION: u64 = 64 << 20;
/// How many times larger than the archive all members together may be. Deflation cannot do more, so that members beyond this share
/// their data.
pub const MAX_TOTAL_RATIO: u64 = 1032;
/// How many times larger than its storage a repeating view (stride 0) may become, beyond [`FREE_EXPANSION`].
pub const MAX_EXPANSION_RATIO: usize = 64;
/// Bytes that any repeating view may be written out to.
pub const FREE_EXPANSION: usize = 64 << 20;
