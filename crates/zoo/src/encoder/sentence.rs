//! From the vectors of tokens to the vector of a text: modules of sentence-transformers.

use std::collections::BTreeMap;

use flambeau_tensor::DType;

use super::Parts;
use crate::{
    Error, Result,
    builder::{Builder, Int, Val},
};

/// Lower bound of a vector's length, as in `torch.nn.functional.normalize`.
const SHORTEST: f64 = 1e-12;

/// Conversion of token vectors to a text vector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sentence {
    /// Whether the folder states the modules after the model.
    pub(crate) is_stated: bool,
    /// Ways of pooling, whose results are concatenated.
    pub(crate) pooling: Vec<Pooling>,
    /// Modules after pooling, in order.
    pub(crate) steps: Vec<Step>,
    /// Largest number of tokens of a text, including special tokens, if stated.
    pub(crate) max_tokens: Option<usize>,
    pub(crate) prompts: Prompts,
    /// Pooling of the logits of all tokens, if vectors are sparse.
    pub(crate) sparse: Option<SparsePooling>,
    /// Answers of a language model for relevant and for other documents, if stated.
    pub(crate) answers: Option<[u32; 2]>,
}

/// Pooling of logits to a vector with an element for each token of the vocabulary (SPLADE).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SparsePooling {
    /// Whether elements of all tokens are added, instead of the largest one.
    pub(crate) sums: bool,
    /// Whether the logarithm is applied twice.
    pub(crate) twice: bool,
}

/// Texts that may stand before a text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Prompts {
    /// Prompts by name.
    pub(crate) texts: BTreeMap<String, String>,
    /// Name of the prompt before every text that asks for no other.
    pub(crate) default: Option<String>,
}

impl Default for Sentence {
    /// Default of sentence-transformers for a folder without this setting.
    fn default() -> Sentence {
        Sentence {
            is_stated: false,
            pooling: vec![Pooling::Mean],
            steps: Vec::new(),
            max_tokens: None,
            prompts: Prompts::default(),
            sparse: None,
            answers: None,
        }
    }
}

/// A module that takes the vector of a text to another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Scales the vector to length 1.
    Normalize,
    Dense(Dense),
}

/// A layer of the text vector, with its weights in a folder of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Dense {
    /// Name of the folder.
    pub(crate) module: String,
    pub(crate) inputs: usize,
    pub(crate) outputs: usize,
    pub(crate) bias: bool,
    pub(crate) activation: DenseActivation,
}

/// Activation of a layer of the text vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DenseActivation {
    Identity,
    Tanh,
    Sigmoid,
    Relu,
    Gelu,
    GeluTanh,
    Silu,
}

impl DenseActivation {
    /// The activation by the name of PyTorch's class.
    pub(crate) fn from_name(name: &str) -> Option<DenseActivation> {
        Some(match name {
            "Identity" => DenseActivation::Identity,
            "Tanh" => DenseActivation::Tanh,
            "Sigmoid" => DenseActivation::Sigmoid,
            "ReLU" => DenseActivation::Relu,
            "GELU" => DenseActivation::Gelu,
            "SiLU" => DenseActivation::Silu,
            _ => return None,
        })
    }

    pub(crate) fn apply(self, b: &mut Builder, x: &Val) -> Val {
        match self {
            DenseActivation::Identity => x.clone(),
            DenseActivation::Tanh => b.tanh(x),
            DenseActivation::Sigmoid => b.sigmoid(x),
            DenseActivation::Relu => b.relu(x),
            DenseActivation::Gelu => b.gelu(x, false),
            DenseActivation::GeluTanh => b.gelu(x, true),
            DenseActivation::Silu => b.silu(x),
        }
    }
}

/// Reduction of the vectors of all tokens to one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pooling {
    /// The first token's vector.
    Cls,
    /// The largest value of each element.
    Max,
    Mean,
    /// The sum, divided by the square root of the number of tokens.
    MeanSqrtLength,
    /// The mean, in which a token's weight is its number.
    WeightedMean,
    /// The last token's vector.
    Last,
}

impl Pooling {
    /// All ways in sentence-transformers' order of concatenation.
    pub(crate) const ALL: [Pooling; 6] =
        [Pooling::Cls, Pooling::Max, Pooling::Mean, Pooling::MeanSqrtLength, Pooling::WeightedMean, Pooling::Last];

    /// Name in sentence-transformers.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Pooling::Cls => "cls",
            Pooling::Max => "max",
            Pooling::Mean => "mean",
            Pooling::MeanSqrtLength => "mean_sqrt_len_tokens",
            Pooling::WeightedMean => "weightedmean",
            Pooling::Last => "lasttoken",
        }
    }

    /// Key of its flag in older configs.
    pub(crate) fn flag(self) -> &'static str {
        match self {
            Pooling::Cls => "pooling_mode_cls_token",
            Pooling::Max => "pooling_mode_max_tokens",
            Pooling::Mean => "pooling_mode_mean_tokens",
            Pooling::MeanSqrtLength => "pooling_mode_mean_sqrt_len_tokens",
            Pooling::WeightedMean => "pooling_mode_weightedmean_tokens",
            Pooling::Last => "pooling_mode_lasttoken",
        }
    }
}

impl Sentence {
    /// Size of a text vector for token vectors of `width` elements.
    pub(crate) fn width(&self, width: usize) -> usize {
        self.layers().last().map_or(width * self.pooling.len(), |dense| dense.outputs)
    }

    /// Layers of the text vector, in order.
    pub(crate) fn layers(&self) -> impl Iterator<Item = &Dense> {
        self.steps.iter().filter_map(|step| if let Step::Dense(dense) = step { Some(dense) } else { None })
    }

    /// Whether vectors have length 1.
    pub(crate) fn normalizes(&self) -> bool {
        self.steps.last() == Some(&Step::Normalize)
    }

    /// Names of the ways of pooling, with plus signs between them.
    pub(crate) fn pooling_name(&self) -> String {
        self.pooling.iter().map(|pooling| pooling.name()).collect::<Vec<_>>().join("+")
    }
}

impl Parts<'_> {
    /// The vectors [b, width] of texts, in f32, from `x` [b, s, width].
    pub(super) fn text_vector(&mut self, x: &Val, is_text: &Val) -> Result<Val> {
        let sentence = &self.c.sentence;
        self.w.b.enter("pooling");
        let x = self.w.b.cast(x, DType::F32);
        let pooled: Vec<Val> = sentence.pooling.iter().map(|&pooling| self.pooled(&x, is_text, pooling)).collect();
        let mut vector = match &pooled[..] {
            [] => self.pooled(&x, is_text, Pooling::Mean),
            [one] => one.clone(),
            [first, others @ ..] => self.w.b.concatenate_all(first, &others.iter().collect::<Vec<_>>(), 1),
        };
        for step in &sentence.steps {
            vector = match step {
                Step::Normalize => self.normalized(&vector),
                Step::Dense(dense) => self.dense(&vector, dense)?,
            };
        }
        Ok(vector)
    }

    /// Pools the vectors [b, s, width] of text tokens, as marked by `is_text` [b, s], to one vector
    /// [b, width].
    pub(super) fn pooled(&mut self, x: &Val, is_text: &Val, pooling: Pooling) -> Val {
        let tokens = self.sizes[1].clone();
        let b = &mut self.w.b;
        match pooling {
            Pooling::Cls => b.select(x, 1, 0),
            Pooling::Max => {
                let is_padding = b.not(is_text);
                let is_padding = b.unsqueeze(&is_padding, 2);
                let x = b.masked_fill(x, &is_padding, f64::NEG_INFINITY);
                b.largest_over(&x, 1)
            }
            Pooling::Mean | Pooling::MeanSqrtLength => {
                let weight = b.cast(is_text, DType::F32);
                let count = b.sum(&weight);
                let sum = weighted_sum(b, x, &weight);
                let count = if pooling == Pooling::Mean { count } else { b.sqrt(&count) };
                b.div(&sum, &count)
            }
            Pooling::WeightedMean => {
                let weight = b.cast(is_text, DType::F32);
                let numbers = numbers(b, &tokens);
                let weight = b.mul(&weight, &numbers);
                let total = b.sum(&weight);
                let sum = weighted_sum(b, x, &weight);
                b.div(&sum, &total)
            }
            Pooling::Last => {
                // Padding follows the text, so the number of tokens gives the place of the last.
                let weight = b.cast(is_text, DType::F32);
                let count = b.sum(&weight);
                let numbers = numbers(b, &tokens);
                let distance = b.sub(&count, &numbers);
                let is_last = b.equals(&distance, 0);
                let is_last = b.cast(&is_last, DType::F32);
                weighted_sum(b, x, &is_last)
            }
        }
    }

    /// A layer of the text vector `x` [b, inputs], in f32.
    fn dense(&mut self, x: &Val, dense: &Dense) -> Result<Val> {
        if x.dim(1) != dense.inputs {
            let expected = format!("{} input features, the size of the vector before it", x.dim(1));
            return Err(Error::tensor(&dense.module, expected, dense.inputs.to_string()));
        }
        let path = format!("{}.linear", dense.module);
        self.w.b.enter(&path);
        let weight = self.w.wide(&format!("{path}.weight"), &[dense.outputs, dense.inputs])?;
        let bias = if dense.bias { Some(self.w.wide(&format!("{path}.bias"), &[dense.outputs])?) } else { None };
        let y = self.w.b.linear(x, &weight, bias.as_ref());
        Ok(dense.activation.apply(&mut self.w.b, &y))
    }

    /// `x` [b, width] with rows scaled to length 1.
    fn normalized(&mut self, x: &Val) -> Val {
        let b = &mut self.w.b;
        let squares = b.mul(x, x);
        let sum = b.sum(&squares);
        let length = b.sqrt(&sum);
        let length = b.clamp(&length, SHORTEST, f64::INFINITY);
        b.div(x, &length)
    }
}

/// The numbers of `tokens` tokens from 1 on, f32 [s].
fn numbers(b: &mut Builder, tokens: &Int) -> Val {
    let places = b.places(&0.into(), tokens);
    b.shift(&places, 1.0)
}

/// The sum of the vectors of `x` [b, s, width] with weights [b, s], [b, width].
fn weighted_sum(b: &mut Builder, x: &Val, weight: &Val) -> Val {
    let weight = b.unsqueeze(weight, 2);
    let x = b.mul(x, &weight);
    b.sum_over(&x, 1)
}
