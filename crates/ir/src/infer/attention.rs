//! Rules of attention and rotary embeddings.

use flambeau_tensor::{DType, Expr};

use super::{
    Infer, InferError, Result, ShapeCx, Spec, bad_attribute, need_float, need_index, need_node_dtype, need_rank, need_rank_from,
    promote,
    size::{check_broadcasts_to, unify},
};
use crate::{
    field::VidOrTid,
    node::{Rope, Sdpa, UpdateAndAttend},
};

impl Infer for Rope {
    fn infer(&self, cx: &mut dyn ShapeCx) -> Result<()> {
        let x = cx.read(self.x)?;
        need_rank_from("x", &x, 3)?;
        need_float("x", x.dtype)?;
        let width = x.dims.last().and_then(Expr::as_int).unwrap_or(i64::MAX);
        if self.dims < 2 || self.dims % 2 != 0 || i64::from(self.dims) > width {
            return bad_attribute("dims", self.dims, format!("an even number up to the last size of {:?}", x.dims));
        }
        match self.offset {
            VidOrTid::Vid(vid) => drop(cx.value(vid)?),
            VidOrTid::Tid(tid) => check_offset(&cx.spec(tid)?, &x.dims[0])?,
        }
        if let Some(freqs) = cx.read_opt(self.freqs)? {
            need_rank("freqs", &freqs, 1)?;
            need_float("freqs", freqs.dtype)?;
            unify("freqs", &freqs.dims[0], &Expr::Int(i64::from(self.dims / 2)))?;
        }
        cx.write(self.out, x.dtype, x.dims)
    }
}

/// Checks that offsets are one integer, or one integer per batch entry.
fn check_offset(offset: &Spec, batch: &Expr) -> Result<()> {
    need_index("offset", offset.dtype)?;
    if offset.dims.iter().all(|d| d.as_int().is_none_or(|n| n == 1)) {
        return Ok(());
    }
    need_rank("offset", offset, 1)?;
    unify("offset", &offset.dims[0], batch).map(drop)
}

/// Refuses queries, keys and values with inconsistent heads.
fn check_heads(q: &Spec, k: &Spec, v: &Spec) -> Result<()> {
    for (field, spec) in [("q", q), ("k", k), ("v", v)] {
        need_rank(field, spec, 4)?;
    }
    for (field, dim, expected) in [
        ("k", &k.dims[0], &q.dims[0]),
        ("v", &v.dims[0], &q.dims[0]),
        ("v", &v.dims[1], &k.dims[1]),
        ("v", &v.dims[2], &k.dims[2]),
        ("k", &k.dims[3], &q.dims[3]),
    ] {
        unify(field, dim, expected)?;
    }
    match (&q.dims[1], &k.dims[1]) {
        (Expr::Int(hq), Expr::Int(hkv)) if *hkv == 0 || hq % hkv != 0 => {
            Err(InferError::Shape(format!("{hq} query heads do not divide among {hkv} key heads")))
        }
        _ => Ok(()),
    }
}

impl Infer for Sdpa {
    fn infer(&self, cx: &mut dyn ShapeCx) -> Result<()> {
        let (q, k, v) = (cx.read(self.q)?, cx.read(self.k)?, cx.read(self.v)?);
        check_heads(&q, &k, &v)?;
        let dtype = promote(need_float("q", q.dtype)?, promote(k.dtype, v.dtype));
        if let Some(mask) = cx.read_opt(self.mask)? {
            if self.causal {
                return bad_attribute("causal", "true", "false where there is a mask");
            }
            let scores = [&q.dims[0], &q.dims[1], &q.dims[2], &k.dims[2]].map(Expr::clone);
            check_broadcasts_to(&mask.dims, &scores)?;
        }
        let mut dims = q.dims;
        dims[3] = v.dims[3].clone();
        cx.write(self.out, dtype, dims)
    }
}

impl Infer for UpdateAndAttend {
    fn infer(&self, cx: &mut dyn ShapeCx) -> Result<()> {
        match (self.layer_id, self.scale) {
            (None, _) => return bad_attribute("layer_id", "absent", "present"),
            (Some(layer), _) if layer < 0 => return bad_attribute("layer_id", layer, "at least 0"),
            (_, None) => return bad_attribute("scale", "absent", "present"),
            _ => {}
        }
        let (q, k, v) = (cx.read(self.q)?, cx.read(self.k)?, cx.read(self.v)?);
        check_heads(&q, &k, &v)?;
        unify("q", &q.dims[0], &Expr::Int(1))?;
        unify("k", &k.dims[2], &q.dims[2])?;
        unify("v", &v.dims[3], &k.dims[3])?;
        need_float("q", q.dtype)?;
        let position = cx.read(self.position)?;
        if !matches!(position.dtype, DType::I32 | DType::I64) {
            return Err(InferError::DType { field: "position", found: position.dtype, expected: "i32 or i64" });
        }
        if position.dims.contains(&Expr::Int(0)) {
            return Err(InferError::Shape(format!("`position` {:?} has no first element", position.dims)));
        }
        cx.write(self.out, need_node_dtype("out_dtype", self.out_dtype.unwrap_or(q.dtype))?, q.dims)
    }
}
