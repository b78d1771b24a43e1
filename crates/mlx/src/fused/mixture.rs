//! Routed experts for one row: the weighted sum of their gated layers, in two parts. With the row's
//! norm, the router, a shared expert and the residual sum, in three parts.

use flambeau_ir::{GatherQmm, In, Int, Node, QuantMode, Tid};
use flambeau_tensor::{DType, Shape};

use super::{
    FusedNodes, Kind,
    find::{Content, Matcher, Norm, Scope, applied, node},
    launch::Builder,
    linear::{Format, Linear, Weights, content, norm_type, staged_bytes},
    refusal::Form,
};
use crate::{cuda, cx::Machine, error::Result};

/// Bytes of a row's codes that a warp holds in registers: of a gate and an up projection, and of
/// all chosen experts' down projections.
const MAX_HIDDEN_BYTES: usize = 2048;
const MAX_COLUMN_BYTES: usize = 6144;

/// Matrices of all experts, or of one: codes, scales, biases.
type Matrices = [Tid; 3];

/// Gate, up and down. They have one format.
#[derive(Clone, Copy, Debug)]
struct Expert {
    gate: Matrices,
    up: Matrices,
    down: Matrices,
    coding: Coding,
    /// Rows of a gate if each expert's gate and up projection are one matrix, the gate first.
    joined: Option<usize>,
}

/// Bits of a code, and codes of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Coding {
    bits: usize,
    group: usize,
}

impl Coding {
    fn format(self) -> Format {
        Format::Coded { bits: self.bits, group: self.group }
    }

    /// Bytes of the codes of `columns` columns.
    fn bytes(self, columns: usize) -> usize {
        columns * self.bits / 8
    }
}

/// The layer around the routed experts: the row's norm, the router, the shared expert and the
/// residual sum.
#[derive(Debug)]
struct MixtureLayer {
    /// Norm and router; for a shared expert also the product whose sigmoid weights it, its gate and
    /// its up projection.
    router: Linear,
    own: Option<Expert>,
}

/// A fused step of the chosen experts.
#[derive(Debug)]
pub(crate) struct Mixture {
    /// The router's logits in the model's type. `x` is the row, before its norm if [`MixtureLayer`]
    /// is present.
    logits: Tid,
    pub(super) x: Tid,
    layer: Option<MixtureLayer>,
    experts: Expert,
    top_k: usize,
    out: Tid,
}

/// Compile-time parameters of the kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MixtureSizes {
    dtype: DType,
    experts: usize,
    hidden: usize,
    width: usize,
    /// The type of the norm's weights.
    norm: DType,
}

/// The slots of constant matrices of codes, and their format.
fn coded(r: &Matcher<'_, '_>, slots: Matrices, mode: QuantMode, bits: i32, group: i32) -> Option<(Matrices, Coding)> {
    let constant = slots.iter().all(|&t| r.scope.is_constant(t));
    let fits = mode == QuantMode::Affine && matches!(bits, 4 | 8) && matches!(group, 32 | 64 | 128) && constant;
    r.scope.require(fits, "experts are not stored in affine codes of 4 or 8 bits in groups of 32, 64 or 128")?;
    Some((slots, Coding { bits: usize::try_from(bits).ok()?, group: usize::try_from(group).ok()? }))
}

/// A product of rows with the matrices of the experts in `numbers`, or of one expert. Returns the
/// matrices, their format and the result.
fn product(r: &mut Matcher<'_, '_>, x: Content, numbers: Option<Content>) -> Option<(Matrices, Coding, Content)> {
    let (matrices, coding, out) = match r.next()? {
        Node::GatherQmm(n) if numbers.is_some() => {
            names(r, n, x, numbers)?;
            let (matrices, coding) = coded(r, [n.w.0, n.scales.0, n.biases?.0], n.mode, n.bits, n.group_size)?;
            (n.transpose.then_some(matrices)?, coding, n.out.0)
        }
        Node::QuantizedMatmul(n) if numbers.is_none() => {
            r.reads(n.x, x)?;
            let (matrices, coding) = coded(r, [n.w.0, n.scales.0, n.biases?.0], n.mode, n.bits, n.group_size)?;
            (n.transpose.then_some(matrices)?, coding, n.out.0)
        }
        _ => return None,
    };
    Some((matrices, coding, r.wrote(out)))
}

/// The two halves of the rows of a product with joined matrices: their number of columns and the
/// halves.
fn halves(r: &mut Matcher<'_, '_>, both: Content) -> Option<(usize, [Content; 2])> {
    let mut half = |from: Option<usize>| {
        let part = node!(r, Slice);
        r.reads(part.x, both)?;
        let (Int::Lit(start), Int::Lit(stop)) = (part.start, part.stop) else { return None };
        let (start, stop) = (usize::try_from(start).ok()?, usize::try_from(stop).ok()?);
        let (begins, ends) = from.map_or((0, stop), |width| (width, 2 * width));
        let fits = matches!(part.axis, Int::Lit(3 | -1)) && part.step == 1 && (start, stop) == (begins, ends) && start < stop;
        fits.then_some((stop, r.wrote(part.out.0)))
    };
    let (width, low) = half(None)?;
    let (_, high) = half(Some(width))?;
    Some((width, [low, high]))
}

fn names(r: &Matcher<'_, '_>, n: &GatherQmm, x: Content, numbers: Option<Content>) -> Option<()> {
    r.reads(n.x, x)?;
    (n.lhs_indices.is_none() && n.rhs_indices.and_then(|rhs| r.read(rhs)) == numbers).then_some(())
}

/// The gated layers of one expert or of all chosen experts: their matrices and their result.
fn expert(r: &mut Matcher<'_, '_>, x: Content, numbers: Option<Content>) -> Option<(Expert, Content)> {
    let (gate, coding, low) = product(r, x, numbers)?;
    let is_joined = numbers.is_some() && matches!(r.scope.nodes.get(r.at), Some(Node::Slice(_)));
    let (up, coding_of_up, joined, [low, high]) = if is_joined {
        let (width, halves) = halves(r, low)?;
        (gate, coding, Some(width), halves)
    } else {
        let (up, coding_of_up, high) = product(r, x, numbers)?;
        (up, coding_of_up, None, [low, high])
    };
    let low = applied!(r, Silu, low);
    let mul = node!(r, Multiply);
    r.reads_both(mul.a, mul.b, low, high)?;
    let inner = r.wrote(mul.out.0);
    let (down, coding_of_down, each) = product(r, inner, numbers)?;
    r.scope.require(coding == coding_of_up && coding == coding_of_down, "an expert's matrices have different formats")?;
    Some((Expert { gate, up, down, coding, joined }, each))
}

/// Routing: softmax, then the last `k` of an ascending sort, with weights divided by their sum.
/// Returns the logits, `k`, and the weights and indices of the chosen experts.
fn route(r: &mut Matcher<'_, '_>) -> Option<(Content, usize, [Content; 2])> {
    let wide = node!(r, AsType);
    let (logits, mut scores) = (r.read(wide.x)?, r.wrote(wide.out.0));
    let soft = node!(r, Softmax);
    (wide.scalar_type == DType::F32 && r.read(soft.x) == Some(scores) && matches!(soft.axis, 1 | -1)).then_some(())?;
    scores = r.wrote(soft.out.0);
    let sort = node!(r, Argsort);
    (r.read(sort.x) == Some(scores) && matches!(sort.axis, 1 | -1)).then_some(())?;
    let order = r.wrote(sort.out.0);
    let last = node!(r, Slice);
    let Int::Lit(stop) = last.stop else { return None };
    let top_k = usize::try_from(-1 - stop).ok()?;
    let backwards = last.step == -1 && last.start == Int::Lit(-1) && last.axis == Int::Lit(1) && top_k > 0;
    (r.read(last.x) == Some(order) && backwards).then_some(())?;
    let mut numbers = r.wrote(last.out.0);
    let take = node!(r, TakeAlongAxis);
    (r.read(take.x) == Some(scores) && r.read(take.indices) == Some(numbers) && matches!(take.axis, 1 | -1)).then_some(())?;
    let best = r.wrote(take.out.0);
    let cast = node!(r, AsType);
    (r.read(cast.x) == Some(numbers) && cast.scalar_type == DType::I64).then_some(())?;
    numbers = r.wrote(cast.out.0);
    let sum = node!(r, Sum);
    (r.read(sum.x) == Some(best) && matches!(sum.axes[..], [1 | -1]) && sum.keepdims).then_some(())?;
    let total = r.wrote(sum.out.0);
    let share = node!(r, Divide);
    (r.read(share.a) == Some(best) && r.read(share.b) == Some(total)).then_some(())?;
    let shares = r.wrote(share.out.0);
    let narrow = node!(r, AsType);
    (r.read(narrow.x) == Some(shares) && narrow.scalar_type != DType::F32).then_some(())?;
    Some((logits, top_k, [r.wrote(narrow.out.0), numbers]))
}

/// The weighted sum of the chosen experts' outputs for a row: logits, number of chosen experts, the
/// experts, the row, the result.
fn mixture(r: &mut Matcher<'_, '_>) -> Option<(Content, usize, Expert, Content, Content)> {
    let (logits, top_k, [shares, numbers]) = route(r)?;
    let rows = node!(r, Reshape);
    let (x, row) = (r.read(rows.x)?, r.wrote(rows.out.0));
    let (experts, each) = expert(r, row, Some(numbers))?;
    let each = applied!(r, Reshape, each);
    let expand = node!(r, ExpandDims);
    (r.read(expand.x) == Some(shares) && matches!(expand.axis, 2 | -1)).then_some(())?;
    let shares = r.wrote(expand.out.0);
    let weighted = node!(r, Multiply);
    r.reads_both(weighted.a, weighted.b, each, shares)?;
    let weighted = r.wrote(weighted.out.0);
    let sum = node!(r, Sum);
    (r.read(sum.x) == Some(weighted) && sum.axes[..] == [1] && !sum.keepdims).then_some(())?;
    Some((logits, top_k, experts, x, r.wrote(sum.out.0)))
}

/// Finds the experts' step that begins at a node.
pub(super) fn find(scope: &Scope<'_>, at: usize) -> Option<FusedNodes> {
    let (mixture, end) = match scope.nodes.get(at)? {
        Node::AsType(_) => scope.candidate(Form::Experts, at, |place| find_experts(Matcher::new(scope, place)))?,
        Node::RMSNorm(_) => scope.candidate(Form::Experts, at, |place| find_all(Matcher::new(scope, place)))?,
        _ => return None,
    };
    Some(FusedNodes { end, kind: Kind::Mixture(Box::new(mixture)) })
}

/// The experts behind logits.
fn find_experts(mut r: Matcher<'_, '_>) -> Option<(Mixture, usize)> {
    let (logits, top_k, experts, x, (out, _)) = mixture(&mut r)?;
    r.leaves_only(&[out])?;
    let given = x.1.is_none() && logits.1.is_none() && r.kept.is_empty();
    r.scope.require(given, "other nodes stand among the experts")?;
    Some((Mixture { logits: logits.0, x: x.0, layer: None, experts, top_k, out }, r.at))
}

/// Matches a row's norm, router, experts, an optional shared expert, and the sum of the results and
/// the row.
fn find_all(mut r: Matcher<'_, '_>) -> Option<(Mixture, usize)> {
    let Norm { x, weight, eps, narrows, row } = r.norm()?;
    let flat = applied!(r, Reshape, row);
    let (logits, matrix) = matrix_product(&mut r, flat)?;
    let (read, top_k, experts, seen, mut sum) = mixture(&mut r)?;
    (read == logits && seen == row).then_some(())?;
    let shaped = node!(r, Reshape);
    r.reads(shaped.x, sum)?;
    sum = r.wrote(shaped.out.0);
    let mut weights = vec![matrix];
    let own = match r.scope.nodes.get(r.at)? {
        Node::QuantizedMatmul(_) => {
            let (own, gate) = own_expert(&mut r, row, &mut sum)?;
            let matrix = |slots: Matrices| Weights { format: own.coding.format(), slots: slots.to_vec(), bias: None };
            weights.extend([gate, matrix(own.gate), matrix(own.up)]);
            Some(own)
        }
        _ => None,
    };
    let add = node!(r, Add);
    let residual = r.other_operand(add.a, add.b, sum)?;
    let out = add.out.0;
    r.leaves_only(&[out])?;
    let same = own.is_none_or(|own| own.coding == experts.coding);
    let given = residual == (x, None) && r.kept.is_empty();
    let norm = Some((weight, eps));
    let router = Linear { norm, narrows, ..Linear::plain(x, weights, Vec::new()) };
    let fits = same && given && router.has_known_formats();
    r.scope.require(fits, "the shared expert or the router is stored in another format, or the sum has another row")?;
    Some((Mixture { logits: logits.0, x, layer: Some(MixtureLayer { router, own }), experts, top_k, out }, r.at))
}

/// The product of a row and a constant matrix without a bias.
pub(super) fn matrix_product(r: &mut Matcher<'_, '_>, x: Content) -> Option<(Content, Weights)> {
    match r.next()? {
        Node::QuantizedMatmul(n) => {
            r.reads(n.x, x)?;
            let slots = [n.w.0, n.scales.0, n.biases?.0];
            let weights = weights(r, slots, n.mode, n.bits, n.group_size)?;
            n.transpose.then_some((r.wrote(n.out.0), weights))
        }
        Node::Transpose(n) if n.perm[..] == [1, 0] => {
            let weights = floats(r, n.x)?;
            let columns = r.wrote(n.out.0);
            Some((column_product(r, x, columns)?, weights))
        }
        _ => None,
    }
}

/// A constant matrix of floats.
fn floats(r: &Matcher<'_, '_>, slot: In) -> Option<Weights> {
    r.scope.is_constant(slot.0).then(|| Weights { format: Format::Float, slots: vec![slot.0], bias: None })
}

/// The product of a row and a matrix stored as columns.
fn column_product(r: &mut Matcher<'_, '_>, row: Content, columns: Content) -> Option<Content> {
    let mm = node!(r, Addmm);
    r.reads(mm.mat1, row)?;
    r.reads(mm.mat2, columns)?;
    (mm.bias.is_none() && mm.alpha == 1.0).then_some(r.wrote(mm.out.0))
}

fn weights(r: &Matcher<'_, '_>, slots: Matrices, mode: QuantMode, bits: i32, group: i32) -> Option<Weights> {
    let (bits, group) = (usize::try_from(bits).ok()?, usize::try_from(group).ok()?);
    let constant = slots.iter().all(|&t| r.scope.is_constant(t));
    let fits = mode == QuantMode::Affine && matches!(bits, 4 | 8) && group >= 32 && constant;
    fits.then_some(Weights { format: Format::Coded { bits, group }, slots: slots.to_vec(), bias: None })
}

/// The shared expert and the weights of its own gate. Updates `sum` to the sum over all experts.
fn own_expert(r: &mut Matcher<'_, '_>, row: Content, sum: &mut Content) -> Option<(Expert, Weights)> {
    let (own, result) = expert(r, row, None)?;
    let (gate, column) = if let Some(Node::Addmm(mm)) = r.scope.nodes.get(r.at) {
        // One row of floats is already stored as a column.
        let shape = r.scope.graph.meta.get(mm.mat2.0.0 as usize)?.static_shape()?;
        (matches!(shape[..], [_, 1]).then(|| floats(r, mm.mat2))??, (mm.mat2.0, None))
    } else {
        let unpack = node!(r, Dequantize);
        let slots = [unpack.w.0, unpack.scales.0, unpack.biases?.0];
        let gate = weights(r, slots, unpack.mode, unpack.bits, unpack.group_size)?;
        let unpacked = r.wrote(unpack.out.0);
        (gate, applied!(r, Reshape, unpacked))
    };
    let share = column_product(r, row, column)?;
    let share = applied!(r, Sigmoid, share);
    let mul = node!(r, Multiply);
    r.reads_both(mul.a, mul.b, result, share)?;
    let shared = r.wrote(mul.out.0);
    let add = node!(r, Add);
    r.reads_both(add.a, add.b, *sum, shared)?;
    *sum = r.wrote(add.out.0);
    Some((own, gate))
}

/// Results of the first part for the later parts: the logits, then the shared expert's weight, gate
/// and up projections.
#[derive(Default)]
struct Router {
    outs: Vec<String>,
    /// Whether the row is already in shared memory in the layout of the next part.
    stages_row: bool,
}

/// Names of the second part's results for the last part.
struct Intermediates {
    inner: String,
    numbers: String,
    shares: String,
}

impl Mixture {
    /// Its result.
    pub(super) fn out(&self) -> Tid {
        self.out
    }

    /// The computation in words.
    pub(super) fn form(&self) -> String {
        match &self.layer {
            None => "experts".to_owned(),
            Some(MixtureLayer { own: None, .. }) => "norm, router, experts, sum".to_owned(),
            Some(MixtureLayer { own: Some(_), .. }) => "norm, router, experts, shared expert, sum".to_owned(),
        }
    }

    /// Whether it ends with the sum of its result and the row.
    pub(super) fn is_whole(&self) -> bool {
        self.layer.is_some()
    }

    /// Adds the step's parts; `false` if the kernels do not support its sizes.
    ///
    /// # Errors
    /// If MLX fails.
    pub(super) fn build(&self, m: &mut Machine, b: &mut Builder) -> Result<bool> {
        let Some(sizes) = self.sizes(m, b) else { return Ok(false) };
        let mut router = Router::default();
        if let Some(layer) = &self.layer {
            let Some(known) = layer.router.sizes(m, b.max_shared()) else { return Ok(false) };
            let (mut text, call) = layer.router.operands(m, b, &known, &[])?;
            router.outs = known.rows.iter().map(|&rows| b.inner(sizes.dtype, rows)).collect();
            text.finish(&router.outs, &call);
            layer.router.end(b, &known, text.0);
            router.stages_row = b.is_resident() && layer.router.formats().last() == Some(&self.experts.coding.format());
        }
        let values = self.build_inner(m, b, &sizes, &router)?;
        self.build_out(m, b, &sizes, &values, &router)?;
        Ok(true)
    }

    /// The kernels' type.
    fn kernel(&self, b: &Builder, sizes: &MixtureSizes) -> String {
        let MixtureSizes { dtype, experts, hidden, width, .. } = sizes;
        let ty = cuda::type_name(*dtype).unwrap_or_default();
        let Coding { bits, group } = self.experts.coding;
        let (own, joined) = (u8::from(self.own().is_some()), u8::from(self.experts.joined.is_some()));
        format!(
            "struct S{{enum{{kExperts={experts},kChosen={},kHidden={hidden},kWidth={width},kBits={bits},kGroup={group},\
             kShared={own},kJoined={joined}}};}};\
             using C=Mixture<{ty},S,kW,{}>;C::",
            self.top_k,
            b.is_resident()
        )
    }

    fn own(&self) -> Option<&Expert> {
        self.layer.as_ref().and_then(|layer| layer.own.as_ref())
    }

    fn build_inner(&self, m: &mut Machine, b: &mut Builder, sizes: &MixtureSizes, router: &Router) -> Result<Intermediates> {
        let norm_type = cuda::value_type(sizes.norm).unwrap_or_default();
        let (logits, norm, eps) = match self.layer.as_ref().and_then(|layer| layer.router.norm) {
            Some((norm, eps)) => (b.earlier(&router.outs[0]), b.slot(m, norm)?, eps),
            None => (b.slot(m, self.logits)?, format!("static_cast<const {norm_type}*>(nullptr)"), 0.0),
        };
        let x = b.slot(m, self.x)?;
        let (gate, up) = (names_of(m, b, Some(self.experts.gate))?, names_of(m, b, Some(self.experts.up))?);
        let all = self.top_k * sizes.width;
        let values = Intermediates {
            inner: b.inner(sizes.dtype, all),
            numbers: b.inner(DType::I32, self.top_k * b.copies()),
            shares: b.inner(DType::F32, self.top_k * b.copies()),
        };
        let Intermediates { inner, numbers, shares } = &values;
        let text = format!(
            "{}inner<{},{norm_type}>(shared,{logits},{x},{norm},{eps:e}f,factor,{gate},{up},{inner},{numbers},{shares},wait);",
            self.kernel(b, sizes),
            router.stages_row
        );
        b.part(text, staged_bytes(self.experts.coding.bits, sizes.hidden), all.div_ceil(b.warps()));
        Ok(values)
    }

    fn build_out(
        &self,
        m: &mut Machine,
        b: &mut Builder,
        sizes: &MixtureSizes,
        values: &Intermediates,
        router: &Router,
    ) -> Result<()> {
        let ty = cuda::type_name(sizes.dtype).unwrap_or_default();
        let none = || format!("static_cast<const {ty}*>(nullptr)");
        let [inner, numbers, shares] = [&values.inner, &values.numbers, &values.shares].map(|name| b.earlier(name));
        let own = self.own().copied();
        let (down, own_down) = (names_of(m, b, Some(self.experts.down))?, names_of(m, b, own.map(|o| o.down))?);
        let [share, gate, up] = [1, 2, 3].map(|i| router.outs.get(i).map_or_else(none, |name| b.earlier(name)));
        let residual = if self.is_whole() { b.slot(m, self.x)? } else { none() };
        let lead: &[usize] = if self.is_whole() { &[1, 1] } else { &[1] };
        let shape: Shape = lead.iter().copied().chain([sizes.hidden]).collect();
        let out = b.result(m, self.out, sizes.dtype, shape)?;
        let text = format!(
            "{}out(shared,{inner},{numbers},{shares},{down},{own_down},{gate},{up},{share},{residual},{out},wait);",
            self.kernel(b, sizes)
        );
        let columns = (self.top_k + usize::from(own.is_some())) * sizes.width;
        b.part(text, staged_bytes(self.experts.coding.bits, columns), sizes.hidden.div_ceil(b.warps()));
        Ok(())
    }

    /// The sizes, if the slots hold one row and matrices that belong together.
    fn sizes(&self, m: &Machine, b: &Builder) -> Option<MixtureSizes> {
        let slot = |t: Tid| m.env.tensors.get(t.0 as usize)?.as_ref();
        let x = slot(self.x)?;
        let (dtype, hidden) = (x.dtype, *x.shape.last()?);
        cuda::type_name(dtype)?;
        content(m, self.x, dtype, hidden)?;
        let &[experts, rows, _] = &slot(self.experts.gate[0])?.shape[..] else { return None };
        let width = self.experts.joined.unwrap_or(rows);
        let mut norm = dtype;
        match self.layer.as_ref().map(|layer| &layer.router) {
            Some(router) => {
                norm = norm_type(m, router.norm?.0, dtype, router.narrows, hidden)?;
                (router.sizes(m, b.max_shared())?.rows.first() == Some(&experts)).then_some(())?;
            }
            None => content(m, self.logits, dtype, experts).map(drop)?,
        }
        let coding = self.experts.coding;
        let holds = |[w, scales, biases]: Matrices, lead: &[usize], rows: usize, columns: usize| {
            let is = |t: Tid, dtype: DType, last: usize| {
                let shape = lead.iter().copied().chain([rows, last]);
                slot(t).is_some_and(|s| s.dtype == dtype && s.shape.iter().copied().eq(shape))
            };
            let whole = columns.is_multiple_of(coding.group);
            let groups = columns / coding.group;
            whole && is(w, DType::U32, coding.bytes(columns) / 4) && is(scales, dtype, groups) && is(biases, dtype, groups)
        };
        let all = |e: &Expert, lead: &[usize]| {
            let rows = if e.joined.is_some() { 2 * width } else { width };
            holds(e.gate, lead, rows, hidden) && holds(e.up, lead, rows, hidden) && holds(e.down, lead, hidden, width)
        };
        let matrices = all(&self.experts, &[experts]) && self.own().is_none_or(|own| all(own, &[]));
        let counts = experts.is_multiple_of(4) && experts <= 1024 && self.top_k <= 32.min(experts);
        let columns = (self.top_k + usize::from(self.own().is_some())) * width;
        let staged = staged_bytes(coding.bits, hidden).max(staged_bytes(coding.bits, columns));
        let registers = coding.bytes(hidden) <= MAX_HIDDEN_BYTES && coding.bytes(columns) <= MAX_COLUMN_BYTES;
        (matrices && counts && registers && staged <= b.max_shared()).then_some(MixtureSizes {
            dtype,
            experts,
            hidden,
            width,
            norm,
        })
    }
}

/// The names of matrices as the kernels' arguments; null pointers for an absent expert.
fn names_of(m: &Machine, b: &mut Builder, matrices: Option<Matrices>) -> Result<String> {
    let Some(matrices) = matrices else { return Ok("{nullptr,nullptr,nullptr}".to_owned()) };
    let names = matrices.iter().map(|&t| b.slot(m, t)).collect::<Result<Vec<_>>>()?;
    Ok(format!("{{{}}}", names.join(",")))
}
