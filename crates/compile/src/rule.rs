//! Quantization rules for weights selected by name.

use flambeau_lower::Scheme;

/// The quantization of weights selected by name, independent of the nodes that read them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightRule {
    /// Pattern of qualified names. `*` matches any characters.
    pub pattern: String,
    pub layers: Layers,
    /// `None` keeps floats.
    pub scheme: Option<Scheme>,
    /// Whether a program may lack a matching weight.
    pub is_optional: bool,
}

/// Layers that a rule applies to. A layer number follows the part `layers` in a weight's name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Layers {
    /// All layers, and weights outside of layers.
    #[default]
    All,
    /// The first and the last quarter of the layers, rounded up.
    Edges,
}

impl Layers {
    fn hold(self, name: &str, count: usize) -> bool {
        let quarter = count.div_ceil(4);
        match self {
            Layers::All => true,
            Layers::Edges => layer_of(name).is_some_and(|layer| layer < quarter || layer + quarter >= count),
        }
    }
}

impl WeightRule {
    /// Whether the rule applies to a weight of a program with `layers` layers.
    pub(crate) fn is_about(&self, name: &str, layers: usize) -> bool {
        fits(&self.pattern, name) && self.layers.hold(name, layers)
    }
}

/// The number of layers, from the names of weights.
pub(crate) fn layer_count<'a>(names: impl Iterator<Item = &'a str>) -> usize {
    names.filter_map(layer_of).max().map_or(0, |last| last.saturating_add(1))
}

fn layer_of(name: &str) -> Option<usize> {
    let mut parts = name.split('.').skip_while(|part| *part != "layers");
    parts.nth(1)?.parse().ok()
}

/// Whether a name matches a pattern. `*` matches any characters.
fn fits(pattern: &str, name: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(mut name) = name.strip_prefix(start) else { return false };
    let mut parts = rest.split('*').collect::<Vec<_>>();
    let end = parts.pop().unwrap_or_default();
    for part in parts {
        match name.find(part) {
            Some(at) => name = &name[at + part.len()..],
            None => return false,
        }
    }
    name.ends_with(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_stand_for_any_characters() {
        for (pattern, name, is_fitting) in [
            ("a.b", "a.b", true),
            ("a.b", "a.bc", false),
            ("*.v_proj.weight", "model.layers.3.self_attn.v_proj.weight", true),
            ("model.*.mlp.*", "model.layers.3.mlp.down_proj.weight", true),
            ("*", "", true),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-c-b", false),
            ("ab*bc", "abc", false),
        ] {
            assert_eq!(fits(pattern, name), is_fitting, "{pattern} {name}");
        }
    }

    #[test]
    fn edges_are_quarters_of_the_layers() {
        let name = |layer: usize| format!("model.layers.{layer}.mlp.down_proj.weight");
        let edges = |count: usize| (0..count).filter(|&i| Layers::Edges.hold(&name(i), count)).collect::<Vec<_>>();
        assert_eq!(edges(8), [0, 1, 6, 7]);
        assert_eq!(edges(5), [0, 1, 3, 4]);
        assert_eq!((edges(1), edges(2)), (vec![0], vec![0, 1]));
        assert!(!Layers::Edges.hold("model.embed_tokens.weight", 8));
        let names: Vec<String> = (0..5).map(name).collect();
        assert_eq!(layer_count(names.iter().map(String::as_str).chain(["lm_head.weight"])), 5);
    }
}
