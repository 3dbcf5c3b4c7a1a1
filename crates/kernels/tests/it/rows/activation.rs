//! Gated and plain activations: special values, formulas, known values.

use ruvllm_kernels::Kernels;
use ruvllm_kernels::rows::Activation;

const ALL: [Activation; 4] = [Activation::Silu, Activation::GeluErf, Activation::GeluTanh, Activation::Relu];

#[test]
fn special_values() {
    for (kernels, activation) in Kernels::available().iter().flat_map(|k| ALL.map(|a| (*k, a))) {
        let mut x =
            [0.0, f32::NEG_INFINITY, f32::INFINITY, f32::NAN, -1000.0, 1000.0, f32::MIN, f32::MAX, -0.0];
        kernels.activate(activation, &mut x);
        assert_eq!(x[..3], [0.0, 0.0, f32::INFINITY], "{activation:?}");
        assert!(x[3].is_nan());
        assert_eq!(x[4..], [0.0, 1000.0, 0.0, f32::MAX, 0.0], "{activation:?}");
    }
}

#[test]
fn clamped_swiglu_is_its_formula() {
    let gates = [-100.0, -7.5, -2.0, -0.0, 0.5, 3.0, 7.0, 9.0, 1e30, f32::NEG_INFINITY, 1.0];
    let ups = [1.0, -8.0, 0.5, 2.0, -1.0, 7.5, 6.0, 1e9, 0.25, 3.0, f32::NAN];
    for kernels in Kernels::available() {
        let mut found = gates;
        kernels.clamped_swiglu(1.702, 7.0, &mut found, &ups);
        for (i, (&gate, &up)) in gates.iter().zip(&ups).enumerate().take(10) {
            let (gate, up) = (f64::from(gate).min(7.0), f64::from(up).clamp(-7.0, 7.0));
            let sigmoid = 1.0 / (1.0 + (-1.702 * gate.max(-1e30)).exp());
            let exact = (up + 1.0) * gate.max(-1e30) * sigmoid;
            assert!((f64::from(found[i]) - exact).abs() <= 2e-6 * exact.abs() + 1e-30, "{i}: {}", found[i]);
        }
        assert!(found[10].is_nan());
    }
}

#[test]
fn sigmoid_mul_is_its_formula() {
    let gates = [-1e30, -90.0, -2.0, -0.0, 0.5, 3.0, 40.0, 1e30, f32::NEG_INFINITY, f32::INFINITY, f32::NAN];
    for kernels in Kernels::available() {
        let mut found = [3.0; 11];
        kernels.sigmoid_mul(&mut found, &gates);
        for (found, &gate) in found.iter().zip(&gates[..10]) {
            let exact = 3.0 / (1.0 + (-f64::from(gate)).exp());
            assert!((f64::from(*found) - exact).abs() <= 1e-6 * exact + 1e-36, "{gate}: {found}");
        }
        assert!(found[10].is_nan());
    }
}

#[test]
fn known_values() {
    let at = [-2.0, -0.5, 1.0, 3.0];
    let known: [[f32; 4]; 4] = [
        [-0.238_405_84, -0.188_770_33, 0.731_058_6, 2.857_722_5],
        [-0.045_500_264, -0.154_268_77, 0.841_344_8, 2.995_950_2],
        [-0.045_402_307, -0.154_286, 0.841_191_95, 2.996_362_7],
        [0.0, 0.0, 1.0, 3.0],
    ];
    for kernels in Kernels::available() {
        for (activation, known) in ALL.into_iter().zip(known) {
            let mut gate = at;
            kernels.gated(activation, &mut gate, &[2.0, 2.0, f32::NAN, 2.0]);
            assert!(gate[2].is_nan());
            for i in [0, 1, 3] {
                assert!((gate[i] - 2.0 * known[i]).abs() < 2e-6, "{activation:?}({}): {}", at[i], gate[i]);
            }
        }
    }
}
