//! Reasons and alternatives for PyTorch's operators without a rule.

/// Operators refused for one reason. A pattern is a whole name, or part of a name with `*` before
/// or after it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Refusal {
    /// Patterns of operator names, without namespace and overload.
    pub operators: &'static [&'static str],
    pub reason: &'static str,
    /// Alternative for the user.
    pub instead: &'static str,
}

/// All refusals; the first match applies.
const REFUSALS: &[Refusal] = &[
    Refusal {
        operators: &["*_backward*", "_backward", "backward", "*_jvp", "*_grad", "_grad_sum_to_size", "gradient"],
        reason: "it computes gradients",
        instead: "export the forward pass under torch.no_grad()",
    },
    Refusal {
        operators: &["_foreach_*", "_fused_adam*", "_fused_adagrad*", "_fused_sgd*", "_amp_*", "fused_moving_avg_obs_fake_quant"],
        reason: "it is a step of training",
        instead: "export the model without its optimizer",
    },
    Refusal {
        operators: &[
            "*sparse*",
            "*_csr*",
            "*_csc*",
            "*_bsr*",
            "*_bsc*",
            "coalesce",
            "_coalesce*",
            "is_coalesced",
            "ccol_indices*",
            "crow_indices*",
            "col_indices*",
            "row_indices*",
            "indices",
            "indices_copy",
            "_indices*",
            "_values*",
            "values",
            "values_copy",
            "to_dense",
            "_to_dense",
            "hspmm",
            "smm",
            "sspaddmm",
            "_spdiags",
            "_spsolve",
            "_nnz",
            "_cslt_*",
            "dense_dim",
            "_dimI",
            "_dimV",
        ],
        reason: "sparse tensors are not supported",
        instead: "call to_dense() before the export",
    },
    Refusal {
        operators: &["*nested*", "*jagged*", "_pack_padded_sequence", "_pack_sequence", "_pad_packed_sequence", "to_padded_tensor"],
        reason: "tensors of sequences of different lengths are not supported",
        instead: "pad the sequences and pass a mask",
    },
    Refusal {
        operators: &[
            "quantize_per_*",
            "quantized_*",
            "dequantize",
            "int_repr",
            "q_*",
            "qscheme",
            "*_affine_quantized",
            "_make_per_*",
            "empty_quantized",
            "_fake_quantize_*",
            "fbgemm_*",
            "_wrapped_*",
            "choose_qparams_optimized",
            "_choose_qparams_per_tensor",
            "_fused_moving_avg_obs_fq_helper*",
        ],
        reason: "it belongs to the quantized tensors of torch.ao's eager mode",
        instead: "quantize with torchao or PT2E, or with --qlinear of flambeau compile",
    },
    Refusal {
        operators: &[
            "_weight_int4pack_*",
            "_weight_int8pack_mm",
            "_convert_weight_to_int4pack*",
            "_dyn_quant_*",
            "_scaled_mm*",
            "_scaled_grouped_mm*",
            "_scaled_addmm*",
            "_grouped_mm",
            "_mixed_dtypes_linear",
        ],
        reason: "its packed operands belong to one kernel of PyTorch",
        instead: "export the model before the weights are packed, or use torchao's tensor classes",
    },
    Refusal {
        operators: &[
            "bernoulli*",
            "binomial",
            "cauchy*",
            "exponential*",
            "geometric*",
            "log_normal*",
            "multinomial",
            "normal_",
            "poisson",
            "random*",
            "_philox_*",
            "_sobol_*",
            "_standard_gamma",
            "_sample_dirichlet",
            "*dropout*",
            "_fill_mem_eff_dropout_mask_",
        ],
        reason: "its results are random",
        instead: "call eval() before the export, or draw the numbers outside and pass them in",
    },
    Refusal {
        operators: &[
            "cudnn_*",
            "_cudnn_*",
            "miopen_*",
            "mkldnn_*",
            "_mkldnn_*",
            "_mps_*",
            "*_mps",
            "_nnpack_*",
            "_triton_*",
            "_use_cudnn_*",
            "_use_miopen_*",
            "_cufft_*",
            "*_flash_attention*",
            "*_efficient_attention*",
            "_scaled_dot_product_*",
            "to_mkldnn",
            "_thnn_fused_*",
            "_batch_norm_impl_index",
            "batch_norm_*",
            "_fused_sdp_choice",
        ],
        reason: "it belongs to one backend of PyTorch",
        instead: "export on the CPU without run_decompositions()",
    },
    Refusal {
        operators: &[
            "set_",
            "set",
            "set_data",
            "resize*",
            "_resize_output*",
            "swap*",
            "storage_offset",
            "sym_storage_offset",
            "stride",
            "sym_stride",
            "record_stream",
            "from_file",
            "_copy_from*",
            "shallow_copy_data_",
        ],
        reason: "it reaches into the storage of a tensor",
        instead: "use as_strided, view or reshape",
    },
    Refusal {
        operators: &["linalg_eig", "linalg_eigvals", "_linalg_eigvals"],
        reason: "eigenvalues of general matrices are complex",
        instead: "use linalg.eigh for symmetric matrices",
    },
    Refusal {
        operators: &["ctc_loss", "_ctc_loss", "cov", "corrcoef", "histogramdd", "_histogramdd_*"],
        reason: "torch.export cannot capture it",
        instead: "compute it outside of the exported program",
    },
];

/// The refusal of an operator without a rule, if one is known. `target` is like `aten.add.Tensor`.
pub fn refusal(target: &str) -> Option<&'static Refusal> {
    let name = target.split('.').nth(1)?;
    REFUSALS.iter().find(|refusal| refusal.operators.iter().any(|pattern| matches(pattern, name)))
}

/// All refusals, in the order of the table.
pub fn refusals() -> &'static [Refusal] {
    REFUSALS
}

fn matches(pattern: &str, name: &str) -> bool {
    match (pattern.strip_prefix('*'), pattern.strip_suffix('*')) {
        (Some(rest), Some(_)) => name.contains(rest.trim_end_matches('*')),
        (Some(end), None) => name.ends_with(end),
        (None, Some(start)) => name.starts_with(start),
        (None, None) => name == pattern,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reason(target: &str) -> Option<&'static str> {
        refusal(target).map(|refusal| refusal.reason)
    }

    #[test]
    fn the_first_pattern_that_matches_counts() {
        assert_eq!(reason("aten.mkldnn_linear_backward.default"), Some("it computes gradients"));
        assert_eq!(reason("aten._to_sparse_csr.default"), Some("sparse tensors are not supported"));
        assert_eq!(reason("aten.multinomial.default"), Some("its results are random"));
        assert_eq!(reason("aten.add.Tensor"), None);
    }

    #[test]
    fn operators_with_rules_are_not_listed() {
        for row in crate::rule_rows() {
            let name = row.target.split('.').nth(1).unwrap_or_default();
            assert!(REFUSALS.iter().all(|refusal| !refusal.operators.contains(&name)), "{} has a rule", row.target);
        }
    }
}
