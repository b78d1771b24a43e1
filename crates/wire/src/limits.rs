//! Every limit that a reader imposes on a file, by name. Those of graphs are [`flambeau_ir::limits`].

/// Tables visited in one FlatBuffer. A table that several offsets share counts once per visit.
pub const MAX_TABLES: usize = 1_000_000;

/// Entries of one vector of numbers, structs, strings or tables.
pub const MAX_VECTOR_ENTRIES: usize = 1_000_000;

/// Bytes that decoding one FlatBuffer may visit or allocate, per byte of it. Offsets may share targets, so a small buffer can
/// describe far more than it holds; what writers produce stays below a tenth of this.
pub const WORK_PER_BYTE: usize = 64;

/// Bytes that decoding may visit or allocate however small the FlatBuffer is.
pub const MIN_WORK: usize = 16 << 20;

/// Bytes that decoding may visit or allocate however large the FlatBuffer is. Data of segments and payloads does not count.
pub const MAX_WORK: usize = 1 << 30;

/// Newest version of the MLX graph format that is understood.
pub const MAX_MLX_VERSION: u32 = 1;
