//! Kernels of layers with a state.

use ruvllm_gpu::{
    ConvolutionForm, ConvolutionKernel, DeltaRuleKernel, Error, GateKernel, GateNorm, Kernel,
    SelectiveScanKernel, Span, Spans, SplitGatesKernel, StateKernel,
};

use crate::gpu;

/// Every form, with states of one and several lanes, whole and with idle ones.
pub(crate) fn kernels() -> Vec<Kernel> {
    let mut kernels = Vec::new();
    let forms = [
        ConvolutionForm::Silu { biased: false },
        ConvolutionForm::Silu { biased: true },
        ConvolutionForm::Gated,
    ];
    for form in forms {
        for (taps, one_sequence) in [(4, false), (4, true), (2, false), (8, true)] {
            let key = ConvolutionKernel { form, channels: 2048, taps, width: 6144, one_sequence };
            kernels.push(StateKernel::Convolve(key));
        }
    }
    for (key_dim, value_dim) in [(128, 128), (8, 16), (100, 36), (1024, 64)] {
        for grouped in [true, false] {
            let key = DeltaRuleKernel { key_heads: 4, value_heads: 8, key_dim, value_dim, grouped };
            kernels.push(StateKernel::DeltaRule(key));
        }
        kernels.push(StateKernel::SelectiveScan(SelectiveScanKernel {
            heads: 8,
            head_dim: value_dim,
            groups: 2,
            state_dim: key_dim,
        }));
    }
    let eps = 1e-6_f32.to_bits();
    for norm in [GateNorm::None, GateNorm::Before(eps), GateNorm::Behind(eps)] {
        for silu in [true, false] {
            let key = GateKernel { groups: 8, dim: 128, width: 3072, first: 128, step: 256, silu, norm };
            kernels.push(StateKernel::Gate(key));
        }
    }
    kernels.push(StateKernel::SplitGates(SplitGatesKernel { heads: 16, kv_heads: 2, head_dim: 256 }));
    kernels.into_iter().map(Kernel::State).collect()
}

#[test]
fn operands_of_other_sizes_are_errors() {
    let Some(gpu) = gpu() else { return };
    let bytes = |values: u64| gpu.zeroed(values * 4).unwrap();
    let key = DeltaRuleKernel { key_heads: 1, value_heads: 2, key_dim: 8, value_dim: 4, grouped: true };
    let spans = Spans::new(&gpu, 3).unwrap();
    let message = |key, state: u64| {
        let operands = (&bytes(3 * 24), &bytes(3 * 4));
        gpu.delta_rule(key, operands, &bytes(4), (&bytes(state), &spans), &bytes(3 * 8))
            .map(|_| ())
            .map_err(|error| error.to_string())
    };
    assert_eq!(message(key, 2 * 64), Ok(()));
    assert!(message(key, 65).unwrap_err().contains("bytes of the states"));
    assert!(
        message(DeltaRuleKernel { key_dim: 6, ..key }, 64).unwrap_err().contains("rows of a head's state")
    );
    let other = Spans::new(&gpu, 2).unwrap();
    let operands = (&bytes(3 * 24), &bytes(3 * 4));
    let result = gpu.delta_rule(key, operands, &bytes(4), (&bytes(64), &other), &bytes(3 * 8));
    assert!(matches!(result, Err(Error::Shape { what: "rows of the spans", .. })));
}

#[test]
fn spans_name_rows_that_are_there_and_no_slot_twice() {
    let Some(gpu) = gpu() else { return };
    let spans = Spans::new(&gpu, 3).unwrap();
    let span = Span { from: Some(7), first: 0, rows: 3 };
    let what = |list: &[Span], kept: &[(u32, u32)]| match spans.write(&gpu, list, kept) {
        Err(Error::Shape { what, .. }) => Some(what),
        other => other.map(|()| None).unwrap(),
    };
    assert_eq!(what(&[span], &[(2, 6), (0, 8)]), None);
    assert_eq!(what(&[span; 4], &[]), Some("spans"));
    assert_eq!(what(&[Span { first: 1, ..span }], &[]), Some("rows up to the end of a span"));
    assert_eq!(what(&[span], &[(3, 6)]), Some("rows up to one with a state to keep"));
    assert_eq!(what(&[span], &[(2, 7)]), Some("slot of a state to keep"));
    assert_eq!((spans.rows(), spans.of_one_sequence().rows()), (3, 3));
}
