//! Gated layers.

use flambeau_tensor::DType;

use super::Decoder;
use crate::{
    Result,
    builder::Val,
    spec::{Activation, Mlp, MlpBias},
};

impl Decoder<'_> {
    pub(super) fn mlp(&mut self, x: &Val, mlp: &Mlp, path: &str) -> Result<Val> {
        let (n, names) = (mlp.width, mlp.names);
        if !mlp.gated {
            let up = self.w.linear(x, &format!("{path}.{}", names.up), n, mlp.bias == MlpBias::All)?;
            self.w.b.enter(path);
            let active = match mlp.activation {
                Activation::Xielu => self.xielu(&up, path)?,
                activation => self.activated(&up, activation),
            };
            return self.w.linear(&active, &format!("{path}.{}", names.down), self.config.hidden, mlp.bias != MlpBias::None);
        }
        let (gate, up) = if mlp.joined {
            let joined = format!("{path}.gate_up_proj");
            let mut one = |part: &str, from| {
                let source = self.w.part(&format!("{joined}.weight"), [2 * n, self.config.hidden], from, n)?;
                self.w.project(x, &joined, &format!("{joined}.{part}.weight"), &source, false)
            };
            (one("gate", 0)?, one("up", n)?)
        } else {
            let mut one = |part: &str| self.w.begin(x, &format!("{path}.{part}"), n, mlp.bias == MlpBias::All);
            let [gate, up] = [one(names.gate)?, one(names.up)?];
            (self.w.end(gate)?, self.w.end(up)?)
        };
        self.w.b.enter(path);
        let gate = self.w.b.scale(&gate, mlp.factors[0]);
        let gate = mlp.cutoff.map_or(gate.clone(), |deviations| self.excess(&gate, deviations));
        let gated = self.gated(&gate, &up, mlp.activation);
        let gated = self.norm_if(&gated, path, mlp.inner_norm)?;
        let y = self.w.linear(&gated, &format!("{path}.{}", names.down), self.config.hidden, mlp.bias != MlpBias::None)?;
        Ok(self.w.b.scale(&y, mlp.factors[1]))
    }

    /// Applies a gate.
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

    /// The part of `x` above its mean plus `deviations` standard deviations over the last axis, and
    /// 0 below.
    fn excess(&mut self, x: &Val, deviations: f64) -> Val {
        let b = &mut self.w.b;
        let wide = b.cast(x, DType::F32);
        let mean = b.mean(&wide);
        let centered = b.sub(&wide, &mean);
        let squares = b.mul(&centered, &centered);
        let variance = b.mean(&squares);
        let deviation = b.sqrt(&variance);
        let limit = b.scale(&deviation, deviations);
        let above = b.sub(&centered, &limit);
        let above = b.relu(&above);
        b.cast(&above, x.dtype)
    }

    /// `ap * max(x, 0)^2 + an * (expm1(min(x, 0)) - min(x, 0)) + x / 2` with learned `ap` and `an`
    /// of module `path`.
    fn xielu(&mut self, x: &Val, path: &str) -> Result<Val> {
        const BETA: f64 = 0.5;
        let softplus = |v: f32| if v > 20.0 { v } else { v.exp().ln_1p() };
        let positive_factor = self.w.mapped_vector(&format!("{path}.act_fn.alpha_p"), 1, softplus)?;
        let negative_factor = self.w.mapped_vector(&format!("{path}.act_fn.alpha_n"), 1, move |v| softplus(v) + BETA as f32)?;
        let b = &mut self.w.b;
        let wide = b.cast(x, DType::F32);
        let positive = b.relu(&wide);
        let square = b.mul(&positive, &positive);
        let upper = b.mul(&square, &positive_factor);
        let negative = b.clamp(&wide, f64::NEG_INFINITY, 0.0);
        let curve = b.expm1(&negative);
        let curve = b.sub(&curve, &negative);
        let lower = b.mul(&curve, &negative_factor);
        let line = b.scale(&wide, BETA);
        let y = b.add(&upper, &lower);
        let y = b.add(&y, &line);
        Ok(b.cast(&y, x.dtype))
    }

    /// An activation of one operand.
    pub(super) fn activated(&mut self, x: &Val, activation: Activation) -> Val {
        match activation {
            Activation::Silu | Activation::ClampedSwish { .. } | Activation::Xielu => self.w.b.silu(x),
            Activation::Relu => self.w.b.relu(x),
            Activation::Relu2 => {
                let positive = self.w.b.relu(x);
                self.w.b.mul(&positive, &positive)
            }
            Activation::GeluTanh => self.w.b.gelu(x, true),
            Activation::GeluErf => self.w.b.gelu(x, false),
            Activation::GeluSigmoid => {
                let steep = self.w.b.scale(x, 1.702);
                let open = self.w.b.sigmoid(&steep);
                self.w.b.mul(x, &open)
            }
        }
    }
}
