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
            if one_sequence {
                kernels.push(StateKernel::KeepInputs(key));
            }
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
    let spans = Spans::new(&gpu, 2).unwrap();
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
    let span = Span { from: None, to: 0, first: 0, rows: 1 };
    assert!(matches!(spans.write(&gpu, &[Some(span); 3]), Err(Error::Shape { what: "spans", .. })));
}
