//! Kernels that can run calls between delegates: ExecuTorch's portable kernels and the kernels of
//! the `host` crate.
//!
//! The kernel of a call is the out variant of its operator. For an operator that makes a view, it
//! is the out variant of the copying form. Schemas name the variant and its parameters. This file
//! lists the portable kernels that exist.

use std::borrow::Cow;

use flambeau_aten::{Kind, Literal, Operator, Schema, Type, schema};
use flambeau_tensor::DType;

/// A kernel that can run a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kernel {
    schema: &'static Schema,
    argument: Option<&'static (&'static str, Argument)>,
}

/// Source of a kernel argument that the call does not have under the kernel's name.
#[derive(Clone, Debug)]
enum Argument {
    /// The call's argument with this name.
    Named(&'static str),
    Value(Literal),
}

/// One parameter of a kernel.
#[derive(Clone, Debug)]
pub(crate) struct Param {
    /// Name of the argument in the call.
    pub(crate) name: &'static str,
    pub(crate) ty: &'static Type,
    pub(crate) default: Option<Literal>,
}

impl Kernel {
    /// The operator's name without overload, such as `aten::add`.
    pub(crate) fn name(&self) -> String {
        format!("{}::{}", self.schema.namespace, self.schema.name)
    }

    /// The overload. Kernels of operators without an out variant are named as if it existed.
    pub(crate) fn overload(&self) -> Cow<'static, str> {
        match (self.schema.kind(), self.schema.overload) {
            (Kind::Functional, "") => Cow::Borrowed("out"),
            (Kind::Functional, overload) => Cow::Owned(format!("{overload}_out")),
            (_, overload) => Cow::Borrowed(overload),
        }
    }

    /// Number of tensors that the kernel returns or writes.
    pub(crate) fn results(&self) -> usize {
        match self.schema.kind() {
            Kind::Functional => self.schema.returns.len(),
            _ => self.schema.written().count(),
        }
    }

    /// Whether the kernel writes to its first operand and has no results of its own.
    pub(crate) fn is_in_place(&self) -> bool {
        self.schema.kind() == Kind::InPlace
    }

    /// The parameters in the order in which the kernel takes them.
    pub(crate) fn params(&self) -> impl Iterator<Item = Param> {
        self.schema.operands().map(|param| {
            let absent = matches!(param.ty, Type::Optional(_)).then_some(Literal::None);
            let default = param.default.clone().or(absent);
            match self.argument {
                Some((name, Argument::Named(other))) if *name == param.name => Param { name: other, ty: &param.ty, default },
                Some((name, Argument::Value(value))) if *name == param.name => {
                    Param { name: param.name, ty: &param.ty, default: Some(value.clone()) }
                }
                _ => Param { name: param.name, ty: &param.ty, default },
            }
        })
    }
}

/// The kernel that can run calls of a target, with operands and results of these element types.
pub(crate) fn kernel_for(target: &str, dtypes: &[DType]) -> Option<Kernel> {
    let substitute = SUBSTITUTES.iter().find(|row| row.target == target);
    let schema = schema(substitute.map_or(target, |row| row.operator))?;
    let functional = schema.copying().unwrap_or(schema);
    let kernel = match schema.kind() {
        Kind::InPlace => schema,
        _ => functional.out_variant().unwrap_or(functional),
    };
    let for_types = |d: &DType| !matches!(d, DType::F64 | DType::C32 | DType::C64);
    let is_portable = KERNELS.binary_search(&kernel.operator).is_ok();
    let runs_here =
        is_portable && (kernel.kind() == Kind::InPlace || dtypes.iter().all(for_types) || flambeau_host::moves(functional));
    if !runs_here && flambeau_host::kernel_for(functional, dtypes).is_none() {
        return None;
    }
    Some(Kernel { schema: kernel, argument: substitute.and_then(|row| row.argument.as_ref()) })
}

/// A call that runs on the kernel of another operator.
struct Substitute {
    target: &'static str,
    operator: &'static str,
    /// An argument of the kernel that the call does not have under the kernel's name.
    argument: Option<(&'static str, Argument)>,
}

const SUBSTITUTES: &[Substitute] = &[
    Substitute { target: "aten.contiguous.default", operator: "aten.clone.default", argument: None },
    Substitute {
        target: "aten.reshape.default",
        operator: "aten.view_copy.default",
        argument: Some(("size", Argument::Named("shape"))),
    },
    Substitute {
        target: "aten.softmax.int",
        operator: "aten._softmax.default",
        argument: Some(("half_to_float", Argument::Value(Literal::Bool(false)))),
    },
    Substitute { target: "aten.sum.default", operator: "aten.sum.dim_IntList", argument: None },
    Substitute { target: "aten.to.dtype", operator: "aten._to_copy.default", argument: None },
];

const fn operators<const N: usize>(targets: [&str; N]) -> [Operator; N] {
    let mut operators = [Operator::named(targets[0]); N];
    let mut i = 0;
    while i < N {
        operators[i] = Operator::named(targets[i]);
        i += 1;
    }
    operators
}

/// Sorted by name.
const KERNELS: &[Operator] = &operators([
    "aten._softmax.out",
    "aten._to_copy.out",
    "aten.abs.out",
    "aten.acos.out",
    "aten.acosh.out",
    "aten.add.Scalar_out",
    "aten.add.out",
    "aten.addmm.out",
    "aten.amax.out",
    "aten.amin.out",
    "aten.any.all_out",
    "aten.any.out",
    "aten.argmax.out",
    "aten.argmin.out",
    "aten.asin.out",
    "aten.asinh.out",
    "aten.atan.out",
    "aten.atan2.out",
    "aten.atanh.out",
    "aten.bitwise_and.Tensor_out",
    "aten.bitwise_not.out",
    "aten.bitwise_or.Tensor_out",
    "aten.bitwise_xor.Tensor_out",
    "aten.bmm.out",
    "aten.cat.out",
    "aten.ceil.out",
    "aten.clamp.out",
    "aten.clone.out",
    "aten.constant_pad_nd.out",
    "aten.copy_.default",
    "aten.cos.out",
    "aten.cosh.out",
    "aten.cumsum.out",
    "aten.div.Scalar_out",
    "aten.div.out",
    "aten.div.out_mode",
    "aten.elu.out",
    "aten.embedding.out",
    "aten.eq.Scalar_out",
    "aten.eq.Tensor_out",
    "aten.erf.out",
    "aten.exp.out",
    "aten.expand_copy.out",
    "aten.expm1.out",
    "aten.flip.out",
    "aten.floor.out",
    "aten.floor_divide.out",
    "aten.fmod.Scalar_out",
    "aten.fmod.Tensor_out",
    "aten.gather.out",
    "aten.ge.Scalar_out",
    "aten.ge.Tensor_out",
    "aten.gelu.out",
    "aten.glu.out",
    "aten.gt.Scalar_out",
    "aten.gt.Tensor_out",
    "aten.hardtanh.out",
    "aten.index.Tensor_out",
    "aten.index_select.out",
    "aten.isinf.out",
    "aten.isnan.out",
    "aten.le.Scalar_out",
    "aten.le.Tensor_out",
    "aten.leaky_relu.out",
    "aten.log.out",
    "aten.log10.out",
    "aten.log1p.out",
    "aten.log2.out",
    "aten.logical_and.out",
    "aten.logical_not.out",
    "aten.logical_or.out",
    "aten.logical_xor.out",
    "aten.logit.out",
    "aten.lt.Scalar_out",
    "aten.lt.Tensor_out",
    "aten.masked_fill.Scalar_out",
    "aten.masked_scatter.out",
    "aten.masked_select.out",
    "aten.max.dim_max",
    "aten.maximum.out",
    "aten.mean.out",
    "aten.min.dim_min",
    "aten.minimum.out",
    "aten.mm.out",
    "aten.mul.Scalar_out",
    "aten.mul.out",
    "aten.ne.Scalar_out",
    "aten.ne.Tensor_out",
    "aten.neg.out",
    "aten.nonzero.out",
    "aten.permute_copy.out",
    "aten.pow.Scalar_out",
    "aten.pow.Tensor_Scalar_out",
    "aten.pow.Tensor_Tensor_out",
    "aten.prod.int_out",
    "aten.prod.out",
    "aten.reciprocal.out",
    "aten.relu.out",
    "aten.remainder.Scalar_out",
    "aten.remainder.Tensor_out",
    "aten.repeat.out",
    "aten.repeat_interleave.Tensor_out",
    "aten.roll.out",
    "aten.round.out",
    "aten.rsqrt.out",
    "aten.rsub.Scalar_out",
    "aten.scatter.src_out",
    "aten.scatter.value_out",
    "aten.scatter_add.out",
    "aten.select_copy.int_out",
    "aten.sigmoid.out",
    "aten.sign.out",
    "aten.sin.out",
    "aten.sinh.out",
    "aten.slice_copy.Tensor_out",
    "aten.sqrt.out",
    "aten.squeeze_copy.dim_out",
    "aten.squeeze_copy.dims_out",
    "aten.stack.out",
    "aten.sub.Scalar_out",
    "aten.sub.out",
    "aten.sum.IntList_out",
    "aten.t_copy.out",
    "aten.tan.out",
    "aten.tanh.out",
    "aten.topk.values",
    "aten.transpose_copy.int_out",
    "aten.tril.out",
    "aten.triu.out",
    "aten.trunc.out",
    "aten.unsqueeze_copy.out",
    "aten.view_copy.out",
    "aten.where.self_out",
]);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_in_order_and_found_by_the_calls_that_they_run() {
        assert!(KERNELS.is_sorted());
        let check = |target: &str, kernel: Option<&str>| {
            assert_eq!(
                kernel_for(target, &[DType::F32]).map(|k| format!("{}.{}", k.name(), k.overload())).as_deref(),
                kernel,
                "{target}"
            );
        };
        check("aten.add.Tensor", Some("aten::add.out"));
        check("aten.div.Tensor_mode", Some("aten::div.out_mode"));
        check("aten.slice.Tensor", Some("aten::slice_copy.Tensor_out"));
        check("aten.permute_copy.default", Some("aten::permute_copy.out"));
        check("aten.reshape.default", Some("aten::view_copy.out"));
        check("aten.copy_.default", Some("aten::copy_."));
        check("aten.linear.default", None);
        check("none.such.default", None);
        let check = |target: &str, dtypes: &[DType], found: bool| {
            assert_eq!(kernel_for(target, dtypes).is_some(), found, "{target} {dtypes:?}");
        };
        check("aten.expm1.default", &[DType::F64], true);
        check("aten.erf.default", &[DType::F64], false);
        check("aten.cat.default", &[DType::F64], true);
        check("aten.to.dtype", &[DType::F32, DType::F64], true);
        assert!(SUBSTITUTES.iter().all(|row| kernel_for(row.target, &[]).is_some()));
    }

    #[test]
    fn arguments_have_the_names_of_the_call_and_the_defaults_of_the_kernel() {
        let params = |target| kernel_for(target, &[]).unwrap().params().map(|p| (p.name, p.default)).collect::<Vec<_>>();
        assert_eq!(params("aten.reshape.default"), [("self", None), ("shape", None)]);
        let half = ("half_to_float", Some(Literal::Bool(false)));
        assert_eq!(params("aten.softmax.int"), [("self", None), ("dim", None), half]);
        let (keep, dtype) = (("keepdim", Some(Literal::Bool(false))), ("dtype", Some(Literal::None)));
        assert_eq!(params("aten.sum.default"), [("self", None), ("dim", Some(Literal::None)), keep, dtype]);
    }
}
