//! Limits that readers impose on files. [`flambeau_ir::limits`] holds the limits of graphs.

/// Largest number of tables visited in one FlatBuffer. A shared table counts once per visit.
pub const MAX_TABLES: usize = 1_000_000;

/// Largest number of entries of one vector of numbers, structs, strings or tables.
pub const MAX_VECTOR_ENTRIES: usize = 1_000_000;

/// Bytes that decoding may visit or allocate per byte of a FlatBuffer. Offsets may share targets,
/// so a small buffer can describe far more data than it holds. Files from writers need less than a
/// tenth of this.
pub const WORK_PER_BYTE: usize = 64;

/// Bytes that decoding may always visit or allocate, even for a small FlatBuffer.
pub const MIN_WORK: usize = 16 << 20;

/// Largest number of bytes that decoding a FlatBuffer may visit or allocate. Data of segments and
/// payloads does not count.
pub const MAX_WORK: usize = 1 << 30;

/// Newest supported version of the MLX graph format.
pub const MAX_MLX_VERSION: u32 = 1;
