//! Limits on archives. Each is far above the needs of real programs.

/// Bytes of one program's JSON.
pub const MAX_JSON_BYTES: usize = 1 << 30;
/// Nodes of a program, including sub-graphs.
pub const MAX_NODES: usize = 1 << 20;
/// Nesting depth of sub-graphs.
pub const MAX_GRAPH_NESTING: usize = 8;
/// Axes of a tensor.
pub const MAX_RANK: usize = 64;
/// Bytes of a symbolic expression's text.
pub const MAX_EXPR_BYTES: usize = 64 << 10;
/// Operators and operands of a symbolic expression.
pub const MAX_EXPR_NODES: usize = 1024;
/// Nesting of a symbolic expression.
pub const MAX_EXPR_DEPTH: usize = 64;
/// Terms of an expanded product of symbolic sums. A larger product stays opaque.
pub const MAX_EXPR_TERMS: usize = 256;
/// Factors of a symbolic term. A larger term stays opaque.
pub const MAX_EXPR_DEGREE: usize = 64;
/// [Weight](flambeau_tensor::Expr::weight) of a product of symbolic sums. A larger product stays
/// opaque.
pub const MAX_EXPR_WEIGHT: usize = 1 << 14;
/// Bytes of one pickle, without its storages.
pub const MAX_PICKLE_BYTES: usize = 64 << 20;
/// Entries of a tensor subclass, and items of one of its attributes.
pub const MAX_ATTRIBUTE_ITEMS: usize = 64;
/// Bytes of a text attribute of a tensor subclass.
pub const MAX_ATTRIBUTE_BYTES: usize = 4096;
/// Ratio of a deflated member's size to the archive's size, beyond [`FREE_INFLATION`] bytes.
pub const MAX_INFLATION_RATIO: u64 = 64;
/// Inflated size that any deflated member may have, in bytes.
pub const FREE_INFLATION: u64 = 64 << 20;
/// Ratio of the total size of all members to the archive's size. Deflation cannot exceed it, so
/// larger totals mean that members share data.
pub const MAX_TOTAL_RATIO: u64 = 1032;
/// Ratio of the size of a repeating view (stride 0) to its storage, beyond [`FREE_EXPANSION`]
/// bytes.
pub const MAX_EXPANSION_RATIO: usize = 64;
/// Expanded size that any repeating view may have, in bytes.
pub const FREE_EXPANSION: usize = 64 << 20;
