//! Tests of the parsed schemas and of the relations between operators.

use flambeau_aten::{Alias, Kind, Literal, Operator, Schema, Type, all, schema};

fn named(target: &str) -> &'static Schema {
    schema(target).unwrap_or_else(|| panic!("{target} has a schema"))
}

#[test]
fn every_line_is_a_schema_and_is_found_by_its_name() {
    let mut count = 0;
    for operator in all() {
        let schema = operator.schema();
        assert_eq!(Operator::find(&schema.target()), Some(operator), "{schema}");
        count += 1;
    }
    assert!(count > 1000, "{count} schemas");
}

#[test]
fn names_without_a_line_are_not_found() {
    for target in ["aten.add.tensor", "aten.add", "aten.addm.default", "mlx.add.Tensor", "", "aten", "aten.add.Tensor.x", "zzz.z.z"]
    {
        assert!(target == "aten.add" || schema(target).is_none(), "{target}");
    }
    assert_eq!(named("_operator.add").params.len(), 2);
}

#[test]
fn parameters_have_types_defaults_and_aliases() {
    let conv = named("aten.conv2d.default");
    assert_eq!(conv.param("bias").unwrap().ty, Type::Optional(Box::new(Type::Tensor)));
    let stride = conv.param("stride").unwrap();
    assert_eq!((&stride.ty, &stride.default), (&Type::List(Box::new(Type::SymInt), Some(2)), &Some(Literal::Ints(vec![1, 1]))));
    let index = named("aten.index.Tensor");
    assert_eq!(index.params[1].ty, Type::List(Box::new(Type::Optional(Box::new(Type::Tensor))), None));
    let mean = named("aten.mean.dim");
    assert_eq!(mean.params[1].ty, Type::Optional(Box::new(Type::List(Box::new(Type::Int), Some(1)))));
    assert!(mean.param("dtype").unwrap().keyword_only && !mean.param("keepdim").unwrap().keyword_only);
    let gelu = named("aten.gelu.default");
    assert_eq!(gelu.param("approximate").unwrap().default, Some(Literal::Str("none")));
    assert_eq!(named("aten.isclose.default").param("rtol").unwrap().default, Some(Literal::Float(1e-5)));
    let split = named("aten.split.Tensor");
    assert_eq!(split.params[0].alias, Some(Alias { set: "a", write: false }));
    assert_eq!(split.returns.len(), 1);
    assert_eq!(split.returns[0].alias, split.params[0].alias);
    assert_eq!(named("aten.topk.default").returns.len(), 2);
    assert_eq!(named("aten._assert_scalar.default").returns.len(), 0);
}

#[test]
fn variants_belong_to_their_functional_operators() {
    let check = |target: &str, kind, functional: Option<&str>| {
        let found = named(target);
        assert_eq!((found.kind(), found.functional().map(Schema::target).as_deref()), (kind, functional), "{target}");
    };
    check("aten.add.Tensor", Kind::Functional, Some("aten.add.Tensor"));
    check("aten.add_.Tensor", Kind::InPlace, Some("aten.add.Tensor"));
    check("aten.add.out", Kind::Out, Some("aten.add.Tensor"));
    check("aten.mean.out", Kind::Out, Some("aten.mean.dim"));
    check("aten.max.dim_max", Kind::Out, Some("aten.max.dim"));
    check("aten.full.out", Kind::Out, Some("aten.full.default"));
    check("aten._to_copy.out", Kind::Out, Some("aten._to_copy.default"));
    check("aten.topk.values", Kind::Out, Some("aten.topk.default"));
    check("aten.fill_.Scalar", Kind::InPlace, Some("aten.fill.Scalar"));
    check("aten.fill_diagonal_.default", Kind::InPlace, Some("aten.fill_diagonal.default"));
    check("aten.transpose_.default", Kind::InPlace, Some("aten.transpose.int"));
    check("aten.dropout_.default", Kind::InPlace, Some("aten.dropout.default"));
    check("aten.feature_alpha_dropout_.default", Kind::InPlace, Some("aten.feature_alpha_dropout.default"));
    check("aten.__iand__.Tensor", Kind::InPlace, Some("aten.__and__.Tensor"));
    check("aten.__and__.Tensor", Kind::Functional, Some("aten.__and__.Tensor"));
    check("mlx.kv_cache_update.default", Kind::Mutable, None);
    check("aten._native_batch_norm_legit.default", Kind::Mutable, None);
}

#[test]
fn copies_and_out_variants_are_found_from_functional_operators() {
    let out = |target: &str| named(target).out_variant().map(Schema::target);
    assert_eq!(out("aten.sum.dim_IntList").as_deref(), Some("aten.sum.IntList_out"));
    assert_eq!(out("aten.pow.Tensor_Scalar").as_deref(), Some("aten.pow.Tensor_Scalar_out"));
    assert_eq!(out("mlx.rope.default"), None);
    assert_eq!(named("aten.slice.Tensor").copying().map(Schema::target).as_deref(), Some("aten.slice_copy.Tensor"));
    assert_eq!(named("aten.add.Tensor").copying(), None);
    let written: Vec<&str> = named("mlx.gated_delta_rule.default").written().map(|p| p.name).collect();
    assert_eq!(written, ["state"]);
}
