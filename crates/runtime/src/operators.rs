//! The operators that run outside of delegates.

use std::collections::BTreeSet;

use flambeau_aten::schema;
use flambeau_lower::rule_rows;

/// Names of operators that programs may call outside of delegates, in the form of ExecuTorch's
/// kernel registry: `aten::add.out`.
pub fn operator_names() -> BTreeSet<String> {
    let kernels = rule_rows().filter_map(|row| {
        let schema = schema(row.target)?;
        schema.copying().unwrap_or(schema).out_variant()
    });
    kernels.map(|kernel| format!("{}::{}.{}", kernel.namespace, kernel.name, kernel.overload)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_are_named_as_kernels_are_registered() {
        let names = operator_names();
        for name in ["aten::add.out", "aten::mm.out", "aten::view_copy.out"] {
            assert!(names.contains(name), "{name} is not in {names:?}");
        }
        assert!(names.iter().all(|name| name.contains("::") && !name.ends_with('.')), "{names:?}");
    }
}
