//! The operators that ExecuTorch's portable kernels can run outside of delegates.
//!
//! A row states the call as it stands in a program, the kernel's name, its parameters in schema order, and how many tensors it
//! writes. A parameter is written `name`, `name=default`, `name@` where a number has to become a tensor, or `name?` for a list
//! with gaps. Parameters take the call's own names: where a kernel serves several operators these differ.

/// One operator.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub(crate) target: &'static str,
    pub(crate) name: &'static str,
    pub(crate) overload: &'static str,
    params: &'static str,
    pub(crate) results: usize,
}

/// How a parameter is passed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    Plain,
    /// Numbers become tensors of one element.
    Tensor,
    /// A list of tensors, some of which may be None.
    Gaps,
}

/// One parameter of a kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Param {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) default: Option<&'static str>,
}

impl Row {
    /// Whether the kernel writes to its first operand and has no results of its own.
    pub(crate) fn is_in_place(&self) -> bool {
        self.overload.is_empty()
    }

    /// The parameters in the order in which the kernel takes them.
    pub(crate) fn params(&self) -> impl Iterator<Item = Param> {
        self.params.split_whitespace().map(|text| {
            let (name, default) = text.split_once('=').map_or((text, None), |(n, d)| (n, Some(d)));
            let (name, kind) = match (name.strip_suffix('@'), name.strip_suffix('?')) {
                (Some(name), _) => (name, Kind::Tensor),
                (_, Some(name)) => (name, Kind::Gaps),
                _ => (name, Kind::Plain),
            };
            Param { name, kind, default }
        })
    }
}

/// The row of a target.
pub(crate) fn row_for(target: &str) -> Option<&'static Row> {
    ROWS.iter().find(|row| row.target == target)
}

const fn row(target: &'static str, name: &'static str, overload: &'static str, params: &'static str) -> Row {
    Row { target, name, overload, params, results: 1 }
}

const fn two(target: &'static str, name: &'static str, overload: &'static str, params: &'static str) -> Row {
    Row { target, name, overload, params, results: 2 }
}

const ROWS: &[Row] = &[
    // The contents of an input that the program writes to: the kernel returns its first operand.
    row("aten.copy_.default", "aten::copy_", "", "self src non_blocking=false"),
    // Results whose size depends on the data.
    row("aten.nonzero.default", "aten::nonzero", "out", "self"),
    row("aten.masked_select.default", "aten::masked_select", "out", "self mask"),
    row("aten.repeat_interleave.Tensor", "aten::repeat_interleave", "Tensor_out", "repeats output_size=none"),
    // Arithmetic, for element types that nodes do not have.
    row("aten.abs.default", "aten::abs", "out", "self"),
    row("aten.acos.default", "aten::acos", "out", "self"),
    row("aten.acosh.default", "aten::acosh", "out", "self"),
    row("aten.add.Scalar", "aten::add", "Scalar_out", "self other alpha=1"),
    row("aten.add.Tensor", "aten::add", "out", "self other@ alpha=1"),
    row("aten.asin.default", "aten::asin", "out", "self"),
    row("aten.asinh.default", "aten::asinh", "out", "self"),
    row("aten.atan.default", "aten::atan", "out", "self"),
    row("aten.atan2.default", "aten::atan2", "out", "self other@"),
    row("aten.atanh.default", "aten::atanh", "out", "self"),
    row("aten.bitwise_and.Tensor", "aten::bitwise_and", "Tensor_out", "self other@"),
    row("aten.bitwise_not.default", "aten::bitwise_not", "out", "self"),
    row("aten.bitwise_or.Tensor", "aten::bitwise_or", "Tensor_out", "self other@"),
    row("aten.bitwise_xor.Tensor", "aten::bitwise_xor", "Tensor_out", "self other@"),
    row("aten.ceil.default", "aten::ceil", "out", "self"),
    row("aten.clamp.default", "aten::clamp", "out", "self min=none max=none"),
    row("aten.cos.default", "aten::cos", "out", "self"),
    row("aten.cosh.default", "aten::cosh", "out", "self"),
    row("aten.div.Scalar", "aten::div", "Scalar_out", "self other"),
    row("aten.div.Tensor", "aten::div", "out", "self other@"),
    row("aten.div.Tensor_mode", "aten::div", "out_mode", "self other@ rounding_mode=none"),
    row("aten.elu.default", "aten::elu", "out", "self alpha=1.0 scale=1 input_scale=1"),
    row("aten.eq.Scalar", "aten::eq", "Scalar_out", "self other"),
    row("aten.eq.Tensor", "aten::eq", "Tensor_out", "self other@"),
    row("aten.erf.default", "aten::erf", "out", "self"),
    row("aten.exp.default", "aten::exp", "out", "self"),
    row("aten.expm1.default", "aten::expm1", "out", "self"),
    row("aten.floor.default", "aten::floor", "out", "self"),
    row("aten.floor_divide.default", "aten::floor_divide", "out", "self other@"),
    row("aten.fmod.Scalar", "aten::fmod", "Scalar_out", "self other"),
    row("aten.fmod.Tensor", "aten::fmod", "Tensor_out", "self other@"),
    row("aten.ge.Scalar", "aten::ge", "Scalar_out", "self other"),
    row("aten.ge.Tensor", "aten::ge", "Tensor_out", "self other@"),
    row("aten.gelu.default", "aten::gelu", "out", "self approximate='none'"),
    row("aten.glu.default", "aten::glu", "out", "self dim=-1"),
    row("aten.gt.Scalar", "aten::gt", "Scalar_out", "self other"),
    row("aten.gt.Tensor", "aten::gt", "Tensor_out", "self other@"),
    row("aten.hardtanh.default", "aten::hardtanh", "out", "self min_val=-1 max_val=1"),
    row("aten.isinf.default", "aten::isinf", "out", "self"),
    row("aten.isnan.default", "aten::isnan", "out", "self"),
    row("aten.le.Scalar", "aten::le", "Scalar_out", "self other"),
    row("aten.le.Tensor", "aten::le", "Tensor_out", "self other@"),
    row("aten.leaky_relu.default", "aten::leaky_relu", "out", "self negative_slope=0.01"),
    row("aten.log.default", "aten::log", "out", "self"),
    row("aten.log10.default", "aten::log10", "out", "self"),
    row("aten.log1p.default", "aten::log1p", "out", "self"),
    row("aten.log2.default", "aten::log2", "out", "self"),
    row("aten.logical_and.default", "aten::logical_and", "out", "self other@"),
    row("aten.logical_not.default", "aten::logical_not", "out", "self"),
    row("aten.logical_or.default", "aten::logical_or", "out", "self other@"),
    row("aten.logical_xor.default", "aten::logical_xor", "out", "self other@"),
    row("aten.logit.default", "aten::logit", "out", "self eps=none"),
    row("aten.lt.Scalar", "aten::lt", "Scalar_out", "self other"),
    row("aten.lt.Tensor", "aten::lt", "Tensor_out", "self other@"),
    row("aten.maximum.default", "aten::maximum", "out", "self other@"),
    row("aten.minimum.default", "aten::minimum", "out", "self other@"),
    row("aten.mul.Scalar", "aten::mul", "Scalar_out", "self other"),
    row("aten.mul.Tensor", "aten::mul", "out", "self other@"),
    row("aten.ne.Scalar", "aten::ne", "Scalar_out", "self other"),
    row("aten.ne.Tensor", "aten::ne", "Tensor_out", "self other@"),
    row("aten.neg.default", "aten::neg", "out", "self"),
    row("aten.pow.Scalar", "aten::pow", "Scalar_out", "self exponent"),
    row("aten.pow.Tensor_Scalar", "aten::pow", "Tensor_Scalar_out", "self exponent"),
    row("aten.pow.Tensor_Tensor", "aten::pow", "Tensor_Tensor_out", "self exponent@"),
    row("aten.reciprocal.default", "aten::reciprocal", "out", "self"),
    row("aten.relu.default", "aten::relu", "out", "self"),
    row("aten.remainder.Scalar", "aten::remainder", "Scalar_out", "self other"),
    row("aten.remainder.Tensor", "aten::remainder", "Tensor_out", "self other@"),
    row("aten.round.default", "aten::round", "out", "self"),
    row("aten.rsqrt.default", "aten::rsqrt", "out", "self"),
    row("aten.rsub.Scalar", "aten::rsub", "Scalar_out", "self other alpha=1"),
    row("aten.sigmoid.default", "aten::sigmoid", "out", "self"),
    row("aten.sign.default", "aten::sign", "out", "self"),
    row("aten.sin.default", "aten::sin", "out", "self"),
    row("aten.sinh.default", "aten::sinh", "out", "self"),
    row("aten.sqrt.default", "aten::sqrt", "out", "self"),
    row("aten.sub.Scalar", "aten::sub", "Scalar_out", "self other alpha=1"),
    row("aten.sub.Tensor", "aten::sub", "out", "self other@ alpha=1"),
    row("aten.tan.default", "aten::tan", "out", "self"),
    row("aten.tanh.default", "aten::tanh", "out", "self"),
    row("aten.trunc.default", "aten::trunc", "out", "self"),
    row("aten.where.self", "aten::where", "self_out", "condition self@ other@"),
    // Element types and shapes.
    row("aten._to_copy.default", "aten::_to_copy", "out", "self non_blocking=false memory_format=none"),
    row("aten.cat.default", "aten::cat", "out", "tensors dim=0"),
    row("aten.clone.default", "aten::clone", "out", "self memory_format=none"),
    row("aten.constant_pad_nd.default", "aten::constant_pad_nd", "out", "self pad value=0"),
    row("aten.contiguous.default", "aten::clone", "out", "self memory_format=none"),
    row("aten.expand.default", "aten::expand_copy", "out", "self size implicit=false"),
    row("aten.flip.default", "aten::flip", "out", "self dims"),
    row("aten.masked_fill.Scalar", "aten::masked_fill", "Scalar_out", "self mask value"),
    row("aten.permute.default", "aten::permute_copy", "out", "self dims"),
    row("aten.repeat.default", "aten::repeat", "out", "self repeats"),
    row("aten.reshape.default", "aten::view_copy", "out", "self shape"),
    row("aten.roll.default", "aten::roll", "out", "self shifts dims=[]"),
    row("aten.select.int", "aten::select_copy", "int_out", "self dim index"),
    row("aten.slice.Tensor", "aten::slice_copy", "Tensor_out", "self dim=0 start=none end=none step=1"),
    row("aten.squeeze.dim", "aten::squeeze_copy", "dim_out", "self dim"),
    row("aten.squeeze.dims", "aten::squeeze_copy", "dims_out", "self dim"),
    row("aten.stack.default", "aten::stack", "out", "tensors dim=0"),
    row("aten.to.dtype", "aten::_to_copy", "out", "self non_blocking=false memory_format=none"),
    row("aten.transpose.int", "aten::transpose_copy", "int_out", "self dim0 dim1"),
    row("aten.tril.default", "aten::tril", "out", "self diagonal=0"),
    row("aten.triu.default", "aten::triu", "out", "self diagonal=0"),
    row("aten.unsqueeze.default", "aten::unsqueeze_copy", "out", "self dim"),
    row("aten.view.default", "aten::view_copy", "out", "self size"),
    // Selection.
    row("aten.embedding.default", "aten::embedding", "out", "weight indices padding_idx=-1 scale_grad_by_freq=false sparse=false"),
    row("aten.gather.default", "aten::gather", "out", "self dim index sparse_grad=false"),
    row("aten.index.Tensor", "aten::index", "Tensor_out", "self indices?"),
    row("aten.index_select.default", "aten::index_select", "out", "self dim index"),
    row("aten.masked_scatter.default", "aten::masked_scatter", "out", "self mask source"),
    row("aten.scatter.src", "aten::scatter", "src_out", "self dim index src"),
    row("aten.scatter.value", "aten::scatter", "value_out", "self dim index value"),
    row("aten.scatter_add.default", "aten::scatter_add", "out", "self dim index src"),
    two("aten.topk.default", "aten::topk", "values", "self k dim=-1 largest=true sorted=true"),
    // Reductions and products.
    row("aten.addmm.default", "aten::addmm", "out", "self mat1 mat2 beta=1 alpha=1"),
    row("aten.amax.default", "aten::amax", "out", "self dim=[] keepdim=false"),
    row("aten.amin.default", "aten::amin", "out", "self dim=[] keepdim=false"),
    row("aten.any.default", "aten::any", "all_out", "self"),
    row("aten.any.dim", "aten::any", "out", "self dim keepdim=false"),
    row("aten.argmax.default", "aten::argmax", "out", "self dim=none keepdim=false"),
    row("aten.argmin.default", "aten::argmin", "out", "self dim=none keepdim=false"),
    row("aten.bmm.default", "aten::bmm", "out", "self mat2"),
    row("aten.cumsum.default", "aten::cumsum", "out", "self dim dtype=none"),
    two("aten.max.dim", "aten::max", "dim_max", "self dim keepdim=false"),
    row("aten.mean.dim", "aten::mean", "out", "self dim keepdim=false dtype=none"),
    two("aten.min.dim", "aten::min", "dim_min", "self dim keepdim=false"),
    row("aten.mm.default", "aten::mm", "out", "self mat2"),
    row("aten.prod.default", "aten::prod", "out", "self dtype=none"),
    row("aten.prod.dim_int", "aten::prod", "int_out", "self dim keepdim=false dtype=none"),
    row("aten.softmax.int", "aten::_softmax", "out", "self dim half_to_float=false"),
    row("aten.sum.default", "aten::sum", "IntList_out", "self dim=none keepdim=false dtype=none"),
    row("aten.sum.dim_IntList", "aten::sum", "IntList_out", "self dim keepdim=false dtype=none"),
];

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_target_has_one_row_with_readable_parameters() {
        let mut seen = HashSet::new();
        for row in ROWS {
            assert!(seen.insert(row.target), "{} has two rows", row.target);
            assert!(row.name.starts_with("aten::") && row.target.starts_with("aten."), "{}", row.target);
            for default in row.params().filter_map(|p| p.default) {
                assert!(crate::fallback::default_value(default).is_some(), "{}: default {default}", row.target);
            }
        }
    }
}
