//! Gated layers.

use super::Decoder;
use crate::{
    Result,
    builder::Val,
    spec::{Activation, Mlp, MlpBias},
};

impl Decoder<'_> {
    pub(super) fn mlp(&mut self, x: &Val, mlp: &Mlp, path: &str) -> Result<Val> {
        let (n, names) = (mlp.width, mlp.names);
        let (gate, up) = if mlp.joined {
            let joined = format!("{path}.gate_up_proj");
            let mut one = |part: &str, from| {
                let source = self.w.part(&format!("{joined}.weight"), [2 * n, self.config.hidden], from, n)?;
                self.w.project(x, &joined, &format!("{joined}.{part}.weight"), &source, false)
            };
            (one("gate", 0)?, one("up", n)?)
        } else {
            let mut one = |part: &str| self.w.linear(x, &format!("{path}.{part}"), n, mlp.bias == MlpBias::All);
            (one(names.gate)?, one(names.up)?)
        };
        self.w.b.enter(path);
        let gated = self.gated(&gate, &up, mlp.activation);
        self.w.linear(&gated, &format!("{path}.{}", names.down), self.config.hidden, mlp.bias != MlpBias::None)
    }

    /// What a gate lets through.
    pub(super) fn gated(&mut self, gate: &Val, up: &Val, activation: Activation) -> Val {
        if let Activation::ClampedSwish { alpha, limit } = activation {
            let gate = self.w.b.clamp(gate, f64::NEG_INFINITY, limit);
            let up = self.w.b.clamp(up, -limit, limit);
            let steep = self.w.b.scale(&gate, alpha);
            let open = self.w.b.sigmoid(&steep);
            let gate = self.w.b.mul(&gate, &open);
            let up = self.w.b.shift(&up, 1.0);
            return self.w.b.mul(&up, &gate);
        }
        let gate = self.activated(gate, activation);
        self.w.b.mul(&gate, up)
    }

    /// An activation of one operand.
    pub(super) fn activated(&mut self, x: &Val, activation: Activation) -> Val {
        match activation {
            Activation::Silu | Activation::ClampedSwish { .. } => self.w.b.silu(x),
            Activation::GeluTanh => self.w.b.gelu(x, true),
            Activation::GeluErf => self.w.b.gelu(x, false),
        }
    }
}
