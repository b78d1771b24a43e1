//! Attention and state.

use flambeau_pt2::Argument;
use flambeau_tensor::Expr;

use super::{
    Builder, Int, Val,
    ops::{arg, float, int, size, tensor},
};

/// Constant arguments of the rotary operator.
#[derive(Clone, Debug)]
pub(crate) struct Rotary {
    pub(crate) dims: usize,
    pub(crate) base: f64,
    pub(crate) scale: f64,
    pub(crate) interleaved: bool,
    pub(crate) periods: Option<Val>,
}

impl Builder {
    /// Rotary embedding of `x` [1, H, s, D] whose first position is `pos`.
    pub(crate) fn rope(&mut self, x: &Val, pos: &Int, rotary: &Rotary) -> Val {
        let mut inputs = vec![
            tensor("x", x),
            int("dims", rotary.dims as i64),
            size("pos", pos),
            arg("traditional", Argument::Bool(rotary.interleaved)),
            float("base", rotary.base),
            float("scale", rotary.scale),
        ];
        inputs.extend(rotary.periods.as_ref().map(|periods| tensor("freqs", periods)));
        self.call("mlx.rope.default", inputs, x.dtype, x.dims.clone())
    }

    /// Writes `new` [1, H, s, D] into the buffer `cache` [1, H, n, D] from row `pos` on.
    pub(crate) fn cache_update(&mut self, cache: &Val, new: &Val, pos: &Int) {
        let inputs = vec![tensor("cache", cache), tensor("new_values", new), size("start_pos", pos)];
        // The operator's own result has no meaning.
        self.call("mlx.kv_cache_update.default", inputs, cache.dtype, vec![Expr::Int(1)]);
    }

    /// Writes `new` [1, H, s, D] into the buffer `cache` [1, H, n, D], at rows [s].
    pub(crate) fn cache_scatter(&mut self, cache: &Val, new: &Val, rows: &Val) {
        let inputs = vec![tensor("self", cache), int("dim", 2), tensor("index", rows), tensor("source", new)];
        self.call("aten.index_copy_.default", inputs, cache.dtype, cache.dims.clone());
    }

    /// Writes `value` into a buffer of its sizes.
    pub(crate) fn store(&mut self, buffer: &Val, value: &Val) {
        self.call("aten.copy_.default", vec![tensor("self", buffer), tensor("src", value)], buffer.dtype, buffer.dims.clone());
    }

    /// Attention of queries [1, H, s, D] over the first `pos + s` rows of `k` [1, Hk, n, D] and `v`
    /// [1, Hk, n, Dv]. It is causal, or restricted by a mask [s, pos + s]. Returns [1, H, s, Dv].
    pub(crate) fn attention(&mut self, [q, k, v]: [&Val; 3], pos: &Int, mask: Option<&Val>, scale: f64) -> Val {
        let causal = mask.is_none();
        let inputs = vec![
            tensor("query", q),
            tensor("key", k),
            tensor("value", v),
            size("start_pos", pos),
            mask.map_or(arg("attn_mask", Argument::None), |mask| tensor("attn_mask", mask)),
            float("dropout_p", 0.0),
            arg("is_causal", Argument::Bool(causal)),
            float("scale", scale),
        ];
        let mut dims = q.dims.clone();
        if let (Some(last), Some(width)) = (dims.last_mut(), v.dims.last()) {
            *last = width.clone();
        }
        self.call("mlx.custom_sdpa.default", inputs, q.dtype, dims)
    }

    /// Attention of queries [B, H, s, D] over all keys and values [B, Hk, n, D]. `scores` [B, H, s,
    /// n] are added to the scaled products, or select keys if boolean. They may be broadcast.
    /// Returns [B, H, s, D].
    pub(crate) fn attention_over_all(&mut self, qkv: [&Val; 3], scores: Option<&Val>, scale: f64) -> Val {
        self.whole_attention(qkv, scores, false, scale)
    }

    /// As [`attention_over_all`](Self::attention_over_all), over keys up to the query's own. There
    /// are as many keys as queries.
    pub(crate) fn causal_attention(&mut self, qkv: [&Val; 3], scale: f64) -> Val {
        self.whole_attention(qkv, None, true, scale)
    }

    fn whole_attention(&mut self, [q, k, v]: [&Val; 3], scores: Option<&Val>, causal: bool, scale: f64) -> Val {
        let mut inputs = vec![
            tensor("query", q),
            tensor("key", k),
            tensor("value", v),
            scores.map_or(arg("attn_mask", Argument::None), |scores| tensor("attn_mask", scores)),
            float("dropout_p", 0.0),
            arg("is_causal", Argument::Bool(causal)),
            float("scale", scale),
        ];
        if q.dim(1) != k.dim(1) {
            inputs.push(arg("enable_gqa", Argument::Bool(true)));
        }
        self.call("aten.scaled_dot_product_attention.default", inputs, q.dtype, q.dims.clone())
    }

    /// The gated delta rule over q, k [1, s, Hk, Dk], v [1, s, Hv, Dv], g and beta [1, s, Hv]. It
    /// starts from the buffer `state` [1, Hv, Dv, Dk] and writes the last state into it. Returns
    /// [1, s, Hv, Dv].
    pub(crate) fn delta_rule(&mut self, [q, k, v, g, beta]: [&Val; 5], state: &Val) -> Val {
        let inputs =
            vec![tensor("q", q), tensor("k", k), tensor("v", v), tensor("g", g), tensor("beta", beta), tensor("state", state)];
        self.call("mlx.gated_delta_rule.default", inputs, v.dtype, v.dims.clone())
    }
}
